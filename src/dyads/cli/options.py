"""Options of `dyads fit`, generated from the parameters of the estimators and the fields of their settings objects.

Name, type, default and help text come from the signature and the docstring of the class. The option
``--solver-max-iter`` sets the parameter ``solver__max_iter``.
"""

import inspect
import re
import types
import typing
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand

WITHOUT_OPTION = (
    "id_columns",
    "features",
    "features__row",
    "features__col",
    "l2__latent",
    "verbose",
    "warm_start",
)
"""Parameters without a generated option: other options set them, or a single fit with a progress bar needs none."""

GIVEN = "dyads.settings"
"""Key under which a click context stores the options that were given."""


class _Parameter(NamedTuple):
    """A parameter that becomes an option: name, type, default (None if settings objects differ in it), help text."""

    name: str
    kind: Any
    default: Any
    text: str


class SettingsCommand(TyperCommand):
    """A command that also takes the parameters of estimators as options, generated only when it is called."""

    def get_params(self, ctx: Any) -> list[Any]:
        own = super().get_params(ctx)
        return [*own[:-1], *_options(), *own[-1:]]


def given_settings(context: typer.Context) -> dict[str, Any]:
    """Parameters given as options, by their names in `set_params`."""
    return dict(context.meta.get(GIVEN, {}))


def _keep(context: Any, parameter: Any, value: Any) -> Any:
    if value is not None:
        context.meta.setdefault(GIVEN, {})[parameter.name] = value
    return value


@cache
def _options() -> list[Any]:
    def settings() -> None:
        """Carry the signature from which typer makes the options."""

    parameters = []
    for name, kind, default, text in _parameters():
        shown = text if default is None else f"{text}  [default: {default}]"
        flag = name.replace("__", "-").replace("_", "-")
        flags = f"--{flag}/--no-{flag}" if kind is bool else f"--{flag}"
        option = typer.Option(flags, help=shown, show_default=False)
        annotation = Annotated[kind | None, option]  # type: ignore[valid-type]
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation))
    settings.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    app = typer.Typer(add_completion=False)
    app.command()(settings)
    options = [option for option in typer.main.get_command(app).params if option.name != "help"]
    for option in options:
        option.expose_value, option.callback = False, _keep
    return options


def _parameters() -> Iterator[_Parameter]:
    """Yield the parameters of estimators, each followed by the fields of the settings objects it accepts."""
    from dyads.estimators.kinds import LFLClassifier
    from dyads.estimators.settings import PARTS, SETTINGS

    for parameter in _of(LFLClassifier, ""):
        if parameter.name not in WITHOUT_OPTION:
            yield parameter
        if parameter.name not in PARTS:
            continue
        fields: dict[str, _Parameter] = {}
        for kind in SETTINGS[parameter.name]:
            for field in _of(kind, f"{parameter.name}__"):
                before = fields.get(field.name)
                text = f"{kind.__name__}: {field.text}" if len(SETTINGS[parameter.name]) > 1 else field.text
                same = before is None or before.default == field.default
                joined = text if before is None else f"{before.text} {text}"
                fields[field.name] = field._replace(text=joined, default=field.default if same else None)
        yield from (field for name, field in fields.items() if name not in WITHOUT_OPTION)


def _of(kind: Any, prefix: str) -> Iterator[_Parameter]:
    """Yield the parameters of a class, each with the first sentence of its docstring entry."""
    texts = help_texts(inspect.getdoc(kind) or "")
    hints = typing.get_type_hints(kind.__init__)
    for name, parameter in inspect.signature(kind).parameters.items():
        yield _Parameter(f"{prefix}{name}", _plain_type(hints[name]), parameter.default, texts[name])


def help_texts(docstring: str) -> dict[str, str]:
    """First sentence on each parameter of a numpydoc docstring, with the accepted names in parentheses."""
    section = re.search(r"^Parameters\n-+\n(.*?)(?=^\w+\n-+\n|\Z)", docstring, re.DOTALL | re.MULTILINE)
    texts: dict[str, str] = {}
    for entry in re.split(r"\n(?=\S)", section.group(1).strip() if section else ""):
        head, _, body = entry.partition("\n")
        name, _, kind = head.partition(" : ")
        sentence = re.split(r"(?<=\.)\s", " ".join(body.split()), maxsplit=1)[0].replace("`", "")
        names = re.findall(r'"(\w+)"', kind.partition(", default")[0])
        texts[name] = f"{sentence} ({', '.join(names)})" if names else sentence
    return texts


def _plain_type(hint: Any) -> Any:
    """Type of an option: the first of bool, int, float and str that a type hint allows, else str."""
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) or typing.get_origin(hint) else (hint,)
    return next((kind for kind in (bool, int, float, str) if kind in kinds), str)

"""Options of `dyads fit`, made from the parameters of the estimators and the fields of their settings objects.

A name, a type, a default and a help text are written once, in the signature and the docstring of the class. The option
``--solver-max-iter`` is the parameter ``solver__max_iter``.
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

TOLD_OTHERWISE = (
    "id_columns",
    "features",
    "features__row",
    "features__col",
    "l2__latent",
    "verbose",
    "warm_start",
)
"""Parameters that other options of the command set, or that it has no use for: it draws a bar, and fits once."""

GIVEN = "dyads.settings"
"""Where a context keeps the options that were given."""


class _Parameter(NamedTuple):
    """A parameter that becomes an option: its name, type, default (None if there is no single one) and help."""

    name: str
    kind: Any
    default: Any
    text: str


class SettingsCommand(TyperCommand):
    """A command that also takes the parameters of estimators; they are made when it is called for, not before."""

    def get_params(self, ctx: Any) -> list[Any]:
        own = super().get_params(ctx)
        return [*own[:-1], *_options(), *own[-1:]]


def given_settings(context: typer.Context) -> dict[str, Any]:
    """The parameters that were given as options, by their names in `set_params`."""
    return dict(context.meta.get(GIVEN, {}))


def _keep(context: Any, parameter: Any, value: Any) -> Any:
    if value is not None:
        context.meta.setdefault(GIVEN, {})[parameter.name] = value
    return value


@cache
def _options() -> list[Any]:
    def settings() -> None:
        """Stands for its signature alone."""

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
    """The parameters of estimators, each followed by the fields of the settings objects it may be."""
    from dyads.estimators.kinds import LFLClassifier
    from dyads.estimators.settings import PARTS, SETTINGS

    for parameter in _of(LFLClassifier, ""):
        if parameter.name not in TOLD_OTHERWISE:
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
        yield from (field for name, field in fields.items() if name not in TOLD_OTHERWISE)


def _of(kind: Any, prefix: str) -> Iterator[_Parameter]:
    """The parameters of a class, with the first sentence that its docstring says of each."""
    texts = help_texts(inspect.getdoc(kind) or "")
    hints = typing.get_type_hints(kind.__init__)
    for name, parameter in inspect.signature(kind).parameters.items():
        yield _Parameter(f"{prefix}{name}", _plain_type(hints[name]), parameter.default, texts[name])


def help_texts(docstring: str) -> dict[str, str]:
    """The first sentence on each parameter of a numpydoc docstring, with the names it takes."""
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
    """What a command line can give of a type: the first of its plain kinds, or text."""
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) or typing.get_origin(hint) else (hint,)
    return next((kind for kind in (bool, int, float, str) if kind in kinds), str)

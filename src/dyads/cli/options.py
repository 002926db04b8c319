"""Options generated from settings: of `dyads fit` from parameters of the estimators, of all commands from `Dialect`.

Name, type, default and help text come from the signature and the docstring of the class. The option
``--solver-max-iter`` sets the parameter ``solver__max_iter``.
"""

import inspect
import re
import types
import typing
from collections.abc import Iterator
from contextvars import ContextVar
from functools import cache
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand

from dyads.cli.console import Usage
from dyads.data.files import Dialect
from dyads.errors import InputError
from dyads.settings import Setting

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

LATENT = "l2__latent"
"""The strength that ``--l2`` gives."""

SETTINGS, DIALECT = "dyads.settings", "dyads.dialect"
"""Keys under which a click context stores the options that were given."""

_dialect: ContextVar[dict[str, Any]] = ContextVar("dialect", default={})  # noqa: B039  # It is only read.


class _Parameter(NamedTuple):
    """A parameter that becomes an option: name, type, default (None if settings objects differ in it), help text."""

    name: str
    kind: Any
    default: Any
    text: str


class TableCommand(TyperCommand):
    """A command that reads tables. It also takes the fields of a `Dialect` as options, which apply to all of them."""

    def get_params(self, ctx: Any) -> list[Any]:
        own = super().get_params(ctx)
        return [*own[:-1], *_options(DIALECT), *own[-1:]]

    def invoke(self, ctx: Any) -> Any:
        token = _dialect.set(ctx.meta.get(DIALECT, {}))
        try:
            return super().invoke(ctx)
        finally:
            _dialect.reset(token)


class SettingsCommand(TableCommand):
    """A command that also takes the parameters of estimators as options, generated only when it is called."""

    def get_params(self, ctx: Any) -> list[Any]:
        own = super().get_params(ctx)
        return [*own[:-1], *_options(SETTINGS), *own[-1:]]


def given_settings(context: typer.Context) -> dict[str, Any]:
    """Parameters given as options, by their names in `set_params`."""
    return dict(context.meta.get(SETTINGS, {}))


def given_dialect() -> Dialect:
    """The dialect given as options of the command that runs."""
    try:
        return Dialect().replaced(_dialect.get())
    except InputError as error:
        raise Usage(str(error).replace("Dialect got ", "Got --")) from error


def use_dialect(dialect: Dialect) -> None:
    """Take a dialect for that of the command, in a process of which it runs tasks."""
    _dialect.set(dialect.get_params(deep=False))


@cache
def _options(group: str) -> list[Any]:
    def settings() -> None:
        """Carry the signature from which typer makes the options."""

    def keep(context: Any, parameter: Any, value: Any) -> Any:
        if value is not None:
            context.meta.setdefault(group, {})[parameter.name] = value
        return value

    parameters = []
    for name, kind, default, text in _parameters() if group == SETTINGS else _of(Dialect, ""):
        shown = text if default is None else f"{text}  [default: {default}]"
        option = typer.Option(_flags(name, kind), help=shown, show_default=False)
        annotation = Annotated[kind | None, option]  # type: ignore[valid-type]
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation))
    settings.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    app = typer.Typer(add_completion=False)
    app.command()(settings)
    options = [option for option in typer.main.get_command(app).params if option.name != "help"]
    for option in options:
        option.expose_value, option.callback = False, keep
    return options


def _flags(name: str, kind: Any = None) -> str:
    """The option of a parameter; with ``--no-`` beside it if `kind` is bool."""
    flag = name.replace("__", "-").replace("_", "-")
    return f"--{flag}/--no-{flag}" if kind is bool else f"--{flag}"


def arguments_of(settings: Setting | Any, prefix: str = "") -> list[str]:
    """Options that would give an estimator, or a dialect, the parameters in which it differs from the defaults.

    A settings object is given by its name, for a solver, and by its fields. Fields that cannot be given are left out.
    """
    from dyads.estimators.settings import PARTS

    arguments: list[str] = []
    defaults = type(settings)().get_params(deep=False)
    for name, value in settings.get_params(deep=False).items():
        full = f"{prefix}{name}"
        if full in WITHOUT_OPTION and full not in (*PARTS, LATENT):
            continue
        if isinstance(value, Setting):
            if full == "solver":
                arguments += ["--solver", type(value).__name__.lower()]
            arguments += arguments_of(value, f"{full}__")
        elif isinstance(value, bool):
            arguments += [] if value == defaults[name] else [_flags(full, bool).split("/")[not value]]
        elif isinstance(value, str | int | float) and value != defaults[name]:
            arguments += ["--l2" if full == LATENT else _flags(full), f"{value}"]
        elif value is None and full == "reference":
            arguments += ["--reference", "none"]
    return arguments


def _parameters() -> Iterator[_Parameter]:
    """Yield the parameters of estimators, each followed by the fields of the settings objects it accepts."""
    from dyads.estimators.kinds import LFLClassifier
    from dyads.estimators.settings import PARTS
    from dyads.estimators.settings import SETTINGS as KINDS

    for parameter in _of(LFLClassifier, ""):
        if parameter.name not in WITHOUT_OPTION:
            yield parameter
        if parameter.name not in PARTS:
            continue
        fields: dict[str, _Parameter] = {}
        for kind in KINDS[parameter.name]:
            for field in _of(kind, f"{parameter.name}__"):
                before = fields.get(field.name)
                text = f"{kind.__name__}: {field.text}" if len(KINDS[parameter.name]) > 1 else field.text
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

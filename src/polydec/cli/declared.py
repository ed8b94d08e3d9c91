"""Flags made of fields that are declared elsewhere: name, type, range, default and help are the field's own."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from polydec.base.options import Option

SAME: Any = object()
"""The default is the field's own."""


@dataclass(frozen=True)
class CommandFlag:
    """option: the field that it gives, None where it is the command's own; group: what it belongs to (`RequestFlags.names`);
    panel: the heading of help; spelt: "--with", "" for the name; type: as the command line reads it; help: in full."""

    option: Option
    group: str
    panel: str
    spelt: tuple[str, ...]
    type: Any
    help: str


def flag_field(
    option: Option,
    panel: str | None = None,
    *,
    group: str = "",
    spelt: str | tuple[str, ...] = (),
    type: Any = None,
    default: Any = SAME,
    more: str = "",
) -> Any:
    """A field of a dataclass of flags. spelt, type, default: where they are not the field's own; more: what help says beside
    the field's own."""
    repeated = option.kind in (tuple, Mapping)
    if default is SAME:
        if repeated or option.kind is object:
            default = None
        else:
            default = option.default
    if isinstance(spelt, str):
        names = (spelt,)
    else:
        names = spelt
    if option.range:
        help_text = f"{option.help} ({option.range})"
    else:
        help_text = option.help
    help_text += f"; {more}" if more else ""
    made = CommandFlag(
        option,
        group,
        panel or "Options",
        names,
        type or _typed(option),
        help_text + (" (repeatable)" if repeated and type is None else ""),
    )
    return dataclasses.field(default=default, metadata={"flag": made})


def _typed(option: Option) -> Any:
    """A field's type as the command line reads it: what holds several values may be given several times."""
    if option.form == tuple[int, ...]:
        return list[int] | None
    if option.kind in (tuple, Mapping):
        return list[str] | None
    return option.type


def flags_of(kind: type, group: str | None = None) -> dict[str, CommandFlag]:
    """The declared flags of a dataclass, by the names of its fields; group: only these."""
    every = {f.name: f.metadata["flag"] for f in dataclasses.fields(kind) if "flag" in f.metadata}
    return {name: flag for name, flag in every.items() if group in (None, flag.group)}


def check_flag_ranges(flags: Any) -> None:
    """Raise RequestError for a flag out of its range. What a name means is looked up later."""
    for name, declared in flags_of(type(flags)).items():
        value = getattr(flags, name)
        option = declared.option
        if value not in (None, []) and (option.limits or option.kind in (int, float)):
            option.convert(value)


def expand_flag_parameters(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of a command that is a dataclass of flags by the flags themselves."""
    parameters = inspect.signature(command, eval_str=True).parameters.values()
    kinds: dict[str, Any] = {
        p.name: p.annotation for p in parameters if dataclasses.is_dataclass(p.annotation)
    }
    own = [
        p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters if p.name not in kinds
    ]
    flags = [parameter for kind in kinds.values() for parameter in _parameters(kind)]

    def wrapped(**values: Any) -> None:
        for name, kind in kinds.items():
            values[name] = kind(**{f.name: values.pop(f.name) for f in dataclasses.fields(kind)})
        command(**values)

    wrapped.__name__ = command.__name__
    wrapped.__doc__ = command.__doc__
    wrapped.__signature__ = inspect.Signature([*own, *flags])  # pyright: ignore[reportFunctionMemberAccess]
    wrapped.__annotations__ = {p.name: p.annotation for p in [*own, *flags]}
    return wrapped


def _parameters(kind: Any) -> Iterable[inspect.Parameter]:
    """The fields of a dataclass of flags as typer reads them."""
    hints = inspect.get_annotations(kind, eval_str=True)
    for f in dataclasses.fields(kind):
        hint = _annotated(f, hints)
        yield inspect.Parameter(
            f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=hint
        )


def _annotated(field: dataclasses.Field[Any], hints: Mapping[str, Any]) -> Any:
    """What typer is told of a field."""
    if "flag" not in field.metadata:
        return hints[field.name]
    return typer_annotation(field.metadata["flag"], field.name)


def typer_annotation(declared: CommandFlag, name: str) -> Any:
    """A flag's type with what typer is told of it."""
    spelt: Iterable[str] = declared.spelt
    if not spelt and declared.type is bool:  # without a --no-…
        spelt = (f"--{name.rstrip('_').replace('_', '-')}",)
    if declared.panel == "Options":
        panel = None
    else:
        panel = declared.panel
    return Annotated[declared.type, typer.Option(*spelt, help=declared.help, rich_help_panel=panel)]

"""Flags made of fields that are declared elsewhere: name, type, range, default and help are the
field's own."""

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
    """A flag of a command.

    Attributes:
        option: The field of a request that it sets.
        group: The group of flags that it belongs to (see `flags_of`).
        panel: The heading of help that it stands under.
        spelt: How it is written, such as "--with"; empty: by the field's name.
        type: Its type as the command line reads it.
        help: Its help in full.
        names: Names the values that a shell completes; None: there is no list of them.
    """

    option: Option
    group: str
    panel: str
    spelt: tuple[str, ...]
    type: Any
    help: str
    names: Callable[[], Iterable[str]] | None = None


def flag_field(
    option: Option,
    panel: str | None = None,
    *,
    group: str = "",
    spelt: str | tuple[str, ...] = (),
    type: Any = None,
    default: Any = SAME,
    more: str = "",
    names: Callable[[], Iterable[str]] | None = None,
) -> Any:
    """Make a field of a dataclass of flags.

    Args:
        option: The declared field of a request, with its type, range, default and help.
        panel: The heading of help; None: "Options".
        group: The group of flags that it belongs to. Default "".
        spelt: How the flag is written, where that is not by its name.
        type: Its type on the command line; None: the field's own.
        default: Its default; SAME: the field's own.
        more: What help says after the field's own text.
        names: Names the values that a shell completes; None: there is no list of them.

    Returns:
        A dataclass field that carries the flag.
    """
    # A flag that may be given several times has None for "never given".
    repeated = option.kind in (tuple, Mapping)
    if default is SAME:
        if repeated or option.kind is object:
            default = None
        else:
            default = option.default
    if isinstance(spelt, str):
        spelt = (spelt,)
    if option.range:
        help_text = f"{option.help} ({option.range})"
    else:
        help_text = option.help
    help_text += f"; {more}" if more else ""
    made = CommandFlag(
        option,
        group,
        panel or "Options",
        spelt,
        type or _typed(option),
        help_text + (" (repeatable)" if repeated and type is None else ""),
        names,
    )
    return dataclasses.field(default=default, metadata={"flag": made})


def _typed(option: Option) -> Any:
    """A field's type as the command line reads it: what holds several values may be given several
    times."""
    # Typer reads lists, not tuples.
    if option.form == tuple[int, ...]:
        return list[int] | None
    if option.kind in (tuple, Mapping):
        return list[str] | None
    return option.type


def flags_of(kind: type, group: str | None = None) -> dict[str, CommandFlag]:
    """The declared flags of a dataclass.

    Args:
        kind: The dataclass.
        group: Only flags of this group; None: all.

    Returns:
        Flags by the names of their fields.
    """
    every = {f.name: f.metadata["flag"] for f in dataclasses.fields(kind) if "flag" in f.metadata}
    return {name: flag for name, flag in every.items() if group in (None, flag.group)}


def check_flag_ranges(flags: Any) -> None:
    """Check that flags lie in their ranges; what a name means is looked up later.

    Raises:
        RequestError: A flag is out of its range.
    """
    for name, declared in flags_of(type(flags)).items():
        value = getattr(flags, name)
        option = declared.option
        if value not in (None, []) and (option.limits or option.kind in (int, float)):
            option.convert_value(value)


def expand_flag_parameters(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of a command that is a dataclass of flags by the flags themselves."""
    parameters = inspect.signature(command, eval_str=True).parameters.values()
    kinds: dict[str, Any] = {
        p.name: p.annotation for p in parameters if dataclasses.is_dataclass(p.annotation)
    }
    # Flags have defaults and may come before arguments without one: only keywords allow that.
    own = [
        p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters if p.name not in kinds
    ]
    flags = [parameter for kind in kinds.values() for parameter in _parameters(kind)]

    def wrapped(**values: Any) -> None:
        # The flags arrive one by one; each dataclass is put together again.
        for name, kind in kinds.items():
            values[name] = kind(**{f.name: values.pop(f.name) for f in dataclasses.fields(kind)})
        command(**values)

    # Typer reads name, help and parameters from the function's own attributes.
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
    """What typer needs to know of a flag.

    Args:
        declared: The flag.
        name: The name of its field.

    Returns:
        Its annotated type.
    """
    spelt: Iterable[str] = declared.spelt
    # Typer adds a --no-… twin unless the spelling of a switch is given.
    if not spelt and declared.type is bool:
        spelt = (f"--{name.rstrip('_').replace('_', '-')}",)
    if declared.panel == "Options":
        panel = None
    else:
        panel = declared.panel
    if declared.names is None:
        completion = None
    else:
        completion = _completion(declared.names)
    option = typer.Option(
        *spelt, help=declared.help, rich_help_panel=panel, autocompletion=completion
    )
    return Annotated[declared.type, option]


def _completion(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """What completes a value that a shell has a beginning of."""

    # Typer finds out by the parameter's name what is to be given.
    def complete_value(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete_value

"""What `/set` changes in a chat: rules of sampling, fields of a request, and options of the method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from polydec.base.errors import RequestError
from polydec.base.options import Option, as_text, near_names_question, short_repr
from polydec.cli.declared_flags import flags_of
from polydec.cli.flags import SAMPLING, RequestFlags
from polydec.methods.registry import registry
from polydec.request.fields import OWN

FIRST = ("max_tokens", "seed", *OWN)
"""The fields that a list begins with, whatever their values are."""

NOT_HERE = frozenset(("n", "infill"))
"""Fields of a request that mean nothing in a chat."""

DEFAULT = "default"
"""The value that takes a setting back."""


def request_options() -> dict[str, Option]:
    """The fields of a request that a chat can set, by name."""
    return {
        flag.option.name: flag.option
        for flag in flags_of(RequestFlags, "request").values()
        if flag.panel == SAMPLING and flag.option.name not in NOT_HERE
    }


def sampling_options() -> Mapping[str, Option]:
    """The fields of all rules of sampling, by name."""
    # Rules of other packages are among them, so this loads what computes.
    from polydec.laws.shapers.sampling import all_sampling_fields

    return all_sampling_fields()


def field_options() -> dict[str, Option]:
    """What can be set whatever the method is, by name, the usual fields first."""
    every = {**request_options(), **sampling_options()}
    # A name keeps its first place, so the usual ones stand in front.
    return {name: every[name] for name in dict.fromkeys((*FIRST, *every))}


def method_option_fields(method: str) -> dict[str, Option]:
    """The options of a method, by name."""
    return {option.name: option for option in registry.method_options(method)}


def find_option(name: str, method: str) -> Option:
    """The option that a name means in a chat.

    Args:
        name: As it is typed; dashes stand for underscores.
        method: The method of the chat.

    Returns:
        A field, or an option of the method.

    Raises:
        RequestError: There is none of that name.
    """
    # Where an option of the method has the name of a field, the field is meant.
    known = {**method_option_fields(method), **field_options()}
    # As flags are written on the command line.
    spelt = name.replace("-", "_")
    if spelt in known:
        return known[spelt]
    hint = near_names_question(spelt, known, "/set alone lists all", 2)
    raise RequestError(f"nothing is called {short_repr(name)} here: {hint}")


def starting_values(request: Mapping[str, Any]) -> dict[str, str]:
    """The values of all fields as a chat begins, as text.

    Args:
        request: The fields of its requests, with the rules of sampling as `sampling`.

    Returns:
        Values by name.
    """
    own = {name: as_text(request.get(name, o.default)) for name, o in request_options().items()}
    rules = {name: as_text(getattr(request["sampling"], name)) for name in sampling_options()}
    return own | rules


def changed_values(settings: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of a chat as a request takes them.

    Args:
        settings: Values by name, as text.

    Returns:
        Fields of the request, and fields of sampling, by name.

    Raises:
        RequestError: A value is not legal.
    """
    own = request_options()
    rules = sampling_options()
    return (
        {name: own[name].convert_value(text) for name, text in settings.items() if name in own},
        {name: rules[name].convert_value(text) for name, text in settings.items() if name in rules},
    )


def settings_list(
    method: str, options: Mapping[str, str], begun: Mapping[str, str], settings: Mapping[str, str]
) -> str:
    """A line for each field that is usual or not at rest and for each option of the method, and the
    names of all others.

    Args:
        method: The method of the chat.
        options: Its options.
        begun: Values of all fields as the chat began.
        settings: Values that were set since.

    Returns:
        The lines.
    """
    fields = field_options()
    rest = {name: as_text(option.default) for name, option in fields.items()}
    # What was set goes before what the flags said, and that before the defaults.
    now = {**rest, **begun, **settings}
    shown = [name for name in fields if name in (*FIRST, *settings) or now[name] != rest[name]]
    lines = [(f"{name} {now[name]}", fields[name].help) for name in shown]
    lines += [
        (f"{name} {options.get(name, as_text(option.default))}", f"{method}: {option.help}")
        for name, option in method_option_fields(method).items()
    ]
    widest = max(len(value) for value, _ in lines)
    others = ", ".join(name for name in fields if name not in shown)
    return "\n".join(
        (*(f"{value:<{widest}}  {told}" for value, told in lines), f"and at rest: {others}")
    )

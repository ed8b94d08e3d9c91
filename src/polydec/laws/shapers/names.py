"""The fields of sampling, checked without what computes: a wrong name or value is told before a model is loaded."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

from polydec.base import plugins
from polydec.base.errors import RequestError
from polydec.base.options import Option, callable_options, name_suggestion, short_repr
from polydec.laws.shapers.declared import SamplingFields


@cache
def own_sampling_fields() -> Mapping[str, Option]:
    """The fields that Polydec's own rules have, by name."""
    return {option.name: option for option in callable_options(SamplingFields)}


def check_fields(values: Mapping[str, Any]) -> None:
    """Raise RequestError for a field that no rule has, or a value out of its range. Fields of
    other packages' rules are left to `Sampling`, which loads those.
    """
    known = own_sampling_fields()
    for name, value in values.items():
        if name in known:
            known[name].convert_value(value)
        # Another package may bring such a field; where none brings rules, the name is wrong.
        elif not plugins.has_plugins("shapers"):
            raise unknown_field_error(name, known)


def unknown_field_error(name: str, known: Collection[str]) -> RequestError:
    """Make the error for a field that no rule has.

    Args:
        name: The unknown name.
        known: Names of all fields, for a suggestion.

    Returns:
        The error; the caller raises it.
    """
    return RequestError(
        f"sampling has no field {short_repr(name)}: {name_suggestion(name, known, 'its fields')}"
    )

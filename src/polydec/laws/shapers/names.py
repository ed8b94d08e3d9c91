"""The fields of sampling, checked without what computes: a wrong name or value is told before a model is loaded."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

from polydec.base import plugins
from polydec.base.errors import RequestError
from polydec.base.options import Option, meant, read, shown
from polydec.laws.shapers.declared import Declared


@cache
def declared() -> Mapping[str, Option]:
    """The fields that Polydec's own rules have, by name."""
    return {option.name: option for option in read(Declared)}


def check_fields(values: Mapping[str, Any]) -> None:
    """Raise RequestError for a field that no rule has, or a value out of its range. Fields of other packages' rules are left to
    `Sampling`, which loads those."""
    known = declared()
    for name, value in values.items():
        if name in known:
            known[name].convert(value)
        elif not plugins.brings("shapers"):
            raise unknown(name, known)


def unknown(name: str, known: Collection[str]) -> RequestError:
    """What is said of a field that there is not."""
    return RequestError(f"sampling has no field {shown(name)}: {meant(name, known, 'its fields')}")

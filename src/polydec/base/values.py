"""Values of which every pass makes some: dataclasses that are quick to make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def fast_dataclass(*, eq: bool = True, slots: bool = False) -> Callable[[type[T]], type[T]]:
    """Make a frozen dataclass of which the type checker alone sees to it that nobody changes a
    field.

    A dataclass that refuses changes itself has to go round its own refusal for each field when it
    is made, which takes several times as long.

    Args:
        eq: Whether values are compared and hashed by their fields. Default True.
        slots: Whether the class has slots. Default False.

    Returns:
        The class decorator.
    """
    # unsafe_hash: equal values need equal hashes, though the dataclass is not frozen for Python.
    return dataclass(eq=eq, unsafe_hash=eq, slots=slots)

"""Tensors that are kept by name, those that were asked for last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TypeVar

from torch import Tensor

Name = TypeVar("Name", bound=Hashable)


def recent_tensor(
    kept: OrderedDict[Name, Tensor],
    name: Name,
    make: Callable[[], Tensor],
    most: int,
    most_numbers: int | None = None,
) -> Tensor:
    """Find a tensor by its name, or make and keep it.

    Args:
        kept: The tensors that there are, the one asked for last at the end; it is changed.
        name: Says all that the tensor depends on.
        make: Makes it.
        most: Tensors that are kept at most.
        most_numbers: Numbers that they hold together at most. Default None: as many as there are.

    Returns:
        The tensor.
    """
    made = kept.get(name)
    if made is not None:
        kept.move_to_end(name)
        return made
    made = kept[name] = make()
    # What was not used for longest goes first.
    while len(kept) > most or (
        most_numbers is not None and sum(one.numel() for one in kept.values()) > most_numbers
    ):
        kept.popitem(last=False)
    return made

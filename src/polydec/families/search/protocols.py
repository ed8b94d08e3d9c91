"""What searches over whole texts are put together from."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from polydec.families.search.types import Tried


class Reward(Protocol):
    """How promising a text is so far."""
    def chance(self, hidden_H: Tensor) -> float:
        """0 to 1, from the state behind its last token, as the model's last layer leaves it."""
        ...


class Pick(Protocol):
    """Which of several texts is the answer. Pure; the order of the texts is that in which they were begun."""
    def pick(self, tries: Sequence[Tried]) -> int:
        """The index of one, of at least one."""
        ...


class Continuations(Protocol):
    """What was counted to follow some tokens."""
    def after(self, tokens: Sequence[int]) -> Sequence[tuple[float, int]]:
        """(chance, token) of what follows these; none where nothing is known."""
        ...

"""What searches over whole texts are put together from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from polydec.core.rng import Rng
from polydec.methods.search.loop.types import CandidateText, WrittenStep


class ProcessReward(Protocol):
    """How promising a text is so far."""

    def chance(self, hidden_H: Tensor) -> float:
        """0 to 1, from the state behind its last token, as the model's last layer leaves it."""
        ...


class ArbiterCase(Protocol):
    """A step that a draft model wrote, as an arbiter may look at it. Every look costs what it says."""

    async def drafted(self, reward: ProcessReward) -> float:
        """What is said of it, 0 to 1, by the draft model's state behind it: a pass of one row of that model."""
        ...

    async def read(self, reward: ProcessReward) -> float:
        """The same by the target's state: it reads the step in one pass."""
        ...

    async def written(self, reward: ProcessReward) -> float:
        """The same of a step that the target writes in its place."""
        ...

    async def told(self, reward: ProcessReward) -> float:
        """The same by the state of a reader, a model of its own that reads who wrote which step: a pass over what it has not
        read yet. 1 where the text is longer than it can read."""
        ...

    @property
    def steps(self) -> Sequence[WrittenStep]:
        """Those that stand, and last the one that is judged."""
        ...

    async def own(self) -> Sequence[int]:
        """The tokens of the step that the target writes in its place."""
        ...


class StepArbiter(Protocol):
    """Who writes a step."""

    async def prefers(self, case: ArbiterCase, rng: Rng) -> bool:
        """Whether the target's step should stand instead. rng: for this step alone."""
        ...


class AnswerPicker(Protocol):
    """Which of several texts is the answer. Pure; the order of the texts is that in which they were begun."""

    def pick(self, tries: Sequence[CandidateText]) -> int:
        """The index of one, of at least one."""
        ...


class ContinuationTable(Protocol):
    """What was counted to follow some tokens."""

    def after(self, tokens: Sequence[int]) -> Sequence[tuple[float, int]]:
        """(chance, token) of what follows these; none where nothing is known."""
        ...

    def levels(self, tokens: Sequence[int]) -> Sequence[Sequence[tuple[float, int]]]:
        """The same by the last token, by the last two, and so on, as long as the context is known."""
        ...

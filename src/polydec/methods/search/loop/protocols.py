"""Protocols of searches over texts: rewards, arbiters, answer pickers, tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from polydec.core.rng import Rng
from polydec.methods.search.loop.types import CandidateText, WrittenStep


class ProcessReward(Protocol):
    """Says how promising a text is so far."""

    def success_chance(self, hidden_H: Tensor) -> float:
        """Return 0 to 1, from the last layer's state after the last token."""
        ...


class ArbiterCase(Protocol):
    """A step that a draft model wrote, as an arbiter may look at it.

    Every look costs what it says.
    """

    async def draft_step_value(self, reward: ProcessReward) -> float:
        """Return a reward's value, 0 to 1, by the draft model's state after the step.

        It costs a pass of one row of that model.
        """
        ...

    async def target_reading_value(self, reward: ProcessReward) -> float:
        """Return a reward's value, 0 to 1, by the target's state: it reads the step in one pass."""
        ...

    async def target_step_value(self, reward: ProcessReward) -> float:
        """Return a reward's value, 0 to 1, of a step that the target writes in its place."""
        ...

    async def reader_value(self, reward: ProcessReward) -> float:
        """Return a reward's value, 0 to 1, by the state of a reader.

        The reader is a model of its own that reads who wrote which step: a pass over what it has
        not read yet. 1 where the text is longer than it can read.
        """
        ...

    @property
    def steps(self) -> Sequence[WrittenStep]:
        """Steps that stand, and last the one that is judged."""
        ...

    async def target_step(self) -> Sequence[int]:
        """Return the tokens of the step that the target writes in its place."""
        ...


class StepArbiter(Protocol):
    """Decides who writes a step."""

    async def prefers_target(self, case: ArbiterCase, rng: Rng) -> bool:
        """Return whether the target's step should stand instead.

        Args:
            case: The drafted step; every look at it costs what it says.
            rng: Random stream of this step alone.
        """
        ...


class AnswerPicker(Protocol):
    """Picks the answer among several texts.

    Pure; the order of the texts is that in which they were begun.
    """

    def pick_text(self, tries: Sequence[CandidateText]) -> int:
        """Return the index of one text, of at least one."""
        ...


class ContinuationTable(Protocol):
    """Counts of what follows some tokens."""

    def followers_of(self, tokens: Sequence[int]) -> Sequence[tuple[float, int]]:
        """Return (chance, token) of what follows these tokens; none where nothing is known."""
        ...

    def followers_by_level(self, tokens: Sequence[int]) -> Sequence[Sequence[tuple[float, int]]]:
        """Return (chance, token) of what follows the last token, the last two, and so on.

        As long as the context is known.
        """
        ...


class BeamCondition(Protocol):
    """What is wanted of a finished text, and how likely it is from a beginning."""

    def log_chances(self, hidden_H: Tensor | None, tokens: Sequence[int]) -> Sequence[float]:
        """Return of each token that may come next the log-probability of the condition behind it.

        Args:
            hidden_H: State after the text so far; None where the model shows none.
            tokens: Tokens that may follow.
        """
        ...

    def is_met(self, text: str, tokens: int) -> bool:
        """Return whether a finished text meets it.

        Args:
            text: The text, without marks.
            tokens: How many tokens it has, its end counted.
        """
        ...

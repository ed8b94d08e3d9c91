"""As wide a draft as pays at the number of sequences that are being written."""

from __future__ import annotations

from dataclasses import dataclass

from polydec.base.errors import RequestError
from polydec.core.types import Draft
from polydec.methods.speculative.loop.types import DraftBudget, Verdict


@dataclass(frozen=True)
class InUse:
    """What is in use, and how often in a row another width was better.

    Attributes:
        width: Most tokens of a draft at present. None: before the first round.
        rounds: How many rounds in a row have asked for another width.
    """

    width: int | None = None
    rounds: int = 0


@dataclass(frozen=True)
class BatchWidthPolicy:
    """As wide a draft as pays at the number of sequences in the batch.

    The width is looked up in a table. Another one is taken once `patience` rounds in a row have
    asked for it, so that a batch that swings about a bound does not change it in every round. What
    a draft costs and brings decides the table beforehand (methods/economics/widths.py), so no
    budget depends on a clock; only on how many sequences are written, which `joined_width` receives
    before each round.

    Attributes:
        widths: Pairs of (sequences from which on, tokens of a draft), with sequences ascending from
            1, and 0 to 1024 tokens.
        depth: Most levels, 0 to 64. Default 5.
        patience: Rounds, at least 1. Default 3.

    Exact: law, under a verifier whose text does not depend on what was drafted (`match`).
    Reduces to: `fixed` where there is one width.
    Source: Scaling Laws for Speculative Decoding (Yan et al., 2025).
    """

    widths: tuple[tuple[int, int], ...]
    depth: int = 5
    patience: int = 3

    def __post_init__(self) -> None:
        batches = [batch for batch, _ in self.widths]
        if not batches or batches[0] != 1 or batches != sorted(set(batches)):
            raise RequestError(
                f"widths is {self.widths}: its numbers of sequences must begin at 1 and ascend"
            )
        for _, width in self.widths:
            if not 0 <= width <= 1024:
                raise RequestError(f"widths has {width} tokens: it must lie in 0 to 1024")
        if not 0 <= self.depth <= 64:
            raise RequestError(f"depth is {self.depth}: it must lie in 0 to 64")
        if self.patience < 1:
            raise RequestError(f"patience is {self.patience}: it must be at least 1")

    def width_at(self, sequences: int) -> int:
        """The width that pays at so many sequences, at least 1."""
        return [width for batch, width in self.widths if batch <= sequences][-1]

    def start_state(self) -> InUse:
        """Nothing is in use yet: the first round takes what pays then."""
        return InUse()

    def joined_width(self, state: InUse, sequences: int) -> InUse:
        """The width in use for a round that some sequences share.

        Args:
            state: State of the round before.
            sequences: How many sequences are written in this round, at least 1.

        Returns:
            The state of this round.
        """
        wanted = self.width_at(sequences)
        # The first round takes what pays at once; a later one waits until the same wish has come
        # `patience` times in a row.
        if state.width in (None, wanted) or state.rounds + 1 >= self.patience:
            return InUse(wanted)
        return InUse(state.width, state.rounds + 1)

    def draft_budget(self, state: InUse) -> DraftBudget:
        """The most that is drafted then."""
        # Before the first round nothing is known of the batch: one sequence is assumed.
        if state.width is None:
            width = self.width_at(1)
        else:
            width = state.width
        return DraftBudget(self.depth if width else 0, width)

    def observe_round(self, state: InUse, draft: Draft, verdict: Verdict) -> InUse:
        """Leave the state: what was accepted does not matter.

        The acceptance rates in the table are those of the training.

        Args:
            state: State before this round.
            draft: The draft that the target has scored.
            verdict: The accepted nodes and the token that follows them.

        Returns:
            The same state.
        """
        return state

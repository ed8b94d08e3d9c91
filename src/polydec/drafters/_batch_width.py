"""As wide a draft as pays at the number of sequences that are being written."""

from __future__ import annotations

from dataclasses import dataclass

from polydec.base.errors import RequestError
from polydec.families.ar.types import Budget


@dataclass(frozen=True)
class InUse:
    """width: of drafts just now; rounds: how many in a row have asked for another one."""

    width: int
    rounds: int = 0


@dataclass(frozen=True)
class BatchWidth:
    """Looks the width up by the batch; another one is taken once `patience` rounds in a row have asked for it, so that a batch
    that swings about a bound does not change it in every round. What a draft costs and brings decides the table beforehand
    (drafting/widths.py), so no budget depends on a clock; only on how many sequences are written, which no other policy sees:
    a drafter tells it (drafters/by_batch.py).

    widths: (sequences from which on, tokens of a draft), sequences ascending from 1, tokens 0 to 1024; depth: most levels,
    0 to 64; patience: rounds, at least 1.

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

    @property
    def most(self) -> int:
        """The widest draft of all batches."""
        return max(width for _, width in self.widths)

    def at(self, sequences: int) -> int:
        """The width that pays at so many sequences, at least 1."""
        return [width for batch, width in self.widths if batch <= sequences][-1]

    def seen(self, state: InUse | None, sequences: int) -> InUse:
        """What is in use in a round that so many sequences share. state: of the round before, None: this is the first."""
        wanted = self.at(sequences)
        if state is None or state.width == wanted:
            return InUse(wanted)
        if state.rounds + 1 >= self.patience:
            return InUse(wanted)
        return InUse(state.width, state.rounds + 1)

    def budget(self, state: InUse) -> Budget:
        """The most that is drafted then."""
        return Budget(self.depth if state.width else 0, state.width)

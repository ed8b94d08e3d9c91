"""Some entries stay as they are, the others go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d

POOL = 5  # neighbours whose attention an entry shares (SnapKV)


@dataclass(frozen=True, slots=True)
class Chosen:
    """kv [2, kv heads, entries, head]; mass [kv heads, entries]: the attention that each has had so far, where that is
    counted."""

    kv: Tensor
    mass: Tensor | None = None

    @property
    def nbytes(self) -> int:
        return self.kv.nbytes + (0 if self.mass is None else self.mass.nbytes)


def side_by_side(blocks: Sequence[Chosen], into: Tensor) -> None:
    """All of them, one behind another."""
    into.copy_(torch.cat([c.kv for c in blocks], -2))


def taken(kv: Tensor, index: Tensor) -> Tensor:
    """The entries [kv heads, n] of each head, [2, kv heads, n, head]."""
    return kv.gather(-2, index[None, ..., None].expand(2, *index.shape, kv.shape[-1]))


def attention(queries: Tensor, keys: Tensor, hidden: Tensor | None = None) -> Tensor:
    """Weights [group, kv heads, rows, entries] that rows give to keys [kv heads, entries, head]; hidden: what rows do not
    see."""
    scores = (queries @ keys.transpose(-1, -2)).float()
    if hidden is not None:
        scores = scores.masked_fill_(hidden, -inf)
    return torch.softmax(scores, -1)


@dataclass(frozen=True)
class Window:
    """The first tokens of a text and the last ones, one to two blocks of them; positions stay as they are.

    Exact: approximate: the law is another one, which every lossless method keeps.
    Reduces to: the cache as it is where no text is longer than two blocks.
    """

    called: str
    block: int
    sinks: int
    asks, lasting = False, True
    rounding = None

    def size(self, k: int) -> int:
        return 0 if k else min(self.sinks, self.block)

    def pack(self, k: int, kv: Tensor, behind: Tensor | None, before: object) -> Chosen:
        return Chosen(kv[..., : self.size(k), :].clone())

    def fill(self, blocks: Sequence[Chosen], into: Tensor) -> None:
        side_by_side(blocks, into)


@dataclass(frozen=True)
class Watched:
    """Of each block, and in each head, the entries that the last `watch` tokens of the next block attend to most; of the first
    block the first `sinks` tokens as well.

    Exact: approximate: the law is another one, which every lossless method keeps.
    Reduces to: the cache as it is where all entries of a block are kept.
    """

    called: str
    block: int
    kept: int
    watch: int
    sinks: int
    asks, lasting = True, True
    rounding = None

    def size(self, k: int) -> int:
        return min(self.kept, self.block)

    def pack(self, k: int, kv: Tensor, behind: Tensor | None, before: object) -> Chosen:
        assert behind is not None
        mass = attention(behind[2:, :, -self.watch :], kv[0]).sum((0, 2))
        mass = avg_pool1d(mass, POOL, 1, POOL // 2)
        if k == 0:
            mass[:, : self.sinks] = inf
        return Chosen(taken(kv, mass.topk(self.size(k), -1).indices.sort(-1).values))

    def fill(self, blocks: Sequence[Chosen], into: Tensor) -> None:
        side_by_side(blocks, into)


@dataclass(frozen=True)
class Hitters:
    """Of all that is older than one to two blocks the `kept` entries of each head that had most attention, summed over rows of
    one block after another; who is let go does not come back.

    Exact: approximate: the law is another one, which every lossless method keeps.
    Reduces to: the cache as it is where no text is longer than `kept` and two blocks.
    """

    called: str
    block: int
    kept: int
    asks, lasting = True, False
    rounding = None

    def size(self, k: int) -> int:
        return min(self.kept, (k + 1) * self.block)

    def pack(self, k: int, kv: Tensor, behind: Tensor | None, before: Chosen | None) -> Chosen:
        assert behind is not None
        new = kv.new_zeros(kv.shape[1], self.block, dtype=torch.float32)
        known, mass = kv, new
        if before is not None and before.mass is not None:
            known, mass = torch.cat([before.kv, kv], -2), torch.cat([before.mass, new], -1)
        size = known.shape[-2]
        rows = torch.arange(self.block, device=kv.device)
        hidden = torch.arange(size + self.block, device=kv.device) > size + rows[:, None]
        weights = attention(behind[2:], torch.cat([known[0], behind[0]], -2), hidden)
        mass = mass + weights[..., :size].sum((0, 2))
        index = mass.topk(self.size(k), -1).indices.sort(-1).values
        return Chosen(taken(known, index), mass.gather(-1, index))

    def fill(self, blocks: Sequence[Chosen], into: Tensor) -> None:
        side_by_side(blocks, into)

"""Some entries stay as they are, the others go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import ClassVar, Protocol

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d, normalize

AS_THEY_WERE = {"rounded": "entries that stay are as they were"}
POOL = 5  # neighbours whose attention an entry shares (SnapKV)


@dataclass(frozen=True, slots=True)
class SelectedCacheEntries:
    """kv [2, kv heads, entries, head]; mass [kv heads, entries]: the attention that each has had so far, where that is
    counted."""

    kv: Tensor
    mass: Tensor | None = None

    @property
    def nbytes(self) -> int:
        return self.kv.nbytes + (0 if self.mass is None else self.mass.nbytes)


def side_by_side(blocks: Sequence[SelectedCacheEntries], into: Tensor) -> None:
    """All of them, one behind another."""
    into.copy_(torch.cat([c.kv for c in blocks], -2))


def gather_cache_entries(kv: Tensor, index: Tensor) -> Tensor:
    """The entries [kv heads, n] of each head, [2, kv heads, n, head]."""
    return kv.gather(-2, index[None, ..., None].expand(2, *index.shape, kv.shape[-1]))


def attention_weights(queries: Tensor, keys: Tensor, hidden: Tensor | None = None) -> Tensor:
    """Weights [group, kv heads, rows, entries] that rows give to keys [kv heads, entries, head]; hidden: what rows do not
    see."""
    scores = (queries @ keys.transpose(-1, -2)).float()
    if hidden is not None:
        scores = scores.masked_fill_(hidden, -inf)
    return torch.softmax(scores, -1)


@dataclass(frozen=True)
class WindowPress:
    """The first tokens of a text and the last ones, one to two blocks of them; positions stay as they are.

    Exact: approximate: the law is another one, which every lossless method keeps.
    Reduces to: the cache as it is where no text is longer than two blocks.
    """

    unexercised: ClassVar[Mapping[str, str]] = AS_THEY_WERE
    called: str
    block: int
    sinks: int
    asks = False
    lasting = True
    rounding = None

    def size(self, k: int) -> int:
        if k:
            return 0
        return min(self.sinks, self.block)

    def pack(
        self, k: int, kv: Tensor, behind: Tensor | None, before: object
    ) -> SelectedCacheEntries:
        return SelectedCacheEntries(kv[..., : self.size(k), :].clone())

    def fill(self, blocks: Sequence[SelectedCacheEntries], into: Tensor) -> None:
        side_by_side(blocks, into)


class EntryScoreRule(Protocol):
    """What an entry is worth. asks: whether that depends on the block behind (see Packing)."""

    @property
    def asks(self) -> bool: ...
    def worth(self, kv: Tensor, behind: Tensor | None) -> Tensor:
        """Of a block's entries in each head, [kv heads, entries], not negative; arguments as those of Packing.pack."""
        ...


@dataclass(frozen=True)
class ScorerPress:
    """Of each block, and in each head, the entries that a rule finds worth most; of the first block the first `sinks` tokens as
    well.

    Exact: approximate: the law is another one, which every lossless method keeps.
    Reduces to: the cache as it is where all entries of a block are kept.
    """

    unexercised: ClassVar[Mapping[str, str]] = AS_THEY_WERE
    called: str
    block: int
    kept: int
    sinks: int
    rule: EntryScoreRule
    lasting = True
    rounding = None

    @property
    def asks(self) -> bool:
        return self.rule.asks

    def size(self, k: int) -> int:
        return min(self.kept, self.block)

    def pack(
        self, k: int, kv: Tensor, behind: Tensor | None, before: object
    ) -> SelectedCacheEntries:
        worth = self.rule.worth(kv, behind)
        if k == 0:
            worth[:, : self.sinks] = inf
        return SelectedCacheEntries(
            gather_cache_entries(kv, worth.topk(self.size(k), -1).indices.sort(-1).values)
        )

    def fill(self, blocks: Sequence[SelectedCacheEntries], into: Tensor) -> None:
        side_by_side(blocks, into)


@dataclass(frozen=True)
class SnapKVRule:
    """What the last `watch` tokens of the block behind attend to most, smoothed over neighbours (SnapKV)."""

    watch: int
    asks = True

    def worth(self, kv: Tensor, behind: Tensor | None) -> Tensor:
        assert behind is not None
        mass = attention_weights(behind[2:, :, -self.watch :], kv[0]).sum((0, 2))
        return avg_pool1d(mass, POOL, 1, POOL // 2)


@dataclass(frozen=True)
class KeyDiffRule:
    """Keys that point elsewhere than the block's others (KeyDiff)."""

    asks = False

    def worth(self, kv: Tensor, behind: Tensor | None) -> Tensor:
        key = normalize(kv[0].float(), dim=-1)
        return 1.0 - (key @ normalize(key.mean(-2), dim=-1)[..., None])[..., 0]


@dataclass(frozen=True)
class ExpectedAttentionRule:
    """Attention that a query is expected to give, as if queries were normal with mean and covariance of the block behind, times
    the length of what it would read (Expected Attention)."""

    asks = True

    def worth(self, kv: Tensor, behind: Tensor | None) -> Tensor:
        assert behind is not None
        query = behind[2:].float()
        key = kv[0].float()
        mean = query.mean(-2, keepdim=True)
        spread = (query - mean) @ key.mT / sqrt(query.shape[-2])  # its square's sum: k' cov k
        score = (mean @ key.mT)[..., 0, :] + spread.square().sum(-2) / 2
        chance = torch.softmax(score, -1).mean(0)
        return chance * torch.linalg.vector_norm(kv[1].float(), dim=-1)


@dataclass(frozen=True)
class TovaPress:
    """Of all that is older than one to two blocks the `kept` entries that the last token of the block behind attends to most,
    the same ones in all heads; who is let go does not come back (TOVA, a block at a time).

    Exact: approximate: the law is another one, which every lossless method keeps.
    Reduces to: the cache as it is where no text is longer than `kept` and two blocks.
    """

    unexercised: ClassVar[Mapping[str, str]] = AS_THEY_WERE
    called: str
    block: int
    kept: int
    asks = True
    lasting = False
    rounding = None

    def size(self, k: int) -> int:
        return min(self.kept, (k + 1) * self.block)

    def pack(
        self, k: int, kv: Tensor, behind: Tensor | None, before: SelectedCacheEntries | None
    ) -> SelectedCacheEntries:
        assert behind is not None
        if before is None:
            known = kv
        else:
            known = torch.cat([before.kv, kv], -2)
        weights = attention_weights(behind[2:, :, -1:], torch.cat([known[0], behind[0]], -2))
        mass = weights[..., : known.shape[-2]].sum((0, 1, 2))
        index = mass.topk(self.size(k)).indices.sort().values
        return SelectedCacheEntries(known[..., index, :].clone())

    def fill(self, blocks: Sequence[SelectedCacheEntries], into: Tensor) -> None:
        side_by_side(blocks, into)


@dataclass(frozen=True)
class H2OPress:
    """Of all that is older than one to two blocks the `kept` entries of each head that had most attention, summed over rows of
    one block after another; who is let go does not come back.

    Exact: approximate: the law is another one, which every lossless method keeps.
    Reduces to: the cache as it is where no text is longer than `kept` and two blocks.
    """

    unexercised: ClassVar[Mapping[str, str]] = AS_THEY_WERE
    called: str
    block: int
    kept: int
    asks = True
    lasting = False
    rounding = None

    def size(self, k: int) -> int:
        return min(self.kept, (k + 1) * self.block)

    def pack(
        self, k: int, kv: Tensor, behind: Tensor | None, before: SelectedCacheEntries | None
    ) -> SelectedCacheEntries:
        assert behind is not None
        new = kv.new_zeros(kv.shape[1], self.block, dtype=torch.float32)
        known = kv
        mass = new
        if before is not None and before.mass is not None:
            known = torch.cat([before.kv, kv], -2)
            mass = torch.cat([before.mass, new], -1)
        size = known.shape[-2]
        rows = torch.arange(self.block, device=kv.device)
        hidden = torch.arange(size + self.block, device=kv.device) > size + rows[:, None]
        weights = attention_weights(behind[2:], torch.cat([known[0], behind[0]], -2), hidden)
        mass = mass + weights[..., :size].sum((0, 2))
        index = mass.topk(self.size(k), -1).indices.sort(-1).values
        return SelectedCacheEntries(gather_cache_entries(known, index), mass.gather(-1, index))

    def fill(self, blocks: Sequence[SelectedCacheEntries], into: Tensor) -> None:
        side_by_side(blocks, into)

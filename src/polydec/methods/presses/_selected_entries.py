"""Presses that keep some cache entries as they are and drop the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import ClassVar, Protocol

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d, normalize

AS_THEY_WERE = {"rounded": "entries that stay are as they were"}
# Neighbours whose attention an entry shares (SnapKV's pooling).
POOL = 5


@dataclass(frozen=True, slots=True)
class SelectedCacheEntries:
    """Entries of one layer that stay.

    Attributes:
        kv: Their keys and values, shape ``[2, kv heads, entries, head]``.
        mass: Attention that each has had so far, shape ``[kv heads, entries]``; None where it is
            not counted.
    """

    kv: Tensor
    mass: Tensor | None = None

    @property
    def nbytes(self) -> int:
        return self.kv.nbytes + (0 if self.mass is None else self.mass.nbytes)


def copy_kept_entries(self: object, blocks: Sequence[SelectedCacheEntries], into: Tensor) -> None:
    """Copy the entries that stay: `CachePress.fill_blocks` of presses that change none of them.

    Args:
        blocks: Packed blocks, in order of the text.
        into: Receives their keys and values side by side, shape ``[2, kv heads, entries, head]``.
    """
    into.copy_(torch.cat([c.kv for c in blocks], -2))


def gather_cache_entries(kv: Tensor, index: Tensor) -> Tensor:
    """Take some entries of each head.

    Args:
        kv: Keys and values, shape ``[2, kv heads, entries, head]``.
        index: Entries to take, shape ``[kv heads, n]``.

    Returns:
        Keys and values, shape ``[2, kv heads, n, head]``.
    """
    return kv.gather(-2, index[None, ..., None].expand(2, *index.shape, kv.shape[-1]))


def attention_weights(queries: Tensor, keys: Tensor, hidden: Tensor | None = None) -> Tensor:
    """Return the attention that rows give to keys.

    Args:
        queries: Queries, already scaled, shape ``[group, kv heads, rows, head]``.
        keys: Keys, shape ``[kv heads, entries, head]``.
        hidden: True where a row does not see an entry, shape ``[rows, entries]``; None: all see
            all.

    Returns:
        Weights, shape ``[group, kv heads, rows, entries]``, fp32.
    """
    scores = (queries @ keys.transpose(-1, -2)).float()
    if hidden is not None:
        scores = scores.masked_fill_(hidden, -inf)
    return torch.softmax(scores, -1)


@dataclass(frozen=True)
class WindowPress:
    """Keeps the first tokens of a text and the last ones, one to two blocks of them (StreamingLLM).

    Positions stay as they are.

    Attributes:
        called: Name of the press.
        block: Entries of a block.
        sinks: First tokens that stay.

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
    fill_blocks = copy_kept_entries

    def kept_size(self, k: int) -> int:
        # Only the first block holds sinks: of later blocks nothing stays.
        if k:
            return 0
        return min(self.sinks, self.block)

    def pack_block(
        self, k: int, kv: Tensor, behind: Tensor | None, before: object
    ) -> SelectedCacheEntries:
        """Keep the sinks of the first block, and nothing of any other.

        Args:
            k: Number of the block, counted from the start of the text.
            kv: Keys and values of the block in one layer, shape ``[2, kv heads, block, head]``.
            behind: Keys and values of the block that follows, then its queries, shape
                ``[2 + group, kv heads, block, head]``; None for a press that does not ask for them.
            before: Not needed.
        """
        return SelectedCacheEntries(kv[..., : self.kept_size(k), :].clone())


class EntryScoreRule(Protocol):
    """Scores the entries of a block.

    Attributes:
        asks: Whether the score depends on the block that follows (see `BlockPacker`).
    """

    @property
    def asks(self) -> bool: ...
    def entry_scores(self, kv: Tensor, behind: Tensor | None) -> Tensor:
        """Score the entries of a block in each head.

        Args:
            kv: Keys and values of the block, shape ``[2, kv heads, entries, head]``.
            behind: Keys and values of the block that follows, then its queries, shape
                ``[2 + group, kv heads, block, head]``; None where `asks` is not set.

        Returns:
            Scores, shape ``[kv heads, entries]``, not negative; the highest stay.
        """
        ...


@dataclass(frozen=True)
class ScorerPress:
    """Keeps of each block, and in each head, the entries that a rule scores highest.

    Of the first block the first `sinks` tokens stay as well.

    Attributes:
        called: Name of the press.
        block: Entries that are packed at once.
        kept: Entries of a block that stay.
        sinks: First tokens of the text that stay in any case.
        rule: Scores the entries.

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
    fill_blocks = copy_kept_entries

    @property
    def asks(self) -> bool:
        return self.rule.asks

    @property
    def reads_repeat(self) -> bool:
        """Whether the rule reads the block's repeat in place of the next block."""
        return isinstance(self.rule, ReconstructionRule)

    def kept_size(self, k: int) -> int:
        return min(self.kept, self.block)

    def pack_block(
        self, k: int, kv: Tensor, behind: Tensor | None, before: object
    ) -> SelectedCacheEntries:
        """Keep the entries of highest score, in their order.

        Args:
            k: Number of the block, counted from the start of the text.
            kv: Keys and values of the block in one layer, shape ``[2, kv heads, block, head]``.
            behind: Keys and values of the block that follows, then its queries, shape
                ``[2 + group, kv heads, block, head]``; None for a press that does not ask for them.
            before: Not needed.
        """
        worth = self.rule.entry_scores(kv, behind)
        # Attention sinks: models attend to the first tokens whatever these say.
        if k == 0:
            worth[:, : self.sinks] = inf
        # Entries are sorted back into the order of the text: positions must ascend.
        return SelectedCacheEntries(
            gather_cache_entries(kv, worth.topk(self.kept_size(k), -1).indices.sort(-1).values)
        )


@dataclass(frozen=True)
class SnapKVRule:
    """Scores entries by the attention of the next block's last tokens (SnapKV).

    Scores are smoothed over neighbours.

    Attributes:
        watch: Last tokens of the next block that are asked.
    """

    watch: int
    asks = True

    def entry_scores(self, kv: Tensor, behind: Tensor | None) -> Tensor:
        """Score entries by the attention that they get.

        Args:
            kv: Keys and values of the block, shape ``[2, kv heads, entries, head]``.
            behind: Keys and values of the block that follows, then its queries, shape
                ``[2 + group, kv heads, block, head]``; None where `asks` is not set.

        Returns:
            Scores, shape ``[kv heads, entries]``, not negative; the highest stay.
        """
        assert behind is not None
        # The block alone is attended to here, so scores compare entries of one block.
        mass = attention_weights(behind[2:, :, -self.watch :], kv[0]).sum((0, 2))
        # Smoothing keeps neighbours together: a single entry without its context says little.
        return avg_pool1d(mass, POOL, 1, POOL // 2)


@dataclass(frozen=True)
class KeyDiffRule:
    """Keys that point elsewhere than the block's others (KeyDiff)."""

    asks = False

    def entry_scores(self, kv: Tensor, behind: Tensor | None) -> Tensor:
        """Score entries by one less the cosine of their key and the mean direction.

        Args:
            kv: Keys and values of the block, shape ``[2, kv heads, entries, head]``.
            behind: Keys and values of the block that follows, then its queries, shape
                ``[2 + group, kv heads, block, head]``; None where `asks` is not set.

        Returns:
            Scores, shape ``[kv heads, entries]``, not negative; the highest stay.
        """
        # Lengths of keys do not count: only their directions do.
        key = normalize(kv[0].float(), dim=-1)
        return 1.0 - (key @ normalize(key.mean(-2), dim=-1)[..., None])[..., 0]


@dataclass(frozen=True)
class ExpectedAttentionRule:
    """Scores entries by the attention that a random query is expected to give (Expected Attention).

    Queries count as normal, with mean and covariance of the next block's. The attention is
    multiplied by the length of the value that it would read.
    """

    asks = True

    def entry_scores(self, kv: Tensor, behind: Tensor | None) -> Tensor:
        """Score entries by expected attention and length of the value.

        Args:
            kv: Keys and values of the block, shape ``[2, kv heads, entries, head]``.
            behind: Keys and values of the block that follows, then its queries, shape
                ``[2 + group, kv heads, block, head]``; None where `asks` is not set.

        Returns:
            Scores, shape ``[kv heads, entries]``, not negative; the highest stay.
        """
        assert behind is not None
        query = behind[2:].float()
        key = kv[0].float()
        mean = query.mean(-2, keepdim=True)
        # The sum of its squares over the queries is k' cov k, without forming the covariance.
        spread = (query - mean) @ key.mT / sqrt(query.shape[-2])
        # For q normal, log E exp(q k) = mean k + k' cov k / 2.
        score = (mean @ key.mT)[..., 0, :] + spread.square().sum(-2) / 2
        chance = torch.softmax(score, -1).mean(0)
        # The mean over the group's query heads, times the value's length.
        return chance * torch.linalg.vector_norm(kv[1].float(), dim=-1)


@dataclass(frozen=True)
class ReconstructionRule:
    """Scores entries by the most attention that a repeat of the text gives them (KVzip).

    Source: Kim et al., KVzip: query-agnostic KV cache compression with context reconstruction,
        2025.
    """

    asks = True

    def entry_scores(self, kv: Tensor, behind: Tensor | None) -> Tensor:
        """Score entries by the attention of a repeat's rows.

        Args:
            kv: Keys and values of the block, shape ``[2, kv heads, entries, head]``.
            behind: Keys and values of the block's repeat, then its queries, shape
                ``[2 + group, kv heads, block, head]``.

        Returns:
            Scores, shape ``[kv heads, entries]``, not negative; the highest stay.
        """
        assert behind is not None
        size = kv.shape[-2]
        rows = torch.arange(behind.shape[-2], device=kv.device)
        # A row of the repeat sees the block, and the repeat up to itself.
        hidden = torch.arange(size + len(rows), device=kv.device) > size + rows[:, None]
        weights = attention_weights(behind[2:], torch.cat([kv[0], behind[0]], -2), hidden)
        # One row that needs an entry is enough, in any query head of the group.
        return weights[..., :size].amax((0, 2))


@dataclass(frozen=True)
class TovaPress:
    """Keeps the old entries that the last token attends to most, the same ones in all heads (TOVA).

    Of all that is older than one to two blocks `kept` entries stay. The last token of the next
    block chooses, a block at a time. An entry that is dropped does not come back.

    Attributes:
        called: Name of the press.
        block: Entries that are judged at once.
        kept: Older entries that stay.

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
    fill_blocks = copy_kept_entries

    def kept_size(self, k: int) -> int:
        # Before `kept` entries are old, all of them stay.
        return min(self.kept, (k + 1) * self.block)

    def pack_block(
        self, k: int, kv: Tensor, behind: Tensor | None, before: SelectedCacheEntries | None
    ) -> SelectedCacheEntries:
        """Keep the best of the entries that stayed before and of this block.

        Args:
            k: Number of the block, counted from the start of the text.
            kv: Keys and values of the block in one layer, shape ``[2, kv heads, block, head]``.
            behind: Keys and values of the block that follows, then its queries, shape
                ``[2 + group, kv heads, block, head]``; None for a press that does not ask for them.
            before: What packing the block before kept; None at the first block.
        """
        assert behind is not None
        if before is None:
            known = kv
        else:
            known = torch.cat([before.kv, kv], -2)
        # The token's weights are over all that it sees, its own block included; those of old
        # entries count.
        weights = attention_weights(behind[2:, :, -1:], torch.cat([known[0], behind[0]], -2))
        # One score for all heads: the sum over query heads.
        mass = weights[..., : known.shape[-2]].sum((0, 1, 2))
        index = mass.topk(self.kept_size(k)).indices.sort().values
        return SelectedCacheEntries(known[..., index, :].clone())


@dataclass(frozen=True)
class H2OPress:
    """Keeps the old entries of each head that had most attention so far (H2O, heavy hitters).

    Of all that is older than one to two blocks `kept` entries stay. Attention is summed over the
    rows of one block after another. An entry that is dropped does not come back.

    Attributes:
        called: Name of the press.
        block: Entries that are judged at once.
        kept: Older entries of each head that stay.

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
    fill_blocks = copy_kept_entries

    def kept_size(self, k: int) -> int:
        return min(self.kept, (k + 1) * self.block)

    def pack_block(
        self, k: int, kv: Tensor, behind: Tensor | None, before: SelectedCacheEntries | None
    ) -> SelectedCacheEntries:
        """Add the attention of the next block's rows, and keep the entries that have most.

        Args:
            k: Number of the block, counted from the start of the text.
            kv: Keys and values of the block in one layer, shape ``[2, kv heads, block, head]``.
            behind: Keys and values of the block that follows, then its queries, shape
                ``[2 + group, kv heads, block, head]``; None for a press that does not ask for them.
            before: What packing the block before kept, with its attention; None at the first block.
        """
        assert behind is not None
        new = kv.new_zeros(kv.shape[1], self.block, dtype=torch.float32)
        known = kv
        mass = new
        if before is not None and before.mass is not None:
            known = torch.cat([before.kv, kv], -2)
            mass = torch.cat([before.mass, new], -1)
        size = known.shape[-2]
        rows = torch.arange(self.block, device=kv.device)
        # Causal within the next block: row r sees the known entries and r + 1 entries of its own
        # block.
        hidden = torch.arange(size + self.block, device=kv.device) > size + rows[:, None]
        weights = attention_weights(behind[2:], torch.cat([known[0], behind[0]], -2), hidden)
        # Attention is summed over the group's query heads and over rows: one sum for each kv head.
        mass = mass + weights[..., :size].sum((0, 2))
        index = mass.topk(self.kept_size(k), -1).indices.sort(-1).values
        return SelectedCacheEntries(gather_cache_entries(known, index), mass.gather(-1, index))

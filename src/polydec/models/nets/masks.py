"""Who sees whom: additive masks over the cache slots of one query."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

NEG_INF = float("-inf")


@lru_cache(maxsize=8)
def causal_mask(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[size, size]: entry i sees the ones up to itself."""
    return torch.full((size, size), NEG_INF, dtype=dtype, device=device).triu_(1)


def staged_entry_depths(parent: Sequence[int]) -> list[int]:
    """Depth of each staged entry; the ones that follow the committed text directly have 0."""
    out: list[int] = []
    for p in parent:
        out.append(0 if p < 0 else out[p] + 1)
    return out


def is_chain(parent: Sequence[int]) -> bool:
    return all(p == j - 1 for j, p in enumerate(parent))


def tree_attention_mask(
    first: int,
    stop: int,
    length: int,
    parent: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """Additive [stop - first, stop - min(first, length)]: what the slots [first, stop) see of the slots from
    min(first, length) on. Every earlier slot is seen by all of them. A part of a text may end before the committed slots do
    (stop < length): what is staged behind them is none of its business."""
    low = min(first, length)
    staged = parent[: max(0, stop - length)]
    if is_chain(staged):
        size = 64
        while size < stop - low:
            size *= 2
        return causal_mask(size, dtype, device)[first - low : stop - low, : stop - low]
    see = torch.full((stop - low, stop - low), NEG_INF, dtype=dtype)
    n = length - low
    see[:n, :n] = causal_mask(max(n, 1), dtype, torch.device("cpu"))[:n, :n]
    see[n:, :n] = 0.0
    for j, p in enumerate(staged, n):
        if p >= 0:
            see[j] = see[n + p]
        see[j, j] = 0.0
    return see[first - low :].to(device)


def up_to_block(slots: Sequence[int], size: int, block: int, like: Tensor) -> Tensor:
    """Additive [slots, size]: what these slots see of `size` of them is everything up to the ends of their own blocks."""
    end = (torch.tensor(slots, device=like.device) // block + 1) * block
    behind = torch.arange(size, device=like.device) >= end[:, None]
    return torch.zeros(behind.shape, dtype=like.dtype, device=like.device).masked_fill_(
        behind, NEG_INF
    )


def sliding_window_mask(
    width: int, position_M: Tensor, low: int, seen: Tensor, slots_S: Tensor
) -> tuple[int, Tensor]:
    """The first slot that any of the rows sees through a sliding window, and the additive mask of the slots from it on.

    seen: what the rows see of the slots from `low` on without the window; slots_S: the positions of all slots. A row at
    position p sees positions above p - width.
    """
    start = max(0, int(position_M.min()) - width + 1)
    mask = seen.new_zeros(len(position_M), len(slots_S))
    mask[:, low:] = seen
    mask.masked_fill_(slots_S[None] <= position_M[:, None] - width, NEG_INF)
    return start, mask[:, start:]

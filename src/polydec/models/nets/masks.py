"""Who sees whom: additive masks over the cache slots of one query."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

NEG_INF = float("-inf")


@lru_cache(maxsize=8)
def causal_mask(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Additive mask of a causal text: 0 where a token sees another one, -inf elsewhere.

    Args:
        size: Number of entries.
        dtype: Number type of the scores that it is added to.
        device: Device of the scores.

    Returns:
        ``[size, size]``; entry i sees the entries up to itself. It is cached: do not write to it.
    """
    return torch.full((size, size), NEG_INF, dtype=dtype, device=device).triu_(1)


def staged_entry_depths(parent: Sequence[int]) -> list[int]:
    """Depth of each staged entry; the ones that follow the committed text directly have 0."""
    out: list[int] = []
    for p in parent:
        out.append(0 if p < 0 else out[p] + 1)
    return out


def is_chain(parent: Sequence[int]) -> bool:
    """Whether each staged entry follows the one before it, so that there are no branches."""
    return all(p == j - 1 for j, p in enumerate(parent))


def tree_attention_mask(
    first: int,
    stop: int,
    length: int,
    parent: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """Additive mask of a token tree: each staged token sees the committed text, its ancestors and
    itself.

    Every slot before ``min(first, length)`` is seen by all of them and has no column here. A part
    of a text may end before the committed slots do (``stop < length``); staged entries then play no
    role.

    Args:
        first: First slot that is fed.
        stop: The slot after the last one that is fed.
        length: Committed slots of the cache; slots from it on are staged.
        parent: Of each staged entry the offset of the entry that it follows; -1: the last committed
            one.
        dtype: Number type of the scores that the mask is added to.
        device: Device of the scores.

    Returns:
        ``[stop - first, stop - min(first, length)]``: 0 where a slot is seen, -inf elsewhere. It
        may be a view of a cached mask: do not write to it.
    """
    low = min(first, length)
    staged = parent[: max(0, stop - length)]
    if is_chain(staged):
        # Powers of two, so that few masks are made and most calls find one in the cache.
        size = 64
        while size < stop - low:
            size *= 2
        return causal_mask(size, dtype, device)[first - low : stop - low, : stop - low]
    # The mask is built from slot `low` on, so that a parent's row is there to be copied, even where
    # the parent itself is not fed now.
    see = torch.full((stop - low, stop - low), NEG_INF, dtype=dtype)
    n = length - low
    see[:n, :n] = causal_mask(max(n, 1), dtype, torch.device("cpu"))[:n, :n]
    # Staged entries see all committed ones.
    see[n:, :n] = 0.0
    for j, p in enumerate(staged, n):
        if p >= 0:
            # What the parent sees, itself included; parents stand before their children.
            see[j] = see[n + p]
        see[j, j] = 0.0
    return see[first - low :].to(device)


def let_see_each_other(mask_MS: Tensor, count: int) -> Tensor:
    """Let the last rows of a mask see one another.

    Args:
        mask_MS: An additive mask, ``[M, S]``, whose last columns are the last rows' own slots.
        count: How many rows, at most M; 0: none.

    Returns:
        The mask with 0 in that corner: a copy, as masks are shared.
    """
    if not count:
        return mask_MS
    mask_MS = mask_MS.clone()
    mask_MS[-count:, -count:] = 0.0
    return mask_MS


def up_to_block(slots: Sequence[int], size: int, block: int, like: Tensor) -> Tensor:
    """Additive mask of a network that is causal by blocks: a slot sees everything up to the end of
    its own block.

    Args:
        slots: Slots that are fed, ``[n]``.
        size: Number of slots that can be seen.
        block: Slots of a block, 1 or more.
        like: A tensor whose number type and device the mask takes.

    Returns:
        ``[n, size]``: 0 where a slot is seen, -inf elsewhere.
    """
    end = (torch.tensor(slots, device=like.device) // block + 1) * block
    behind = torch.arange(size, device=like.device) >= end[:, None]
    return torch.zeros(behind.shape, dtype=like.dtype, device=like.device).masked_fill_(
        behind, NEG_INF
    )


def sliding_window_mask(
    width: int, position_M: Tensor, low: int, seen: Tensor, slots_S: Tensor
) -> tuple[int, Tensor]:
    """Put a sliding window over a mask. A row at position p sees positions above p - width.

    Args:
        width: The window, in positions; a row's own position counts.
        position_M: Positions of the rows.
        low: First slot that `seen` has a column for; slots before it are seen by every row.
        seen: Additive mask of the slots from `low` on without the window, ``[M, S - low]``.
        slots_S: Positions of all slots.

    Returns:
        The first slot that any of the rows sees, and the additive mask of the slots from it on.
    """
    start = max(0, int(position_M.min()) - width + 1)
    mask = seen.new_zeros(len(position_M), len(slots_S))
    mask[:, low:] = seen
    # Positions decide, not slots: siblings in a tree stand at one position in several slots.
    mask.masked_fill_(slots_S[None] <= position_M[:, None] - width, NEG_INF)
    return start, mask[:, start:]

"""How much of its attention a layer gives to some entries of a cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from polydec.models.nets import masks
from polydec.models.nets.hidden_entries import Span
from polydec.models.nets.kv_cache import KVCache

ROWS = 64
"""Rows whose attention is computed at once."""


def attention_share(
    cache: KVCache, layer: int, rows: range, spans: Sequence[Span], cap: float | None
) -> float:
    """How much of its attention a layer gives to some entries.

    Args:
        cache: A cache that keeps queries beside keys and values, of committed entries in storage of
            its own, which have passed the layer.
        layer: Index of the layer.
        rows: The rows that are asked.
        spans: Where the entries stand.
        cap: Bound that scores approach by tanh; None: there is none.

    Returns:
        Their share, 0 to 1: the mean over rows and heads.
    """
    kv = cache.kv[layer, ..., : rows.stop, :]
    slots = torch.arange(rows.stop, device=kv.device)
    total = 0.0
    for at in range(rows.start, rows.stop, ROWS):
        # So many rows at once: scores of a long text would fill memory.
        part = slots[at : at + ROWS]
        # Queries are scaled already.
        scores = (kv[2:, :, at : at + ROWS] @ kv[0].transpose(-1, -2)).double()
        if cap is not None:
            scores = torch.tanh(scores / cap) * cap
        # Causal: a row sees what stands before it, and itself.
        scores = scores.masked_fill(slots > part[:, None], masks.NEG_INF)
        weights = torch.softmax(scores, -1)
        # [group, kv heads, rows] of each span: a sum over rows of the mean over heads.
        shares = [weights[..., first:stop].sum(-1).mean((0, 1)).sum() for first, stop in spans]
        total += sum(float(share) for share in shares)
    return total / len(rows)

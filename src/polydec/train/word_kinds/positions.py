"""How a law of bytes gets better on its way through a text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

EDGES = (0, 20, 100, 200, 400)
"""Where parts of a text begin, in bytes."""


@torch.no_grad()
def by_position(network: nn.Module, texts: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Bits a byte of the parts of texts, each from its beginning: of the bytes behind 0, 20, 100, 200 and 400 others. Only
    texts that reach the last part are read, at most 64."""
    length = EDGES[-1] + 100
    rows = [ids[: length + 1] for ids in texts if len(ids) > length][:64]
    if not rows:
        return {}
    token_BT = torch.tensor(rows)
    logits = network(token_BT[:, :-1]).float().flatten(0, 1)
    nats_BT = F.cross_entropy(logits, token_BT[:, 1:].flatten(), reduction="none")
    bits_T = nats_BT.view(len(rows), -1).mean(0) / math.log(2)
    ends = (*EDGES[1:], length)
    return {
        "bits_from": {
            str(first): float(bits_T[first:end].mean()) for first, end in zip(EDGES, ends)
        }
    }

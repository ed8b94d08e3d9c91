"""How a law of bytes gets better on its way through a text."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

EDGES = (0, 20, 50, 100, 200, 400)
"""Where parts of a text begin, in bytes."""


@torch.no_grad()
def by_position(
    network: nn.Module, texts: Sequence[Sequence[int]], length: int
) -> dict[str, dict[str, float]]:
    """Bits a byte of the parts of texts that begin after 0, 20, 50, 100, 200 and 400 bytes.

    Args:
        network: Gives logits of rows of token ids.
        texts: Token ids, BEGIN first; only texts longer than a row are read, at most 64.
        length: Tokens of a row.

    Returns:
        `bits_from`: bits a byte by where the part begins; nothing where no text is long enough.
    """
    rows = [ids[: length + 1] for ids in texts if len(ids) > length][:64]
    if not rows:
        return {}
    token_BT = torch.tensor(rows)
    logits = network(token_BT[:, :-1]).float().flatten(0, 1)
    nats = F.cross_entropy(logits, token_BT[:, 1:].flatten(), reduction="none")
    # The mean over texts of each position, in bits.
    bits_T = nats.view(len(rows), -1).mean(0) / math.log(2)
    first = [edge for edge in EDGES if edge < length]
    parts = zip(first, [*first[1:], length], strict=True)
    return {"bits_from": {str(a): float(bits_T[a:b].mean()) for a, b in parts}}

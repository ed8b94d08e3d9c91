"""What several shapers share: the text as an array of ids, what follows a mask that leaves nothing, and selection by mass
without sorting a whole row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polydec.core.law import NEG_INF

Ids = np.ndarray[Any, np.dtype[np.int64]]
FIRST = 256  # how many of the largest entries a selection looks at before it looks at all
SLOTS = 4096  # a 64th of a nat each


def token_id_array(tokens: Sequence[int] = ()) -> Ids:
    return np.array(tokens, dtype=np.int64)


def append_token_id(text_n: Ids, token: int) -> Ids:
    """The text with one token more; a new array, the old one stays as it is."""
    return np.append(text_n, token)


def token_id_index(text_n: Ids, logw_V: Tensor) -> Tensor:
    """As an index into a row. Ids may repeat: write values that depend on the id alone."""
    return torch.from_numpy(text_n).to(logw_V.device)


def or_end(masked_V: Tensor, logw_V: Tensor, eos: Sequence[int] = ()) -> Tensor:
    """What a mask made of `logw_V`, or, where it left nothing, the end of the text: only the EOS ids stay, with equal
    weight if they had none; where none is given, the row stays as it was. Writes to `masked_V`."""
    if float(masked_V.max()) > NEG_INF:
        return masked_V
    if not eos:
        return logw_V
    at = list(eos)
    if float(logw_V[at].max()) > NEG_INF:
        masked_V[at] = logw_V[at]
    else:
        masked_V[at] = 0.0
    return masked_V


def at_least(logw_V: Tensor, edge: Tensor) -> Tensor:
    """-inf below `edge` (a scalar of the same type)."""
    return torch.threshold(logw_V, float(torch.nextafter(edge, edge.new_tensor(NEG_INF))), NEG_INF)


def by_mass(key_V: Tensor, logp_V: Tensor, mass: float) -> tuple[Tensor, int | None]:
    """(edge, equals): in descending order of key, the fewest entries whose probabilities reach `mass` are those above
    `edge` and, of those at it, `equals` (at least one), or all where that is None."""
    key_K, token_K = key_V.topk(min(FIRST, len(key_V)))
    before = 0.0
    p_K = logp_V[token_K].double().exp()
    if (
        len(key_K) < len(key_V) and float(p_K.sum()) - float(p_K[-1]) < mass
    ):  # a flat law: find where the edge lies
        slot_V = ((key_K[0] - key_V) * 64.0).clamp(max=SLOTS - 1).long()
        mass_S = torch.bincount(slot_V, logp_V.exp(), SLOTS).double()
        before_S = mass_S.cumsum(-1) - mass_S
        slot = int(((before_S < mass) & (mass_S > 0.0)).nonzero()[-1])
        before = float(before_S[slot])
        token_K = (slot_V == slot).nonzero()[:, 0]
        key_K, order = key_V[token_K].sort(descending=True)
        p_K = logp_V[token_K[order]].double().exp()
    m = max(1, int((p_K.cumsum(-1) - p_K + before < mass).sum()))
    edge = key_K[m - 1]
    cut = m < len(key_K) and float(key_K[m]) == float(edge)
    return edge, int((key_K[:m] == edge).sum()) if cut else None

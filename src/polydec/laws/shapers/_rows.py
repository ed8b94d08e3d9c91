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
    """Append one token to a text.

    Args:
        text_n: Token ids, shape ``[n]``; stays as it is.
        token: Token id that follows.

    Returns:
        A new array, shape ``[n + 1]``.
    """
    return np.append(text_n, token)


def token_id_index(text_n: Ids, logw_V: Tensor) -> Tensor:
    """Make token ids an index into a row. Ids may repeat: write values that depend on the id alone.

    Args:
        text_n: Token ids, shape ``[n]``.
        logw_V: The row to index; gives the device.

    Returns:
        The ids as a tensor, shape ``[n]``.
    """
    return torch.from_numpy(text_n).to(logw_V.device)


def or_end(masked_V: Tensor, logw_V: Tensor, eos: Sequence[int] = ()) -> Tensor:
    """Let a text end where a mask has left no token.

    Args:
        masked_V: What a mask made of `logw_V`, shape ``[V]``. It is written to.
        logw_V: Log-weights before the mask, shape ``[V]``.
        eos: Token ids that end a text. Default: none.

    Returns:
        `masked_V` where it has weight. Otherwise the row with the EOS ids alone, with equal weight
        if they had none; `logw_V` where no EOS id is given.
    """
    if float(masked_V.max()) > NEG_INF:
        return masked_V
    # No EOS is known: the row stays as it was, and the text's guard speaks.
    if not eos:
        return logw_V
    at = list(eos)
    if float(logw_V[at].max()) > NEG_INF:
        masked_V[at] = logw_V[at]
    else:
        # An earlier rule has banned the end, too: it is the only way out all the same.
        masked_V[at] = 0.0
    return masked_V


def at_least(logw_V: Tensor, edge: Tensor) -> Tensor:
    """Mask the log-weights below an edge.

    Args:
        logw_V: Log-weights, shape ``[V]``.
        edge: Smallest log-weight that stays, a scalar of the same dtype.

    Returns:
        Log-weights, -inf below `edge`, shape ``[V]``.
    """
    # threshold() keeps what is strictly larger, so it gets the next smaller number.
    return torch.threshold(logw_V, float(torch.nextafter(edge, edge.new_tensor(NEG_INF))), NEG_INF)


def by_mass(key_V: Tensor, logp_V: Tensor, mass: float) -> tuple[Tensor, int | None]:
    """Find the fewest entries, in descending order of a key, whose probabilities reach a mass.

    These are the entries above the returned edge and, of those at the edge, the returned count.

    Args:
        key_V: What entries are ordered by, shape ``[V]``.
        logp_V: Log-probabilities, shape ``[V]``.
        mass: Probability to reach, above 0 and at most 1.

    Returns:
        The smallest key that stays, and how many entries that equal it stay (at least one), or None
        where all of them do.
    """
    # Most laws have the mass in a few entries, so a complete row is rarely sorted.
    key_K, token_K = key_V.topk(min(FIRST, len(key_V)))
    before = 0.0
    # In float64: a sum over a vocabulary loses too much in float32.
    p_K = logp_V[token_K].double().exp()
    if (
        len(key_K) < len(key_V) and float(p_K.sum()) - float(p_K[-1]) < mass
    ):  # a flat law: find where the edge lies
        # A histogram over keys, in slots of 1/64 from the largest down, gives the mass before each
        # slot. Only the slot in which the mass is reached is sorted.
        slot_V = ((key_K[0] - key_V) * 64.0).clamp(max=SLOTS - 1).long()
        mass_S = torch.bincount(slot_V, logp_V.exp(), SLOTS).double()
        before_S = mass_S.cumsum(-1) - mass_S
        # The last slot with weight before which the mass is not reached yet holds the edge.
        slot = int(((before_S < mass) & (mass_S > 0.0)).nonzero()[-1])
        before = float(before_S[slot])
        # The entries of that slot, in descending order of key.
        token_K = (slot_V == slot).nonzero()[:, 0]
        key_K, order = key_V[token_K].sort(descending=True)
        p_K = logp_V[token_K[order]].double().exp()
    # An entry stays while the entries before it have less than the mass: the one that reaches it
    # stays.
    m = max(1, int((p_K.cumsum(-1) - p_K + before < mass).sum()))
    edge = key_K[m - 1]
    # The next entry equals the edge but is not needed: of the equals only some stay.
    cut = m < len(key_K) and float(key_K[m]) == float(edge)
    return edge, int((key_K[:m] == edge).sum()) if cut else None

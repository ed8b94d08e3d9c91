"""What several shapers share: the text as an array of ids, and selection by mass without sorting a whole row."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

Ids = np.ndarray[Any, np.dtype[np.int64]]
FIRST = 256      # how many entries a selection looks at before it looks at eight times as many


def ids(tokens: Sequence[int] = ()) -> Ids:
    return np.array(tokens, dtype=np.int64)


def add(text_n: Ids, token: int) -> Ids:
    """The text with one token more; a new array, the old one stays as it is."""
    return np.append(text_n, token)


def index(text_n: Ids, logw_V: Tensor) -> Tensor:
    """As an index into a row. Ids may repeat: write values that depend on the id alone."""
    return torch.from_numpy(text_n).to(logw_V.device)


def by_mass(key_V: Tensor, logp_V: Tensor, mass: float) -> tuple[Tensor, Tensor, int]:
    """(key_K, token_K, m): entries in descending order of key, of which the first m are the fewest whose probabilities
    reach `mass`; K > m unless nothing is left out. At least one is kept."""
    size, k = key_V.shape[-1], FIRST
    while True:
        k = min(k, size)
        key_K, token_K = key_V.topk(k)
        p_K = logp_V[token_K].double().exp()
        m = int((p_K.cumsum(-1) - p_K < mass).sum())
        if m < k or k == size:
            return key_K, token_K, max(m, 1)
        k *= 8

"""How good a language model is: bits per byte of held-out text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polydec.lab.train.ngram import NGram

NATS = math.log(2.0)


@torch.no_grad()
def sliding_window_nats(
    forward: Callable[[Tensor], Tensor], ids: Sequence[int], context: int
) -> float:
    """-log p of ids[1:] after ids[0], in nats. Longer texts than `context` go through in windows that overlap by half, so
    that every later token sees at least half a context."""
    total = 0.0
    done = 1
    while done < len(ids):
        if done == 1:
            first = 0
        else:
            first = done - context // 2
        window = torch.tensor(ids[first : first + context])
        row = window[done - first :]
        logits = forward(window[None, :-1])[0, done - first - 1 :].float()
        total += float(F.cross_entropy(logits, row, reduction="sum"))
        done += len(row)
    return total


def bits_per_byte(
    network: nn.Module, documents: Sequence[Sequence[int]], size: int, *, context: int
) -> float:
    """documents: token ids, BEGIN first, END last; size: bytes of UTF-8 of all of them (special tokens count as none)."""
    network.eval()
    return sum(sliding_window_nats(network, ids, context) for ids in documents) / NATS / size


def ngram_bits_per_byte(model: NGram, documents: Sequence[Sequence[int]], size: int) -> float:
    """The same of an n-gram: BEGIN stands order - 1 times before a text."""
    pad = model.order - 2
    return (
        float(sum(-model.logp(np.array([*[ids[0]] * pad, *ids])).sum() for ids in documents))
        / NATS
        / size
    )

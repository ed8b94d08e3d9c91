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
    """The negative log-likelihood of a text after its first token.

    A text longer than `context` goes through in windows that overlap by half, so that every later
    token sees at least half a context.

    Args:
        forward: Logits of rows of token ids, shape ``[1, T]`` to ``[1, T, V]``.
        ids: Token ids; nothing is counted for the first.
        context: The most positions of a window.

    Returns:
        Nats of ids[1:].
    """
    total = 0.0
    done = 1
    while done < len(ids):
        # Later windows begin half a context before what is new.
        if done == 1:
            first = 0
        else:
            first = done - context // 2
        window = torch.tensor(ids[first : first + context])
        # Of a window only tokens that no earlier window counted.
        row = window[done - first :]
        logits = forward(window[None, :-1])[0, done - first - 1 :].float()
        total += float(F.cross_entropy(logits, row, reduction="sum"))
        done += len(row)
    return total


def bits_per_byte(
    network: nn.Module, documents: Sequence[Sequence[int]], size: int, *, context: int
) -> float:
    """Bits per byte of a network on some documents.

    Args:
        network: Gives logits of rows of token ids; it is put into evaluation mode.
        documents: Token ids, BEGIN first, END last.
        size: Bytes of UTF-8 of all documents; special tokens count as none.
        context: The most positions of a window.

    Returns:
        Bits per byte.
    """
    network.eval()
    return sum(sliding_window_nats(network, ids, context) for ids in documents) / NATS / size


def ngram_bits_per_byte(model: NGram, documents: Sequence[Sequence[int]], size: int) -> float:
    """Bits per byte of an n-gram model on some documents.

    Args:
        model: The n-gram model.
        documents: Token ids, BEGIN first, END last; BEGIN is repeated to fill the first context.
        size: Bytes of UTF-8 of all documents.

    Returns:
        Bits per byte.
    """
    # With BEGIN order - 1 times in front, the first real token has a full context.
    pad = model.order - 2
    return (
        float(
            sum(
                -model.stream_logprobs(np.array([*[ids[0]] * pad, *ids])).sum() for ids in documents
            )
        )
        / NATS
        / size
    )

"""A larger network that begins with the law of a smaller one."""

from __future__ import annotations

from dataclasses import replace

import torch

from polydec.base.errors import RequestError
from polydec.lab.train.network import LlamaShape, TrainableLlama

WRITERS = ("o_proj.weight", "down_proj.weight", "embed_tokens.weight")
"""What adds to the residual stream: zero wherever it is new."""


@torch.no_grad()
def grow_network(small: TrainableLlama, shape: LlamaShape, seed: int) -> TrainableLlama:
    """A network of a larger shape whose law is `small`'s, except for rounding.

    New dimensions of the residual stream hold zeros, new heads and inner units write nothing, new
    layers are identities. What reads is random where it is new, so that all of it learns within a
    few steps. A wider stream has a smaller mean square by the ratio of the widths: norms are scaled
    by its root, and their epsilon by the ratio (the shape's own is not used).

    Args:
        small: The network to begin with, with a tied head.
        shape: Sizes of the new network, none smaller than those of `small`.
        seed: Seed of the new weights.

    Returns:
        The new network, trainable.

    Raises:
        RequestError: The shape is smaller somewhere, its heads are of another kind, or `small` has
            a head of its own.

    Source: Chen et al., "Net2Net: accelerating learning via knowledge transfer" (2015), with zeros
    in place of copies.
    """
    a = small.s
    for name in ("width", "layers", "heads", "inner"):
        # Only growth keeps the function: a smaller network could not hold the old one.
        if getattr(shape, name) < getattr(a, name):
            raise RequestError(
                f"{name} is {getattr(shape, name)}: it must be at least that of the network to begin with, "
                f"{getattr(a, name)}"
            )
    if (shape.vocab, shape.head, shape.heads // shape.kv_heads) != (
        a.vocab,
        a.head,
        a.heads // a.kv_heads,
    ):
        raise RequestError(
            f"shape has {shape.vocab} tokens and heads of {shape.head}: they must be those of the network to "
            f"begin with ({a.vocab} and {a.head}), and as many heads must share keys"
        )
    if small.lm_head is not None:
        raise RequestError(
            "the network to begin with has a head of its own: only one with a tied table can be grown"
        )
    # A norm over a wider stream, of which a part is zero, divides by less: eps shrinks alike.
    ratio = a.width / shape.width
    large = TrainableLlama(replace(shape, eps=a.eps * ratio), seed=seed)
    old = dict(small.named_parameters())
    for name, p in large.named_parameters():
        # New rows of matrices that write to the stream must be zero; the old part is copied next.
        if name.endswith(WRITERS):
            p.zero_()
        if name in old and p.ndim == 2:
            p[: old[name].shape[0], : old[name].shape[1]] = old[name]
        # Norm weights are scaled for the smaller mean square; new ones stay 1.
        elif name in old:
            p[: len(old[name])] = old[name] * ratio**0.5
    return large

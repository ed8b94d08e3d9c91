"""A network that points at clauses of a text, one after another, until it points at the stop.

Source: Adams, Fabbri, Ladhak, Elhadad and McKeown, Generating EDU extracts for plan-guided summary
re-ranking, 2023. There a pre-trained encoder reads the text, and a network of two layers each reads
the clauses and copies their numbers. Here all of it is small; the layers that point look at the
clauses and at what was pointed at in one attention. The functions serve training and decoding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from polydec.models.nets.llama_layer import (
    LayerSizes,
    layer_tensor_shapes,
    rotary_tables,
    run_llama_layer,
)

STOP = 0
"""Number of the item that ends a plan."""
DOCUMENT = 1
"""Number of the item that stands for the whole text; no plan holds it."""
FIRST = 2
"""Number of the first clause among the items."""
MOST = 254
"""Clauses of a text at most."""

LAYER = LayerSizes(head=16)
"""Of all layers."""


@dataclass(frozen=True)
class PointerSizes:
    """Sizes of the network.

    Attributes:
        vocab: Tokens that it reads.
        width: Of all states, a multiple of 16.
        reading: Layers that read the text.
        items: Layers that read the clauses.
        pointing: Layers that point.
    """

    vocab: int
    width: int
    reading: int
    items: int
    pointing: int


def pointer_tensor_shapes(c: PointerSizes) -> dict[str, tuple[int, ...]]:
    """The tensors of the network, and their shapes."""
    out: dict[str, tuple[int, ...]] = {
        "embed": (c.vocab, c.width),
        # No token of a text stands for these two: they are learned vectors.
        "stop": (c.width,),
        "begin": (c.width,),
        "salience": (c.width,),
        "query": (c.width, c.width),
        "key": (c.width, c.width),
        **{f"{room}.norm": (c.width,) for room in ("reading", "items", "pointing")},
    }
    for room, count in (("reading", c.reading), ("items", c.items), ("pointing", c.pointing)):
        for i in range(count):
            out |= layer_tensor_shapes(f"{room}.{i}", c.width)
    return out


def read_clause_items(
    c: PointerSizes, w: Mapping[str, Tensor], id_BT: Tensor, there_BT: Tensor, share_BNT: Tensor
) -> tuple[Tensor, Tensor]:
    """Read texts, and make an item of each clause.

    A clause is the mean of the states of its tokens, its marks among them; before the clauses stand
    the stop and the mean of all states.

    Args:
        c: Sizes.
        w: Weights, by name.
        id_BT: Token ids, with marks around every clause.
        there_BT: Which of them are there.
        share_BNT: Of each clause the weight of each token: one over the clause's length, else 0.

    Returns:
        The items, ``[B, 2 + N, W]``, and which of them are there, ``[B, 2 + N]``.
    """
    x_BTW = w["embed"][id_BT]
    turns = rotary_tables(LAYER, x_BTW.shape[1])
    # All tokens see all: the text is read, not written.
    seen = there_BT[:, None, None]
    for i in range(c.reading):
        x_BTW, _ = run_llama_layer(LAYER, w, f"reading.{i}", x_BTW, turns, seen)
    x_BTW = F.rms_norm(x_BTW, (c.width,), w["reading.norm"], LAYER.eps)
    whole_B1T = (there_BT / there_BT.sum(1, keepdim=True))[:, None]
    items_BNW = torch.cat([whole_B1T, share_BNT], 1) @ x_BTW
    stop_B1W = w["stop"].expand(len(id_BT), 1, -1)
    x_BNW = torch.cat([stop_B1W, items_BNW], 1)
    # Clauses that only fill a batch up have no shares. Stop and text are always there.
    there_BN = F.pad(share_BNT.sum(-1) > 0, (FIRST, 0), value=True)
    # Positions count clauses from here on: which one comes first matters to a summary.
    turns = rotary_tables(LAYER, x_BNW.shape[1])
    for i in range(c.items):
        seen = there_BN[:, None, None]
        x_BNW, _ = run_llama_layer(LAYER, w, f"items.{i}", x_BNW, turns, seen)
    return F.rms_norm(x_BNW, (c.width,), w["items.norm"], LAYER.eps), there_BN


def pointer_logits(
    c: PointerSizes, w: Mapping[str, Tensor], item_BNW: Tensor, there_BN: Tensor, plan_BP: Tensor
) -> Tensor:
    """What a plan points at next, after each of its beginnings.

    Args:
        c: Sizes.
        w: Weights, by name.
        item_BNW: The items.
        there_BN: Which of them are there.
        plan_BP: Numbers of the items that were pointed at so far; any number behind a plan's end.

    Returns:
        Logits over the items behind 0 to P of these, ``[B, P + 1, N]``; -inf where no plan goes:
        the whole text, and what is not there.
    """
    B, N, W = item_BNW.shape
    P = plan_BP.shape[1]
    # A plan is read as the items that it pointed at: it has no embeddings of numbers.
    copied_BPW = item_BNW[torch.arange(B)[:, None], plan_BP]
    x_BSW = torch.cat([item_BNW, w["begin"].expand(B, 1, -1), copied_BPW], 1)
    # Items see items; each place of a plan sees them and the plan up to itself.
    see_SS = torch.ones(N + P + 1, N + P + 1, dtype=torch.bool).tril()
    see_SS[:N, :N] = True
    see_BSS = see_SS & F.pad(there_BN, (0, P + 1), value=True)[:, None]
    # A plan's places have positions of their own, which do not move with the number of clauses.
    cos_SD, sin_SD = rotary_tables(LAYER, FIRST + MOST + P + 1)
    at_S = [*range(N), *range(FIRST + MOST, FIRST + MOST + P + 1)]
    for i in range(c.pointing):
        turns = (cos_SD[at_S], sin_SD[at_S])
        x_BSW, _ = run_llama_layer(LAYER, w, f"pointing.{i}", x_BSW, turns, see_BSS[:, None])
    # Only the plan's places are asked. Pointing is at the items as they came in, which do not
    # depend on how long the plan is.
    x_BPW = F.rms_norm(x_BSW[:, N:], (W,), w["pointing.norm"], LAYER.eps)
    score_BPN = (x_BPW @ w["query"].T) @ (item_BNW @ w["key"].T).transpose(1, 2) * W**-0.5
    # A copy: what is there serves further calls.
    open_BN = there_BN.clone()
    open_BN[:, DOCUMENT] = False
    return score_BPN.masked_fill(~open_BN[:, None], float("-inf"))


def clause_salience(w: Mapping[str, Tensor], item_BNW: Tensor) -> Tensor:
    """How much each item says of what a summary says.

    Args:
        w: Weights, by name.
        item_BNW: The items.

    Returns:
        Logits, ``[B, N]``.
    """
    return item_BNW @ w["salience"]

"""A network in training that goes on from keys and values, for inputs that it makes itself."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from polydec.base.errors import RequestError
from polydec.lab.train.network import LlamaBackbone, apply_rotary_embedding

Past = list[tuple[Tensor, Tensor]]
"""Of each layer the keys, turned to their positions, and values of what was read [B, heads, P,
D]."""


def forward_with_past(
    trunk: LlamaBackbone, x_BTH: Tensor, past: Past | None = None, blank_B: Tensor | None = None
) -> tuple[Tensor, Past]:
    """Run some inputs after those that were read before. Gradients go through both.

    Rotary positions only tell distances, so a text behind blanks is read as it is alone.

    Args:
        trunk: The network without its head.
        x_BTH: Input vectors, shape ``[B, T, H]``.
        past: Keys and values of earlier inputs, by layer; None: there are none. It is not changed.
        blank_B: How many inputs of each row, from the first of the past on, are blanks that no
            other input sees, shape ``[B]``; None: there are none.

    Returns:
        States after the last layer and before the final norm, shape ``[B, T, H]``, and the past
        with these inputs. Those of blanks mean nothing.

    Raises:
        RequestError: The network searches for keys: what it was given would be read otherwise.
    """
    if trunk.s.superlinear is not None:
        raise RequestError(
            "superlinear attention is trained on plain rows of text only: give a model that reads all keys"
        )
    start = past[0][0].shape[2] if past else 0
    T = x_BTH.shape[1]
    s = trunk.s
    kept = Past()
    # Positions go on where the past ends.
    cos_TD = trunk.cos[start : start + T]
    sin_TD = trunk.sin[start : start + T]
    # Input t sees the P0 earlier ones and itself and those before it: a lower triangle moved by P0.
    see_TP = torch.ones(T, start + T, dtype=torch.bool, device=x_BTH.device).tril(start)
    # Blanks stand before the texts of a batch, so that all of them end at one place.
    if blank_B is not None:
        place_P = torch.arange(start + T, device=x_BTH.device)
        # A blank sees itself: where nothing is seen, attention has no value.
        own_TP = place_P == place_P[start:, None]
        see_TP = (see_TP & (place_P >= blank_B[:, None, None]) | own_TP)[:, None]
    for at, each in enumerate(trunk.layers):
        layer: Any = each
        h_BTH = layer.input_layernorm(x_BTH)
        own = layer.self_attn
        q, k, v = (
            p(h_BTH).unflatten(-1, (-1, s.head)).transpose(1, 2)
            for p in (own.q_proj, own.k_proj, own.v_proj)
        )
        q = apply_rotary_embedding(q, cos_TD, sin_TD)
        k = apply_rotary_embedding(k, cos_TD, sin_TD)
        if past:
            k, v = (torch.cat([a, b], dim=2) for a, b in zip(past[at], (k, v), strict=True))
        # Keys are kept turned, so that they are never turned again.
        kept.append((k, v))
        # Several query heads share a key head.
        k, v = (z.repeat_interleave(s.heads // s.kv_heads, dim=1) for z in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, see_TP)
        x_BTH = x_BTH + own.o_proj(y.transpose(1, 2).flatten(2))
        x_BTH = x_BTH + layer.mlp(layer.post_attention_layernorm(x_BTH))
    return x_BTH, kept


def feed_continuous_thoughts(
    trunk: LlamaBackbone, x_BTH: Tensor, count: int, blank_B: Tensor | None = None
) -> tuple[Tensor, Past]:
    """Feed the last state back as the next input, some times (continuous thoughts).

    Args:
        trunk: The network without its head.
        x_BTH: Input vectors, shape ``[B, T, H]``.
        count: Number of thoughts, 0 or more.
        blank_B: How many inputs before each text are blanks, shape ``[B]``; None: there are none.

    Returns:
        States after the final norm, of the last input and of each thought, shape ``[B, count + 1,
        H]``, and the past with all inputs and thoughts.
    """
    state_BTH, past = forward_with_past(trunk, x_BTH, None, blank_B)
    out = [trunk.norm(state_BTH[:, -1:])]
    # The thought is the normed state itself: no token is chosen between two steps.
    for _ in range(count):
        state_B1H, past = forward_with_past(trunk, out[-1], past, blank_B)
        out.append(trunk.norm(state_B1H))
    return torch.cat(out, dim=1), past

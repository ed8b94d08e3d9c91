"""Layers of the plain Llama skeleton, computed from named tensors behind keys and values that somebody
else holds, in training and in use alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

Past = Sequence[tuple[Tensor, Tensor]]
"""Of each layer keys, turned to their positions, and values [B, kv heads, P, D]."""

Rotations = tuple[Tensor, Tensor]
"""Cosines and sines of positions [B, 1, T, D]."""


@dataclass(frozen=True)
class LlamaLayers:
    """Sizes of the layers."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    inner: int
    theta: float
    eps: float

    @property
    def head(self) -> int:
        # Whoever reads sizes of a file has checked that it divides.
        return self.width // self.heads

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of each tensor, by its published name behind "model."."""
        W = self.width
        kv = self.head * self.kv_heads
        out = dict[str, tuple[int, ...]]()
        for i in range(self.layers):
            at = f"layers.{i}."
            out |= {f"{at}{name}_layernorm.weight": (W,) for name in ("input", "post_attention")}
            # Queries and outputs have all heads, keys and values those that are shared.
            out |= {f"{at}self_attn.{x}_proj.weight": (W, W) for x in "qo"}
            out |= {f"{at}self_attn.{x}_proj.weight": (kv, W) for x in "kv"}
            out |= {f"{at}mlp.{x}_proj.weight": (self.inner, W) for x in ("gate", "up")}
            out[f"{at}mlp.down_proj.weight"] = (W, self.inner)
        return out | {"norm.weight": (W,)}

    def run_layers(
        self,
        t: Mapping[str, Tensor],
        x_BTH: Tensor,
        position_BT: Tensor,
        past: Past,
        see_BTS: Tensor,
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Run all layers and the final norm on new inputs.

        Args:
            t: The tensors of `shapes`, by name.
            x_BTH: The inputs, shape ``[B, T, H]``.
            position_BT: Their positions in the text, shape ``[B, T]``.
            past: Of each layer the keys and values that stand before them, P entries each.
            see_BTS: Whom each input sees, shape ``[B, T, P + T]``, bool: first of the past, then of
                the inputs.

        Returns:
            What leaves the final norm, shape ``[B, T, H]``, and of each layer the keys and values
            of the inputs alone.
        """
        turn = self.rotation_tables(position_BT)
        own = list[tuple[Tensor, Tensor]]()
        for i in range(self.layers):
            x_BTH, noted = self.run_layer(t, i, x_BTH, x_BTH, (turn, turn), past[i], see_BTS)
            own.append(noted)
        return self._normed(x_BTH, t["norm.weight"]), own

    def rotation_tables(self, position_BT: Tensor) -> Rotations:
        """The cosines and sines that turn queries and keys at some positions."""
        # Angles in double: at far positions fp32 would lose the small differences between them.
        inverse = self.theta ** (-torch.arange(0, self.head, 2).double() / self.head)
        # Both halves of a head turn by the same angles.
        angle_B1TD = (position_BT[..., None].double() * inverse).repeat(1, 1, 2)[:, None]
        return angle_B1TD.cos().float(), angle_B1TD.sin().float()

    def run_layer(
        self,
        t: Mapping[str, Tensor],
        index: int,
        x_BTH: Tensor,
        read_BSH: Tensor,
        turns: tuple[Rotations, Rotations],
        past: tuple[Tensor, Tensor],
        see_BTS: Tensor,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Run one layer, whose keys and values may be of other inputs than its queries.

        Args:
            t: The tensors of `shapes`, by name.
            index: Number of the layer.
            x_BTH: The residual stream, which asks, shape ``[B, T, H]``.
            read_BSH: What keys and values are made of, shape ``[B, S, H]``; the same tensor as
                `x_BTH` in a plain layer.
            turns: What turns the queries, and what turns the keys.
            past: Keys and values that stand before these, P entries each.
            see_BTS: Whom each input sees, shape ``[B, T, P + S]``, bool.

        Returns:
            The residual stream behind the layer, and the keys and values of `read_BSH`.
        """
        at = f"layers.{index}."
        # So many heads of queries share one head of keys.
        groups = self.heads // self.kv_heads
        weight = t[f"{at}input_layernorm.weight"]
        h = self._normed(x_BTH, weight)
        # The norm is computed once where both are the same, as in a plain layer.
        if read_BSH is x_BTH:
            read = h
        else:
            read = self._normed(read_BSH, weight)
        q, k, v = (
            F.linear(given, t[f"{at}self_attn.{name}_proj.weight"])
            .unflatten(-1, (-1, self.head))
            .transpose(1, 2)
            for name, given in (("q", h), ("k", read), ("v", read))
        )
        q = _turned(q, *turns[0])
        k = _turned(k, *turns[1])
        # Noted before they are repeated for the groups, as caches hold them.
        noted = (k, v)
        # The past stands first, as the columns of the mask do.
        k, v = (
            torch.cat([old, new], dim=2).repeat_interleave(groups, dim=1)
            for old, new in zip(past, noted, strict=True)
        )
        # One mask for all heads.
        y = F.scaled_dot_product_attention(q, k, v, see_BTS[:, None]).transpose(1, 2).flatten(2)
        x_BTH = x_BTH + F.linear(y, t[f"{at}self_attn.o_proj.weight"])
        h = self._normed(x_BTH, t[f"{at}post_attention_layernorm.weight"])
        gate, up = (F.linear(h, t[f"{at}mlp.{x}_proj.weight"]) for x in ("gate", "up"))
        return x_BTH + F.linear(F.silu(gate) * up, t[f"{at}mlp.down_proj.weight"]), noted

    def empty_past(self, rows: int) -> list[tuple[Tensor, Tensor]]:
        """The past of texts that begin."""
        # An empty tensor of the right shape: joining it to others needs no case of its own.
        none = torch.zeros(rows, self.kv_heads, 0, self.head)
        return [(none, none)] * self.layers

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], weight, self.eps)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    # Pairs lie half a head apart, as Llama's published weights have them, and not side by side.
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-b, a], dim=-1) * sin

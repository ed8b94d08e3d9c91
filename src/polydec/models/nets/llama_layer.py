"""One layer of a small network with rotary positions, as a function of weights by name.

Training and decoding call the same function, so both compute the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class LayerSizes:
    """What a layer is told of itself.

    Attributes:
        head: Size of a head; a state has a whole number of them.
        eps: Added to the norms' mean squares.
        theta: Base of rotary embedding.
    """

    head: int = 32
    eps: float = 1e-5
    theta: float = 10000.0


def run_llama_layer(
    c: LayerSizes,
    w: Mapping[str, Tensor],
    name: str,
    x_BSE: Tensor,
    turns: tuple[Tensor, Tensor],
    see_SP: Tensor | None = None,
    memory: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run one layer.

    Args:
        c: Sizes.
        w: Weights, by name.
        name: Prefix of the layer's weights.
        x_BSE: What enters the layer.
        turns: Cosines and sines of the positions, each ``[S, head]``.
        see_SP: Whether a position sees another one; None: all see all.
        memory: Older keys and values of one text, ``[2, heads, past, head]``; None: there are none.

    Returns:
        The layer's output, and keys and values, ``[2, heads, P, head]`` for a batch of one.
    """
    cos_SD, sin_SD = turns
    B, S, E = x_BSE.shape

    def apply_part(key: str, y: Tensor) -> Tensor:
        """One of the layer's matrices, applied to y.

        Args:
            key: Name of the matrix within the layer.
            y: Rows that it reads.

        Returns:
            The products, one a row.
        """
        return F.linear(y, w[f"{name}.{key}.weight"])

    # Norms stand before each part, as in a Llama.
    y = F.rms_norm(x_BSE, (E,), w[f"{name}.input_layernorm.weight"], c.eps)
    q, k, v = (
        apply_part(f"self_attn.{p}_proj", y).view(B, S, -1, c.head).transpose(1, 2) for p in "qkv"
    )
    q, k = (apply_rotary(z, cos_SD, sin_SD) for z in (q, k))
    if memory is not None:
        # The memory stands first, so that columns of the mask count from the text's beginning.
        k, v = (torch.cat([old[None], z], 2) for old, z in zip(memory, (k, v), strict=True))
    attended = F.scaled_dot_product_attention(q, k, v, see_SP).transpose(1, 2).reshape(B, S, E)
    x_BSE = x_BSE + apply_part("self_attn.o_proj", attended)
    # The second part reads what the first has added.
    y = F.rms_norm(x_BSE, (E,), w[f"{name}.post_attention_layernorm.weight"], c.eps)
    gated = F.silu(apply_part("mlp.gate_proj", y)) * apply_part("mlp.up_proj", y)
    # Keys and values are laid along the batch, which has one text wherever somebody keeps them.
    return x_BSE + apply_part("mlp.down_proj", gated), torch.cat([k, v])


def rotary_tables(c: LayerSizes, length: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the positions 0 to length - 1.

    Args:
        c: Sizes; the head's and the base count.
        length: Number of positions.

    Returns:
        Cosines and sines, each ``[length, head]``, float32; the second half of a row repeats the
        first.
    """
    # In double: the angle of a late position is large, and float32 would round it visibly.
    inverse = c.theta ** (-torch.arange(0, c.head, 2).double() / c.head)
    angle = torch.outer(torch.arange(length).double(), inverse).repeat(1, 2)
    return angle.cos().float(), angle.sin().float()


def apply_rotary(x: Tensor, cos_SD: Tensor, sin_SD: Tensor) -> Tensor:
    """Turn queries or keys to their positions.

    Args:
        x: Queries or keys, ``[..., S, D]``; partners stand D / 2 dimensions from each other.
        cos_SD: Cosines of the positions.
        sin_SD: Sines of the positions.

    Returns:
        The turned ones, of the shape of `x`.
    """
    # A pair is a point in the plane; its partner stands in the other half, as in a Llama's weights.
    a, b = x.chunk(2, dim=-1)
    return x * cos_SD + torch.cat([-b, a], dim=-1) * sin_SD


def layer_tensor_shapes(name: str, width: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors of one layer.

    Args:
        name: Prefix of the layer's tensors.
        width: Size of its state; the MLP is three times as wide.

    Returns:
        The shapes by tensor name.
    """
    attention = {f"{name}.self_attn.{p}_proj.weight": (width, width) for p in "qkvo"}
    norms = ("input_layernorm", "post_attention_layernorm")
    return {
        **attention,
        **{f"{name}.{n}.weight": (width,) for n in norms},
        # Three matrices of three times the width weigh about what two of four times do.
        f"{name}.mlp.gate_proj.weight": (3 * width, width),
        f"{name}.mlp.up_proj.weight": (3 * width, width),
        f"{name}.mlp.down_proj.weight": (width, 3 * width),
    }

"""Vision transformers in torch: what CLIP and SigLIP have in common, and pixels as numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import (
    gelu,
    layer_norm,
    linear,
    relu,
    scaled_dot_product_attention,
    silu,
)

from polydec.models.formats.image_tiles import ImageTiles
from polydec.models.formats.vision import PixelScale, VitShape
from polydec.models.nets.tile_evidence import TowerWatch


def _quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


_TANH = partial(gelu, approximate="tanh")
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    # Two names of GELU by its tanh approximation.
    "gelu_new": _TANH,
    "gelu_pytorch_tanh": _TANH,
    "quick_gelu": _quick_gelu,
    "relu": relu,
    "silu": silu,
}
"""Activations by their names in configs."""


def scaled_pixels(tiles: ImageTiles, scale: PixelScale, device: torch.device) -> Tensor:
    """The numbers of an image's pixels.

    Args:
        tiles: The image.
        scale: How pixels become numbers.
        device: Where they are wanted.

    Returns:
        The numbers, ``[tiles, 3, height, width]``, float32.
    """
    # A copy: torch would warn of bytes that cannot be written to.
    bytes_N = torch.frombuffer(bytearray(tiles.pixels), dtype=torch.uint8)
    pixels_THWC = bytes_N.view(-1, tiles.height, tiles.width, 3)
    # In float64 and rounded once, as processors do it.
    factored_THWC = (pixels_THWC.double() * scale.factor).float()
    numbers_THWC = (factored_THWC - torch.tensor(scale.mean)) / torch.tensor(scale.spread)
    return numbers_THWC.permute(0, 3, 1, 2).contiguous().to(device)


def vit_layer(
    x_TPW: Tensor,
    weights: Mapping[str, Tensor],
    at: str,
    shape: VitShape,
    watch: TowerWatch | None = None,
) -> Tensor:
    """A layer of a vision transformer: every patch sees all patches of its tile.

    Args:
        x_TPW: States of the patches of each tile, ``[tiles, patches, width]``.
        weights: The tensors by name.
        at: What stands before the names of the layer's tensors.
        shape: Sizes.
        watch: Notes what the layer looks at. Default None: nobody does.

    Returns:
        The states behind the layer.
    """

    def _mapped(y: Tensor, name: str) -> Tensor:
        return linear(y, weights[f"{at}{name}.weight"], weights[f"{at}{name}.bias"])

    def _normed(y: Tensor, name: str) -> Tensor:
        own = (shape.width,)
        return layer_norm(
            y, own, weights[f"{at}{name}.weight"], weights[f"{at}{name}.bias"], shape.eps
        )

    def _heads(name: str) -> Tensor:
        return _mapped(y_TPW, name).unflatten(-1, (shape.heads, -1)).transpose(1, 2)

    # Attention, then the MLP; each adds to what went in, and reads it normed.
    y_TPW = _normed(x_TPW, "layer_norm1")
    query_THPD = _heads("self_attn.q_proj")
    key_THPD = _heads("self_attn.k_proj")
    if watch is not None:
        watch.note_layer(query_THPD, key_THPD)
    seen_THPD = scaled_dot_product_attention(query_THPD, key_THPD, _heads("self_attn.v_proj"))
    x_TPW = x_TPW + _mapped(seen_THPD.transpose(1, 2).flatten(2), "self_attn.out_proj")
    inner = ACTIVATIONS[shape.act](_mapped(_normed(x_TPW, "layer_norm2"), "mlp.fc1"))
    return x_TPW + _mapped(inner, "mlp.fc2")

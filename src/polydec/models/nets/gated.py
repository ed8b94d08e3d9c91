"""Gated adapters: matrices of low rank that are added to a network's own at some rows of a pass,
and at no others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polydec.base.errors import FileError, RequestError
from polydec.models.formats.fields import shape_of

PLACES = ("qkv", "out", "gate_up", "down")
"""The linear layers of a layer, those that read the same rows taken together."""

Pair = tuple[Tensor, Tensor]

_MATRICES = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
"""By place the published matrices that it joins, in their order."""
_NORMS = {"qkv": "input_layernorm", "gate_up": "post_attention_layernorm"}
"""By place the norm before it, where there is one."""


@dataclass(frozen=True, eq=False)
class GatedAdapter:
    """Of each layer, at each of PLACES, a pair: what reads the row ``[R, in]``, and what is added
    of that ``[out, R]``.

    "qkv" gives the rows of queries, keys and values one after another as the published layout has
    them, "gate_up" those of gate and up. Both read the row divided by its root mean square, before
    the norm's weights; "out" reads what the heads gathered, and "down" what the MLP's inner units
    hold.

    Source: LoRA (Hu et al., 2021); with a gate a row: Samragh et al., 2025.

    Attributes:
        layers: Of each layer of the network the pair at each of PLACES.
    """

    layers: Sequence[Mapping[str, Pair]]

    @property
    def rank(self) -> int:
        """Rank R of the matrices; 0 for an adapter without layers."""
        if self.layers:
            return len(self.layers[0]["qkv"][0])
        return 0

    def require_sizes(self, layers: int, width: int, qkv: int, gathered: int, inner: int) -> None:
        """Check that the adapter was made for a network of these sizes.

        Args:
            layers: Number of layers.
            width: Size of the residual stream.
            qkv: Rows of queries, keys and values together.
            gathered: Numbers that all heads gather together.
            inner: Inner units of the MLP.

        Raises:
            RequestError: It was made for a network of other sizes.
        """
        if len(self.layers) != layers:
            raise RequestError(
                f"the adapter has matrices for {len(self.layers)} layers: this network has {layers}"
            )
        sizes = {
            "qkv": (width, qkv),
            "out": (gathered, width),
            "gate_up": (width, 2 * inner),
            "down": (inner, width),
        }
        for place, (into, out) in sizes.items():
            # All layers have the same sizes: the first one stands for them.
            have = self.layers[0][place][0].shape[1], self.layers[0][place][1].shape[0]
            if have != (into, out):
                raise RequestError(
                    f"the adapter's {place} goes from {have[0]} to {have[1]} numbers: this network's goes from "
                    f"{into} to {out}"
                )

    def map_pairs(self, change: Callable[[str, Tensor, Tensor], Pair]) -> GatedAdapter:
        """The adapter whose pairs are `change` of the place and the pair there."""
        return GatedAdapter(
            [
                {place: change(place, *pair) for place, pair in layer.items()}
                for layer in self.layers
            ]
        )


@dataclass(frozen=True, eq=False)
class ActiveAdapter:
    """An adapter at work in one pass.

    Attributes:
        adapter: The adapter, on the network's device and in its number type.
        row_N: The rows that it changes.
    """

    adapter: GatedAdapter
    row_N: Tensor

    def add_adapted_rows(self, layer: int, place: str, read_TI: Tensor, into_TO: Tensor) -> None:
        """Add what the adapter makes of its rows, in place. Other rows are not touched.

        Args:
            layer: Index of the layer.
            place: Which of PLACES.
            read_TI: What the matrix at this place reads, all T rows of the pass.
            into_TO: What the matrix gave; it is changed in place.
        """
        into_RI, out_OR = self.adapter.layers[layer][place]
        # Two thin products, [N, I] x [I, R] x [R, O]: the full matrix is never made.
        more = read_TI[self.row_N].to(into_RI.dtype) @ into_RI.T @ out_OR.T
        into_TO.index_add_(0, self.row_N, more.to(into_TO.dtype))


def gate_weight_pairs(
    pairs: Mapping[str, Pair], weights: Mapping[str, Tensor], layers: int
) -> GatedAdapter:
    """A gated adapter of pairs that were made for single matrices.

    Args:
        pairs: By the name of a matrix what reads its input, ``[R, in]``, and what is added to its
            output of that, ``[out, R]``: of all linear matrices of all layers.
        weights: The network's tensors by name, for its norms, which a gated adapter does not see.
        layers: Number of layers.

    Returns:
        The adapter.

    Raises:
        FileError: A matrix has no pair, a pair is of none, or one has another size.
    """
    left = dict(pairs)
    out = list[dict[str, Pair]]()
    for layer in range(layers):
        made = dict[str, Pair]()
        for place, names in _MATRICES.items():
            own = [f"model.layers.{layer}.{name}.weight" for name in names]
            # Taken out as they are found: what is left belongs to no matrix.
            found = [_fitting_pair(left, name, weights) for name in own]
            # Each reads the row by itself: their outputs stand one after another.
            into_RI = torch.cat([down for down, _ in found])
            # A gated adapter reads rows before the norm's weights are on them.
            if place in _NORMS:
                norm = weights[f"model.layers.{layer}.{_NORMS[place]}.weight"]
                into_RI = into_RI * norm.float()
            made[place] = into_RI, torch.block_diag(*[up for _, up in found])
        out.append(made)
    if left:
        raise FileError(
            f"the adapter for images changes {min(left)!r:.120}: linear matrices of layers are changed, and nothing else"
        )
    return GatedAdapter(out)


def _fitting_pair(left: dict[str, Pair], name: str, weights: Mapping[str, Tensor]) -> Pair:
    """Take the pair of a matrix. Raises FileError where there is none, or it has another size."""
    if name not in left:
        raise FileError(
            f"the adapter for images lacks {name}: it changes all linear matrices of every layer"
        )
    down, up = left.pop(name)
    want = (len(up), down.shape[1])
    if (has := tuple(shape_of(weights, name))) != want:
        raise FileError(f"the adapter for images changes {name} of shape {want}: it has {has}")
    return down, up

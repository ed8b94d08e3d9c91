"""gpt-oss's experts as its files hold them: gate and up interleaved, in blocks of 4 bits or turned
around.

MXFP4 (Open Compute Project, Microscaling Formats 1.0): blocks of 32 numbers of 4 bits, each block
with a power of two.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from polydec.base.errors import FileError
from polydec.models.formats import fields

_VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
KEPT = 4  # tensors read last: the experts of a layer ask for the same ones


def is_meant(quantization: Any) -> bool:
    """Whether a config's quantization_config is this one."""
    return isinstance(quantization, dict) and quantization.get("quant_method") == "mxfp4"


def split_fused_experts(weights: Mapping[str, Tensor], layers: int) -> Mapping[str, Tensor]:
    """The same weights, with gate, up and down of all experts each in one tensor, where the file
    mixes them as gpt-oss does.

    Args:
        weights: Tensors by name.
        layers: Number of layers.

    Returns:
        The weights; the same object where nothing is mixed.
    """
    at = [f"model.layers.{i}.mlp.experts." for i in range(layers)]
    mixed = [x for x in at if x + "gate_up_proj_bias" in weights]
    if mixed:
        return SplitExpertWeights(weights, mixed)
    return weights


class SplitExpertWeights(Mapping[str, Tensor]):
    """gate_proj, up_proj and down_proj of the experts under these names: weight ``[experts, rows,
    columns]``, bias ``[experts, rows]``."""

    def __init__(self, source: Mapping[str, Tensor], at: list[str]) -> None:
        self._source = source
        self._last = OrderedDict[str, Tensor]()
        self._parts = {
            f"{x}{part}_proj{end}": (x, part, end)
            for x in at
            for part in ("gate", "up", "down")
            for end in (".weight", ".bias")
        }
        old = tuple(at)
        self._names = [*(name for name in source if not name.startswith(old)), *self._parts]

    def tensor_shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, without reading it."""
        if name not in self._parts:
            return fields.shape_of(self._source, name)
        at, part, end = self._parts[name]
        whole = at + ("down_proj" if part == "down" else "gate_up_proj")
        # Gate and up share a tensor, their rows in turn.
        halves = 1 if part == "down" else 2
        if end == ".bias":
            count, rows = self._sides(whole + "_bias", 2)
            return count, rows // halves
        if whole + "_blocks" in self._source:
            # Blocks of 16 bytes hold 32 numbers; the scales have one number a block.
            count, rows, blocks, _ = self._sides(whole + "_blocks", 4, 16)
            if (stored := self._sides(whole + "_scales", 3)) != (count, rows, blocks):
                raise FileError(
                    f"{whole}_scales has shape {stored}: its blocks ask for {(count, rows, blocks)}"
                )
            return count, rows // halves, 32 * blocks
        # Matrices in bfloat16 are turned around: columns come first.
        count, columns, rows = self._sides(whole, 3)
        return count, rows // halves, columns

    def _sides(self, name: str, sides: int, last: int | None = None) -> tuple[int, ...]:
        shape = fields.shape_of(self._source, name)
        if len(shape) != sides or (last is not None and shape[-1] != last):
            raise FileError(
                f"{name} has shape {shape}: {sides} sides are expected{f', the last of {last}' if last else ''}"
            )
        return shape

    def tensor_rows(self, name: str, first: int, stop: int) -> Tensor:
        """Rows of one expert of the matrix, its leading sides taken as one; of a bias the row of
        one expert.

        Args:
            name: Name of the tensor.
            first: The first row.
            stop: The row after the last one.

        Returns:
            The rows ``[stop - first, columns]``; of an expert's matrix always all of its rows.
        """
        if name not in self._parts:
            t = self._source[name]
            return (t if t.ndim < 2 else t.flatten(0, -2))[first:stop]
        at, part, end = self._parts[name]
        whole = at + ("down_proj" if part == "down" else "gate_up_proj")
        own = slice(None)
        if part != "down":
            # Gate has the even rows, up the odd ones.
            own = slice(part == "up", None, 2)
        if end == ".bias":
            return self._read(whole + "_bias")[first:stop, own]
        # Rows are asked for an expert at a time.
        e = first // self.tensor_shape(name)[1]
        if whole + "_blocks" in self._source:
            return _numbers(
                self._read(whole + "_blocks")[e, own], self._read(whole + "_scales")[e, own]
            )
        return self._read(whole)[e].T[own].contiguous()

    def _read(self, name: str) -> Tensor:
        if name not in self._last:
            self._last[name] = self._source[name]
            if len(self._last) > KEPT:
                self._last.popitem(last=False)
        return self._last[name]

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._parts:
            return self._source[name]
        count, rows = self.tensor_shape(name)[:2]
        if self._parts[name][2] == ".bias":
            return self.tensor_rows(name, 0, count)
        return torch.stack([self.tensor_rows(name, e * rows, (e + 1) * rows) for e in range(count)])

    def __contains__(self, name: object) -> bool:
        return name in self._parts or (name in self._source and name in self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _numbers(blocks_NB16: Tensor, scales_NB: Tensor) -> Tensor:
    """``[rows, 32 blocks]``, exact in bfloat16 wherever bfloat16 has the power of two."""
    # The low half of a byte is the earlier number.
    pairs = torch.stack(
        [_VALUES[(blocks_NB16 & 15).long()], _VALUES[(blocks_NB16 >> 4).long()]], -1
    )
    # The scale is the exponent of a power of two, with the bias of float32.
    powers = (scales_NB.to(torch.int32) - 127)[..., None]
    return torch.ldexp(pairs.flatten(-2), powers).flatten(-2).to(torch.bfloat16)

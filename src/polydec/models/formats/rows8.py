"""Matrices in files as one signed byte a number and one scale a row: half of what bf16 takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from polydec.base.errors import FileError
from polydec.models.formats import fields

SCALE = ".scale"  # what the name of a matrix's scales ends with


def quantise_rows(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Every matrix ``[rows, columns]`` as int8, rounded to nearest, with its scales ``[rows]``
    (fp32: a row's largest magnitude / 127) under NAME.scale; every other tensor in fp32."""
    out = dict[str, Tensor]()
    for name, t in weights.items():
        t = t.detach().float()
        if t.ndim == 2:
            # A row of zeros gets a scale above 0, as it is divided by.
            scale_N = (t.abs().amax(1) / 127).clamp(min=1e-12)
            out[name], out[name + SCALE] = (t / scale_N[:, None]).round().to(torch.int8), scale_N
        else:
            out[name] = t.contiguous()
    return out


def dequantise_rows(weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The same weights, with matrices that are stored so in fp16; as they are where none is."""
    scaled = [name for name in weights if name.endswith(".weight" + SCALE)]
    if scaled:
        return RowQuantisedWeights(weights, scaled)
    return weights


class RowQuantisedWeights(Mapping[str, Tensor]):
    """Weights of which some matrices are stored as int8. A matrix is made when it is asked for.

    Args:
        source: The tensors of the file.
        scaled: The names of scales.

    Raises:
        FileError: A matrix is asked for whose scales do not fit.
    """

    def __init__(self, source: Mapping[str, Tensor], scaled: list[str]) -> None:
        self._source = source
        self._scaled = {name.removesuffix(SCALE): name for name in scaled}
        hidden = set(scaled)
        self._names = [name for name in source if name not in hidden]

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._scaled:
            return self._source[name]
        code = self._source[name]
        scale_N = self._source[self._scaled[name]]
        if code.dtype != torch.int8 or scale_N.shape != code.shape[:1]:
            raise FileError(
                f"{self._scaled[name]} has shape {tuple(scale_N.shape)}: {name}, of {code.dtype} and shape "
                f"{tuple(code.shape)}, is no matrix of int8 with a scale for each row"
            )
        return (code.float() * scale_N.float()[:, None]).half()

    def source_of(self, name: str) -> tuple[Tensor, ...]:
        """What a matrix is made of, as it lies in the file."""
        own = (self._source[name],)
        if name in self._scaled:
            return (*own, self._source[self._scaled[name]])
        return own

    def __contains__(self, name: object) -> bool:  # else each question would make a matrix
        return name in self._names

    def tensor_shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, without making it."""
        return fields.shape_of(self._source, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

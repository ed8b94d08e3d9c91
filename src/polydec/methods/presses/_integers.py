"""Numbers as integers of few bits, with a scale and an offset for each group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import torch
from torch import Tensor

BITS = (2, 4, 8)
LARGEST = torch.finfo(torch.float16).max


@dataclass(frozen=True, slots=True)
class PackedIntegers:
    """A tensor as integers: x = code * scale + low along the last axis, in groups of equal length.

    Attributes:
        bits: Bits of a number: 2, 4 or 8.
        size: Length of the last axis.
        codes: The integers, 8 / bits of them a byte.
        scale: Distance of two codes, float16, one for each group.
        low: Value of code 0, float16, one for each group.
    """

    bits: int
    size: int
    codes: Tensor
    scale: Tensor
    low: Tensor

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scale.nbytes + self.low.nbytes

    def read_numbers(self) -> Tensor:
        """Return the numbers that come back, in fp32."""
        code = self.codes
        each = 8 // self.bits
        if each > 1:
            # Unpack: part i of each byte is every `each`-th number; padding at the end is cut off.
            parts = [code >> (self.bits * i) & ((1 << self.bits) - 1) for i in range(each)]
            code = torch.stack(parts, -1).flatten(-2)[..., : self.size]
        grouped = code.unflatten(-1, (self.scale.shape[-2], -1)).float()
        return torch.addcmul(self.low.float(), grouped, self.scale.float()).flatten(-2)


def quantise_to_integers(x: Tensor, bits: int, group: int) -> PackedIntegers:
    """Round a tensor to integers, with a scale and an offset for each group.

    A group of equal numbers comes back as that number, in float16.

    Args:
        x: The numbers; the last axis is divided into groups.
        bits: Bits of a number: 2, 4 or 8.
        group: Numbers of the last axis that share a scale. 0: all of them. Where the length is no
            multiple of it, their greatest common divisor.
    """
    size = x.shape[-1]
    most = (1 << bits) - 1
    each = 8 // bits
    grouped = x.unflatten(-1, (-1, gcd(group, size))).clamp(-LARGEST, LARGEST)
    # Codes count from the group's smallest number. Scale and offset are rounded to float16 first,
    # so that codes are chosen for the numbers that will be read back.
    low, high = grouped.aminmax(dim=-1, keepdim=True)
    low = low.half()
    offset = low.to(x.dtype)
    scale = ((high - offset) / most).clamp_(0.0, LARGEST).half()
    step = scale.to(x.dtype)
    # A group without spread has scale 0: every code is 0, and `low` comes back.
    code = ((grouped - offset) / torch.where(step == 0, 1.0, step)).round_().clamp_(0, most)
    # Pack: neighbours share a byte, the first of them in its lowest bits.
    flat = torch.nn.functional.pad(code.flatten(-2).to(torch.uint8), (0, -size % each))
    parts = flat.unflatten(-1, (-1, each)).unbind(-1)
    codes = parts[0].clone()
    for i, part in enumerate(parts[1:], 1):
        codes |= part << (bits * i)
    return PackedIntegers(bits, size, codes, scale, low)


def stack_packed_integers(parts: Sequence[PackedIntegers]) -> PackedIntegers:
    """Stack several of one shape along a new first axis."""
    return PackedIntegers(
        parts[0].bits,
        parts[0].size,
        torch.stack([x.codes for x in parts]),
        torch.stack([x.scale for x in parts]),
        torch.stack([x.low for x in parts]),
    )

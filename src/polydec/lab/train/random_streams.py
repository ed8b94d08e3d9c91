"""What is drawn at random at a step of a training."""

from __future__ import annotations

from hashlib import blake2b

import torch


def generator_for(seed: int, step: int, purpose: str) -> torch.Generator:
    """A generator whose draws are the same for the same seed, step and purpose, and else unrelated.

    Args:
        seed: Any whole number.
        step: Any whole number.
        purpose: What the draws decide, so that two of them at a step do not copy each other.

    Returns:
        A generator on the CPU.
    """
    # torch's generator of a CPU reads 32 bits of its seed and drops the rest, so all three are
    # mixed into as many.
    mixed = blake2b(repr((seed, step, purpose)).encode(), digest_size=4).digest()
    return torch.Generator().manual_seed(int.from_bytes(mixed, "little"))

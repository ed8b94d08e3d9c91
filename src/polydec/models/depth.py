"""Which layers a shallow copy of a network keeps."""
from __future__ import annotations


def kept_layers(layers: int, speed: float, *, even: bool = False) -> tuple[int, ...]:
    """The floor(layers / speed) layers, at least two (one of one), of Unified Layer Skipping: the first, the last, and of the
    others those whose index is a multiple of floor(layers / (kept - 1)), from below. The published rule leaves the largest
    gap at the top, which costs an untuned model dearly; even: spaced as evenly as can be instead. speed: 1 (all of
    them) or more. Raises ValueError below 1.
    Source: Liu et al., "Accelerating inference in large language models with a unified layer skipping strategy" (2024).
    """
    if not speed >= 1.0:
        raise ValueError(f"speed is {speed}: it must be at least 1")
    count = min(layers, max(2, int(layers / speed)))
    if count == layers:
        return tuple(range(layers))
    if even:
        return tuple(round(i * (layers - 1) / (count - 1)) for i in range(count))
    step = layers // (count - 1)
    middle = [i for i in range(1, layers - 1) if i % step == 0][:count - 2]
    return (0, *middle, layers - 1)

"""Trace events of denoising: what a pass wrote on the canvas, and what it took back."""

from __future__ import annotations

from dataclasses import dataclass

from polydec.core.trace import TraceEvent


@dataclass(frozen=True)
class UnmaskedEvent(TraceEvent):
    """A pass over the canvas: which gaps it filled, and how sure the model was of each token.

    The tokens themselves stand in the edit event of the same pass.

    Attributes:
        step: Passes of this answer before this one.
        block: First and stop position, [first, stop), of what could be filled.
        fed: First and stop position, [first, stop), of what ran.
        position: Positions that were filled, ascending.
        confidence: The model's own probability of each token that was written, 0 to 1.
        left: Gaps of the block that remain.
        piece: Text of each token by itself; "" for an end.
    """

    step: int
    block: tuple[int, int]
    fed: tuple[int, int]
    position: tuple[int, ...]
    confidence: tuple[float, ...]
    left: int
    piece: tuple[str, ...] = ()


@dataclass(frozen=True)
class RemaskedEvent(TraceEvent):
    """What a pass guessed and did not write: the gaps of the block that stay masked.

    It stands before the `UnmaskedEvent` of the same pass.

    Attributes:
        step: Passes of this answer before this one.
        position: Gaps of the block that stay masked, ascending.
        confidence: The model's own probability of the likeliest token of each, 0 to 1.
        piece: Text of the likeliest token of each by itself; "" for an end.
    """

    step: int
    position: tuple[int, ...]
    confidence: tuple[float, ...]
    piece: tuple[str, ...]

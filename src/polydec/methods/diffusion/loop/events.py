"""What a trace tells of a canvas."""

from __future__ import annotations

from dataclasses import dataclass

from polydec.core.trace import TraceEvent


@dataclass(frozen=True)
class UnmaskedEvent(TraceEvent):
    """A pass over the canvas: which gaps it filled (the edit beside it has the tokens), how sure the model was of each and how
    each reads by itself ("" for an end);
    block: [first, stop) of what could be filled; fed: [first, stop) of what ran; left: gaps of the block that remain."""

    step: int
    block: tuple[int, int]
    fed: tuple[int, int]
    position: tuple[int, ...]
    confidence: tuple[float, ...]
    left: int
    piece: tuple[str, ...] = ()


@dataclass(frozen=True)
class RemaskedEvent(TraceEvent):
    """What a pass guessed and put back: the gaps of the block that stay masked, of each the likeliest token as it reads by
    itself ("" for an end), and how sure the model was of it. It stands before the `UnmaskedEvent` of the same pass."""

    step: int
    position: tuple[int, ...]
    confidence: tuple[float, ...]
    piece: tuple[str, ...]

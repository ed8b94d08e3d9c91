"""How much a law moves when its passes have other shapes: what rounding alone can do."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from polydec.core.protocols import Target
from polydec.core.scheduler import run
from polydec.core.types import Draft, Reads, Want
from polydec.targets.shaped import Shaped

WIDTHS = (1, 2, 5, 16)
"""Rows of a pass that are tried: a token a pass, a short draft, a longer one, a tree's worth. One more try feeds it all as a
prompt."""
MARGIN = 4.0
"""A gap is a near-tie up to so many times the largest difference between two shapes: a method's own shapes are others."""
FLOOR = 1e-5
"""Nats below which a gap is a near-tie however little the shapes tried differ."""


def ungreedy(target: Target) -> Target:
    """The law before the step that takes its likeliest token, where it has one."""
    if isinstance(target, Shaped) and target.shapers:
        *before, last = target.shapers
        if last.reads is Reads.ARGMAX:
            return Shaped(target.target, *before)
    return target


def gaps(
    target: Target, prompt: Sequence[int], tokens: Sequence[int], first_token: int, other: int
) -> list[float]:
    """By how much log-probability `first_token` is likelier than `other` behind prompt and tokens, under each shape of
    passes."""

    async def fed(width: int | None) -> float:
        begin = tuple(prompt) if width is not None else (*prompt, *tokens)
        session, left = target.open(begin), tuple(tokens) if width is not None else ()
        try:
            await session.prefill(Want())
            root, filler = begin[-1], (first_token,) * ((width or 1) - 1)
            while left:
                chunk, left = left[: width or 1], left[width or 1 :]
                await session.score(Draft.chain(root, chunk), Want())
                session.commit((root, *chunk[:-1]))
                root = chunk[-1]
            scores = await session.score(Draft.chain(root, filler), Want())
            first, second = scores.logp(0, (first_token, other))
            return first - second
        finally:
            session.close()

    return [run([fed(w)])[0] for w in (None, *WIDTHS)]


def spread(differences: Sequence[float]) -> float:
    """The largest difference between two of these; 0 where one is not finite, as no rounding makes a token impossible."""
    return max(differences) - min(differences) if all(map(isfinite, differences)) else 0.0


def is_tie(differences: Sequence[float]) -> bool:
    """Whether rounding may decide between the two tokens: their gap lies within the noise between shapes."""
    smallest = min(map(abs, differences))
    return isfinite(smallest) and smallest <= max(FLOOR, MARGIN * spread(differences))

"""Warnings in the name of the line that called Polydec, which is the one that its user can change."""

from __future__ import annotations

import sys
import warnings

OURS = frozenset({"polydec", "functools"})
"""Packages whose frames lie between a warning and whoever caused it: ours, and what a cached
property is called from.
"""


def warn_caller(sentence: str) -> None:
    """Give a warning that names the nearest file outside Polydec, or the outermost one where all
    is Polydec's own.
    """
    level = 1
    frame = sys._getframe()
    # Up the stack until a frame lies outside of Polydec.
    while frame.f_back is not None and _room(frame.f_globals) in OURS:
        level += 1
        frame = frame.f_back
    warnings.warn(sentence, stacklevel=level)


def _room(names: dict[str, object]) -> str:
    return str(names.get("__name__", "")).partition(".")[0]

"""A trace as a page of its own: text, time line, draft trees, canvases. No scripts, nothing from
elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polydec.base.page_templates import render_page_template
from polydec.cli.canvas import CanvasFrame
from polydec.cli.page import INKS
from polydec.cli.search_tree import SearchTreeNode, search_tree_html, short_label
from polydec.core.trace import PassedEvent

TREES = 60
PASSES = 2000
LETTERS = 14
"""Trees and passes that are drawn of a choice, and letters of a drafted token."""
LANES = 64
FOLDED = 64
"""Requests that are drawn in company, and choices that are told of by themselves."""
ROW = 24
COLUMN = 112
"""Pixels of a node, down and across."""

Tree = tuple[int, tuple[int, ...], tuple[str, ...], tuple[int, ...]]
"""Position, parents, pieces, accepted nodes."""
Written = tuple[int, Sequence[str], frozenset[int]]
"""Of a pass: how many of its pieces were drafted, the pieces, and the numbers of those that the
rules left no choice of."""


@dataclass(frozen=True)
class TracePageChoice:
    """One choice of a request on a page.

    Attributes:
        title: Its heading.
        rounds: Of every pass how many of its pieces were drafted, the pieces, and which of them
            were forced.
        trees: Its drafts.
        passes: Passes that it took part in.
        frames: Its canvas after every pass; empty for other methods.
        search: The tree of its search; None: it is no search.
        asked: The prompt's text.
    """

    title: str
    rounds: Sequence[Written]
    trees: Sequence[Tree]
    passes: Sequence[PassedEvent]
    frames: Sequence[CanvasFrame]
    search: SearchTreeNode | None = None
    asked: str = ""


Lane = tuple[str, Sequence[PassedEvent]]
"""A request, and the passes that it took part in."""


def trace_page_html(
    title: str,
    head: Mapping[str, Any],
    parts: Sequence[TracePageChoice],
    together: Sequence[Lane] = (),
) -> str:
    """Make one HTML page of a trace.

    Args:
        title: Title of the page.
        head: What the trace says of model, draft and kernel.
        parts: The choices.
        together: Requests that ran together, each with its passes; then each choice is folded up.
            Empty: there was one request.

    Returns:
        The page.
    """
    about = ", ".join(
        f"{name} {head[name]}" for name in ("model", "draft", "kernel") if head.get(name)
    )
    lanes = together[:LANES]
    # Of a single request all is shown at once.
    shown = parts[:FOLDED] if together else parts
    return render_page_template(
        "cli/trace_page.html.jinja",
        title=title,
        about=about,
        parts=[_part(p) for p in shown],
        choices=len(parts),
        requests=len(lanes),
        company=_company(lanes) if lanes else None,
    )


@dataclass(frozen=True)
class _BarLane:
    """Passes that stand on one line, so many pixels from the top; the name stands at `name_at`. Of
    each pass its pixels upwards and what is told of it."""

    name: str
    name_at: int
    base: int
    bars: Sequence[tuple[PassedEvent, float, str]]
    ruled: bool = False


@dataclass(frozen=True)
class _TimeLine:
    """Bars over the time up to second `end`: the first `shown` of `count` passes, those of each
    model in its colour. The lanes begin `left` pixels from the left."""

    lanes: Sequence[_BarLane]
    inks: Mapping[str, str]
    end: float
    tall: int
    shown: int
    count: int
    left: int
    width: int
    shared: float
    """The share of passes that served several texts: what running together saves."""


def _time_line(
    lanes: Sequence[_BarLane], tall: int, shown: Sequence[PassedEvent], count: int, left: int = 0
) -> _TimeLine:
    """Put a time line together; `tall` are its pixels downwards, `left` those for the names."""
    inks = {m: INKS[i % len(INKS)] for i, m in enumerate(dict.fromkeys(p.model for p in shown))}
    end = max(p.start + p.seconds for p in shown) or 1.0
    shared = sum(p.queries > 1 for p in shown) / len(shown)
    return _TimeLine(lanes, inks, end, tall, len(shown), count, left, 1100 - left, shared)


def _company(requests: Sequence[Lane]) -> _TimeLine:
    """All passes of all requests: above what each pass fed, below a lane a request with its part of
    it."""
    # A shared pass stands in every request that took part in it: model and start name it.
    every = {(p.model, p.start): p for _, passes in requests for p in passes}
    # In the order of time, the first PASSES of them.
    shown = [every[key] for key in sorted(every, key=lambda key: key[1])][:PASSES]
    above = 60
    row = 20
    # Heights are relative to the largest pass; below, to the largest part of one request.
    most = max(p.of for p in shown) or 1
    part = max(p.positions for _, passes in requests for p in passes) or 1
    bars = [
        (p, _pixels(p.of / most, above - 8), f"{_said(p)}: {p.of} positions of {p.queries} texts")
        for p in shown
    ]
    lanes = [_BarLane("all of them", above - 4, above, bars)]
    # Below one lane a request, drawn up to the last pass that is shown above.
    for i, (name, passes) in enumerate(requests, 1):
        base = above + 6 + i * row
        bars = [
            (
                p,
                _pixels(p.positions / part, row - 4),
                f"{_said(p)}: {p.positions} of {p.of} positions",
            )
            for p in passes
            if p.start <= shown[-1].start
        ]
        lanes.append(_BarLane(name[:12], base - 3, base, bars, ruled=True))
    return _time_line(lanes, above + 6 + len(requests) * row + 18, shown, len(every), left=86)


def _said(p: PassedEvent) -> str:
    return f"{p.model[:60]}, {p.seconds * 1000:.1f} ms"


def _pixels(share: float, high: float, least: float = 2.5) -> float:
    # The square root keeps small passes visible next to a prompt's.
    return max(least, high * share**0.5)


def _part(choice: TracePageChoice) -> dict[str, Any]:
    """A choice, and what is drawn of it; a tree of its root alone is no draft."""
    drafts = [(n, t) for n, t in enumerate(choice.trees, 1) if len(t[1]) > 1]
    return {
        "choice": choice,
        "search": choice.search and search_tree_html(choice.search),
        "passes": _choice_passes(choice.passes) if choice.passes else None,
        "drafts": [_tree(n, t) for n, t in drafts[:TREES]],
        "drafted": len(drafts),
    }


def _choice_passes(passes: Sequence[PassedEvent]) -> _TimeLine:
    """A bar a pass, a lane a model; taller where more positions were fed."""
    shown = passes[:PASSES]
    most = max(p.positions for p in shown) or 1
    high = 46
    lanes = list[_BarLane]()
    for i, model in enumerate(dict.fromkeys(p.model for p in shown), 1):
        base = i * (high + 20)
        bars = [
            (
                p,
                _pixels(p.positions / most, high, 3.0),
                f"{p.seconds * 1000:.1f} ms, {p.positions} positions for this request of {p.of}, "
                f"{p.queries} queries together",
            )
            for p in shown
            if p.model == model
        ]
        lanes.append(_BarLane(model[:60], base - high - 3, base, bars))
    return _time_line(lanes, len(lanes) * (high + 20) + 18, shown, len(passes))


def _tree(n: int, tree: Tree) -> dict[str, Any]:
    """A draft as a tree, the accepted path in green."""
    position, parent, piece, path = tree
    depth = [0] * len(parent)
    row = [0.0] * len(parent)
    # The root stands whatever was accepted.
    taken = {0, *path}
    kids = [[j for j in range(1, len(parent)) if parent[j] == i] for i in range(len(parent))]
    free = 0
    for i in range(1, len(parent)):
        depth[i] = depth[parent[i]] + 1
    stack = [(0, False)]
    # Rows by a walk in depth, without recursion as a draft may be deep: leaves from above to below,
    # each other node in the middle of its children.
    while stack:
        i, done = stack.pop()
        if not kids[i]:
            row[i], free = float(free), free + 1
        elif done:
            row[i] = (row[kids[i][0]] + row[kids[i][-1]]) / 2
        else:
            stack.append((i, True))
            stack += [(k, False) for k in reversed(kids[i])]
    nodes = list[dict[str, Any]]()
    for i in range(len(parent)):
        shown = piece[i] if i < len(piece) else "·"
        node = {
            "taken": i in taken,
            "x": depth[i] * COLUMN,
            "y": row[i] * ROW + 16,
            "label": short_label(shown, LETTERS),
            "above": (depth[parent[i]] * COLUMN + 84, row[parent[i]] * ROW + 12) if i else None,
        }
        nodes.append(node)
    return {
        "nodes": nodes,
        "wide": (max(depth) + 1) * COLUMN,
        "tall": free * ROW + 8,
        "label": f"pass {n}, from position {position}: {len(path)} of {len(parent) - 1} accepted",
    }

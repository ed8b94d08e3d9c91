"""A trace as a page of its own: text, time line, draft trees, canvases. No scripts, nothing from
elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polydec.cli.canvas import CanvasFrame, frame_cells_html
from polydec.cli.page import INKS, escape_html, html_document
from polydec.cli.search_tree import SearchTreeNode
from polydec.cli.search_tree import search_tree_html as searched
from polydec.core.trace import PassedEvent

TREES = 60
PASSES = 2000
LETTERS = 14
"""Trees and passes that are drawn of a choice, and letters of a drafted token."""
ASKED = 2000
"""Letters of a prompt."""
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


_STYLE = """
.text{white-space:pre-wrap;overflow-wrap:anywhere;
border:1px solid var(--line);border-radius:8px;padding:.8em}
.d{background:var(--goodbg);border-radius:3px}.p{border-bottom:2px solid var(--line)}.f{color:var(--c);font-weight:600}
svg text{font:12px ui-monospace,monospace;fill:var(--ink)}svg .no{fill:var(--soft)}svg .ok{fill:var(--good);font-weight:700}
svg.search text.score{font-size:10px;fill:var(--soft)}
svg path{fill:none;stroke:var(--line);stroke-width:1.5}svg path.ok{fill:none;stroke:var(--good);stroke-width:2.5}
.trees{display:flex;flex-wrap:wrap;gap:.6em}.trees figure{margin:0;max-width:100%;box-sizing:border-box}
figcaption{color:var(--soft);font-size:.85em}
table{border-collapse:collapse}td{padding:.1em .35em;white-space:pre;font-family:ui-monospace,monospace;color:#1d2330}
th{text-align:right;font-weight:400;color:var(--soft);padding:0 .8em 0 0;white-space:nowrap}td.g{color:var(--soft)}
.n{outline:2px solid var(--good);border-radius:3px}
details{border-top:1px solid var(--line);padding:.3em 0}summary{cursor:pointer;overflow-wrap:anywhere}
.bars rect:nth-child(1n){opacity:.9}
"""


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
    # Of a single request all is shown at once.
    body = "".join(_part(p) for p in parts)
    if together:
        folded = "".join(
            f"<details><summary>{escape_html(p.title)}</summary>{_part(p)}</details>"
            for p in parts[:FOLDED]
        )
        if len(parts) > FOLDED:
            more = f'<p class="note">The first {FOLDED} of {len(parts)}.</p>'
        else:
            more = ""
        body = f"{_company(together)}<h2>Each by itself</h2>{folded}{more}"
    return html_document(title, _STYLE, f'<p class="note">{escape_html(about)}</p>{body}')


def _company(lanes: Sequence[Lane]) -> str:
    """All passes of all requests: above what each pass fed, below a lane a request with its part of
    it."""
    lanes = lanes[:LANES]
    # A shared pass stands in every request that took part in it: model and start name it.
    every = {(p.model, p.start): p for _, passes in lanes for p in passes}
    # In the order of time, the first PASSES of them.
    shown = [every[key] for key in sorted(every, key=lambda key: key[1])][:PASSES]
    last = shown[-1].start
    end = max(p.start + p.seconds for p in shown) or 1.0
    ink = {m: INKS[i % len(INKS)] for i, m in enumerate(dict.fromkeys(p.model for p in shown))}
    left = 86
    width = 1014
    above = 60
    row = 20

    def bar(p: PassedEvent, base: float, high: float, share: float, label: str) -> str:
        # The square root keeps small passes visible next to a prompt's.
        """Draw a pass.

        Args:
            p: The pass.
            base: Pixels of its lower end from the top.
            high: Pixels of the highest bar.
            share: Its positions as a share of the largest pass, 0 to 1.
            label: What is shown when the pointer rests on it, as HTML.

        Returns:
            SVG.
        """
        # The root, so that small passes can be seen beside large ones.
        tall = max(2.5, high * share**0.5)
        x = left + width * p.start / end
        wide = max(0.6, width * p.seconds / end - 0.4)
        return (
            f'<rect x="{x:.1f}" y="{base - tall:.1f}" width="{wide:.1f}" height="{tall:.1f}" fill="{ink[p.model]}">'
            f"<title>{label}</title></rect>"
        )

    # Heights are relative to the largest pass; below, to the largest part of one request.
    most = max(p.of for p in shown) or 1
    part = max(p.positions for _, passes in lanes for p in passes) or 1
    out = [f'<text x="0" y="{above - 4}">all of them</text>']
    for p in shown:
        label = f"{escape_html(p.model, 60)}, {p.seconds * 1000:.1f} ms: {p.of} positions of {p.queries} texts"
        out.append(bar(p, above, above - 8, p.of / most, label))
    # Below one lane a request, drawn up to the last pass that is shown above.
    for i, (name, passes) in enumerate(lanes):
        base = above + 6 + (i + 1) * row
        out.append(
            f'<path d="M{left} {base}H{left + width}"/><text x="0" y="{base - 3}">{escape_html(name, 12)}</text>'
        )
        for p in (p for p in passes if p.start <= last):
            label = f"{escape_html(p.model, 60)}, {p.seconds * 1000:.1f} ms: {p.positions} of {p.of} positions"
            out.append(bar(p, base, row - 4, p.positions / part, label))
    tall = above + 6 + len(lanes) * row + 18
    out.append(
        f'<text class="no" x="{left}" y="{tall - 3}">0 s</text>'
        f'<text class="no" x="{left + width}" y="{tall - 3}" text-anchor="end">{end:.2f} s</text>'
    )
    # The share of passes that served several texts: what running together saves.
    shared = sum(p.queries > 1 for p in shown) / len(shown)
    models = ", ".join(f'<b style="color:{c}">{escape_html(m, 60)}</b>' for m, c in ink.items())
    if len(every) > PASSES:
        more = f" The first {PASSES} of {len(every)}."
    else:
        more = ""
    return (
        f"<h2>{len(lanes)} requests in company</h2>"
        f'<p class="note">{len(every)} passes, {shared:.0%} of them over several texts at once. '
        f"A bar a pass, its height grows with the positions that were fed: above of all requests together, below the "
        f"part of each. Bars that stand under one another are one pass. {models}.{more}</p>"
        f'<div class="wide"><svg class="bars" width="{left + width}" height="{tall}" role="img" '
        f'aria-label="passes of {len(lanes)} requests on one time line">{"".join(out)}</svg></div>'
    )


_FORCED = (
    ' <b class="f">Coloured</b>: the rules of the request (a constraint, say) left no other token.'
)


def _shown(piece: str) -> str:
    return escape_html(piece).replace("\n", "⏎").replace("\t", "⇥")


def _part(part: TracePageChoice) -> str:
    out = [f"<h2>{escape_html(part.title)}</h2>"]
    if part.asked:
        out.append(
            f'<h3>What was asked</h3><div class="text">{escape_html(part.asked, ASKED)}</div>'
        )
    if part.frames:
        out.append(_canvas(part.frames))
    elif part.rounds:
        out.append(_text(part.rounds))
    if part.search is not None:
        out.append(searched(part.search))
    if part.passes:
        out.append(_timeline(part.passes))
    # A tree of its root alone is no draft.
    if any(len(parent) > 1 for _, parent, _, _ in part.trees):
        out.append(_trees(part.trees))
    return "".join(out)


def _text(rounds: Sequence[Written]) -> str:
    """The answer; drafted tokens that were accepted are green, a pass's own token underlined,
    forced ones of another colour."""
    out = list[str]()
    for n, (accepted, pieces, forced) in enumerate(rounds, 1):
        for i, piece in enumerate(pieces):
            # Accepted drafts come first in a pass, its own token last.
            if i < accepted:
                kind = "d"
                what = "a draft"
            else:
                kind = "p"
                what = "the model's own"
            if i in forced:
                kind = f"{kind} f"
                what = f"{what}, forced"
            out.append(f'<span class="{kind}" title="pass {n}: {what}">{escape_html(piece)}</span>')
    return (
        '<h3>What was written</h3><p class="note">Green: drafted and accepted. Underlined: the token that a pass gave of '
        f"its own.{_FORCED if any(forced for *_, forced in rounds) else ''}</p>"
        f'<div class="text">{"".join(out)}</div>'
    )


def _timeline(passes: Sequence[PassedEvent]) -> str:
    """A bar a pass, a lane a model; taller where more positions were fed."""
    shown = passes[:PASSES]
    end = max(p.start + p.seconds for p in shown) or 1.0
    most = max(p.positions for p in shown) or 1
    lanes = list(dict.fromkeys(p.model for p in shown))
    width = 1100
    high = 46
    bars = list[str]()
    for i, lane in enumerate(lanes):
        base = (i + 1) * (high + 20)
        bars.append(f'<text x="0" y="{base - high - 3}">{escape_html(lane, 60)}</text>')
        for p in (p for p in shown if p.model == lane):
            # The square root keeps single tokens visible next to a prompt.
            tall = max(3.0, high * (p.positions / most) ** 0.5)
            x = width * p.start / end
            w = max(0.6, width * p.seconds / end - 0.4)
            label = (
                f"{p.seconds * 1000:.1f} ms, {p.positions} positions for this request of {p.of}, "
                f"{p.queries} queries together"
            )
            bars.append(
                f'<rect x="{x:.1f}" y="{base - tall:.1f}" width="{w:.1f}" height="{tall:.1f}" fill="{INKS[i % len(INKS)]}">'
                f"<title>{label}</title></rect>"
            )
    tall = len(lanes) * (high + 20) + 18
    axis = (
        f'<text class="no" x="0" y="{tall - 3}">0 s</text>'
        f'<text class="no" x="{width}" y="{tall - 3}" text-anchor="end">{end:.2f} s</text>'
    )
    # A page of all passes of a long run would be too large for a browser.
    if len(passes) > PASSES:
        more = f" The first {PASSES} of {len(passes)}."
    else:
        more = ""
    return (
        f'<h3>When: {len(passes)} passes</h3><p class="note">A bar a pass; its height grows with the positions that were '
        f"fed.{more}</p>"
        f'<div class="wide"><svg class="bars" width="{width}" height="{tall}" role="img" aria-label="time line of passes">'
        f"{''.join(bars)}{axis}</svg></div>"
    )


def _trees(trees: Sequence[Tree]) -> str:
    """Each draft as a tree, the accepted path in green."""
    drawn = [(n, t) for n, t in enumerate(trees, 1) if len(t[1]) > 1]
    figures = "".join(_tree(n, t) for n, t in drawn[:TREES])
    if len(drawn) > TREES:
        more = f" The first {TREES} of {len(drawn)}."
    else:
        more = ""
    return (
        f'<h3>Drafts: {len(drawn)}</h3><p class="note">On the left the last token that stood; green is what the model '
        f"accepted, ∎ is the end of the text.{more}</p>"
        f'<div class="trees">{figures}</div>'
    )


def _tree(n: int, tree: Tree) -> str:
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
    lines = list[str]()
    words = list[str]()
    for i in range(len(parent)):
        x = depth[i] * COLUMN
        y = row[i] * ROW + 16
        kind = "ok" if i in taken else "no"
        shown = piece[i] if i < len(piece) else "·"
        # An empty piece is the end of a text.
        label = _shown(shown[:LETTERS] + ("…" if len(shown) > LETTERS else "")) or "∎"
        words.append(f'<text class="{kind}" x="{x}" y="{y}" xml:space="preserve">{label}</text>')
        if i:
            p = parent[i]
            fx = depth[p] * COLUMN + 84
            fy = row[p] * ROW + 12
            mark = ' class="ok"' if i in taken else ""
            lines.append(
                f'<path{mark} d="M{fx} {fy:.0f}C{fx + 14} {fy:.0f} {x - 18} {y - 4:.0f} {x - 4} {y - 4:.0f}"/>'
            )
    wide = (max(depth) + 1) * COLUMN
    tall = free * ROW + 8
    tree_label = f"pass {n}, from position {position}: {len(path)} of {len(parent) - 1} accepted"
    return (
        f'<figure class="wide"><svg width="{wide}" height="{tall}" role="img" aria-label="{tree_label}">'
        f"{''.join(lines)}{''.join(words)}</svg>"
        f"<figcaption>{tree_label}</figcaption></figure>"
    )


def _canvas(frames: Sequence[CanvasFrame]) -> str:
    """A row a pass, a cell a position."""
    rows = "".join(
        f"<tr><th>pass {f.step + 1}, {len(f.filled)} filled</th>{frame_cells_html(f)}</tr>"
        for f in frames
    )
    return (
        '<h3>The canvas</h3><p class="note">A row a pass. Greener where the model was surer; framed what the pass wrote. '
        "Grey: what the model would have put there, and was not sure enough of: the place stays open. ∎ is the end of a "
        "text, a dot a place that was not looked at.</p>"
        f'<div class="wide"><table>{rows}</table></div>'
    )

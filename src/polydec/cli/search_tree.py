"""The texts that a search tried, as one tree: what it kept, what it gave up, and what they were
worth."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from polydec.cli.page import escape_html
from polydec.core.trace import BranchedEvent, PrunedEvent, ScoredEvent, TraceEvent, TriedEvent

NODES = 300
LETTERS = 26
"""Nodes that are drawn, and letters of one."""
ROW = 34
GAP = 40
WIDTH = 7.3
"""Pixels of a node downwards, between two columns, and of a letter."""


@dataclass
class SearchTreeNode:
    """Tokens that all texts of this part share.

    Attributes:
        tokens: Their ids.
        pieces: Their texts.
        kids: Parts that follow.
        score: What the last branch that ends here was ranked by; None: none was.
        pruned: Whether such a branch was given up.
        chosen: Whether it belongs to the answer.
    """

    tokens: list[int]
    pieces: list[str]
    kids: list[SearchTreeNode] = field(default_factory=list["SearchTreeNode"])
    score: float | None = None
    pruned: bool = False
    chosen: bool = False


@dataclass
class _SearchBranch:
    """Its tokens with what each reads as; weighed: by how many tokens stood, the score; given up at
    the end or not."""

    tokens: list[int]
    pieces: list[str]
    weighed: dict[int, float] = field(default_factory=dict[int, float])
    pruned: bool = False


def build_search_tree(
    events: Iterable[TraceEvent], answer: Sequence[int] = ()
) -> SearchTreeNode | None:
    """Build the tree of a search's branches, whose root is the prompt.

    Args:
        events: Events of the trace, in order.
        answer: Tokens of the answer, to mark its path. Default: none.

    Returns:
        The root; None where no branch was begun, or none was written to.
    """
    branches = dict[int, _SearchBranch]()
    for event in events:
        match event:
            case BranchedEvent():
                # A new branch begins as a copy of its parent's first tokens.
                above = branches.get(event.parent, _SearchBranch([], []))
                branches[event.branch] = _SearchBranch(
                    above.tokens[: event.at], above.pieces[: event.at]
                )
            # Branches whose opening was not recorded are left out.
            case TriedEvent() if event.branch in branches:
                branches[event.branch].tokens += event.tokens
                branches[event.branch].pieces += event.pieces
            case ScoredEvent() if event.branch in branches:
                branch = branches[event.branch]
                branch.weighed[len(branch.tokens)] = event.score
            case PrunedEvent() if event.branch in branches:
                branches[event.branch].pruned = True
            case _:
                pass
    # A trie of all branches: shared beginnings become one node.
    root = SearchTreeNode([], [], chosen=True)
    for branch in branches.values():
        _put(root, branch)
    if not root.kids:
        return None
    _choose(root, answer)
    return root


def _put(root: SearchTreeNode, branch: _SearchBranch) -> None:
    """Lay a branch into the tree, splitting nodes where it leaves them or where it was weighed."""
    node = root
    at = 0
    # A node must end wherever the branch was weighed, so that the score has a place.
    stops = sorted({*branch.weighed, len(branch.tokens)})
    for stop in stops:
        node, at = _reach(node, branch, at, stop)
        if stop in branch.weighed:
            node.score = branch.weighed[stop]
    node.pruned |= branch.pruned and node is not root


def _reach(
    node: SearchTreeNode, branch: _SearchBranch, at: int, stop: int
) -> tuple[SearchTreeNode, int]:
    """The node that ends behind token `stop` of the branch; `node` ends behind token `at`."""
    while at < stop:
        kid = next((k for k in node.kids if k.tokens[0] == branch.tokens[at]), None)
        if kid is None:
            kid = SearchTreeNode(branch.tokens[at:stop], branch.pieces[at:stop])
            node.kids.append(kid)
            return kid, stop
        # How many tokens the child shares with the branch; it is split where they part.
        same = 0
        while (
            same < len(kid.tokens)
            and at + same < stop
            and kid.tokens[same] == branch.tokens[at + same]
        ):
            same += 1
        if same < len(kid.tokens):
            _split(kid, same)
        node = kid
        at = at + same
    return node, at


def _split(node: SearchTreeNode, at: int) -> None:
    """Make two of a node: what behind its first `at` tokens stands goes below them."""
    below = SearchTreeNode(node.tokens[at:], node.pieces[at:], node.kids, node.score, node.pruned)
    node.tokens = node.tokens[:at]
    node.pieces = node.pieces[:at]
    node.kids = [below]
    node.score = None
    node.pruned = False


def _choose(root: SearchTreeNode, answer: Sequence[int]) -> None:
    """Mark the nodes that the answer went through."""
    node = root
    at = 0
    while at < len(answer):
        kid = next(
            (k for k in node.kids if k.tokens == list(answer[at : at + len(k.tokens)])), None
        )
        # The answer may go on beyond what branches tried, such as an end token.
        if kid is None:
            return
        kid.chosen = True
        node = kid
        at = at + len(kid.tokens)


def search_tree_html(root: SearchTreeNode) -> str:
    """Draw the tree as part of a page."""
    nodes = [root]
    parent = [-1]
    depth = [0]
    # The list grows while it is walked: level by level, until there are enough nodes.
    for i, node in enumerate(nodes):
        for kid in sorted(node.kids, key=_rank)[: max(0, NODES - len(nodes))]:
            nodes.append(kid)
            parent.append(i)
            depth.append(depth[i] + 1)
    kids = [list[int]() for _ in nodes]
    for i, p in enumerate(parent[1:], 1):
        kids[p].append(i)
    row = [0] * len(nodes)
    free = 0
    stack = [0]
    # Rows by a walk in depth: the first child stands in its parent's row, the others below it. The
    # answer's path comes first.
    while stack:
        i = stack.pop()
        row[i] = free
        free += not kids[i]
        stack += sorted(kids[i], key=lambda k: (nodes[k].chosen, -k))
    # Column by depth, row by the walk above; a curve joins each node to its parent.
    column = _columns(nodes, depth)
    lines = list[str]()
    words = list[str]()
    # Columns are as wide as their longest label.
    for i, node in enumerate(nodes):
        x = column[depth[i]]
        y = row[i] * ROW + 16
        if node.chosen:
            kind = "ok"
        elif node.pruned:
            kind = "no"
        else:
            kind = ""
        words.append(_node(node, i, x, y, kind))
        if i:
            p = parent[i]
            begin = column[depth[p]] + 4 + WIDTH * len(_label(nodes[p]))
            # The path's bend: a straight part from the parent, then a curve to the child.
            fy = row[p] * ROW + 12
            mark = ' class="ok"' if node.chosen else ""
            turn = f"C{x - 16:.0f} {fy} {x - 16:.0f} {y - 4} {x - 4:.0f} {y - 4}"
            lines.append(f'<path{mark} d="M{begin:.0f} {fy}H{x - 26:.0f}{turn}"/>')
    wide = column[-1]
    tall = free * ROW + 12
    # All parts, those that are not drawn included.
    total = _count(root)
    if total > len(nodes):
        more = f" The first {len(nodes)} of {total} parts."
    else:
        more = ""
    gone = sum(n.pruned for n in nodes)
    return (
        f'<h3>The search: {total} parts of texts were tried</h3><p class="note">From left to right, beginning behind the '
        f"prompt. Green is what became the answer; grey and crossed out what was given up ({gone}). The small figure is what a "
        f"text was ranked by there: the higher, the better. ∎ is the end of a text.{more}</p>"
        f'<div class="wide"><svg class="search" width="{wide}" height="{tall}" role="img" aria-label="search tree">'
        f"{''.join(sorted(lines, key=lambda line: 'class' in line))}{''.join(words)}</svg></div>"
    )


def _columns(nodes: Sequence[SearchTreeNode], depth: Sequence[int]) -> list[float]:
    """Where each column begins, as wide as what stands in it, and where the last one ends."""
    wide = [0.0] * (max(depth) + 1)
    for node, d in zip(nodes, depth, strict=True):
        wide[d] = max(wide[d], WIDTH * len(_label(node)))
    return [0.0, *accumulate(w + GAP for w in wide)]


def _rank(node: SearchTreeNode) -> tuple[bool, float]:
    """What the answer went through comes first, then what was ranked highest."""
    return not node.chosen, -(node.score if node.score is not None else float("-inf"))


def _label(node: SearchTreeNode) -> str:
    """What is shown of a part: its beginning."""
    if not node.tokens:
        return "prompt"
    text = "".join(node.pieces)
    shown = text[:LETTERS] + ("…" if len(text) > LETTERS else "")
    return shown.replace("\n", "⏎").replace("\t", "⇥") or "∎"


def _node(node: SearchTreeNode, i: int, x: float, y: float, kind: str) -> str:
    # The root is the prompt, whose text is not shown.
    if not i:
        return f'<text class="ok" x="0" y="{y}">prompt</text>'
    text = "".join(node.pieces)
    label = escape_html(_label(node))
    if kind == "no":
        strike = ' text-decoration="line-through"'
    else:
        # Zeros at the end say nothing.
        strike = ""
    if node.score is None:
        told = ""
    else:
        told = f"{node.score:.3f}".rstrip("0").rstrip(".")
    if told:
        score = f'<text class="score" x="{x:.0f}" y="{y + 13}">{told}</text>'
    else:
        score = ""
    at = f'x="{x:.0f}" y="{y}" xml:space="preserve"'
    return (
        f'<text class="{kind}" {at}{strike}>{label}<title>{escape_html(text)}</title></text>{score}'
    )


def _count(root: SearchTreeNode) -> int:
    total = 0
    stack = [root]
    while stack:
        node = stack.pop()
        total += 1
        stack += node.kids
    return total - 1

"""How wide a tree pays at which batch: expected tokens against the cost of its rows there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

from polydec.base.errors import RequestError
from polydec.methods.economics.costs import PassCosts

Path = tuple[int, ...]
BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Sequences at once for which a width is looked for; between two of them the width of the lower one
stands.
"""


def likeliest_paths(rates: Sequence[Sequence[float]], nodes: int) -> list[tuple[Path, float]]:
    """Return the paths of ranks that are right most often, best first, each with how often.

    Args:
        rates: rates[d][r] is how often the token of rank r is right, d + 1 levels below the root.
        nodes: Number of paths; fewer where there are no more.
    """
    out = list[tuple[Path, float]]()
    tips = {(r,): rate for r, rate in enumerate(rates[0])}
    while tips and len(out) < nodes:
        # Best first: a path is never right more often than its beginnings.
        path = max(tips, key=tips.__getitem__)
        value = tips.pop(path)
        if len(path) < len(rates):
            below = rates[len(path)]
        else:
            below = ()
        out.append((path, value))
        tips |= {(*path, r): value * rate for r, rate in enumerate(below)}
    return out


def expected_tokens(rates: Sequence[Sequence[float]], nodes: int) -> tuple[float, ...]:
    """Return the tokens a pass of trees of 0, 1, … of the likeliest paths.

    The target's own token is counted, so the first entry is 1.

    Args:
        rates: rates[d][r] is how often the token of rank r is right, d + 1 levels below the root.
        nodes: Nodes of the largest tree.
    """
    return tuple(accumulate((value for _, value in likeliest_paths(rates, nodes)), initial=1.0))


def best_width(written: Mapping[int, float], cost: Callable[[int], float]) -> int:
    """Return the width that writes most tokens for its cost, the narrowest of equals.

    Args:
        written: Tokens a pass at each width.
        cost: Cost of a round at a width, the draft's own included, above 0.
    """
    return max(sorted(written), key=lambda width: written[width] / cost(width))


def widths_by_batch(
    written: Sequence[float],
    costs: PassCosts,
    draft_ms: Callable[[int], float],
    context: int = 256,
) -> tuple[tuple[int, int], ...]:
    """Return the best width at growing batches.

    Source: Scaling Laws for Speculative Decoding (Yan et al., 2025), the width as a function of the
    batch.

    Args:
        written: Tokens a pass of trees of 0, 1, … nodes.
        costs: What passes cost on this machine.
        draft_ms: What falls to each of so many sequences of a draft, in milliseconds; it is not run
            at width 0.
        context: Tokens of context before a pass. Default 256.

    Returns:
        Pairs (sequences from which on, width), one where the width changes.
    """
    out = list[tuple[int, int]]()
    by_width = dict(enumerate(written))
    for batch in BATCHES:

        def round_cost(width: int, batch: int = batch) -> float:
            """Return the milliseconds of a round that fall to a sequence.

            Args:
                width: Nodes of the tree.
                batch: Sequences that share the pass; bound now, since the loop variable changes.
            """
            return costs.request_share(1 + width, batch, context) + (
                draft_ms(batch) if width else 0.0
            )

        width = best_width(by_width, round_cost)
        # The table lists only the batches at which the width changes.
        if not out or out[-1][1] != width:
            out.append((batch, width))
    return tuple(out)


def read_widths(text: str) -> tuple[tuple[int, int], ...]:
    """Read a table of widths such as "1:16,4:8,16:0" (sequences at once : tokens of a draft).

    Raises:
        RequestError: The text is of another form.
    """
    out = list[tuple[int, int]]()
    for part in text.split(","):
        batch, colon, width = part.strip().partition(":")
        if not (colon and batch.isdecimal() and width.isdecimal() and len(part) < 16):
            raise RequestError(
                f"widths is {text!r:.60}: it must name tokens of a draft by sequences at once, such as 1:16,4:8,16:0"
            )
        out.append((int(batch), int(width)))
    return tuple(out)


def widths_for(
    text: str,
    rates: Sequence[Sequence[float]],
    share: float,
    costs: PassCosts,
    nodes: int,
    depth: int,
) -> tuple[tuple[int, int], ...]:
    """Return the table that a request names, or the one that pays by measured costs.

    Args:
        text: Table such as "1:16,4:8,16:0"; "": the one that pays.
        rates: rates[d][r] is how often the token of rank r is right, d + 1 levels below the root.
        share: Passes of the target that a draft costs.
        costs: What passes cost on this machine.
        nodes: Most nodes of a tree.
        depth: Most levels of a tree; levels below all that have rates go as the last one.

    Raises:
        RequestError: The text is of another form.
    """
    if text:
        return read_widths(text)
    # Levels below all that were measured are taken to be like the last one.
    levels = (*rates, *[rates[-1]] * depth)[:depth]

    def draft_ms(sequences: int) -> float:
        return share * costs.request_share(1, sequences)

    return widths_by_batch(expected_tokens(levels, nodes), costs, draft_ms)

"""What the passes of a run cost by the measured tables of `polydec tune`: the same figure each time, where a clock is noisy.

A run notes every pass of a network; what is kept of them is a histogram, a list of [rows, part, passes, contexts]. rows: of
all sequences together, as they share the pass; part: of the network's layers, above 0 to 1; contexts: the sum over these
passes of the tokens that stand behind their rows (the mean over the rows where sequences differ).
"""
from __future__ import annotations

import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from polydec.bench.profile import Profile
from polydec.core.costs import Costs

Histogram = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Done:
    """What a network did from some moment on."""
    seconds: float
    passes: int
    rows: int
    by_rows: list[list[float]]


class Clocked:
    """Notes of each pass of a network when it ran, how long it took, its rows, layers and context."""
    def __init__(self, network: Any) -> None:
        self.network, self.calls, forward = network, list[tuple[float, float, list[tuple[int, int, Any]]]](), network.forward

        def timed(queries: Any) -> Any:
            start = time.perf_counter()
            answers = forward(queries)
            took = time.perf_counter() - start
            self.calls.append((start, took, [(len(q), q.first, q.layers) for q in queries]))
            return answers
        network.forward = timed

    def since(self, moment: float) -> Done:
        """What began then or later. Queries over other layers than their neighbours' make a pass of their own."""
        calls, found = [c for c in self.calls if c[0] >= moment], defaultdict[tuple[int, float], list[float]](lambda: [0, 0.0])
        for _, _, queries in calls:
            for layers in dict.fromkeys(q[2] for q in queries):
                mine = [q for q in queries if q[2] == layers]
                rows, part = sum(q[0] for q in mine), 1.0 if layers is None else len(layers) / self.network.layers
                entry = found[rows, round(part, 4)]
                entry[0] += 1
                entry[1] += sum(n * first for n, first, _ in mine) / max(rows, 1)
        by_rows = [[rows, part, n, round(contexts, 1)] for (rows, part), (n, contexts) in sorted(found.items())]
        return Done(sum(c[1] for c in calls), sum(int(e[2]) for e in by_rows), sum(int(e[0] * e[2]) for e in by_rows), by_rows)


def replayed_ms(cell: Mapping[str, Any], profile: Profile) -> float | None:
    """Milliseconds of a cell's passes by the profile's tables, what Python adds to each pass included; a pass over a part of
    the layers counts as that part of a pass. What drafters compute between passes, and heads at an early exit, cost nothing.

    None where the cell has no passes noted (another engine's), or some of a model that the profile does not know.
    """
    if cell.get("target_by_rows") is None or cell.get("unclocked"):
        return None
    extra, drafts = profile.extra_ms, [h for h in cell["draft_by_rows"] if h]
    if drafts and (not profile.draft or len(drafts) > 1 or not cell["draft_by_rows"][0]):
        return None
    return _ms(cell["target_by_rows"], profile.costs, extra) + (_ms(drafts[0], _draft(profile), extra) if drafts else 0.0)


def _ms(passes: Histogram, costs: Costs, extra: float) -> float:
    return sum(n * (extra + part * (costs.share(int(rows), 1, contexts / n) - extra)) for rows, part, n, contexts in passes)


def _draft(profile: Profile) -> Costs:
    """Of the draft model's passes, gaps filled by straight lines; its context costs nothing in the tables."""
    known = sorted(profile.draft)
    rows = np.interp(range(1, max(known[-1], 2) + 1), known, [profile.draft[m] for m in known])
    return Costs(tuple(float(t) + profile.extra_ms for t in np.maximum.accumulate(rows)))


def to_line(profile: Profile) -> dict[str, Any]:
    """The line of a result file that holds a profile, under a name that its cells give."""
    tables = asdict(profile)
    return {"profile": hashlib.sha1(json.dumps(tables, sort_keys=True).encode()).hexdigest()[:12], "tables": tables}


def from_line(line: Mapping[str, Any]) -> Profile:
    """The profile that `to_line` wrote, read from JSON."""
    of = {k: {int(m): float(t) for m, t in v.items()} if isinstance(v, dict) else v for k, v in line["tables"].items()}
    return Profile(**of)

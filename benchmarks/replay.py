"""What the passes of a run cost by the measured tables of `polydec tune`: the same figure each time, where a clock is noisy.

A run notes every pass of a network; what is kept of them is a histogram, a list of [rows, part, passes, contexts, sequences].
rows: of all sequences together, as they share the pass; part: of the network, above 0 to 1, by the weights of the layers and
the head that ran; contexts: the sum over these passes of the tokens that stand behind a sequence's rows (the mean over the
sequences). A head that is computed apart, as at an early exit, stands there too, as a part behind nothing. Files of before
2026-11-23 do not say the sequences: each of their passes counts as one of a single sequence.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from polydec.core.types import RowDetail
from polydec.methods.economics.costs import PassCosts
from polydec.request.profile import PassProfile

Histogram = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Done:
    """What a network did from some moment on: seconds, heads that were computed apart included; passes and their rows."""

    seconds: float
    passes: int
    rows: int
    by_rows: list[list[float]]


@dataclass(frozen=True)
class Fed:
    """Rows of so many sequences that went together through a part of a network, behind `context` tokens each (the mean); head:
    through nothing but its head."""

    rows: int
    part: float
    context: float
    head: bool = False
    sequences: int = 1


class Clocked:
    """Notes of each pass of a network when it began, how long it took, and what was fed."""

    def __init__(self, network: Any) -> None:
        self.network, self.calls = network, list[tuple[float, float, list[Fed]]]()
        self._head, forward, head = head_share(network), network.forward, network.head_logits

        def timed(call: Any, x: Any, fed: Callable[[Any], list[Fed]]) -> Any:
            start = time.perf_counter()
            answer = call(x)
            self.calls.append((start, time.perf_counter() - start, fed(x)))
            return answer

        network.forward = lambda queries: timed(forward, queries, self._fed)
        network.head_logits = lambda hidden_RH: timed(
            head, hidden_RH, lambda h: [Fed(len(h), self._head, 0.0, True)]
        )

    def _fed(self, queries: Sequence[Any]) -> list[Fed]:
        """Queries over other layers than their neighbours' make a pass of their own."""
        out = list[Fed]()
        for layers in dict.fromkeys(q.layers for q in queries):
            mine = [q for q in queries if q.layers == layers]
            rows, run = (
                sum(len(q) for q in mine),
                1.0 if layers is None else len(layers) / self.network.layers,
            )
            head = any(
                len(q.rows) and max(q.want.law, q.want.base) > RowDetail.NOTHING for q in mine
            )
            out.append(
                Fed(
                    rows,
                    run * (1.0 - self._head) + head * self._head,
                    sum(q.first for q in mine) / len(mine),
                    sequences=len(mine),
                )
            )
        return out

    def since(self, moment: float) -> Done:
        """What began then or later."""
        calls = [c for c in self.calls if c[0] >= moment]
        found = defaultdict[tuple[int, float, int], list[float]](lambda: [0, 0.0])
        for fed in (f for c in calls for f in c[2]):
            entry = found[fed.rows, round(fed.part, 4), fed.sequences]
            entry[0] += 1
            entry[1] += fed.context
        passes = [f for c in calls for f in c[2] if not f.head]
        return Done(
            sum(c[1] for c in calls),
            len(passes),
            sum(f.rows for f in passes),
            [
                [rows, part, n, round(contexts, 1), of]
                for (rows, part, of), (n, contexts) in sorted(found.items())
            ],
        )


def head_share(network: Any) -> float:
    """The head's part of a network's weights, embeddings left out, from 0 to 1; 0 where its sizes are not known."""
    c = getattr(network, "config", None)
    if not all(
        hasattr(c, name) for name in ("vocab", "width", "inner", "heads", "kv_heads", "layers")
    ):
        return 0.0
    layer = c.width * (2 * c.width + 2 * c.width * c.kv_heads // c.heads) + 3 * c.width * c.inner
    return c.vocab * c.width / (c.vocab * c.width + c.layers * layer)


def replayed_ms(cell: Mapping[str, Any], profile: PassProfile) -> float | None:
    """Milliseconds of a cell's passes by the profile's tables, what Python adds to each pass included; a pass over a part of
    the network counts as that part of a pass. What drafters compute between passes costs nothing here.

    None where the cell has no passes noted (another engine's), or some of a model that the profile does not know.
    """
    if cell.get("target_by_rows") is None or cell.get("unclocked"):
        return None
    extra, drafts = profile.extra_ms, [h for h in cell["draft_by_rows"] if h]
    if drafts and (not profile.draft or len(drafts) > 1 or not cell["draft_by_rows"][0]):
        return None
    return _ms(cell["target_by_rows"], profile.costs, extra) + (
        _ms(drafts[0], _draft(profile), extra) if drafts else 0.0
    )


def _ms(passes: Histogram, costs: PassCosts, extra: float) -> float:
    return sum(
        n * (extra + part * (costs.pass_ms(int(rows), int(*of or (1,)), contexts / n) - extra))
        for rows, part, n, contexts, *of in passes
    )


def _draft(profile: PassProfile) -> PassCosts:
    """Of the draft model's passes, gaps filled by straight lines; its context costs nothing in the tables."""
    known = sorted(profile.draft)
    rows = np.interp(range(1, max(known[-1], 2) + 1), known, [profile.draft[m] for m in known])
    return PassCosts(tuple(float(t) + profile.extra_ms for t in np.maximum.accumulate(rows)))


def to_line(profile: PassProfile) -> dict[str, Any]:
    """The line of a result file that holds a profile, under a name that its cells give."""
    tables = asdict(profile)
    return {
        "profile": hashlib.sha1(json.dumps(tables, sort_keys=True).encode()).hexdigest()[:12],
        "tables": tables,
    }


def from_line(line: Mapping[str, Any]) -> PassProfile:
    """The profile that `to_line` wrote, read from JSON."""
    of = {
        k: {int(m): float(t) for m, t in v.items()} if isinstance(v, dict) else v
        for k, v in line["tables"].items()
    }
    return PassProfile(**{"beside": {}, "far_beside": {}, "each_ms": 0.0, **of})

"""HyPER on a small mixture of experts: refining of single tokens and intervals between two looks, beside votes.

    polydec train reasoner --out out/mixture --width 64 --layers 3 --rows 8 --experts 8 \
        --kinds chain,make --steps 900
    python benchmarks/mixture.py out/mixture [--problems 200] [--csv FILE]

Problems are held out (train/problems.py: SHA-1 of the question) and answers count where the checker accepts every step. All
ways see the same problems, so differences are paired: over a vote of 8, in points, with a 95 % interval of a bootstrap over
problems. Tokens are those of all texts that were tried, positions all that was fed (other routings of a token too).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from csv_rows import write_csv
from search import interval

from polydec import api
from polydec.train.problems import Problem, make, solved

VOTE = "vote of 8"


@dataclass(frozen=True)
class Way:
    name: str
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)


def ways() -> list[Way]:
    """The published interval and budget (ours by the card) first."""
    hyper = {"budget": 256}
    return [
        Way(VOTE, "self-consistency", {"tries": 8}),
        Way("vote of 4", "self-consistency", {"tries": 4}),
        Way("one sample", "plain"),
        *(
            Way(f"HyPER, a look every {n}, {said}", "hyper", {**hyper, "interval": n, **more})
            for n in (64, 8, 4)
            for said, more in (("not refined", {"ways": 1}), ("refined", {}))
        ),
        *(
            Way(
                f"HyPER, a look every 4, refined, {said}", "hyper", {**hyper, "interval": 4, **more}
            )
            for said, more in (
                ("noise 1", {"stir": 1.0}),
                ("above 0.3 nats", {"above": 0.3}),
                ("above 0.3 nats, noise 1", {"above": 0.3, "stir": 1.0}),
                ("written whole", {"early": False}),
            )
        ),
    ]


def measure(lm: api.LM, way: Way, asked: Sequence[Problem], heat: float) -> dict[str, Any]:
    engine = api.Engine(lm, max_running=16)
    tickets = [
        engine.submit(
            p.question,
            method=way.method,
            options=way.options,
            max_tokens=96,
            sampling=lm.sampling(temperature=heat),
            seed=i,
        )
        for i, p in enumerate(asked)
    ]
    engine.run(tickets)
    done = [t.completion() for t in tickets]
    each = lambda key, other=0: [d.metrics.get(key, other) for d in done]  # noqa: E731
    return {
        "right": [solved(p, d.text) for p, d in zip(asked, done, strict=True)],
        "tokens": [d.metrics.get("tokens_written", d.usage["completion_tokens"]) for d in done],
        "refined": sum(each("tokens_refined")),
        "positions": sum(each("positions_fed")),
    }


def table(model: str, found: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    base, out = found[VOTE], list[dict[str, Any]]()
    for name, one in found.items():
        n, tokens = len(one["right"]), sum(one["tokens"])
        pairs = zip(one["right"], base["right"], strict=True)
        out.append(
            {
                "model": model,
                "way": name,
                "accuracy": f"{100 * sum(one['right']) / n:.1f}",
                "over a vote of 8": interval([a - b for a, b in pairs]),
                "tokens written": f"{tokens / n:.0f}",
                "of a vote of 8": f"{tokens / sum(base['tokens']):.2f}",
                "refined": f"{100 * one['refined'] / tokens:.1f}",
                "positions fed": f"{one['positions'] / n:.0f}",
            }
        )
    return out


def main() -> None:
    p = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    p.add_argument("models", nargs="+")
    p.add_argument("--problems", type=int, default=200, help="of each kind")
    p.add_argument("--kinds", nargs="+", default=["chain", "make"])
    p.add_argument("--seed", type=int, default=78, help="of the problems: not training's")
    p.add_argument("--temperature", type=float, default=0.7)
    p.add_argument("--dtype", default="auto")
    p.add_argument("--csv", type=Path)
    a = p.parse_args()
    asked = [make(k, a.seed, i, unseen=True) for k in a.kinds for i in range(a.problems)]
    rows = list[dict[str, Any]]()
    for model in a.models:
        lm = api.load(model, dtype=a.dtype)
        found = {w.name: measure(lm, w, asked, a.temperature) for w in ways()}
        rows += table(Path(model).name, found)
    names = [*rows[0]]
    print("| " + " | ".join(names) + " |\n|" + "---|" * len(names))
    for row in rows:
        print("| " + " | ".join(map(str, row.values())) + " |")
    if a.csv is not None:
        write_csv(a.csv, rows)


if __name__ == "__main__":
    main()

"""HyPER on a small mixture of experts: refining of single tokens and intervals between two looks, beside votes.

    polydec train reasoner --out out/mixture --width 64 --layers 3 --rows 8 --experts 8 \
        --kinds chain,make --steps 900
    python benchmarks/mixture.py out/mixture [--problems 200] [--csv FILE]

Problems are held out (lab/train/problems.py: SHA-1 of the question). Of an answer the share of its
lines counts that the checker accepts, up to the first wrong one. All ways see the same problems, so
differences are paired: over a vote of 8, in points, with a 95 % interval of a bootstrap over
problems. Tokens are those of all texts that were tried, positions all that was fed (other routings
of a token too).

A second table follows right solutions token by token: how likely the right token is by the router's own law and by the mean of
several choices of experts, where the own law is unsure.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from bootstrap import central_interval, drawn_again
from csv_rows import write_csv
from search import interval

from polydec import api
from polydec.core.law import float64_probabilities
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.train.problems import ReasoningProblem, draw_problem, label_solution_lines
from polydec.lab.train.reasoner import reasoner_prompt as as_asked
from polydec.methods.search.loop.refining import ExpertRefinement, mean_law

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
            Way(
                f"HyPER, a look every {n}, {said}",
                "pool-with-forks",
                {**hyper, "interval": n, **more},
            )
            for n in (64, 8, 4)
            for said, more in (("not refined", {"ways": 1}), ("refined", {}))
        ),
        *(
            Way(
                f"HyPER, a look every 4, refined, {said}",
                "pool-with-forks",
                {**hyper, "interval": 4, **more},
            )
            for said, more in (
                ("noise 1", {"stir": 1.0}),
                ("above 0.3 nats, noise 1", {"above": 0.3, "stir": 1.0}),
            )
        ),
    ]


def measure(
    lm: api.LoadedModel, way: Way, asked: Sequence[ReasoningProblem], heat: float
) -> dict[str, Any]:
    engine = api.Engine(lm, max_running=16)
    tickets = [
        engine.submit(
            p.question,
            method=way.method,
            options=way.options,
            max_tokens=96,
            sampling=lm.sampling_with(temperature=heat),
            seed=i,
        )
        for i, p in enumerate(asked)
    ]
    engine.run(tickets)
    done = [t.completion() for t in tickets]
    each = lambda key, other=0: [d.metrics.get(key, other) for d in done]  # noqa: E731
    return {
        "right": [right(p, d.text) for p, d in zip(asked, done, strict=True)],
        "tokens": [d.metrics.get("tokens_written", d.usage["completion_tokens"]) for d in done],
        "refined": sum(each("tokens_refined")),
        "positions": sum(each("positions_fed")),
    }


def right(problem: ReasoningProblem, text: str) -> float:
    """Of the lines of an answer, or of the solution where it has more, how many are right in a row from the first on."""
    said = label_solution_lines(problem, text)
    return sum(said) / max(len(said), len(problem.solution.split("\n")))


NATS = (0.3, 1.0)
STIRS = (0.2, 1.0)


def followed(lm: api.LoadedModel, problem: ReasoningProblem, seed: int) -> Any:
    """Of each token of a solution: entropy of the own law, and the right token's log-probability by it and by means of four."""
    point, words = lm.checkpoint.lm, lm.checkpoint.text
    prompt = words.encode(as_asked(problem.question), special=False)
    rest = words.encode(problem.solution, special=False)
    means = [ExpertRefinement(point.routes or (0, 0), 4, stir, 0.0) for stir in STIRS]

    async def follow() -> list[tuple[float, ...]]:
        session, root, out = point.open_session(prompt), prompt[-1], list[tuple[float, ...]]()
        await session.prefill_prompt(ScoreRequest())
        for i, x in enumerate(rest):
            own_V = float64_probabilities(
                (await session.score_draft(Draft.chain_draft(root), ScoreRequest())).logprob_row(0)
            )
            row = [float(-(own_V * own_V.clamp_min(1e-300).log()).sum()), float(own_V[x].log())]
            for by in means:
                laws = [own_V]
                for routing in by.draw_routings(Rng.of_choice(seed), len(prompt) + i):
                    law = await session.score_draft(
                        Draft.chain_draft(root), ScoreRequest(routing=routing)
                    )
                    laws.append(float64_probabilities(law.logprob_row(0)))
                row.append(float(mean_law(laws)[x].log()))
            out.append(tuple(row))
            session.commit_tokens((root,))
            root = x
        session.close()
        return out

    return follow()


def likelihood(
    model: str, lm: api.LoadedModel, asked: Sequence[ReasoningProblem]
) -> list[dict[str, Any]]:
    found = run_coroutines([followed(lm, p, i) for i, p in enumerate(asked)])
    out, every = list[dict[str, Any]](), sum(map(len, found))
    for least in (0.0, *NATS):
        some = [[row for row in rows if row[0] > least] for rows in found]
        rows = [row for one in some for row in one]
        out.append(
            {
                "model": model,
                "tokens above": f"{least:g} nats",
                "share": f"{100 * len(rows) / every:.1f}",
                "nats of the right token": f"{-sum(r[1] for r in rows) / len(rows):.3f}",
                **{
                    f"by a mean of four, noise {stir:g}": _nats(some, 2 + k)
                    for k, stir in enumerate(STIRS)
                },
            }
        )
    return out


def _nats(some: Sequence[Sequence[tuple[float, ...]]], at: int) -> str:
    """What a mean adds to the nats of the right token, and the 95 % interval of a bootstrap over problems."""
    sums = np.array([(sum(r[1] - r[at] for r in rows), len(rows)) for rows in some], float)
    drawn = drawn_again(sums).sum(1)
    low, high = central_interval(drawn[:, 0] / drawn[:, 1])
    return f"{sums[:, 0].sum() / sums[:, 1].sum():+.4f} [{low:+.4f}, {high:+.4f}]"


def table(model: str, found: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    base, out = found[VOTE], list[dict[str, Any]]()
    for name, one in found.items():
        n, tokens = len(one["right"]), sum(one["tokens"])
        pairs = zip(one["right"], base["right"], strict=True)
        out.append(
            {
                "model": model,
                "way": name,
                "right lines": f"{100 * sum(one['right']) / n:.1f}",
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
    asked = [draw_problem(k, a.seed, i, unseen=True) for k in a.kinds for i in range(a.problems)]
    rows, likely = list[dict[str, Any]](), list[dict[str, Any]]()
    for model in a.models:
        lm = api.load(model, dtype=a.dtype)
        likely += likelihood(Path(model).name, lm, asked)
        found = {w.name: measure(lm, w, asked, a.temperature) for w in ways()}
        rows += table(Path(model).name, found)
    for some in (likely, rows):
        print("| " + " | ".join(some[0]) + " |\n|" + "---|" * len(some[0]))
        for row in some:
            print("| " + " | ".join(map(str, row.values())) + " |")
    if a.csv is not None:
        write_csv(a.csv, rows)


if __name__ == "__main__":
    main()

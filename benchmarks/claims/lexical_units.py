"""Lexical unit decoding: tokens a pass against problems that are solved, for several confidences.

zoo:reasoner answers problems that it may learn from, greedily; a copy of it is tuned on these answers and their spans, by
adapters (`polydec train lexical-units`), once for each seed. Then held-out problems are answered greedily: by the model as it
was, by the tuned one token by token, and by lexical units at each confidence, and verified. An answer counts where the checker
accepts every step of it. Differences of accuracy to the model as it was are paired over problems, the mean of all seeds, with
95 % bootstrap intervals over problems.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from seen import central_interval, drawn_again

from polydec import api
from polydec.lab.train import selfplay
from polydec.lab.train.lexical import MODEL, train_lexical
from polydec.lab.train.problems import KINDS, ReasoningProblem, draw_problem, is_right_solution
from polydec.lab.train.selfplay import SamplingMode
from polydec.lab.train.specs.lexical_units import LexicalSpec

UNITS, CHECKED = "lexical-unit-decoding", "lexical-unit-decoding-verified"
SURE = (0.99, 0.95, 0.9, 0.8, 0.6, 0.4, 0.2)
LONGEST = 96
"""Tokens of an answer."""


@dataclass(frozen=True)
class Answers:
    """right: of each problem; tokens, passes: of all answers together."""

    right: tuple[bool, ...]
    tokens: int
    passes: int


def problems(count: int, seed: int, unseen: bool) -> list[ReasoningProblem]:
    """As many of each kind."""
    return [draw_problem(kind, seed, i, unseen) for i in range(count) for kind in KINDS]


def answers(
    lm: api.LoadedModel, asked: Sequence[ReasoningProblem], method: str, **options: Any
) -> Answers:
    """What a method makes of these problems, greedily."""
    engine, greedy = api.Engine(lm, max_running=16), lm.sampling_with(temperature=0.0)
    tickets = [
        engine.submit(
            p.question, method=method, options=options, max_tokens=LONGEST, sampling=greedy
        )
        for p in asked
    ]
    engine.run(tickets)
    done = [t.completion() for t in tickets]
    return Answers(
        tuple(is_right_solution(p, d.text) for p, d in zip(asked, done, strict=True)),
        sum(d.usage["completion_tokens"] for d in done),
        sum(d.metrics["target_passes"] for d in done),
    )


def interval(paired: Sequence[float]) -> str:
    """The mean of differences in points, and its 95 % interval by a bootstrap over problems."""
    values = 100 * np.asarray(paired, float)
    low, high = central_interval(drawn_again(values).mean(1))
    return f"{values.mean():+.1f} [{low:+.1f}, {high:+.1f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="directory for texts and models")
    parser.add_argument("--model", default="zoo:reasoner")
    defaults = {"learned": 200, "problems": 50, "steps": 150, "rows": 16, "lora": 16, "ahead": 3}
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--alpha", type=float, default=0.9)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    before, text = api.load(args.model, threads=1), args.out / "text.jsonl"
    learned = [
        (p.kind, tuple(before.encode_prompt(p.question)), SamplingMode(0.0, 1.0))
        for p in problems(args.learned, 0, False)
    ]
    selfplay.collect_answers(text, before.checkpoint.lm, learned, max_tokens=LONGEST)
    asked = problems(args.problems, 90, True)
    alone = answers(before, asked, "plain")
    rows = dict[str, list[Answers]]()
    for seed in range(args.seeds):
        where = args.out / f"seed-{seed}"
        result = train_lexical(
            LexicalSpec(
                str(where),
                args.model,
                text=str(text),
                ahead=args.ahead,
                alpha=args.alpha,
                lora=args.lora,
                rows=args.rows,
                steps=args.steps,
                rate=args.rate,
                seed=seed,
            )
        )
        print(json.dumps({k: result[k] for k in ("spans", "nats", "held_out", "seconds")}))
        tuned = api.load(str(where / MODEL), trained=(str(where),), threads=1)
        rows.setdefault("tuned, token by token", []).append(answers(tuned, asked, "plain"))
        for method, name in ((UNITS, "units"), (CHECKED, "verified")):
            for sure in SURE if method == UNITS else SURE[-1:]:
                made = answers(tuned, asked, method, confidence=sure)
                rows.setdefault(f"{name}, {sure}", []).append(made)
    percent = 100 * sum(alone.right) / len(asked)
    print(json.dumps({"as it was": round(percent, 1), "problems": len(asked)}))
    for name, of in rows.items():
        by_problem = np.mean([each.right for each in of], 0) - np.asarray(alone.right, float)
        row = {
            "how": name,
            "tokens a pass": [round(each.tokens / each.passes, 3) for each in of],
            "solved": [round(100 * sum(each.right) / len(asked), 1) for each in of],
            "over the model as it was": interval(by_problem.tolist()),
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()

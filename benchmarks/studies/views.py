"""Multi-view multi-path over views of a table: accuracy beside greedy decoding of one view and of all of them together.

    python -m benchmarks.studies.views [--model zoo:smollm2] [--count 60] [--wrong 0.25] [--seed 0]

A table says where six people live. Each of three views tells it in words of its own, and each of its lines is wrong with chance
`wrong`, independently. The question is where one person lives, in a city of eight. `right` is the share of questions that are
answered with the city of the table; `votes` is what the majority of views says, without a model: the best that can be done.
auroc: the chance that a right answer has a higher score than a wrong one.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from typing import Any

from polydec import generate, load

CITIES = ("Paris", "London", "Berlin", "Madrid", "Vienna", "Dublin", "Prague", "Oslo")
PEOPLE = ("Anna", "Ben", "Clara", "David", "Emma", "Frank", "Grace", "Henry", "Julia", "Tom")
TELLINGS = ("{} lives in {}.", "The home of {} is {}.", "{}: {}")
PROMPT = "A list of people and the cities where they live."


def questions(count: int, wrong: float, seed: int) -> list[dict[str, Any]]:
    """Each with its views, the person, and the city."""
    draw, out = random.Random(seed), list[dict[str, Any]]()
    for _ in range(count):
        people = draw.sample(PEOPLE, 6)
        home = {p: draw.choice(CITIES) for p in people}
        views, told, asked = list[str](), list[str](), draw.choice(people)
        for telling in TELLINGS:
            seen = {p: draw.choice(CITIES) if draw.random() < wrong else home[p] for p in people}
            told.append(seen[asked])
            views.append("\n" + "\n".join(telling.format(p, seen[p]) for p in people))
        out.append({"views": views, "told": told, "who": asked, "city": home[asked]})
    return out


def auroc(scored: list[tuple[float, bool]]) -> float | None:
    """Of a right and a wrong answer, how often the right one has the higher score."""
    right, wrong = ([s for s, r in scored if r is want] for want in (True, False))
    pairs = [(a > b) + 0.5 * (a == b) for a in right for b in wrong]
    return round(sum(pairs) / len(pairs), 3) if pairs else None


def main() -> None:
    """One line of JSON a way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="zoo:smollm2")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--wrong", type=float, default=0.25)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    lm = load(asked.model, draft=None, ngrams=None, threads=1)
    every = questions(asked.count, asked.wrong, asked.seed)
    votes = [max(q["told"], key=q["told"].count) == q["city"] for q in every]
    print(json.dumps({"way": "votes", "right": round(sum(votes) / len(votes), 3)}), flush=True)
    ways: dict[str, tuple[slice, dict[str, Any]]] = {
        "greedy, first view": (slice(0, 1), {"width": 1}),
        "greedy, all views in one prompt": (slice(0, 3), {"width": 1}),
        "paths of the first view": (slice(0, 1), {"width": 3}),
        "views, one path each": (slice(0, 3), {"width": 1}),
        "multi-view multi-path": (slice(0, 3), {"width": 3}),
        "multi-view multi-path, drawn": (slice(0, 3), {"width": 3, "drawn": True}),
    }
    for name, (which, options) in ways.items():
        scored, began, fed = list[tuple[float, bool]](), time.process_time(), 0
        for q in every:
            views = q["views"][which]
            joined = "in one prompt" in name
            choice = generate(
                lm,
                PROMPT,
                raw=True,
                max_tokens=300,
                method="multi-view-multi-path",
                options={
                    "answers": "|".join(CITIES),
                    "views": ("" if joined else "|").join(views).replace("\n", "\\n"),
                    "cue": f"\\nQuestion: Where does {q['who']} live?\\nAnswer: {q['who']} lives in",
                    "caption": 0,
                    "most": 6,
                    "drawn": False,
                    **options,
                },
            )
            text = choice.choices[0].text.rpartition("lives in")[2]
            said = next((c for c in sorted(CITIES, key=text.find) if c in text), None)
            scored.append((choice.choices[0].score or 0.0, said == q["city"]))
            fed += choice.metrics["tokens_scored"]
        row = {
            "right": round(sum(r for _, r in scored) / len(scored), 3),
            "auroc": auroc(scored),
            "positions": round(fed / len(scored)),
            "cpu_ms": round(1000 * (time.process_time() - began) / len(scored)),
        }
        print(json.dumps({"way": name, **row}), flush=True)


if __name__ == "__main__":
    main()

"""Multi-view multi-path over views of a table: accuracy beside greedy decoding of one view and of all of them together.

    python -m benchmarks.studies.views [--model zoo:smollm2] [--count 60] [--wrong 0.25] [--seeds 3]

A table says where six people live. Each of three views tells it in words of its own, and each of its lines is wrong with chance
`wrong`, independently. The question is where one person lives, in a city of eight. `right` is the share of questions that are
answered with the city of the table; `votes` is what the majority of views says, without a model: the best that can be done.
auroc: the chance that a right answer has a higher score than a wrong one. Paths that are drawn have the paper's temperature of
0.7 and its 50 tokens at most, all others are greedy. Figures are of each seed, whose tables and draws are its own, and their
mean.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from polydec import generate, load
from polydec.api import LoadedModel

CITIES = ("Paris", "London", "Berlin", "Madrid", "Vienna", "Dublin", "Prague", "Oslo")
PEOPLE = ("Anna", "Ben", "Clara", "David", "Emma", "Frank", "Grace", "Henry", "Julia", "Tom")
TELLINGS = ("{} lives in {}.", "The home of {} is {}.", "{}: {}")
PROMPT = "A list of people and the cities where they live."
HEAT = 0.7
"""The published temperature of paths."""


@dataclass(frozen=True)
class ReasoningWay:
    """views: which of them are read; joined: all in one prompt; width: first tokens that are followed; drawn: whether paths are
    drawn."""

    views: slice
    width: int = 3
    joined: bool = False
    drawn: bool = False


WAYS: Mapping[str, ReasoningWay] = {
    "greedy, first view": ReasoningWay(slice(0, 1), 1),
    "greedy, all views in one prompt": ReasoningWay(slice(0, 3), 1, True),
    "paths of the first view": ReasoningWay(slice(0, 1)),
    "views, one path each": ReasoningWay(slice(0, 3), 1),
    "multi-view multi-path": ReasoningWay(slice(0, 3)),
    "multi-view multi-path, drawn at 0.7": ReasoningWay(slice(0, 3), drawn=True),
}


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


def by_seed(key: str, values: Sequence[float | None]) -> dict[str, Any]:
    """Figures of each seed and their mean."""
    known = [round(x, 3) for x in values if x is not None]
    return {key: known, f"{key}, mean": round(mean(known), 3) if known else None}


def measured(
    model: LoadedModel, every: Sequence[dict[str, Any]], way: ReasoningWay, seed: int
) -> dict[str, float | None]:
    """One way on the questions of a seed."""
    scored = list[tuple[float, bool]]()
    began = time.process_time()
    fed = 0
    for at, question in enumerate(every):
        views = question["views"][way.views]
        choice = generate(
            model,
            PROMPT,
            raw=True,
            max_tokens=300,
            method="multi-view-multi-path",
            seed=1000 * seed + at,
            temperature=HEAT if way.drawn else 0.0,
            options={
                "answers": "|".join(CITIES),
                "views": ("" if way.joined else "|").join(views).replace("\n", "\\n"),
                "cue": f"\\nQuestion: Where does {question['who']} live?\\nAnswer: {question['who']} lives in",
                "caption": 0,
                "most": 50 if way.drawn else 6,
                "drawn": way.drawn,
                "width": way.width,
            },
        )
        text = choice.choices[0].text.rpartition("lives in")[2]
        said = next((c for c in sorted(CITIES, key=text.find) if c in text), None)
        scored.append((choice.choices[0].score or 0.0, said == question["city"]))
        fed += choice.metrics["tokens_scored"]
    return {
        "right": mean([right for _, right in scored]),
        "auroc": auroc(scored),
        "positions": fed / len(scored),
        "cpu ms": 1000 * (time.process_time() - began) / len(scored),
    }


def main() -> None:
    """One line of JSON a way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="zoo:smollm2")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--wrong", type=float, default=0.25)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ways", default=";".join(WAYS), help="names with ; between them")
    asked = parser.parse_args()
    model = load(asked.model, draft=None, ngrams=None, threads=1)
    tables = [questions(asked.count, asked.wrong, seed) for seed in range(asked.seeds)]
    votes = [
        mean([max(q["told"], key=q["told"].count) == q["city"] for q in every]) for every in tables
    ]
    print(json.dumps({"way": "votes", **by_seed("right", votes)}), flush=True)
    for name in asked.ways.split(";"):
        way = WAYS[name]
        rows = [measured(model, every, way, seed) for seed, every in enumerate(tables)]
        figures = dict[str, Any]()
        for key in rows[0]:
            figures |= by_seed(key, [row[key] for row in rows])
        print(json.dumps({"way": name, **figures}), flush=True)


if __name__ == "__main__":
    main()

"""What `published=true` does of two searches that small models seldom gain by: DRAG and iterative agent decoding.

    python -m benchmarks.studies.presets drag --csv lab/reports/presets-drag.csv
    python -m benchmarks.studies.presets agents --csv lab/reports/presets-agents.csv

drag: questions after dates that zoo:smollm2 may know roughly, answered behind two examples at a temperature of 0.7: greedy, by
the rules (the default) and by asking the model what its answers agree in (published); figures as in `granola`. agents:
problems of zoo:reasoner with zoo:reasoner-prm, at 0.8: best of eight, and four rounds of two, where the best answer is shown
(the default), or the worst one, scores and a critique too (published). The same number of calls each. A row is a way and a
seed.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from statistics import mean
from typing import Any

import torch
from benchmarks.csv_rows import write_csv
from benchmarks.studies.granola import Granularity

from polydec import Ask, Engine, load
from polydec.api import LoadedModel
from polydec.lab.train.problems import KINDS, draw_problem, is_right_solution

Way = tuple[str, Mapping[str, Any]]
"""A method and its options."""
SHOWN = (
    "Q: When did the French Revolution begin?\nA: 5 May 1789\n\n"
    "Q: When did Queen Victoria die?\nA: 22 January 1901\n\n"
)
ASKED = (
    ("When did the Titanic sink?", "15 April 1912"),
    ("When did the First World War begin?", "28 July 1914"),
    ("When did the Second World War begin?", "1 September 1939"),
    ("When was Albert Einstein born?", "14 March 1879"),
    ("When did the Berlin Wall fall?", "9 November 1989"),
    ("When did people first land on the Moon?", "20 July 1969"),
    ("When was Isaac Newton born?", "4 January 1643"),
    ("When did Columbus reach America?", "12 October 1492"),
    ("When was the American Declaration of Independence adopted?", "4 July 1776"),
    ("When was Abraham Lincoln shot?", "14 April 1865"),
    ("When was Mozart born?", "27 January 1756"),
    ("When did Napoleon die?", "5 May 1821"),
    ("When was Charles Darwin born?", "12 February 1809"),
    ("When was John F. Kennedy shot?", "22 November 1963"),
    ("When was Martin Luther King born?", "15 January 1929"),
    ("When did the attack on Pearl Harbor take place?", "7 December 1941"),
)
"""Questions with their day; the month, the year and the decade are right as well."""
OF_DATES: Mapping[str, Way] = {
    "greedy": ("plain", {}),
    "DRAG of 5, by rules": ("drag", {}),
    "DRAG of 5, published": ("drag", {"published": True}),
}
OF_PROBLEMS: Mapping[str, Way] = {
    "best of 8": ("best-of-n", {"tries": 8}),
    "4 rounds of 2": ("iterative-agent-decoding", {}),
    "4 rounds of 2, published": ("iterative-agent-decoding", {"published": True}),
}


def coarser_dates(day: str) -> list[list[str]]:
    """A day, its month, its year and its decade."""
    _, month, year = day.split()
    return [[day], [f"{month} {year}"], [year], [f"{year[:3]}0s"]]


def answers(lm: LoadedModel, prompts: list[str], way: Way, **fields: Any) -> list[Any]:
    """What a way answers to each prompt."""
    engine = Engine(lm)
    method, options = way
    tickets = [engine.submit(Ask(p, method=method, options=options, **fields)) for p in prompts]
    while engine.step():
        pass
    return [ticket.completion() for ticket in tickets]


def of_dates(seeds: range, count: int) -> list[dict[str, Any]]:
    """DRAG's rows."""
    lm = load("zoo:smollm2", draft=None, ngrams=None, threads=1)
    asked = ASKED[:count]
    prompts = [f"{SHOWN}Q: {question}\nA:" for question, _ in asked]
    rows = list[dict[str, Any]]()
    for seed in seeds:
        for name, way in OF_DATES.items():
            heat = 0.0 if name == "greedy" else 0.7
            done = answers(
                lm, prompts, way, raw=True, seed=seed, stop=["\n"], max_tokens=12,
                sampling=lm.sampling_with(temperature=heat),
            )  # fmt: skip
            said = [c.choices[0].text.strip() for c in done]
            figures = Granularity().figures(said, [coarser_dates(day) for _, day in asked])
            fed = mean(c.metrics.get("positions_fed", 0) for c in done)
            rows.append(
                {"way": name, "seed": seed, "questions": len(asked)} | rounded(figures, fed)
            )
            print(rows[-1], said[:4], flush=True)
    return rows


def of_problems(seeds: range, count: int) -> list[dict[str, Any]]:
    """Iterative agent decoding's rows."""
    lm = load("zoo:reasoner", draft=None, trained=["zoo:reasoner-prm"], threads=1)
    rows = list[dict[str, Any]]()
    for seed in seeds:
        asked = [draw_problem(k, 80 + seed, i, unseen=True) for i in range(count) for k in KINDS]
        prompts = [p.question for p in asked]
        for name, way in OF_PROBLEMS.items():
            done = answers(
                lm,
                prompts,
                way,
                seed=seed,
                max_tokens=96,
                sampling=lm.sampling_with(temperature=0.8),
            )
            right = [
                is_right_solution(p, c.choices[0].text) for p, c in zip(asked, done, strict=True)
            ]
            written = mean(c.metrics.get("tokens_written", 0) for c in done)
            figures = {"right": mean(right), "tokens written": written}
            fed = mean(c.metrics.get("positions_fed", 0) for c in done)
            rows.append({"way": name, "seed": seed, "problems": len(asked)} | rounded(figures, fed))
            print(rows[-1], flush=True)
    return rows


def rounded(figures: Mapping[str, float], fed: float) -> dict[str, float]:
    """Figures and positions fed, as they are kept."""
    return {name: round(x, 4) for name, x in (*figures.items(), ("positions fed", fed))}


def main() -> None:
    """Write one of the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("drag", "agents"))
    parser.add_argument("--csv", required=True)
    parser.add_argument("--count", type=int, default=16, help="questions, or problems of a kind")
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    make = of_dates if asked.what == "drag" else of_problems
    write_csv(asked.csv, make(range(asked.seeds), asked.count))


if __name__ == "__main__":
    main()

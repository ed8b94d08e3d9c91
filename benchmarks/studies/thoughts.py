"""What thoughts in the place of words bring: models that answer at once, write steps, or think.

    python -m benchmarks.studies.thoughts graphs OUT      # continuous thoughts on graphs
    python -m benchmarks.studies.thoughts sums OUT        # hidden chains of thought on sums

Three seeds each; every model is trained as long as the others. Answers are decoded by the engine
(greedy), on questions that are held out. Prints JSON lines, a summary last.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from polydec import Ask, Engine, load
from polydec.api import LoadedModel
from polydec.lab.train import graphs, sums
from polydec.lab.train.context import train_context
from polydec.lab.train.specs.context import ContextSpec

ASKED = 200
"""Questions of each cell."""


def answers(
    lm: LoadedModel, questions: Sequence[str], longest: int, **fields: Any
) -> dict[str, Any]:
    """What is written behind each question, and the tokens and seconds that takes."""
    engine, began = Engine(lm), time.process_time()
    asks = [Ask(q, raw=True, method="plain", max_tokens=longest, **fields) for q in questions]
    tickets = [engine.submit(ask) for ask in asks]
    while engine.step():
        pass
    done = [ticket.completion().choices[0] for ticket in tickets]
    return {
        "texts": [c.text for c in done],
        "tokens": mean(len(c.token_ids) for c in done),
        "seconds": time.process_time() - began,
    }


def scored(
    lm: LoadedModel, rows: Sequence[Any], reasoning: str, hops: int, **fields: Any
) -> dict[str, Any]:
    """The share of right answers, with the tokens and the seconds of processor time of all
    answers."""
    mark = "" if reasoning == "chain" else "="
    longest = 2 * hops + 4 if reasoning == "chain" else 2
    got = answers(lm, [row.question + mark for row in rows], longest, **fields)
    ends = [("=" if reasoning == "chain" else "") + row.answer for row in rows]
    right = mean(text.endswith(end) for text, end in zip(got.pop("texts"), ends, strict=True))
    return {"right": round(right, 3), **{k: round(v, 3) for k, v in got.items()}}


def trained(out: Path, **fields: Any) -> dict[str, Any]:
    """A model of `polydec train context`, trained unless it lies there already."""
    began = time.process_time()
    result = train_context(ContextSpec(str(out), **fields))
    return {**result, "train_seconds": round(time.process_time() - began, 1)}


def of_graphs(out: Path, steps: int, seeds: int, hops: int, nodes: int) -> None:
    rows = {
        depth: [
            graphs.draw_reachability_graph(f"asked {i}", nodes, hops, depth, True)
            for i in range(ASKED)
        ]
        for depth in range(1, hops + 1)
    }
    cells = dict[str, list[float]]()
    for reasoning in ("latent", "chain", "none"):
        for seed in range(seeds):
            at = out / f"{reasoning}-{seed}"
            result = trained(
                at, reasoning=reasoning, steps=steps, seed=seed, hops=hops, nodes=nodes
            )
            told = {k: result[k] for k in ("train_seconds", "told", "loss") if k in result}
            lm = load(str(at), draft=None)
            counts = range(hops + 2) if reasoning == "latent" else (None,)
            for count in counts:
                more: dict[str, Any] = {}
                if count is not None:
                    more = {"steer": "continuous-cot", "steer_options": {"thoughts": count}}
                name = reasoning if count is None else f"{count} thoughts"
                for depth, asked in rows.items():
                    cell = scored(lm, asked, reasoning, hops, **more)
                    cells.setdefault(f"{name}, depth {depth}", []).append(cell["right"])
                    print(json.dumps({"seed": seed, "what": name, "depth": depth, **cell, **told}))
    print(json.dumps(cells, indent=1))


def of_sums(out: Path, steps: int, seeds: int, hops: int) -> None:
    rows = [sums.draw_last_digit_sum(f"asked {i}", hops, True) for i in range(3 * ASKED)]
    cells = dict[str, list[Any]]()
    for reasoning in ("latent", "chain", "none"):
        for seed in range(seeds):
            at = out / f"{reasoning}-{seed}"
            result = trained(
                at,
                kind="hidden-cot",
                reasoning=reasoning,
                steps=steps,
                seed=seed,
                hops=hops,
                layers=LAYERS,
            )
            told = {
                k: result[k]
                for k in ("train_seconds", "of_another", "of_zeros", "found_again", "loss")
                if k in result
            }
            more: dict[str, Any] = {}
            lm = load(str(at), draft=None)
            if reasoning == "latent":
                lm = load(str(at), draft=str(at / "thinker"), trained=[str(at / "thought")])
                more = {"steer": "hidden-cot"}
            cell = scored(lm, rows, reasoning, hops, **more)
            cells.setdefault(reasoning, []).append(cell)
            print(json.dumps({"seed": seed, "what": reasoning, **cell, **told}))
    print(json.dumps(cells, indent=1))


LAYERS = 3
"""Of each model that does sums."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=("graphs", "sums"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--hops", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=12)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.task == "graphs":
        of_graphs(asked.out, asked.steps, asked.seeds, asked.hops, asked.nodes)
    else:
        of_sums(asked.out, asked.steps, asked.seeds, asked.hops)


if __name__ == "__main__":
    main()

"""Trained drafters beside each other over three trainings: the same text, as many steps, and one rule for all their trees.

    python -m benchmarks.studies.trained_orders --out DIR --steps 300 --csv lab/reports/trained-orders.csv

The target writes answers once, and every drafter of every seed learns from these. A seed draws the weights and the pieces of
text. Tokens a pass are counted greedily on held-out prompts, with trees of 3, 8 and 16 tokens: the likeliest ones by the
ranks of each level that were right on answers set aside, whatever tree a paper has for its drafter. Ratios are of the same
seed. The file has a row of every training; printed is each published order with Student's interval.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from benchmarks.csv_rows import merge_csv
from benchmarks.studies.intervals import mean_with_interval
from benchmarks.studies.shared_text import train_on_shared_text

from polydec.lab.train.specs.states import StatesSpec

OVER: Mapping[str, str] = {
    "hydra": "medusa",
    "hydra++": "hydra",
    "clover": "medusa",
    "chimera": "medusa",
    "hidden-transfer": "medusa",
    "ppd": "medusa",
    "eagle-3": "eagle",
    "falcon": "eagle",
}
"""What each paper has its drafter ahead of, or near."""
KINDS = ("medusa", "hydra", "hydra++", "clover", "chimera", "eagle", "eagle-3", "hidden-transfer")
"""Those that train in a minute; `falcon` and `ppd` take twice as long."""


def main() -> None:
    """A row a training, and the orders."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--target", default="zoo:tiny")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--each", type=int, default=60, help="prompts of each kind")
    parser.add_argument("--seeds", default="0,1,2")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    kinds = asked.kinds.split(",")
    found = dict[str, list[Mapping[int, float]]]()
    for seed in map(int, asked.seeds.split(",")):
        for kind in kinds:
            where = str(asked.out / f"{kind}-{seed}")
            told = train_on_shared_text(
                asked.out,
                StatesSpec(
                    where,
                    kind,
                    asked.target,
                    each=asked.each,
                    max_tokens=96,
                    steps=asked.steps,
                    seed=seed,
                    save_every=asked.steps,
                ),
            )
            by_nodes = {int(n): x for n, x in told["tokens_per_pass"].items()}
            found.setdefault(kind, []).append(by_nodes)
            row: dict[str, Any] = {"kind": kind, "seed": seed, "steps": asked.steps}
            row |= {f"{n} nodes": x for n, x in by_nodes.items()}
            row |= {"parameters": told["parameters"], "seconds": round(told["seconds"], 1)}
            print(row, flush=True)
            if asked.csv:
                merge_csv(asked.csv, [row], ("kind", "seed"))
    for kind in kinds:
        others = found.get(OVER.get(kind, ""), ())
        for nodes in found[kind][0] if others else ():
            ratios = [a[nodes] / b[nodes] for a, b in zip(found[kind], others, strict=True)]
            text = mean_with_interval(ratios) if len(ratios) > 1 else round(ratios[0], 3)
            print(f"{kind} over {OVER[kind]}, {nodes} nodes: {text}", flush=True)


if __name__ == "__main__":
    main()

"""Added recurrence: what later windows of held-out prose cost with one vector from window to window, and without.

    python -m benchmarks.studies.windows --out DIR [--window 16] [--windows 4] [--steps 300] [--seeds 0,1,2] [--csv FILE]

zoo:tiny is tuned on the same texts in the same steps, with vectors and without (`--alone`); beside it stands the model as it
was, each window alone and with all that stands before it. Nats a token, of first windows and of later ones; a line a seed, and
means.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean

from benchmarks.csv_rows import merge_csv

from polydec.lab.train.recurrence import train_recurrence
from polydec.lab.train.specs.recurrence import RecurrenceSpec

FIGURES = ("nats_first", "nats_later", "nats_later_alone", "nats_later_whole")


def main() -> None:
    """One line of JSON a training."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--target", default="zoo:tiny")
    parser.add_argument("--data")
    parser.add_argument("--window", type=int, default=16)
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--csv", type=Path)
    asked = parser.parse_args()
    for name in ("vectors", "alone"):
        rows = list[dict[str, float]]()
        for seed in map(int, asked.seeds.split(",")):
            result = train_recurrence(
                RecurrenceSpec(
                    str(asked.out / f"{name}-{seed}"),
                    asked.target,
                    asked.data,
                    window=asked.window,
                    windows=asked.windows,
                    steps=asked.steps,
                    alone=name == "alone",
                    tries=256,
                    seed=seed,
                )
            )
            rows.append({key: round(result[key], 4) for key in FIGURES})
            told = {"windows": name, "seed": seed, **rows[-1]}
            if asked.csv:
                merge_csv(asked.csv, [told], ("windows", "seed"))
            print(json.dumps(told), flush=True)
        means = {key: round(mean([row[key] for row in rows]), 4) for key in FIGURES}
        print(json.dumps({"windows": name, "mean of seeds": len(rows), **means}), flush=True)


if __name__ == "__main__":
    main()

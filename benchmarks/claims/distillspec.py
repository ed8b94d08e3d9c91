"""DistillSpec: the four divergences, learned from the target's text and from the draft's own, side by side. Of one seed every
draft begins with the same weights, takes the same steps on the same prompts and is looked at on the same held-out text: how
often its first choice is the target's, the chance that a draw is accepted (1 - TVD at temperature 0.7), and tokens a pass of
greedy chains of 4.
With --start every draft goes on from that one; a row tells what it was before."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from statistics import mean, stdev

from polydec.lab.train.divergence import DIVERGENCES
from polydec.lab.train.draft import train_draft
from polydec.lab.train.own_text import write_text
from polydec.lab.train.specs.draft import DraftSpec
from polydec.models.sessions import checkpoint

FIGURES = ("greedy", "sampled", "length")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="directory for texts and drafts")
    parser.add_argument("--model", default="zoo:tiny")
    parser.add_argument("--data", default=None)
    for name, value in {
        "each": 20,
        "tokens": 96,
        "width": 64,
        "layers": 2,
        "rows": 12,
        "steps": 200,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--start", help="a draft that all go on from, such as zoo:tiny-draft")
    parser.add_argument("--rate", type=float, default=1e-3, help="highest rate of AdamW")
    parser.add_argument("--muon", type=float, default=0.01, help="highest rate of Muon")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--policies", default="target,on-policy")
    parser.add_argument("--divergences", default=",".join(DIVERGENCES))
    args = parser.parse_args()
    text = args.out / "text.jsonl"
    args.out.mkdir(parents=True, exist_ok=True)
    point = checkpoint.load_bundle(args.model)
    write_text(point, text, args.data, args.each, max_tokens=args.tokens, seed=0)
    if args.start:
        # A step that is too small to move anything: what the draft was before.
        still = argparse.Namespace(**{**vars(args), "steps": 1, "rate": 1e-12, "muon": 1e-12})
        begun = one(still, text, "target", "fkl", 0, "begun")
        print(json.dumps({"text": "none", **{n: round(begun[n], 4) for n in FIGURES}}), flush=True)
    for policy in args.policies.split(","):
        for divergence in args.divergences.split(","):
            got = [one(args, text, policy, divergence, seed) for seed in range(args.seeds)]
            row: dict[str, object] = {"text": policy, "divergence": divergence}
            for name in FIGURES:
                values = [g[name] for g in got]
                row[name] = round(mean(values), 4)
                row[f"{name} sd"] = round(stdev(values), 4) if len(values) > 1 else None
                row[f"{name} by seed"] = [round(value, 4) for value in values]
            print(json.dumps(row), flush=True)


def one(
    args: argparse.Namespace, text: Path, policy: str, divergence: str, seed: int, name: str = ""
) -> dict[str, float]:
    """What a draft that was trained so comes to on the held-out text."""
    out = args.out / (name or f"{policy}-{divergence}-{seed}")
    # A draft to begin with brings its size.
    size = {} if args.start else {"tokens": 0, "width": args.width, "layers": args.layers}
    out.mkdir(exist_ok=True)
    shutil.copy(text.with_name("held.jsonl"), out / "held.jsonl")
    spec = DraftSpec(
        str(out),
        args.model,
        text=str(text),
        divergence=divergence,
        policy=policy,
        start=args.start,
        **size,
        rate=args.rate,
        muon=args.muon,
        rows=args.rows,
        steps=args.steps,
        seed=seed,
        save_every=args.steps,
    )
    return train_draft(spec)["held_out"]["all"]


if __name__ == "__main__":
    main()

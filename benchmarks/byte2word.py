"""Byte2Word beside a table of token embeddings at equal text: bits a byte, slips, and what the embeddings weigh.

    python benchmarks/byte2word.py --out DIR --csv lab/reports/byte2word.csv [--data DIR] [--steps 250] [--seeds 0 1 2]

Three seeds of each kind. Rows of a kind hold about 256 bytes of text: 85 tokens, or 134 pieces with the end marks of words.
bits: held-out bits a byte; slips: the same where a tenth of the letters is replaced; cost: what slips cost, in bits; share:
weights of the embeddings over those of a table of the same vocabulary; words: words spelt right by greedy decoding behind the
true text, to their end; positions: of the backbone, a byte.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from csv_rows import merge_csv

from polydec.lab.train.specs.words import WordsSpec
from polydec.lab.train.words import train_words

SEEDS = (0, 1, 2)
KINDS: Mapping[str, Mapping[str, Any]] = {
    "tokens": {"kind": "tokens", "length": 85},
    "byte2word": {"kind": "byte2word", "length": 134},
    "byte2word, chained": {"kind": "byte2word", "length": 134, "chained": True},
}


def one_run(out: Path, name: str, seed: int, data: str | None, steps: int) -> dict[str, Any]:
    """Train a kind with a seed, and say what came of it."""
    at = out / f"{name.replace(', ', '-')}-{seed}"
    spec = WordsSpec(
        str(at), data, steps=steps, rows=8, train_mb=0.5, longest=16, seed=seed, **KINDS[name]
    )
    told = train_words(spec)
    bits, slips = told["bits_per_byte"]["prose"], told["bits_per_byte_with_slips"]["prose"]
    weighs = told.get("embedding_parameters", spec.vocab * spec.width)
    return {
        "kind": name,
        "seed": seed,
        "steps": steps,
        "weights": told["parameters"],
        "embeddings": weighs,
        "share": round(weighs / (spec.vocab * spec.width), 4),
        "bits": round(bits, 4),
        "slips": round(slips, 4),
        "cost": round(slips - bits, 4),
        "words": round(told["words_right"], 4) if "words_right" in told else "",
        "positions": round(
            told.get("backbone_positions_a_piece", 1.0)
            * (told.get("pieces") or told["tokens"])
            / told["held_out_bytes"]["prose"],
            4,
        ),
    }


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data")
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--csv", type=Path, required=True)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    for seed in asked.seeds:
        for name in asked.kinds:
            row = one_run(asked.out, name, seed, asked.data, asked.steps)
            print(row, flush=True)
            merge_csv(asked.csv, [row], ("kind", "seed"))


if __name__ == "__main__":
    main()

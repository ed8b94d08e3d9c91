"""Conditional beam search beside beam search: how often a text is as wanted, and how likely it is, three seeds.

    python -m benchmarks.studies.conditional_texts --out DIR --csv lab/reports/conditional-beam.csv

`zoo:tiny` writes texts at temperature 1, a head is trained on them (`train probe --recipe outcome`), and held-out prompts are
answered by beams of one width. Wishes: `long` (a text of at least 24 tokens) and `and` (one that says "and"). Ways: `beam`
ranks by log-probability alone; `filtered` is the same and leaves out what ends otherwise than wanted (a head that says one
half of everything); `conditional` ranks by the head, too. Columns: met: share of prompts whose text is as wanted; nats: mean
log-probability of the texts of those prompts where `filtered` and `conditional` both have one; tokens: their mean length;
auc: how well the head tells beginnings apart on held-out texts.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from benchmarks.csv_rows import merge_csv
from benchmarks.studies.intervals import mean_with_interval

from polydec import generate, load
from polydec.base.errors import RequestError
from polydec.lab.train.probe import train_probe
from polydec.lab.train.selfplay import read_samples
from polydec.lab.train.specs.probe.outcome import OutcomeSpec
from polydec.models.learned.kinds import outcome_head
from polydec.models.learned.kinds.outcome_head import OutcomeHead

SEEDS = (0, 1, 2)
MODEL = "zoo:tiny"
WISHES: Mapping[str, Mapping[str, Any]] = {"long": {"least": 24}, "and": {"holds": " and "}}
WIDTH = 5
TOKENS = 32
PROMPTS = 30


def text_of(model: Any, prompt: Sequence[int], method: str) -> tuple[float, tuple[int, ...]] | None:
    """Log-probability and tokens of a method's text; None where it finds none as wanted."""
    options = {"width": WIDTH} | ({"length_penalty": 0.0} if method == "beam" else {})
    try:
        done = generate(model, list(prompt), method=method, options=options, max_tokens=TOKENS)
    except RequestError:
        return None
    answer = done.choices[0]
    assert answer.score is not None
    return answer.score, tuple(answer.token_ids)


def seed_rows(out: Path, wish: str, seed: int, data: str | None) -> list[dict[str, Any]]:
    """The three ways with one head."""
    folder = out / f"{wish}-{seed}"
    spec = OutcomeSpec(
        str(folder), MODEL, data, max_tokens=TOKENS, each=150, steps=400, seed=seed, **WISHES[wish]
    )
    result = train_probe(spec)
    head = outcome_head.load(folder)
    plain = load(MODEL, trained=[str(folder)])
    # A head whose last layer is nothing says one half of everything: what is left is the filter.
    same: OutcomeHead = replace(head, out=tuple(torch.zeros_like(t) for t in head.out))
    outcome_head.save(folder / "same", same, {})
    filtered = load(MODEL, trained=[str(folder / "same")])
    samples = read_samples(folder / "held.jsonl", plain.checkpoint.lm.vocab.size)
    prompts = list(dict.fromkeys(s.prompt_ids for s in samples))[:PROMPTS]
    found = {
        "beam": [text_of(plain, p, "beam") for p in prompts],
        "filtered": [text_of(filtered, p, "conditional-beam") for p in prompts],
        "conditional": [text_of(plain, p, "conditional-beam") for p in prompts],
    }
    decode = plain.checkpoint.text.decode

    def is_met(text: tuple[float, tuple[int, ...]] | None) -> bool:
        return text is not None and head.is_met(decode(text[1]), len(text[1]))

    both = [i for i in range(len(prompts)) if found["filtered"][i] and found["conditional"][i]]
    rows = list[dict[str, Any]]()
    for way, texts in found.items():
        some = [texts[i] for i in both]
        row = {"wish": wish, "way": way, "seed": seed, "met": mean(map(is_met, texts))}
        row |= {"nats": mean(t[0] for t in some if t), "tokens": mean(len(t[1]) for t in some if t)}
        row |= {"both": len(both), "wanted of texts": result["met"], "auc": result["held_out_auc"]}
        rows.append({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()})
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    """One line a way and seed, a file of all, and the means."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data")
    parser.add_argument("--csv")
    parser.add_argument("--wishes", default=",".join(WISHES))
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = list[dict[str, Any]]()
    for wish in asked.wishes.split(","):
        for seed in map(int, asked.seeds.split(",")):
            rows += seed_rows(asked.out, wish, seed, asked.data)
            if asked.csv:
                merge_csv(asked.csv, rows, ("wish", "way", "seed"))
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["wish"], row["way"]), []).append(row)
    for (wish, way), of in groups.items():
        if len(of) == 1:
            continue
        figures = [mean_with_interval([float(r[k]) for r in of]) for k in ("met", "nats", "tokens")]
        print(wish, way, *figures, flush=True)


if __name__ == "__main__":
    main()

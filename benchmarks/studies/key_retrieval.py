"""What MEAP's holes do for looking up a key among remarks: recall of a record's number, three seeds, as a table.

    python -m benchmarks.studies.key_retrieval --out out/keys --csv lab/reports/key-retrieval.csv

A page has records `A4;` among remarks `owlup;`; asked for are the digits behind some keys. Two forms: `pages` (the whole
text is learned, with holes or without) and `answers` (a model of few steps goes on with questions and answers, with a
second, masked copy or without). Recall is of held-out pages: how often the digit of a key is the likeliest, by chance 0.1.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.csv_rows import write_csv
from tokenizers import Tokenizer

from polydec.lab.train.data import held_out
from polydec.lab.train.facts import KEYS, NAMES, PLACES
from polydec.lab.train.lm import train_lm
from polydec.lab.train.lm_student import load_directory
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.shape import LlamaShape
from polydec.lab.train.specs.lm import LMSpec

SEEDS = (0, 1, 2)
SHAPE = LlamaShape(300, width=64, layers=2, heads=2, kv_heads=2, inner=192, context=128)
RECORDS, REMARKS, QUESTIONS, ASKED = 6, 4, 6, 4
"""Of a page, and keys of a question where answers are learned."""
TESTED = 300


@dataclass(frozen=True)
class KeyPage:
    """Lines, and the digit of each key in the order in which they are asked for."""

    text: str
    asked: tuple[tuple[str, str], ...]


def key_page(name: str, unseen: bool = False) -> KeyPage:
    """The page of a name; three of ten are held out, by their SHA-1."""
    dice = random.Random(f"key page {name}")
    while True:
        keys = dice.sample(KEYS, RECORDS)
        digit = {key: dice.choice("0123456789") for key in keys}
        lines = [f"{key}{digit[key]};" for key in keys]
        lines += [f"{dice.choice(NAMES)}{dice.choice(PLACES)};" for _ in range(REMARKS)]
        dice.shuffle(lines)
        page = KeyPage("".join(lines), tuple((k, digit[k]) for k in dice.sample(keys, QUESTIONS)))
        if held_out(page.text) == unseen:
            return page


def question(page: KeyPage) -> tuple[str, str]:
    """A page with a question behind it, and the answer."""
    asked = page.asked[:ASKED]
    return f"{page.text}?{''.join(k for k, _ in asked)}", "".join(v for _, v in asked)


def write_files(out: Path) -> tuple[Path, Path]:
    """Texts and pairs of the same pages, each file once."""
    texts, pairs = out / "pages.jsonl", out / "pairs.jsonl"
    if not pairs.exists():
        pages = [key_page(f"k{i}") for i in range(20_000)]
        asked = ["".join(f"?{k}{v};" for k, v in p.asked) for p in pages]
        lines = [json.dumps({"text": p.text + a}) for p, a in zip(pages, asked, strict=True)]
        texts.write_text("\n".join(lines), "utf-8")
        rows = [dict(zip(("source", "target"), question(p), strict=True)) for p in pages]
        pairs.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    return texts, pairs


@torch.no_grad()
def recall(at: Path, head: str | None) -> float:
    """How often the digit of a key is the likeliest, on pages that nothing was learned from.

    Args:
        at: Directory of the model.
        head: The chat around a question, with {} for it; None: the first key behind the page alone.
    """
    network, tokenizer = load_directory(str(at)), Tokenizer.from_file(str(at / "tokenizer.json"))
    right = total = 0
    for i in range(TESTED):
        page = key_page(f"test{i}", unseen=True)
        text, answer = f"<|begin|>{page.text}?{page.asked[0][0]}", page.asked[0][1]
        if head is not None:
            asked, answer = question(page)
            text = head.format(asked)
        before, digits = (tokenizer.encode(x, add_special_tokens=False).ids for x in (text, answer))
        guess = network(torch.tensor([[*before, *digits]]))[0].argmax(-1)[len(before) - 1 : -1]
        right += int((guess == torch.tensor(digits)).sum())
        total += len(digits)
    return round(right / total, 4)


def spec_of(at: Path, seed: int, steps: int, **fields: Any) -> LMSpec:
    """What all runs share."""
    return LMSpec(
        str(at),
        bf16=False,
        long=0.0,
        seed=seed,
        schedule=TrainingSchedule(steps, 4e-3, muon=0.02, save_every=10_000),
        **fields,
    )


def pages_run(out: Path, texts: Path, seed: int, steps: int, mask: float) -> Mapping[str, Any]:
    """The whole text learned, with a share of the inputs hidden or none."""
    at = out / f"pages-{steps}-{mask}-{seed}"
    fields = {"objective": "meap", "mask": mask} if mask else {}
    kinds = {"kinds": ("prose",), "shares": (1,), "train_mb": (2.0,), "held_kb": 40.0}
    made = train_lm(spec_of(at, seed, steps, data=str(texts), shape=SHAPE, **kinds, **fields))
    return {
        "recall": recall(at, None),
        "held out": round(made["bits_per_byte"]["prose"], 4),
        "seconds": made["seconds"],
    }


def answers_run(
    out: Path, pairs: Path, seed: int, steps: int, mask: float, start: Path
) -> Mapping[str, Any]:
    """A model tuned on questions and answers, with a masked copy of each or without."""
    at = out / f"answers-{steps}-{mask}-{seed}"
    fields = {"objective": "meap", "mask": mask, "second": 0} if mask else {}
    made = train_lm(spec_of(at, seed, steps, pairs=str(pairs), start=str(start), **fields))
    return {
        "recall": recall(at, "<|begin|><|user|>{}<|end|><|assistant|>"),
        "held out": round(made["held_out_nats"], 4),
        "seconds": made["seconds"],
    }


def spread(values: list[float]) -> str:
    """Mean and the half width of the 95 % interval of three runs (Student's t)."""
    return f"{np.mean(values):.3f} ± {4.303 * np.std(values, ddof=1) / len(values) ** 0.5:.3f}"


def main() -> None:
    """One line a run, and a file of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--pages", default="300,600", help="steps of the runs on pages")
    parser.add_argument("--answers", default="100,300", help="steps of the runs on answers")
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    texts, pairs = write_files(asked.out)
    rows = list[dict[str, Any]]()

    def note(form: str, steps: int, mask: float, seed: int, made: Mapping[str, Any]) -> None:
        rows.append({"form": form, "steps": steps, "mask": mask, "seed": seed, **made})
        print(json.dumps(rows[-1]), flush=True)

    counts = [int(x) for x in asked.pages.split(",")]
    for seed in map(int, asked.seeds.split(",")):
        for steps in counts:
            for mask in (0.0, 0.15):
                note("pages", steps, mask, seed, pages_run(asked.out, texts, seed, steps, mask))
        start = asked.out / f"pages-{counts[0]}-0.0-{seed}"
        for steps in map(int, asked.answers.split(",")):
            for mask in (0.0, 0.1, 0.25):
                made = answers_run(asked.out, pairs, seed, steps, mask, start)
                note("answers", steps, mask, seed, made)
    if asked.csv:
        write_csv(asked.csv, rows)
    groups: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        groups.setdefault((row["form"], row["steps"], row["mask"]), []).append(row["recall"])
    for key, values in groups.items():
        print(*key, spread(values) if len(values) > 1 else values[0], flush=True)


if __name__ == "__main__":
    main()

"""Plan-guided re-ranking beside beam search and diverse beam search: ROUGE of what is answered, and of the best of all texts.

    python -m benchmarks.studies.plans --out DIR --csv lab/reports/plans.csv [--steps 500] [--count 20] [--seeds 0 1 2]
    python -m benchmarks.studies.plans --out DIR --csv FILE --steps 1500 --reports 6000 --decoder 2    # marks are learned

Reports of six to nine sentences are made here, each about another thing; a summary says two or three of them in other words,
mostly those of large figures. Who sums up chooses, so several summaries of a report are right. Three seeds of reports and of
weights. Models are made by `train seq2seq --plans` and `train plan-extractor`; reports that are measured are held out by
SHA-1. Columns: rouge-1, rouge-2: of the answer; best rouge-1, best rouge-2: of the text of eight that is most like the
reference (an oracle); alike: mean ROUGE-1 of two of the eight; different: texts of the eight that differ. A row is a mean over
the reports of one seed.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.csv_rows import merge_csv

from polydec import Engine, load
from polydec.api import LoadedModel
from polydec.lab.train.data import held_out
from polydec.lab.train.plan_extractor import train_plan_extractor
from polydec.lab.train.rouge import lower_case_words, rouge_f1
from polydec.lab.train.seq2seq import train_seq2seq
from polydec.lab.train.specs.plan_extractor import PlanExtractorSpec
from polydec.lab.train.specs.seq2seq import Seq2SeqSpec

SEEDS = (0, 1, 2)
TEXTS = 8
"""Texts of each way."""
THINGS = (
    "boats",
    "lamps",
    "horses",
    "books",
    "coats",
    "clocks",
    "drums",
    "pears",
    "wheels",
    "maps",
)
PLACES = ("mill", "harbour", "school", "palace", "market", "station", "garden", "bridge")
VERBS = {"sold": "sale", "bought": "purchase", "lost": "loss", "found": "find", "made": "making"}
WAYS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "beam": ("beam", {"width": TEXTS}),
    "diverse beam": ("diverse-beam", {"width": TEXTS, "groups": TEXTS, "strength": 1.0}),
    "plan-guided": ("plan-guided", {"plans": TEXTS, "shortest": 2, "longest": 3}),
    "likeliest plan": ("plan-guided", {"plans": TEXTS, "shortest": 2, "longest": 3, "weight": 0.0}),
}


def report(draw: random.Random) -> dict[str, str]:
    """A report and a summary of it."""
    count = draw.randint(6, 9)
    facts = [
        (p, v, draw.randint(1, 9) * 10, t)
        for p, t in zip(draw.sample(PLACES, min(count, 8)), draw.sample(THINGS, min(count, 8)))
        for v in (draw.choice(list(VERBS)),)
    ]
    source = " ".join(f"The {p} {v} {n} {t} in the spring." for p, v, n, t in facts)
    # Large figures are more likely to be told, and which of them is left to chance.
    told = sorted(facts, key=lambda f: -f[2] - draw.random() * 40)[: draw.randint(2, 3)]
    told = [f for f in facts if f in told]
    return {
        "source": source,
        "target": " ".join(f"{VERBS[v]} of {n} {t} by the {p}." for p, v, n, t in told),
    }


def write_reports(path: Path, seed: int, count: int) -> list[dict[str, str]]:
    """Write pairs, and return those that are held out."""
    draw = random.Random(f"reports {seed}")
    rows = [report(draw) for _ in range(count)]
    path.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    return [row for row in rows if held_out(row["source"])]


def texts_of(lm: LoadedModel, source: str, way: str) -> list[str]:
    """All texts that a way finds, the best first."""
    method, options = WAYS[way]
    engine = Engine(lm)
    asked = engine.submit(source, method=method, options=options, max_tokens=48, n=TEXTS)
    return [choice.text for choice in engine.run([asked])[0].choices]


def scores(texts: Sequence[str], target: str) -> dict[str, float]:
    """What the texts of one report are worth."""
    meant = lower_case_words(target)
    words = [lower_case_words(text) for text in texts]
    different = [list(x) for x in dict.fromkeys(map(tuple, words))]
    pairs = [rouge_f1(a, b, 1) for a, b in combinations(words, 2)]
    return {
        "rouge-1": rouge_f1(words[0], meant, 1),
        "rouge-2": rouge_f1(words[0], meant, 2),
        "best rouge-1": max(rouge_f1(w, meant, 1) for w in words),
        "best rouge-2": max(rouge_f1(w, meant, 2) for w in words),
        "alike": mean(pairs),
        "different": len(different),
    }


def one_seed(given: argparse.Namespace, seed: int) -> None:
    """Train both parts with a seed, and measure all ways on the same reports."""
    out: Path = given.out
    out.mkdir(parents=True, exist_ok=True)
    data = out / f"reports-{seed}.jsonl"
    judged = write_reports(data, seed, given.reports)[: given.count]
    model, plans = out / f"model-{seed}", out / f"plans-{seed}"
    made = train_seq2seq(
        Seq2SeqSpec(
            str(model), str(data), steps=given.steps, tokens=given.tokens, encoder=2,
            decoder=given.decoder, width=64, vocab=400, longest=256, plans=True, seed=seed,
        )
    )  # fmt: skip
    planned = train_plan_extractor(
        PlanExtractorSpec(str(plans), str(model), str(data), steps=given.steps // 2, seed=seed)
    )
    lm = load(str(model), trained=[str(plans)], threads=1)
    for way in WAYS:
        told = [scores(texts_of(lm, row["source"], way), row["target"]) for row in judged]
        row = {
            "way": way,
            "seed": seed,
            "reports": len(judged),
            **{name: round(mean(one[name] for one in told), 4) for name in told[0]},
            "nats a token": round(made["held_out_nats"], 3),
            "plan overlap": round(planned["held_out_overlap"], 3),
            "steps": given.steps,
        }
        print(row, flush=True)
        merge_csv(given.csv, [row], ("way", "seed"))


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--count", type=int, default=20, help="held-out reports that are asked")
    parser.add_argument("--reports", type=int, default=2000, help="that are made for a seed")
    parser.add_argument("--tokens", type=int, default=1024, help="positions of a step")
    parser.add_argument("--decoder", type=int, default=1, help="layers of the decoder")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--csv", type=Path, required=True)
    asked = parser.parse_args()
    for seed in asked.seeds:
        one_seed(asked, seed)


if __name__ == "__main__":
    main()

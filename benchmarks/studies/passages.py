"""What is lost and gained where passages are read as vectors.

    python -m benchmarks.studies.passages refrag OUT       # chunk vectors, a policy, a curriculum
    python -m benchmarks.studies.passages augmentation OUT --steps 400    # a coprocessor over the cache
    python -m benchmarks.studies.passages arc OUT --steps 2500    # pooled passages, a frozen decoder
    python -m benchmarks.studies.passages arc OUT --reader-steps 6000 --steps 400 --ways "factor 2"    # one way

One decoder on words, three seeds of everything that is trained for it. Answers are decoded by the
engine (greedy), one question about each of 300 pages that are held out. Prints JSON lines, a summary
last; --csv FILE writes a row of every figure (study, what, seed, value) as soon as it is there. Shares
are of 300 questions; "rewritten" is the share of tokens of lines written once more. --ways names the
trainings of arc, with ; between them; with --seeds 0 its decoder alone is trained and asked.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from benchmarks.csv_rows import merge_csv
from benchmarks.studies.intervals import mean_with_interval

from polydec import Ask, Engine, load
from polydec.api import LoadedModel
from polydec.lab.bench.intervals import wilson_interval
from polydec.lab.train import facts, page_reader, sums
from polydec.lab.train.context import train_context
from polydec.lab.train.contexts import cache_augmentation, refrag
from polydec.lab.train.envelope import run_training
from polydec.lab.train.page_reader import CLOSING, LINES, OPENING, RECORDS
from polydec.lab.train.specs.context import ContextSpec

ASKED = 300
"""Questions of each cell."""

AUGMENTED = "cache-augmentation"

COPROCESSOR_RATE = 3e-2
"""Learning rate of which a coprocessor takes a tenth. At the usual one its loss was still at 3.25 nats after 640 steps, where
the model without vectors is at 1.3."""

SHAPE: Mapping[str, Any] = {"rows": 16, "width": 64, "layers": 3}


def questions(open_book: bool = True) -> list[tuple[str, str]]:
    """Prompts and answers."""
    pages = [facts.draw_fact_page(f"asked {i}", LINES, RECORDS, 1, True) for i in range(ASKED)]
    return [
        (f"{OPENING}{p.text if open_book else ''}{CLOSING}?{key}", number)
        for p in pages
        for key, number in p.asked
    ]


def answered(
    lm: LoadedModel, asked: list[tuple[str, str]], longest: int = facts.DIGITS, **fields: Any
) -> dict[str, Any]:
    """The share that is answered right in all digits, with its interval, and seconds of processor
    time."""
    engine, began = Engine(lm), time.process_time()
    tickets = [
        engine.submit(Ask(q, raw=True, method="plain", max_tokens=longest, **fields))
        for q, _ in asked
    ]
    while engine.step():
        pass
    texts = [t.completion().choices[0].text for t in tickets]
    right = sum(text == number for text, (_, number) in zip(texts, asked, strict=True))
    low, high = wilson_interval(right, len(asked))
    return {
        "right": round(right / len(asked), 3),
        "interval": (round(low, 3), round(high, 3)),
        "seconds": round(time.process_time() - began, 2),
    }


def words(out: Path, steps: int) -> str:
    """The decoder on words."""
    at = ContextSpec(str(out / "words"), kind="refrag", steps=steps, **SHAPE)
    print(json.dumps({"words": run_training("words", at, page_reader.prepare_page_reader)["loss"]}))
    return at.out


@dataclass(frozen=True)
class StudyFigures:
    """Figures of a study by seed.

    Attributes:
        study: Its name.
        csv: The file that gets every figure; None: there is none.
        by_name: Of each name the figures, seed after seed from 0.
    """

    study: str
    csv: Path | None
    by_name: dict[str, list[float]] = field(default_factory=dict[str, list[float]])

    def keep_figure(self, name: str, value: float) -> None:
        """Keep the next seed's figure of this name, and write it."""
        values = self.by_name.setdefault(name, [])
        values.append(round(value, 3))
        row = {"study": self.study, "what": name, "seed": len(values) - 1, "value": values[-1]}
        if self.csv is not None:
            merge_csv(self.csv, [row], ("study", "what", "seed"))

    def print_summary(self) -> None:
        """Print means, with Student's interval where there are several seeds."""
        for name, values in self.by_name.items():
            told = mean_with_interval(values) if len(values) > 1 else values[0]
            print(json.dumps({"what": name, "mean": told, "by seed": values}))


def of_refrag(given: argparse.Namespace, figures: StudyFigures) -> None:
    out, steps = given.out, given.steps
    at = words(out, given.reader_steps or 1000)
    ways: Mapping[str, Mapping[str, Any]] = {
        "expand 0": {"expand": 0.0},
        "0.25 by the policy": {"expand": 0.25},
        "0.25 by chance": {"expand": 0.25, "by": "chance"},
        "0.25 by likeness": {"expand": 0.25, "by": "likeness"},
        "0.25 by words": {"expand": 0.25, "by": "words"},
        "expand 1": {"expand": 1.0},
    }
    for seed in range(given.seeds):
        spec = ContextSpec(
            str(out / f"refrag-{seed}"), kind="refrag", steps=steps, seed=seed, target=at, **SHAPE
        )
        told = train_context(spec)
        figures.keep_figure("rewritten", told["rewritten"][page_reader.MOST])
        figures.keep_figure("rewritten, nats", told["rewritten_nats"][page_reader.MOST])
        once = replace(
            spec, out=str(out / f"at-once-{seed}"), steps=max(1, steps * 4 // 10), at_once=True
        )
        flat = run_training("at once", once, refrag.rewriting_course)
        figures.keep_figure("rewritten, without curriculum", flat["rewritten"][page_reader.MOST])
        figures.keep_figure(
            "rewritten, without curriculum, nats", flat["rewritten_nats"][page_reader.MOST]
        )
        lm = load(spec.out, draft=None, trained=[f"{spec.out}/chunks"])
        for name, options in ways.items():
            cell = answered(lm, questions(), steer="refrag", steer_options=options)
            figures.keep_figure(name, cell["right"])
            print(
                json.dumps({"seed": seed, "what": name, **cell, "picked": told["picked_records"]})
            )
        print(json.dumps({"seed": seed, "seconds": told["seconds"]}))
    told_plain = answered(load(at, draft=None), questions())
    print(json.dumps({"what": "words, before", **told_plain}))


ARC_WAYS: Mapping[str, Mapping[str, Any]] = {
    "factor 2": {"factor": 2},
    "factor 3": {"factor": 3},
    "factor 2, nothing rewritten": {"factor": 2, "rewriting": 0.0},
}


PIECES = 16
"""Bytes of a vector that is kept as codes, in the place of 64 numbers."""


def of_arc(given: argparse.Namespace, figures: StudyFigures) -> None:
    at = words(given.out, given.reader_steps or given.steps)
    decoder = load(at, draft=None)
    for name, asked in (("words", questions()), ("no page", questions(False))):
        cell = answered(decoder, asked)
        figures.keep_figure(name, cell["right"])
        print(json.dumps({"what": name, **cell}), flush=True)
    for seed in range(given.seeds):
        for name in given.ways.split(";"):
            spec = ContextSpec(
                str(given.out / f"{name}-{seed}".replace(" ", "-")),
                kind="arc-encoder",
                steps=given.steps,
                seed=seed,
                target=at,
                bottleneck=64,
                cut=0,
                pieces=PIECES,
                **{**SHAPE, **ARC_WAYS[name]},
            )
            told = train_context(spec)
            lm = load(spec.out, draft=None, trained=[f"{spec.out}/arc"])
            cell = answered(lm, questions(), steer="arc-encoder")
            figures.keep_figure(name, cell["right"])
            figures.keep_figure(f"{name}, rewritten", told["rewritten"][0])
            coded = answered(lm, questions(), steer="arc-encoder", steer_options={"coded": True})
            figures.keep_figure(f"{name}, as codes", coded["right"])
            row = {"seed": seed, "what": name, **cell, "seconds trained": told["seconds"]}
            print(json.dumps(row), flush=True)


def of_augmentation(given: argparse.Namespace, figures: StudyFigures) -> None:
    out, steps = given.out, given.steps
    at = ContextSpec(
        str(out / "sums"), kind=AUGMENTED, steps=given.reader_steps or 1000, hops=2, **SHAPE
    )
    print(
        json.dumps(
            {"model": run_training("the model", at, cache_augmentation.prepare_base_model)["loss"]}
        )
    )
    made = [sums.draw_last_digit_sum(f"asked {i}", 2, True) for i in range(2 * ASKED)]
    asked = [(f"{s.question}{sums.ANSWER}", s.answer) for s in made]
    before = answered(load(at.out, draft=None), asked, 1)
    print(json.dumps({"what": "the model alone", **before}))
    for seed in range(given.seeds):
        for reasoning in ("latent", "chain", "none"):
            name = f"{reasoning}-{seed}"
            spec = replace(
                at,
                out=str(out / name),
                steps=steps,
                seed=seed,
                target=at.out,
                reasoning=reasoning,
                rate=COPROCESSOR_RATE,
            )
            told = train_context(spec)
            for key in ("answers", "answers_nats", "nats"):
                for which in ("without", "with"):
                    value = told[f"{key}_{which}"]
                    value = mean(value) if key == "nats" else value
                    figures.keep_figure(
                        f"{key}, {which if which == 'without' else reasoning}", value
                    )
            print(json.dumps({"seed": seed, "what": reasoning, **told, "curve": None}))
        spec = replace(at, out=str(out / f"latent-{seed}"))
        lm = load(spec.out, draft=None, trained=[f"{spec.out}/coprocessor"])
        for count in (0, 1, 2, 4, 8):
            cell = answered(lm, asked, 1, steer=AUGMENTED, steer_options={"latents": count})
            figures.keep_figure(f"engine, {count} latents", cell["right"])
            print(json.dumps({"seed": seed, "what": f"{count} latents", **cell}))


STUDIES: Mapping[str, Callable[[argparse.Namespace, StudyFigures], None]] = {
    "refrag": of_refrag,
    "augmentation": of_augmentation,
    "arc": of_arc,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=STUDIES)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--reader-steps", type=int, default=0, help="of the model that reads words (0: the usual)"
    )
    parser.add_argument("--ways", default=";".join(ARC_WAYS), help="of arc, with ; between them")
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    figures = StudyFigures(given.what, given.csv)
    STUDIES[given.what](given, figures)
    figures.print_summary()


if __name__ == "__main__":
    main()

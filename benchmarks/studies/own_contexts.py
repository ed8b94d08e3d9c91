"""What vectors in the place of words bring to a model and a text of one's own.

    python -m benchmarks.studies.own_contexts augmentation OUT DATA   # a coprocessor, also within an answer
    python -m benchmarks.studies.own_contexts late OUT DATA           # a coprocessor that runs beside the decoding
    python -m benchmarks.studies.own_contexts refrag OUT DATA         # passages as chunk vectors, by selector
    python -m benchmarks.studies.own_contexts thoughts OUT -          # sums as lines of question, thought, answer
    python -m benchmarks.studies.own_contexts within OUT -            # two sums a question, each with its thought

DATA is running text that the model (--model, zoo:tiny-draft) has not learned. Three seeds; everything that
is compared is trained in the same steps. Nats a token are of held-out texts, shares of right answers
of held-out questions (greedy). --csv FILE writes a row of every figure (study, what, seed, value) as
soon as it is there; prints means with Student's 95 % interval last.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from benchmarks.studies.passages import StudyFigures

from polydec import load
from polydec.core.scheduler import run_coroutines
from polydec.core.types import ScoreRequest
from polydec.lab.train import sums
from polydec.lab.train.context import train_context
from polydec.lab.train.data import BEGIN, held_out
from polydec.lab.train.hyperfit import texts_of_length
from polydec.lab.train.own_model import OwnContextModel
from polydec.lab.train.specs.context import ContextSpec
from polydec.laws.targets.augmented import CacheAugmentationMaker
from polydec.laws.targets.recurring_thoughts import recurring_target
from polydec.models.learned.kinds import coprocessor

BEFORE = 8
"""Tokens of a text that are the prompt where calls within an answer are measured."""

SUMS = 4000
"""Questions that are written for chains of thought, three tenths of them held out."""

STEPS = 3
"""Of each sum."""

PAIR_STEPS = 2
"""Of each of two sums in one question."""


def spec_for(given: argparse.Namespace, kind: str, seed: int, **fields: Any) -> ContextSpec:
    """A training of this study."""
    name = "-".join([kind, *map(str, fields.values()), str(seed)])
    options: dict[str, Any] = {"rows": 4, "latents": 4, "length": 32, "chunk": 4, "encoder": 32}
    options |= {"rate": given.rate, **fields}
    return ContextSpec(
        str(given.out / Path(name).name),
        kind=kind,
        seed=seed,
        target=given.model,
        data=given.data,
        steps=given.steps,
        **options,
    )


def followed_nats(target: Any, text: tuple[int, ...]) -> float:
    """Nats a token of what follows the first BEFORE tokens of a text, read in one session."""
    session = target.open_session((*text, text[-1]))
    scores = run_coroutines([session.prefill_prompt(ScoreRequest(prompt=True))])[0]
    told = [-scores.token_logprobs(at - 1, (text[at],))[0] for at in range(BEFORE + 1, len(text))]
    session.close()
    return mean(told)


def of_augmentation(given: argparse.Namespace, figures: StudyFigures) -> None:
    for seed in range(given.seeds):
        for reasoning in ("latent", "chain", "none"):
            spec = spec_for(given, "cache-augmentation", seed, reasoning=reasoning)
            told = train_context(spec)
            figures.keep_figure(f"nats behind places, {reasoning}", mean(told["nats_with"]))
            if reasoning == "latent":
                figures.keep_figure("nats behind places, without", mean(told["nats_without"]))
                for at, name in ((0, "first"), (-1, "last")):
                    gain = told["nats_without"][at] - told["nats_with"][at]
                    figures.keep_figure(f"nats less at the {name} token", gain)
        # How often the cache is read again while a text goes on.
        ways = {
            name: (every, 0)
            for name, every in (("never", None), ("once", 0), ("every 8", 8), ("every 4", 4))
        }
        spec = spec_for(given, "cache-augmentation", seed, reasoning="latent")
        for name, nats in followed_by_ways(given, spec, ways).items():
            figures.keep_figure(f"nats of {spec.length - BEFORE} tokens, {name}", nats)


def followed_by_ways(
    given: argparse.Namespace, spec: ContextSpec, ways: Mapping[str, tuple[int | None, int]]
) -> dict[str, float]:
    """Nats a token of what follows the prompts of held-out texts, where a trained coprocessor reads the cache in several ways.

    Args:
        given: What was asked for.
        spec: Of the coprocessor's training.
        ways: Of each way its name, behind how many tokens the cache is read again (0: it is read once; None: never),
            and how many tokens late its vectors are.

    Returns:
        Means over texts, by way.
    """
    law = load(given.model, draft=None, dtype="float32").checkpoint.lm
    made = coprocessor.load(f"{spec.out}/coprocessor")
    model = OwnContextModel.load_own(spec, stays=True)
    _, unseen = texts_of_length(spec, spec.length, model.tokenizer)
    cells = dict[str, list[float]]()
    for ids in unseen[: given.texts]:
        text = (model.mark_token(BEGIN), *ids)
        prompt = text[: BEFORE + 1]
        for name, (every, late) in ways.items():
            maker = CacheAugmentationMaker(
                made, made.skeleton.layers, law.vocab.size, spec.latents, late
            )
            target = law if every is None else recurring_target(law, prompt, maker, every)
            cells.setdefault(name, []).append(followed_nats(target, text))
    return {name: mean(nats) for name, nats in cells.items()}


def of_late(given: argparse.Namespace, figures: StudyFigures) -> None:
    for seed in range(given.seeds):
        spec = spec_for(given, "cache-augmentation", seed, reasoning="latent")
        train_context(spec)
        ways: dict[str, tuple[int | None, int]] = {"never": (None, 0)}
        ways |= {f"{late} late": (0, late) for late in (0, 1, 2, 4, 8)}
        for name, nats in followed_by_ways(given, spec, ways).items():
            figures.keep_figure(f"nats, {name}", nats)


def of_refrag(given: argparse.Namespace, figures: StudyFigures) -> None:
    for seed in range(given.seeds):
        told = train_context(spec_for(given, "refrag", seed, rows=16, length=64))
        for name, nats in told["nats"].items():
            figures.keep_figure(name, nats)
        figures.keep_figure("rewritten", told["rewritten"])


def write_sums(path: Path) -> str:
    """Write sums as lines of question, thought and answer."""
    seen = dict[str, sums.LastDigitSum]()
    # A sum's held-out half is found again by its question, whatever is trained.
    for i in range(2 * SUMS):
        row = sums.draw_last_digit_sum(f"own {i}", STEPS, bool(i % 3 == 0))
        seen.setdefault(row.question, row)
    lines = [
        {"question": s.question, "thought": [*s.chain], "answer": s.answer}
        for s in [*seen.values()][:SUMS]
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return str(path)


def write_sum_pairs(path: Path) -> str:
    """Write pairs of sums, each answer behind a thought of its own. A held-out pair has no sum of a pair that is learned."""
    lines = list[dict[str, Any]]()
    for i in range(2 * SUMS):
        unseen = i % 3 == 0
        both = [sums.draw_last_digit_sum(f"pair {i} {j}", PAIR_STEPS, unseen) for j in (0, 1)]
        question = ";".join(s.question for s in both)
        # The pair itself must lie in the half of its sums.
        if held_out(question) != unseen:
            continue
        thoughts = ["\n".join(s.chain) for s in both]
        lines.append(
            {"question": question, "thought": thoughts, "answer": [s.answer for s in both]}
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines[:SUMS]), "utf-8")
    return str(path)


def of_within(given: argparse.Namespace, figures: StudyFigures) -> None:
    given.data = write_sum_pairs(given.out / "pairs.jsonl")
    for seed in range(given.seeds):
        for name, reasoning in (
            ("two answers at once", "none"),
            ("two written chains", "chain"),
            ("two hidden thoughts", "latent"),
        ):
            told = train_context(
                spec_for(
                    given, "hidden-cot", seed, reasoning=reasoning, rows=32, texts=SUMS, tries=200
                )
            )
            figures.keep_figure(name, told["right"])
            if "right_of_another" in told:
                figures.keep_figure("two thoughts of others", told["right_of_another"])
                figures.keep_figure("two vectors of zeros", told["right_of_zeros"])


def of_thoughts(given: argparse.Namespace, figures: StudyFigures) -> None:
    given.data = write_sums(given.out / "sums.jsonl")
    for seed in range(given.seeds):
        ways: Mapping[str, tuple[str, str]] = {
            "answers at once": ("continuous-cot", "none"),
            "written steps": ("continuous-cot", "chain"),
            "continuous thoughts": ("continuous-cot", "latent"),
            "a hidden thought": ("hidden-cot", "latent"),
        }
        for name, (kind, reasoning) in ways.items():
            told = train_context(
                spec_for(
                    given,
                    kind,
                    seed,
                    reasoning=reasoning,
                    hops=STEPS,
                    rows=32,
                    texts=SUMS,
                    tries=200,
                )
            )
            right = told["right"]
            if isinstance(right, dict):
                for count in (0, STEPS):
                    figures.keep_figure(f"{name}, {count}", right[count])
            else:
                figures.keep_figure(name, right)
            if "right_of_another" in told:
                figures.keep_figure("another's thought", told["right_of_another"])
                figures.keep_figure("thoughts found again", told["found_again"])


STUDIES: Mapping[str, Callable[[argparse.Namespace, StudyFigures], None]] = {
    "augmentation": of_augmentation,
    "late": of_late,
    "refrag": of_refrag,
    "thoughts": of_thoughts,
    "within": of_within,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=STUDIES)
    parser.add_argument("out", type=Path)
    parser.add_argument("data")
    parser.add_argument("--model", default="zoo:tiny-draft")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rate", type=float, default=3e-2, help="a tenth of it is used")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--texts", type=int, default=32, help="whose continuation is read")
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    figures = StudyFigures(given.what, given.csv)
    STUDIES[given.what](given, figures)
    figures.print_summary()


if __name__ == "__main__":
    main()

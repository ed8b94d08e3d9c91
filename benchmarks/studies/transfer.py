"""Transfer Q* beside ARGS and greedy decoding: mean reward against the distance from the model.

    python -m benchmarks.studies.transfer [--model zoo:tiny] [--texts 8] [--tokens 24] [--lengths 0 4 12]
    python -m benchmarks.studies.transfer --aligned DIR --csv lab/reports/aligned.csv    # a baseline that was aligned

The reward of a text is how many of its words end in -ed or -ing. All decoders are certain here (temperature 0), so the law of
an answer is one text, and its KL divergence from the model's law is -log p(text), in nats. Each seed has prompts of its own.

A baseline is the model, tuned by hyperfitting's command for three epochs to the best of 16 texts behind each of 96 beginnings,
none of which is measured. With --aligned each seed trains one, and the file has a row of every seed and way: what the
model and the baseline write alone, ARGS, and Transfer Q* where the model itself or the baseline writes behind candidates.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from benchmarks.csv_rows import merge_csv
from benchmarks.studies.intervals import mean_with_interval

from polydec import Ask, generate, load
from polydec.api import LoadedModel
from polydec.core.scheduler import run_coroutines
from polydec.core.types import ScoreRequest
from polydec.lab.train.hyperfit import train_hyperfit
from polydec.lab.train.specs.hyperfit import HyperfitSpec
from polydec.models.learned.kinds.reward import TextReward

BEGUN = (
    "The old man", "In the morning she", "When the ship", "A small boy", "They were", "The captain of",
    "My sister", "Before the war", "The two friends", "He had never", "At the end of", "The queen",
    "After dinner", "The door of", "Nobody in", "It was late when", "The road to", "Her father",
    "On the table", "The doctor", "Once upon a time", "The river", "All the people", "That night",
)  # fmt: skip


def reward(text: str) -> float:
    """Words that end in -ed or -ing."""
    return float(len(re.findall(r"\w(?:ed|ing)\b", text)))


SUBJECTS = (
    "The young woman",
    "Our neighbour",
    "A stranger",
    "The judge",
    "His brother",
    "The soldiers",
    "Some people",
    "The cat",
)
PLACES = (
    "", " in the house", " near the sea", " at the market", " on the hill", " from the city", " with a lamp", " by the fire",
    " of that time", " behind the wall", " in the garden", " who had come late",
)  # fmt: skip
TRIES = 16


def draw_best_texts(name: str, tokens: int, seed: int) -> list[str]:
    """The best of several texts behind each of some beginnings."""
    model = load(name, draft=None, ngrams=None, threads=1)
    begun = [f"{subject}{place}" for subject in SUBJECTS for place in PLACES]
    sampling = model.sampling_with(temperature=1.0)
    asked = [
        Ask(prompt, raw=True, n=TRIES, max_tokens=tokens, seed=seed + i, ignore_eos=True, sampling=sampling)
        for i, prompt in enumerate(begun)
    ]  # fmt: skip
    return [
        prompt + max((choice.text for choice in answer.choices), key=reward)
        for prompt, answer in zip(begun, generate(model, asked), strict=True)
    ]


def align_baseline(name: str, out: Path, tokens: int, seed: int) -> dict[str, Any]:
    """Tune a model to the best of several of its own texts.

    Args:
        name: The model.
        out: Folder for the texts and the tuned model.
        tokens: Of a text.
        seed: Of the draws and the training.

    Returns:
        What the training measured.
    """
    out.mkdir(parents=True, exist_ok=True)
    file = out / "best.jsonl"
    # Texts that are there are those of an earlier run.
    if not file.exists():
        best = draw_best_texts(name, tokens, seed)
        file.write_text("".join(json.dumps({"text": text}) + "\n" for text in best), "utf-8")
    spec = HyperfitSpec(
        str(out / "model"), target=name, data=str(file), length=tokens * 2 // 3, texts=96, epochs=3, seed=seed
    )  # fmt: skip
    return train_hyperfit(spec)


def answer_nats(judge: LoadedModel, prompt: str, answer: Sequence[int]) -> float:
    """Nats of an answer's tokens behind a prompt, which another model may have written."""
    checkpoint = judge.checkpoint
    text = (*checkpoint.text.encode(prompt, True), *answer)
    session = checkpoint.lm.open_session((*text, text[-1]))
    scores = run_coroutines([session.prefill_prompt(ScoreRequest(prompt=True))])[0]
    first = len(text) - len(answer)
    told = [scores.token_logprobs(at - 1, (text[at],))[0] for at in range(first, len(text))]
    session.close()
    return -sum(told)


def measured(
    model: LoadedModel,
    begun: tuple[str, ...],
    tokens: int,
    how: Mapping[str, Any],
    judge: LoadedModel,
) -> dict[str, float]:
    """Means over prompts: reward, nats of the model that is decoded from, and seconds of processor time.

    Args:
        model: What writes.
        begun: Prompts.
        tokens: Of an answer.
        how: Method and options.
        judge: The model whose nats are told.

    Returns:
        The means.
    """
    sums = [0.0, 0.0, 0.0]
    for prompt in begun:
        began = time.process_time()
        answer = generate(model, prompt, raw=True, max_tokens=tokens, ignore_eos=True, **how)
        seconds = time.process_time() - began
        (choice,) = answer.choices
        nats = answer_nats(judge, prompt, choice.token_ids)
        sums = [a + b for a, b in zip(sums, (reward(choice.text), nats, seconds))]
    return dict(zip(("reward", "nats", "seconds"), (round(x / len(begun), 3) for x in sums)))


def aligned_ways() -> Iterator[tuple[str, int, float, bool, Mapping[str, Any]]]:
    """Of each way its name, tokens ahead, weight, whose texts are read, and how it is asked for."""
    yield "greedy", 0, 0.0, True, {"method": "plain"}
    yield "the baseline alone", 0, 0.0, False, {"method": "plain"}
    for length, own in ((0, True), (4, True), (4, False), (12, True), (12, False)):
        for weight in (1.0, 4.0):
            options = {"candidates": 5, "length": length, "weight": weight, "own": own}
            # Without a token ahead nobody writes behind candidates.
            name = "the model" if own else "the baseline"
            name = f"Transfer Q*, {name} writes" if length else "ARGS"
            yield name, length, weight, True, {"method": "transfer-q-star", "options": options}


def of_aligned(asked: argparse.Namespace) -> None:
    """Train a baseline a seed, and measure all ways behind the seed's prompts."""
    found = dict[str, list[float]]()
    for seed in asked.seeds:
        out = asked.aligned / f"seed-{seed}"
        align_baseline(asked.model, out, 2 * asked.tokens, seed)
        baseline = str(out / "model")
        alone = load(baseline, draft=None, ngrams=None, threads=1)
        model = load(asked.model, draft=baseline, ngrams=None, threads=1)
        model = replace(model, artefacts=(*model.artefacts, TextReward(reward)))
        judge = load(asked.model, draft=None, ngrams=None, threads=1)
        begun = BEGUN[seed * asked.texts : (seed + 1) * asked.texts]
        rows = list[dict[str, Any]]()
        for way, length, weight, by_model, how in aligned_ways():
            figures = measured(model if by_model else alone, begun, asked.tokens, how, judge)
            row = {"way": way, "ahead": length, "weight": weight, "seed": seed, **figures}
            rows.append(row)
            print(json.dumps(row), flush=True)
            found.setdefault(f"{way} {length} {weight:g}", []).append(figures["reward"])
        merge_csv(asked.csv, rows, ("way", "ahead", "weight", "seed"))
    for name, values in found.items():
        print(name, mean_with_interval(values) if len(values) > 1 else values[0])


def main() -> None:
    """One line of JSON a seed and a setting."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="zoo:tiny")
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--lengths", type=int, nargs="+", default=[0, 4, 12])
    parser.add_argument("--aligned", type=Path)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.aligned:
        of_aligned(asked)
        return
    model = load(asked.model, draft=None, ngrams=None)
    model = replace(model, artefacts=(*model.artefacts, TextReward(reward)))
    settings = [(0.0, 0)] + [(w, n) for n in asked.lengths for w in (0.5, 1.0, 2.0, 4.0)]
    for seed in asked.seeds:
        begun = BEGUN[seed * asked.texts : (seed + 1) * asked.texts]
        for weight, length in settings:
            options = {"candidates": 5, "length": length, "weight": weight}
            how = {"method": "transfer-q-star", "options": options}
            figures = measured(model, begun, asked.tokens, how, model)
            told = {"seed": seed, "weight": weight, "length": length}
            print(json.dumps({**told, **figures}), flush=True)


if __name__ == "__main__":
    main()

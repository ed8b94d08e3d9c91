"""Transfer Q* beside ARGS and greedy decoding: mean reward against the distance from the model.

    python -m benchmarks.studies.transfer [--model zoo:tiny] [--texts 8] [--tokens 24] [--lengths 0 4 12]
    python -m benchmarks.studies.transfer --align DIR [--seed 0]          # a baseline: a model that is aligned to the reward
    python -m benchmarks.studies.transfer --baseline DIR --lengths 4 12   # it writes behind candidates

The reward of a text is how many of its words end in -ed or -ing. All decoders are certain here (temperature 0), so the law of
an answer is one text, and its KL divergence from the model's law is -log p(text), in nats. Each seed has prompts of its own.

A baseline is the model, tuned by hyperfitting's command for three epochs to the best of 16 texts behind each of 96 beginnings,
none of which is measured. Its own answers are measured as well (`weight` -1).
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from polydec import Ask, generate, load
from polydec.api import LoadedModel
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


def measured(
    model: LoadedModel, begun: tuple[str, ...], tokens: int, how: Mapping[str, Any]
) -> dict[str, float]:
    """Means over prompts: reward, nats of the model, and seconds."""
    sums = [0.0, 0.0, 0.0]
    for prompt in begun:
        answer = generate(
            model, prompt, raw=True, max_tokens=tokens, logprobs=0, ignore_eos=True, **how
        )
        choice = answer.choices[0]
        nats = -sum(t.model_logp for t in choice.logprobs or ())
        seconds = answer.metrics["seconds"]
        sums = [a + b for a, b in zip(sums, (reward(choice.text), nats, seconds))]
    return dict(zip(("reward", "nats", "seconds"), (round(x / len(begun), 3) for x in sums)))


def main() -> None:
    """One line of JSON a seed and a setting."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="zoo:tiny")
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--lengths", type=int, nargs="+", default=[0, 4, 12])
    parser.add_argument("--align", type=Path)
    parser.add_argument("--baseline")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    if asked.align:
        print(json.dumps(align_baseline(asked.model, asked.align, 2 * asked.tokens, asked.seed)))
        return
    model = load(asked.model, draft=asked.baseline, ngrams=None)
    model = replace(model, artefacts=(*model.artefacts, TextReward(reward)))
    settings = [(0.0, 0)] + [(w, n) for n in asked.lengths for w in (0.5, 1.0, 2.0, 4.0)]
    own = {"own": asked.baseline is None}
    for seed in range(3):
        begun = BEGUN[seed * asked.texts : (seed + 1) * asked.texts]
        if asked.baseline:
            alone = load(asked.baseline, draft=None, ngrams=None)
            figures = measured(alone, begun, asked.tokens, {"method": "plain"})
            print(json.dumps({"seed": seed, "weight": -1, "length": 0, **figures}), flush=True)
        for weight, length in settings:
            options = {"candidates": 5, "length": length, "weight": weight, **own}
            how = {"method": "transfer-q-star", "options": options}
            figures = measured(model, begun, asked.tokens, how)
            told = {"seed": seed, "weight": weight, "length": length}
            print(json.dumps({**told, **figures}), flush=True)


if __name__ == "__main__":
    main()

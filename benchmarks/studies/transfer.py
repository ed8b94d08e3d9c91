"""Transfer Q* beside ARGS and greedy decoding: mean reward against the distance from the model.

    python -m benchmarks.studies.transfer [--model zoo:tiny] [--texts 8] [--tokens 24]

The reward of a text is how many of its words end in -ed or -ing. All decoders are certain here (temperature 0), so the law of
an answer is one text, and its KL divergence from the model's law is -log p(text), in nats. Each seed has prompts of its own.
"""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import replace

from polydec import generate, load
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


def main() -> None:
    """One line of JSON a seed and a setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="zoo:tiny")
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=24)
    asked = parser.parse_args()
    model = load(asked.model, ngrams=None)
    model = replace(model, artefacts=(*model.artefacts, TextReward(reward)))
    settings = [(0.0, 0)] + [(w, n) for n in (0, 4, 12) for w in (0.5, 1.0, 2.0, 4.0)]
    for seed in range(3):
        begun = BEGUN[seed * asked.texts : (seed + 1) * asked.texts]
        for weight, length in settings:
            sums = [0.0, 0.0, 0.0]
            for prompt in begun:
                answer = generate(
                    model,
                    prompt,
                    raw=True,
                    max_tokens=asked.tokens,
                    method="transfer-q-star",
                    options={"candidates": 5, "length": length, "weight": weight},
                    logprobs=0,
                    ignore_eos=True,
                )
                choice = answer.choices[0]
                nats = -sum(t.model_logp for t in choice.logprobs or ())
                seconds = answer.metrics["seconds"]
                sums = [a + b for a, b in zip(sums, (reward(choice.text), nats, seconds))]
            row = [round(x / len(begun), 3) for x in sums]
            names = ("reward", "nats", "seconds")
            told = {"seed": seed, "weight": weight, "length": length}
            print(json.dumps({**told, **dict(zip(names, row))}), flush=True)


if __name__ == "__main__":
    main()

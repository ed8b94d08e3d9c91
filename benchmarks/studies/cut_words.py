"""Prompts that end inside a word, gone on with over bytes and over tokens: how often the word is completed.

    python -m benchmarks.studies.cut_words --csv lab/reports/bytes-words.csv [--model zoo:smollm2] [--canonical 6]

Forty sentences that leave little choice are cut inside of their last word, at a place that is drawn; each of three seeds cuts
elsewhere. A word counts as completed where the greedy text goes on with the rest of it, letter for letter. A row a way: tokens;
bytes with so many covers; bytes by the canonical law (`covers=0`, which takes seconds a byte: the first `--canonical` sentences
alone); a mixture over bytes with a second model of another tokenizer. `low` and `high`: 95 %, by resampling sentences.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np

from polydec import api

sys.path.append(str(Path(__file__).parents[1]))
from bootstrap import central_interval, drawn_again
from csv_rows import write_csv

SENTENCES = (
    "The capital of France is the city of Paris",
    "The capital of Italy is the city of Rome",
    "The capital of Germany is the city of Berlin",
    "Water freezes into ice in the cold of winter",
    "After the spring comes the hot summer",
    "A week has seven days, and the first one is Monday",
    "The opposite of hot is the word cold",
    "Two and two together make the number four",
    "In the morning the sun rises in the east, in the evening it sets in the west",
    "Bees fly from flower to flower and make sweet honey",
    "The hungry cat chased the little grey mouse",
    "He opened the door with a small metal key, and the door was no longer locked",
    "She wrote a long letter to her best friend",
    "The ship sailed across the wide blue ocean",
    "Doctors and nurses help sick people in a hospital",
    "Children learn how to read and write at school",
    "The king and the queen lived in a great castle",
    "In autumn the leaves fall from the trees",
    "You can borrow a book without paying for it at the library",
    "He put on his warm coat, his hat and his gloves because of the weather",
    "The Earth goes around the Sun once a year",
    "At night we can see the moon and many bright stars",
    "The farmer keeps cows, and they give fresh milk",
    "The baker gets up early and bakes fresh bread",
    "An hour has sixty minutes",
    "The largest animal in the sea is the blue whale",
    "He took a photo of the mountain with his new camera",
    "The chef cooked a tasty dinner in the kitchen",
    "We listened to the radio and heard beautiful music",
    "The plane landed safely at the airport",
    "The bird built a nest and laid three eggs",
    "She brushed her teeth and went to sleep in her bed in the bedroom",
    "Romeo and Juliet was written by William Shakespeare",
    "The computer has a screen, a mouse and a keyboard",
    "The teacher asked the students a difficult question",
    "The train arrived at the station ten minutes late because of the snow on the railway",
    "It is raining, so please take your umbrella",
    "The people of the country voted and elected a new president",
    "The plant needs light, air and water to grow in the garden",
    "They celebrated his tenth birthday",
)


def cut_inside(sentence: str, dice: random.Random) -> tuple[str, str]:
    """A sentence up to a place inside of its last word, and what is left of the word."""
    word = sentence.split()[-1]
    at = len(sentence) - len(word) + dice.randrange(1, len(word))
    return sentence[:at], sentence[at:]


def is_completed(model: Any, prompt: str, rest: str, how: dict[str, Any]) -> bool:
    """Whether the greedy text begins with the rest of the word."""
    most = len(rest.encode()) if how.get("units") == "bytes" else len(rest)
    sampling = model.sampling_with(temperature=0.0, repetition_penalty=1.0)
    answer = api.generate(
        model, prompt, raw=True, max_tokens=most, sampling=sampling, method="plain", **how
    )
    return answer.text.startswith(rest)


def main() -> None:
    """One line a way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="zoo:smollm2")
    parser.add_argument("--other", default="zoo:tiny")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sentences", type=int, default=len(SENTENCES))
    parser.add_argument("--canonical", type=int, default=6)
    parser.add_argument("--csv")
    asked = parser.parse_args()
    model = api.load(asked.model, draft=None, ngrams=None, threads=1)
    both = api.load(asked.model, draft=asked.other, ngrams=None, threads=1)
    over_bytes: dict[str, Any] = {"units": "bytes"}
    mixed = {**over_bytes, "steer": "mixture", "steer_options": {"share": 0.5}}
    ways: tuple[tuple[str, Any, dict[str, Any], int], ...] = (
        ("tokens", model, {}, asked.sentences),
        *(
            (f"bytes, covers={n}", model, {**over_bytes, "covers": n}, asked.sentences)
            for n in (1, 2, 4, 8)
        ),
        ("bytes, canonical (covers=0)", model, {**over_bytes, "covers": 0}, asked.canonical),
        (f"bytes, mixture with {asked.other}", both, mixed, asked.sentences),
    )
    rows = list[dict[str, Any]]()
    for name, lm, how, count in ways:
        right_SN = np.array(
            [
                [
                    is_completed(lm, *cut_inside(sentence, random.Random(f"{seed} {n}")), how)
                    for n, sentence in enumerate(SENTENCES[:count])
                ]
                for seed in range(asked.seeds)
            ],
            float,
        )
        if not right_SN.size:
            continue
        low, high = central_interval(drawn_again(right_SN.mean(0)).mean(1))
        rows.append(
            {
                "way": name,
                "sentences": count,
                "by seed": " ".join(f"{int(row.sum())}" for row in right_SN),
                "completed": f"{right_SN.mean():.3f}",
                "low": f"{low:.3f}",
                "high": f"{high:.3f}",
            }
        )
        print(*rows[-1].values(), sep=" | ", flush=True)
        if asked.csv:
            write_csv(asked.csv, rows)


if __name__ == "__main__":
    main()

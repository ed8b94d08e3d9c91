"""Presses that make images smaller, beside random keep of as many vectors: the share of questions about scenes answered right.

    python -m benchmarks.studies.image_presses zoo:vision --csv lab/reports/image-presses.csv [--count 50] [--seeds 0 1 2]

The scenes are those that the training holds out, drawn anew by each seed, and of each all eight kinds of questions are asked;
an answer is right where all its words are, and its end. At 10, 20 and 35 % of an image's vectors: `todre` (its k-centre
selection, and the images dropped within the layers), selection alone, both with images dropped wherever attention falls at all,
the largest sum of distances, `token-correlation` at this share and with averages, and any vectors, which the same seed draws.
`token-correlation` by what repeats is measured as well, beside as many at random. Columns: tokens: of a prompt on average;
right: share of right answers. A row is one way and one seed; after the rows the mean over seeds is printed, with Student's
95 % interval of the difference from random keep.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from benchmarks.csv_rows import merge_csv
from PIL import Image as Pictures

from polydec import Ask, Engine, Image, Sampling, load
from polydec.api import LoadedModel
from polydec.lab.bench.intervals import student_interval
from polydec.lab.train.vision import SceneExample, draw_example

SEEDS = (0, 1, 2)
SHARES = (0.1, 0.2, 0.35)
PLAIN = "plain"
ANY = "random"
"""What the others are compared with, at the same share."""
REPEATS = "token-correlation by repeats"
ANY_REPEATS = "random, as many"

Way = tuple[str | None, Mapping[str, Any]]
"""A press, None for none, and its options."""


def ways_at(share: float, seed: int) -> dict[str, Way]:
    """What is measured at a share of the vectors."""
    alone = {"keep": share, "fall": 0.0}
    return {
        "todre": ("todre", {"keep": share}),
        "todre, no layer drops": ("todre", alone),
        "todre, any fall drops": ("todre", {"keep": share, "fall": 1.0}),
        "largest sum": ("todre", {**alone, "choice": "sum"}),
        "token-correlation": ("token-correlation", {"keep": share}),
        "token-correlation, averages": ("token-correlation", {"keep": share, "average": True}),
        ANY: ("todre", {**alone, "choice": "random", "seed": seed}),
    }


def ways_without_share(seed: int) -> dict[str, Way]:
    """What is measured with as many vectors as it keeps itself."""
    return {
        PLAIN: (None, {}),
        "all vectors, layers drop": ("todre", {"keep": 1.0}),
        "all vectors, any fall drops": ("todre", {"keep": 1.0, "fall": 1.0}),
        REPEATS: ("token-correlation", {}),
        ANY_REPEATS: ("token-correlation", {"randomly": True, "seed": seed}),
    }


def file_of_pixels(pixels: np.ndarray) -> bytes:
    """A picture as a PNG file."""
    out = io.BytesIO()
    Pictures.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def examples_of(seed: int, count: int) -> list[SceneExample]:
    """Scenes that no training saw, with what is asked of them."""
    rng = np.random.default_rng([9177, seed])
    return [draw_example(rng, unseen=True) for _ in range(count)]


def measure_way(lm: LoadedModel, examples: Sequence[SceneExample], way: Way) -> dict[str, Any]:
    """Answer all questions one way."""
    name, options = way
    asked = [(one.pixels, question) for one in examples for question in one.questions]
    asks = [
        Ask(
            question.asked,
            source=Image(file_of_pixels(pixels)),
            method="plain",
            sampling=Sampling(temperature=0.0),
            max_tokens=48,
            cache=name,
            cache_options=options,
        )
        for pixels, question in asked
    ]
    engine = Engine(lm)
    made = engine.run([engine.submit(ask) for ask in asks])
    right = [
        completion.choices[0].text.split() == question.answer.split()
        and completion.choices[0].finish_reason == "stop"
        for completion, (_, question) in zip(made, asked, strict=True)
    ]
    return {
        "questions": len(asked),
        "tokens": round(float(np.mean([one.usage["prompt_tokens"] for one in made])), 2),
        "right": round(float(np.mean(right)), 4),
    }


def measure_seed(lm: LoadedModel, seed: int, count: int) -> list[dict[str, Any]]:
    """All ways on the same questions."""
    examples = examples_of(seed, count)
    rows = list[dict[str, Any]]()
    measured = {
        **{(name, 0.0): way for name, way in ways_without_share(seed).items()},
        **{(name, share): way for share in SHARES for name, way in ways_at(share, seed).items()},
    }
    for (name, share), way in measured.items():
        rows.append(
            {
                "way": name,
                "share": share,
                "seed": seed,
                **measure_way(lm, examples, way),
            }
        )
        print(rows[-1], flush=True)
    return rows


def summed_up(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Of each way the mean over seeds, and how far it is from random keep of as many vectors."""
    right = {(row["way"], row["share"], row["seed"]): row["right"] for row in rows}
    seeds = sorted({row["seed"] for row in rows})
    lines = list[str]()
    for name, share in dict.fromkeys((row["way"], row["share"]) for row in rows):
        mean = np.mean([right[name, share, seed] for seed in seeds])
        other = ANY if share else ANY_REPEATS
        apart = [right[name, share, seed] - right[other, share, seed] for seed in seeds]
        line = f"{name} at {share or 'its own share'}: {mean:.3f}"
        if len(seeds) > 1 and name != other:
            low, high = student_interval(apart)
            line += f", {np.mean(apart):+.3f} ({low:+.3f} to {high:+.3f}) beside {other}"
        lines.append(line)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a model of `polydec train vision`")
    parser.add_argument("--csv", required=True)
    parser.add_argument("--count", type=int, default=50, help="scenes a seed")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    given = parser.parse_args()
    # On the torch path, as the others are: the compiled step does not drop images within layers.
    lm = load(given.model, draft=None, dtype="torch", threads=1)
    rows = list[dict[str, Any]]()
    for seed in given.seeds:
        rows += measure_seed(lm, seed, given.count)
        merge_csv(given.csv, rows, ("way", "share", "seed"))
    print("\n".join(summed_up(rows)))


if __name__ == "__main__":
    main()

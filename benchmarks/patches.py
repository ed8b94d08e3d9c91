"""Pictures of patches that are vectors: what continuous speculative decoding saves, whether its exact mode keeps the law, and
how far the published one leaves it. Models are trained here.

    python benchmarks/patches.py --images FOLDER --out DIR --csv FILE
    python benchmarks/patches.py --images FOLDER --out DIR --csv FILE --masked             # models that draw sets of patches
    python benchmarks/patches.py --images FOLDER --out DIR --csv FILE --sheet FILE.png     # pictures of each method alone

A target and a draft, each with its head, are trained in DIR unless they are there. Each row is one method with one seed of
three; every seed draws as many pictures of each class.

passes: of the target, a picture; stands: share of the drafted patches; energy: the energy distance of its pictures to as many
of the law that they are meant to have (that of the target; for a last step without noise that of `mar, still`; with guidance
that of the guided target), which is about 0 where the laws are equal and below it as often as above; p: the share of 300 ways
to deal both sets anew that have a larger one, for the three seeds together; distance: Fréchet's to the pictures that were
learned from, as in benchmarks/digits.py; cpu: time of the process, one picture at a time, over that of `mar`, in turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from csv_rows import merge_csv
from digits import SEEDS, WORDS, feature_map, frechet, sheet

import polydec
from polydec import Ask, Engine
from polydec.lab.train.patches import train_patches
from polydec.lab.train.picture_data import read_pictures
from polydec.lab.train.specs.patches import PatchesSpec

EACH = 34
"""Pictures of a class and a seed: 1,020 in all."""

TURNS = 10
"""Pictures of which each method draws one in turn, for its time."""

DEALS = 300
"""How often two sets of pictures are dealt anew."""

SMALL = {"width": 32, "layers": 1, "head_units": 64, "head_layers": 1}
"""The draft's sizes."""


@dataclass(frozen=True)
class PatchMethod:
    """A method to measure.

    Attributes:
        name: Of its row.
        method: As a request names it.
        options: Of the method.
        law: Of the row whose pictures it is compared with.
        model: "target", or "draft", which draws without a target.
    """

    name: str
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    law: str = "mar"
    model: str = "target"


GUIDED = {"guidance": 1.0}
"""Strength of the guidance: a scale of 2."""

TEMPERATURES = (("widen 10", 10.0), ("widen 3", 3.0), ("widen 1", 1.0))


def guided_rows(
    own: str, exact: str, published: str, depth: int, more: Mapping[str, Any]
) -> list[PatchMethod]:
    """Rows of guided methods, by their names."""
    guided = {**GUIDED, **more}
    return [
        PatchMethod("mar, guided", own, guided, "mar, guided"),
        PatchMethod("mar, guided, still", own, {**guided, "noise": False}, "mar, guided, still"),
        PatchMethod("exact, guided", exact, {**guided, "depth": depth}, "mar, guided"),
        PatchMethod("published, guided", published, guided, "mar, guided, still"),
        PatchMethod(
            "published, guided, widen 3", published, {**guided, "widen": 3.0}, "mar, guided, still"
        ),
        PatchMethod("draft alone, guided", own, guided, "mar, guided", "draft"),
    ]


def masked_rows() -> list[PatchMethod]:
    """All rows of models that draw sets of patches."""
    own, published = "masked-mar", "masked-continuous-speculative"
    exact = f"{published}-exact"
    still = {"noise": False}
    return [
        PatchMethod("mar", own),
        PatchMethod("mar, still", own, still, "mar, still"),
        *(PatchMethod(f"mar, {n} sets", own, {"steps": n}) for n in (6, 18, 24, 49)),
        PatchMethod("recap", "recap-patches"),
        PatchMethod("recap, 24 sets", "recap-patches", {"steps": 24, "before": 12}, "mar, 24 sets"),
        PatchMethod(
            "recap, 24 sets, no whole ones first",
            "recap-patches",
            {"steps": 24, "before": 0},
            "mar, 24 sets",
        ),
        *(PatchMethod(f"exact, depth {d}", exact, {"depth": d}) for d in (1, 2, 4)),
        PatchMethod("published, as it is", published, {}, "mar, still"),
        PatchMethod("published, no prefill", published, {"prefill": 0.0}, "mar, still"),
        *(
            PatchMethod(f"published, {name}", published, {"widen": widen}, "mar, still")
            for name, widen in TEMPERATURES
        ),
        PatchMethod("published, parallel", published, {"parallel": True}, "mar, still"),
        PatchMethod("draft alone", own, model="draft"),
        PatchMethod("draft alone, still", own, still, "mar, still", "draft"),
        *guided_rows(own, exact, published, 2, {"growing": True}),
    ]


def rows_to_measure() -> list[PatchMethod]:
    """All rows of models that draw one patch behind the other."""
    still = {"noise": False}
    return [
        PatchMethod("mar", "mar"),
        PatchMethod("mar, still", "mar", still, "mar, still"),
        *(
            PatchMethod(f"exact, depth {d}", "continuous-speculative-exact", {"depth": d})
            for d in (1, 2, 4, 8)
        ),
        *(
            PatchMethod(f"published, {name}", "continuous-speculative", options, "mar, still")
            for name, options in (
                ("as it is", {}),
                ("no prefill", {"prefill": 0.0}),
                *((name, {"widen": widen}) for name, widen in TEMPERATURES),
                ("public code's factor", {"doubled": True}),
                ("parallel", {"parallel": True}),
            )
        ),
        PatchMethod("draft alone", "mar", model="draft"),
        PatchMethod("draft alone, still", "mar", still, "mar, still", "draft"),
        *guided_rows("mar", "continuous-speculative-exact", "continuous-speculative", 4, {}),
    ]


def trained(out: Path, images: str, options: Mapping[str, Any]) -> Path:
    """The directory of a model with its head, which is trained now where it is not there."""
    if not (out / "training.json").exists():
        said = train_patches(PatchesSpec(str(out), images, classes=WORDS, **options))
        print({k: v for k, v in said.items() if k != "curve"}, flush=True)
    return out


def drawn(
    lm: polydec.LoadedModel, how: PatchMethod, seed: int, each: int
) -> tuple[np.ndarray, float, float | None]:
    """Draw pictures of every class.

    Args:
        lm: The model.
        how: The method.
        seed: Of the pictures.
        each: Pictures of a class.

    Returns:
        The pictures, passes of the target for one, and the share of drafted patches that stand.
    """
    engine = Engine(lm)
    tickets = [
        engine.submit(
            Ask(word, method=how.method, options=how.options, n=each, seed=seed * 1000 + at)
        )
        for at, word in enumerate(WORDS)
    ]
    answers = engine.run(tickets)
    # Classes in order, so that every set has as many of each.
    shown = [c.picture for a in answers for c in a.choices]
    pixels = np.stack([picture.pixels for picture in shown if picture is not None])
    passes = sum(a.metrics["target_passes"] for a in answers) / len(pixels)
    shares = [a.metrics["draft_acceptance_rate"] for a in answers]
    drafted = all(share is not None for share in shares)
    return pixels, passes, float(np.mean(shares)) if drafted else None


def energy_distance(far_MM: torch.Tensor, first_M: torch.Tensor) -> float:
    """Twice the mean distance between two sets less the mean distances within them, each without a picture to itself.

    Args:
        far_MM: Distances of all pictures from all.
        first_M: Which ones are of the first set.

    Returns:
        The distance; of two sets of one law it is 0 in the mean.

    Source: Székely and Rizzo, "Energy statistics: a class of statistics based on distances" (2013).
    """
    a_M, b_M = first_M.double(), (~first_M).double()
    n, m = float(a_M.sum()), float(b_M.sum())
    across = float(a_M @ far_MM @ b_M) / (n * m)
    within = float(a_M @ far_MM @ a_M) / (n * (n - 1)) + float(b_M @ far_MM @ b_M) / (m * (m - 1))
    return 2 * across - within


def distances_of(one: np.ndarray, other: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Distances of all pictures of two sets from all, and which ones are of the first set."""
    both = torch.from_numpy(np.concatenate([one, other]).reshape(len(one) + len(other), -1))
    rows = both.double() / 255
    return torch.cdist(rows, rows), torch.arange(len(rows)) < len(one)


def energy_of(one: np.ndarray, other: np.ndarray) -> float:
    """The energy distance of two sets of pictures."""
    return energy_distance(*distances_of(one, other))


def dealt_share(one: np.ndarray, other: np.ndarray) -> float:
    """The share of deals of two sets of pictures with a larger energy distance than theirs."""
    # Distances are computed once; deals only say which picture belongs to which set.
    far_MM, first_M = distances_of(one, other)
    found = energy_distance(far_MM, first_M)
    rng = torch.Generator().manual_seed(0)
    larger = sum(
        energy_distance(far_MM, first_M[torch.randperm(len(far_MM), generator=rng)]) >= found
        for _ in range(DEALS)
    )
    return larger / DEALS


def timed(
    loaded: Mapping[str, polydec.LoadedModel], rows: Sequence[PatchMethod]
) -> dict[str, float]:
    """Of each row the time of a picture over that of `mar`, the median over turns."""
    seconds: dict[str, list[float]] = {m.name: [] for m in rows}
    for turn in range(TURNS + 1):
        for how in rows:
            began = time.process_time()
            polydec.generate(
                loaded[how.model],
                WORDS[turn % len(WORDS)],
                method=how.method,
                options=how.options,
                seed=turn,
            )
            seconds[how.name].append(time.process_time() - began)
    # The first turn makes what is made once.
    usual = seconds["mar"][1:]
    return {
        name: median(a / b for a, b in zip(some[1:], usual, strict=True))
        for name, some in seconds.items()
    }


COLUMNS = ("name", "seed", "passes", "stands", "energy", "p", "distance", "cpu")


def main() -> None:
    """Train, draw, compare, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--csv", type=Path, required=True)
    parser.add_argument("--sheet", type=Path)
    parser.add_argument("--side", type=int, default=7)
    parser.add_argument("--patch", type=int, default=2)
    parser.add_argument("--drawing-steps", type=int, default=8)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--each", type=int, default=EACH)
    parser.add_argument("--masked", action="store_true", help="models that draw sets of patches")
    parser.add_argument("--only", nargs="+", help="names of rows; all without")
    parser.add_argument("--train-only", action="store_true")
    asked = parser.parse_args()
    sizes = {
        "side": asked.side,
        "patch": asked.patch,
        "drawing_steps": asked.drawing_steps,
        "steps": asked.steps,
        "rows": asked.rows,
        "masked": asked.masked,
    }
    large = {**sizes, "width": asked.width, "layers": asked.layers}
    target = trained(asked.out / "target", asked.images, large)
    draft = trained(asked.out / "draft", asked.images, {**sizes, **SMALL})
    if asked.train_only:
        return
    heads = [str(at / "head") for at in (target, draft)]
    loaded = {
        "target": polydec.load(str(target), draft=str(draft), trained=heads, threads=1),
        "draft": polydec.load(str(draft), draft=None, trained=heads[1:], threads=1),
    }
    every = masked_rows() if asked.masked else rows_to_measure()
    rows = [how for how in every if not asked.only or how.name in asked.only]
    if asked.sheet:
        shown = [how for how in every if how.name in SHOWN]
        pictures = [drawn(loaded[how.model], how, 0, 2)[0] for how in shown]
        sheet([list(some) for some in pictures], asked.sheet)
        return
    # `mar` first, which the others are measured by.
    shares = timed(loaded, [every[0], *(how for how in rows if how is not every[0])])
    given = read_pictures(asked.images, asked.side * asked.patch, WORDS)
    grey = given.pixels.mean(-1, keepdims=True).astype(np.uint8)
    learned = given.is_learned()
    features = feature_map(grey[learned])
    true = features(grey[learned])
    held = grey[~learned][: 10 * asked.each]
    print("held-out pictures, distance:", round(frechet(features(held), true), 3), flush=True)
    # Of each law pictures of other seeds, so that equal seeds make nothing alike.
    laws = {
        how.name: [drawn(loaded["target"], how, 100 + seed, asked.each)[0] for seed in SEEDS]
        for how in every
        if how.name in {row.law for row in rows}
    }
    for how in rows:
        made = [drawn(loaded[how.model], how, seed, asked.each) for seed in SEEDS]
        share = dealt_share(
            np.concatenate([pixels for pixels, _, _ in made]), np.concatenate(laws[how.law])
        )
        out = list[dict[str, Any]]()
        for seed, (pixels, passes, stands), law in zip(SEEDS, made, laws[how.law], strict=True):
            out.append(
                {
                    "name": how.name,
                    "seed": seed,
                    "passes": round(passes, 2),
                    "stands": "" if stands is None else round(stands, 4),
                    "energy": round(energy_of(pixels, law), 5),
                    "p": round(share, 4),
                    "distance": round(frechet(features(pixels), true), 4),
                    "cpu": round(shares[how.name], 3),
                }
            )
            print(out[-1], flush=True)
        merge_csv(asked.csv, [{k: row[k] for k in COLUMNS} for row in out], ("name", "seed"))


SHOWN = (
    "mar",
    "mar, still",
    "exact, depth 4",
    "published, as it is",
    "published, widen 3",
    "draft alone",
)
"""Rows of the sheet."""


if __name__ == "__main__":
    main()

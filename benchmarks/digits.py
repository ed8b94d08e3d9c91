"""Pictures of digits: what speculative Jacobi and MuLo-SD save, and what MaskGIT, ReCAP and MuLo-SD lose, on small models
that are trained here.

    python benchmarks/digits.py --images FOLDER --out DIR --csv lab/reports/pictures.csv [--sheet FILE.png]

Models are trained in DIR unless they are there: one that draws token by token, which also judges (or --tokens NAME), a masked
one, and for MuLo-SD one of half the size with what lifts its pictures. What no row needs is not trained.
Classes take turns; each row is one method with one seed of three.

tokens: of a picture, a pass; passes: of the target, a picture; fed: positions that passes fed, a picture; nats: of a token
under the first model, which for what it draws itself says how sure it was (real, held-out pictures stand beside);
distance: Fréchet's, between drawn and learned pictures in the 32 directions in which these vary most; cpu: time of the
process, one picture at a time, over that of plain decoding (or of MaskGIT in 12 passes), in turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import torch
from contact_sheet import sheet
from csv_rows import merge_csv

import polydec
from polydec import Ask, Engine
from polydec.core.protocols import Target
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.train.picture_data import read_pictures
from polydec.lab.train.pictures import make_picture_rows, train_pictures
from polydec.lab.train.specs.pictures import PicturesSpec
from polydec.lab.train.specs.upsampler import UpsamplerSpec
from polydec.lab.train.upsampler import train_upsampler

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SEEDS = (0, 1, 2)
EACH = 34
"""Pictures of a class and a seed: 1,020 in all."""

TURNS = 20
"""Pictures of which each method draws one in turn, for its time."""

DIRECTIONS = 32


@dataclass(frozen=True)
class PictureMethod:
    """A method to measure.

    Attributes:
        name: Of its row.
        model: Which model it decodes: "tokens", "masked", or "scales", the first one with a draft of small pictures.
        method: As a request names it.
        options: Of the method.
        steer: How the law is steered. None: not.
        base: Name of the row that its time and its positions are compared with.
    """

    name: str
    model: str
    method: str
    options: Mapping[str, Any]
    steer: str | None = None
    base: str = "plain"


def jacobi_methods(width: int) -> list[PictureMethod]:
    """Methods that draw token by token. width: tokens of a row."""
    out = [PictureMethod("plain", "tokens", "plain", {})]
    for window in (4, 8, 16):
        name = f"speculative-jacobi, window {window}"
        out.append(PictureMethod(name, "tokens", "speculative-jacobi", {"window": window}))
    for label, back in (("above", width), ("uniform", 0)):
        options = {"window": 16, "back": back}
        name = f"speculative-jacobi, window 16, {label}"
        out.append(PictureMethod(name, "tokens", "speculative-jacobi", options))
    out.append(PictureMethod("jacobi, block 16", "tokens", "jacobi", {"block": 16}))
    out.append(PictureMethod("plain, guided", "tokens", "plain", {}, "cfg", "plain, guided"))
    guided = "speculative-jacobi, window 16, guided"
    options = {"window": 16}
    out.append(
        PictureMethod(guided, "tokens", "speculative-jacobi", options, "cfg", "plain, guided")
    )
    return out


def scale_methods() -> list[PictureMethod]:
    """Methods whose drafts are small pictures."""

    def row(name: str, method: str = "mulo-sd", **options: Any) -> PictureMethod:
        return PictureMethod(name, "scales", method, options, None, "plain, beside a draft")

    return [
        row("plain, beside a draft", "plain"),
        row("mulo-sd-exact", "mulo-sd-exact"),
        row("mulo-sd-exact, likeliest", "mulo-sd-exact", drawn=False),
        row("mulo-sd-exact, by pixels", "mulo-sd-exact", trained=False),
        *(row(f"mulo-sd, threshold {t}", threshold=t) for t in (0.02, 0.1, 0.3)),
        row("mulo-sd, radius 0", radius=0),
        row("mulo-sd, by pixels", trained=False),
        row("mulo-sd, drawn", drawn=True),
        *(row(f"suffix, threshold {t}", local=False, threshold=t) for t in (0.02, 0.1, 0.3)),
        row("mulo-sd, block redrawn", radius=64),
    ]


def masked_methods(length: int) -> list[PictureMethod]:
    """Methods that fill canvases. length: tokens of a picture."""
    base = "maskgit, 12 passes"
    out = list[PictureMethod]()
    for steps in (1, 4, 8, 12, length):
        name = f"maskgit, {steps} passes"
        out.append(PictureMethod(name, "masked", "maskgit", {"steps": steps}, None, base))
    for curve in ("linear", "square"):
        options = {"steps": 8, "curve": curve}
        out.append(
            PictureMethod(f"maskgit, 8 passes, {curve}", "masked", "maskgit", options, None, base)
        )
    options = {"steps": 8, "noise": 0.0}
    out.append(
        PictureMethod("maskgit, 8 passes, no noise", "masked", "maskgit", options, None, base)
    )
    options = {"steps": 12, "before": 4}
    out.append(PictureMethod("recap, 12 passes", "masked", "recap", options, None, base))
    return out


def trained(out: Path, images: str, options: Mapping[str, Any], **more: Any) -> Path:
    """The directory of a model, which is trained now where it is not there."""
    if not (out / "training.json").exists():
        said = train_pictures(PicturesSpec(str(out), images, classes=WORDS, **options, **more))
        print({k: v for k, v in said.items() if k != "curve"}, flush=True)
    return out


def trained_scales(out: Path, images: str, target: str, steps: int) -> tuple[Path, Path]:
    """The directories of a model of half a target's size and of what lifts its pictures, trained where they are not there."""
    low = trained(out / "low", images, {"low_of": target, "steps": steps, "width": 96, "layers": 2})
    up = out / "up"
    if not (up / "training.json").exists():
        said = train_upsampler(UpsamplerSpec(str(up), images, target, steps=steps))
        print({k: v for k, v in said.items() if k != "curve"}, flush=True)
    return low, up


def drawn(
    lm: polydec.LoadedModel, how: PictureMethod, seed: int, each: int
) -> tuple[list[tuple[str, Any]], Mapping[str, float]]:
    """Draw pictures of every class.

    Args:
        lm: The model.
        how: The method.
        seed: Of the pictures.
        each: Pictures of a class.

    Returns:
        Each picture's class and answer, and what was counted.
    """
    engine = Engine(lm)
    tickets = [
        engine.submit(
            Ask(
                word,
                method=how.method,
                options=how.options,
                steer=how.steer,
                n=each,
                seed=seed * 1000 + at,
            )
        )
        for at, word in enumerate(WORDS)
    ]
    answers = engine.run(tickets)
    tokens = sum(a.usage["completion_tokens"] for a in answers)
    passes = sum(a.metrics["target_passes"] for a in answers)
    fed = sum(a.metrics["positions_fed"] for a in answers)
    pictures = [(word, c) for word, a in zip(WORDS, answers) for c in a.choices]
    return pictures, {
        "tokens": tokens / passes,
        "passes": passes / len(pictures),
        "fed": fed / len(pictures),
    }


async def judged(target: Target, prompt: int, ids: Sequence[int]) -> float:
    """Nats of a token of a picture under a law."""
    session = target.open_session((prompt,))
    scores = await session.score_draft(Draft.chain_draft(prompt, ids[:-1]), ScoreRequest())
    session.close()
    return -fmean(scores.token_logprobs(i, (x,))[0] for i, x in enumerate(ids))


def nats(judge: polydec.LoadedModel, rows: Sequence[tuple[int, Sequence[int]]]) -> float:
    """Nats of a token of pictures, each with the token of its class."""
    law = judge.checkpoint.lm
    made = []
    for begin in range(0, len(rows), 64):
        made += run_coroutines([judged(law, c, ids) for c, ids in rows[begin : begin + 64]])
    return fmean(made)


def frechet(a_ND: torch.Tensor, b_ND: torch.Tensor) -> float:
    """Fréchet's distance of two sets of features, as of two normal laws.

    Source: Heusel et al., "GANs trained by a two time-scale update rule" (2017), on other features.
    """
    mean = (a_ND.mean(0) - b_ND.mean(0)).square().sum()
    a, b = torch.cov(a_ND.T), torch.cov(b_ND.T)
    # Of a product of two covariances all eigenvalues are real and none is negative.
    root = torch.linalg.eigvals(a @ b).real.clamp_min(0).sqrt().sum()
    return float(mean + a.trace() + b.trace() - 2 * root)


def feature_map(pixels: np.ndarray) -> Callable[[np.ndarray], torch.Tensor]:
    """What gives of pictures the directions in which these vary most."""
    flat = torch.from_numpy(pixels.reshape(len(pixels), -1)).double() / 255
    centre = flat.mean(0)
    _, _, basis = torch.linalg.svd(flat - centre, full_matrices=False)

    def features(some: np.ndarray) -> torch.Tensor:
        return (torch.from_numpy(some.reshape(len(some), -1)).double() / 255 - centre) @ basis[
            :DIRECTIONS
        ].T

    return features


def timed(lm: polydec.LoadedModel, methods: Sequence[PictureMethod]) -> dict[str, float]:
    """Of each method the time of a picture over that of its base, the median over turns."""
    seconds: dict[str, list[float]] = {m.name: [] for m in methods}
    for turn in range(TURNS):
        for how in methods:
            began = time.process_time()
            polydec.generate(
                lm,
                WORDS[turn % len(WORDS)],
                method=how.method,
                options=how.options,
                steer=how.steer,
                seed=turn,
            )
            seconds[how.name].append(time.process_time() - began)
    return {
        m.name: median(a / b for a, b in zip(seconds[m.name], seconds[m.base])) for m in methods
    }


COLUMNS = ("name", "seed", "tokens", "passes", "fed", "nats", "distance", "cpu")


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Put rows into the table, each as soon as it is measured."""
    merge_csv(path, [{k: row[k] for k in COLUMNS} for row in rows], ("name", "seed"))


def main() -> None:
    """Train, draw, judge, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--csv", type=Path, required=True)
    parser.add_argument("--sheet", type=Path, help="a picture of two of each class of each row")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--masked-steps", type=int, help="steps of the masked model; as the other")
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--side", type=int, default=7)
    parser.add_argument("--patch", type=int, default=4)
    parser.add_argument("--colours", type=int, default=128)
    parser.add_argument("--each", type=int, default=EACH)
    parser.add_argument("--only", nargs="+", help="names of rows; all without")
    parser.add_argument("--model", help="rows of one model alone, as tokens, scales, masked")
    parser.add_argument(
        "--tokens", help="the first model, by a name like --model's; trained without"
    )
    parser.add_argument("--low-steps", type=int, help="steps of MuLo-SD's two; as the first model")
    asked = parser.parse_args()
    options = {
        "side": asked.side,
        "patch": asked.patch,
        "colours": asked.colours,
        "steps": asked.steps,
        "width": asked.width,
        "layers": asked.layers,
    }
    wanted = [
        *jacobi_methods(asked.side),
        *scale_methods(),
        *masked_methods(asked.side**2),
    ]
    methods = [
        m
        for m in wanted
        if (not asked.only or m.name in asked.only) and asked.model in (None, m.model)
    ]
    first = asked.tokens or str(trained(asked.out / "tokens", asked.images, options))
    places = {"tokens": first}
    if any(m.model == "masked" for m in methods):
        more = {"masked": True, "steps": asked.masked_steps or asked.steps}
        places["masked"] = trained(asked.out / "masked", asked.images, {**options, **more})
    loaded = {name: polydec.load(str(at), draft=None, threads=1) for name, at in places.items()}
    if any(m.model == "scales" for m in methods):
        low, up = trained_scales(asked.out, asked.images, first, asked.low_steps or asked.steps)
        loaded["scales"] = polydec.load(first, draft=str(low), trained=[str(up)], threads=1)
    judge = loaded["tokens"]
    given = read_pictures(asked.images, asked.side * asked.patch, WORDS)
    held = make_picture_rows(given, PicturesSpec("", asked.images, classes=WORDS, **options)).held
    learned = given.is_learned()
    features = feature_map(given.pixels[learned])
    true = features(given.pixels[learned])
    view = judge.checkpoint.view
    assert view is not None
    real = [(int(row[0]), tuple(row[1:].tolist())) for row in held[:1000]]
    quantised = np.stack([view.draw_tokens(ids).pixels for _, ids in real])
    write_rows(
        asked.csv,
        [
            {
                **dict.fromkeys(("tokens", "passes", "fed", "cpu"), ""),
                "name": "held-out pictures, quantised",
                "seed": 0,
                "nats": round(nats(judge, real), 4),
                "distance": round(frechet(features(quantised), true), 4),
            }
        ],
    )
    shares = {}
    for model in loaded:
        shares |= timed(loaded[model], [m for m in methods if m.model == model])
    shown = list[list[np.ndarray]]()
    for how in methods:
        for seed in SEEDS:
            lm = loaded[how.model]
            pictures, counted = drawn(lm, how, seed, asked.each)
            made = [(judge.encode(word)[0], c.token_ids) for word, c in pictures]
            pixels = np.stack([c.picture.pixels for _, c in pictures])
            row = {
                "name": how.name,
                "seed": seed,
                "tokens": round(counted["tokens"], 3),
                "passes": round(counted["passes"], 2),
                "fed": round(counted["fed"], 1),
                "nats": round(nats(judge, made), 4),
                "distance": round(frechet(features(pixels), true), 4),
                "cpu": round(shares[how.name], 3),
            }
            print(row, flush=True)
            write_rows(asked.csv, [row])
            if seed == 0:
                shown.append(
                    [
                        pictures[at * asked.each + i][1].picture.pixels
                        for at in range(10)
                        for i in (0, 1)
                    ]
                )
    if asked.sheet:
        sheet(shown, asked.sheet)


if __name__ == "__main__":
    main()

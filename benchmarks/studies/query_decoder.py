"""X-Decoder on made scenes: captions, names, masks and phrases, and what a held caption saves.

    python -m benchmarks.studies.query_decoder --models DIR --csv lab/reports/query_decoder.csv
        --times lab/reports/query_decoder_times.csv [--steps 600] [--layers 3] [--width 64] [--rows 8]
        [--seeds 0 1 2]

For each seed two query decoders are trained for `zoo:vision` by `polydec train x-decoder`: as published, and one whose object
queries read the whole image in every layer (`--no-masked`). DIR keeps them; one that is there is not trained again. The
first table has the figures that the training measures on 128 scenes that no training saw: captions of which every word is
the likeliest behind the right ones (of pictures, of regions), things that a query found by name, the overlap (intersection
over union) of their masks, and of those of phrases. A row is a way and a seed.

The second table is of the first decoder of each seed: captions of 8 scenes are written to a number of tokens, past their
ends, with and without what is held. Columns: tokens; equal: the share of scenes with the same tokens both ways; rows: of
queries that ran through the layers, both ways; milliseconds of a caption both ways (processor time, one thread, medians).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.csv_rows import merge_csv
from benchmarks.studies.intervals import mean_with_interval

from polydec import Ask, Image, generate, load
from polydec.lab.train.envelope import RESULT
from polydec.lab.train.scenes import draw_scene, draw_scene_pixels
from polydec.lab.train.specs.x_decoder import XDecoderSpec
from polydec.lab.train.x_decoder import train_x_decoder
from polydec.models.text.picture_view import DrawnPicture

WAYS = {"as published": {}, "objects read the whole image": {"masked": False}}
FIGURES = ("captions_right", "regions_right", "names_right", "named_overlap", "referred_overlap")
LENGTHS = (6, 12, 24, 48)
SCENES = 8


def trained_at(models: Path, seed: int, how: dict[str, int], more: dict[str, Any]) -> Path:
    """The folder of a query decoder, which is trained unless it is there."""
    at = models / f"seed-{seed}" / "-".join(["queries", *more])
    if not (at / RESULT).exists():
        train_x_decoder(XDecoderSpec(str(at), seed=seed, **how, **more))
    return at


def figures_of(at: Path) -> dict[str, float]:
    """What its training measured."""
    told = json.loads((at / RESULT).read_text("utf-8"))
    return {name: round(told[name], 4) for name in FIGURES}


def captions_timed(at: Path, seed: int) -> list[dict[str, Any]]:
    """A row for each length: the same captions with and without what is held."""
    lm = load("zoo:vision", draft=None, threads=1, trained=[str(at)])
    rng = np.random.default_rng([4411, seed])
    scenes = [draw_scene(rng, unseen=True) for _ in range(SCENES)]
    images = [Image(DrawnPicture(draw_scene_pixels(scene, rng)).png_file) for scene in scenes]
    rows = list[dict[str, Any]]()
    for length in LENGTHS:
        took: dict[bool, list[float]] = {True: [], False: []}
        ran = dict[bool, int]()
        equal = list[bool]()
        for image in images:
            texts = list[tuple[int, ...]]()
            for cached in (True, False):
                ask = Ask(
                    "describe it",
                    source=image,
                    method="x-decoder",
                    options={"cached": cached},
                    max_tokens=length,
                    ignore_eos=True,
                )
                # Once before: the tower reads the image then, and its vectors stay.
                generate(lm, ask)
                began = time.process_time()
                answer = generate(lm, ask)
                took[cached].append(1e3 * (time.process_time() - began))
                ran[cached] = answer.metrics["query_rows"]
                texts.append(answer.token_ids)
            equal.append(texts[0] == texts[1])
        held, anew = (round(float(np.median(took[way])), 2) for way in (True, False))
        rows.append(
            {
                "seed": seed,
                "tokens": length,
                "equal": round(float(np.mean(equal)), 4),
                "rows_held": ran[True],
                "rows_anew": ran[False],
                "milliseconds_held": held,
                "milliseconds_anew": anew,
                "ratio": round(anew / held, 2),
            }
        )
    return rows


def summed_up(rows: Sequence[dict[str, Any]], by: str, names: Sequence[str]) -> list[str]:
    """Means over seeds, with Student's 95 % interval."""
    lines = list[str]()
    for key in dict.fromkeys(row[by] for row in rows):
        for name in names:
            values = [float(row[name]) for row in rows if row[by] == key]
            shown = mean_with_interval(values) if len(values) > 1 else f"{values[0]:.3f}"
            lines.append(f"{by} {key}, {name}: {shown}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--csv", required=True)
    parser.add_argument("--times", required=True)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--width", type=int, default=64, help="of states")
    parser.add_argument("--rows", type=int, default=8, help="scenes of a step")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    given = parser.parse_args()
    torch.set_num_threads(1)
    how = {"steps": given.steps, "layers": given.layers, "width": given.width, "rows": given.rows}
    measured = list[dict[str, Any]]()
    timed = list[dict[str, Any]]()
    for seed in given.seeds:
        for way, more in WAYS.items():
            at = trained_at(given.models, seed, how, more)
            measured.append({"way": way, "seed": seed, **figures_of(at)})
            print(measured[-1], flush=True)
            if not more:
                timed += captions_timed(at, seed)
        merge_csv(given.csv, measured, ("way", "seed"))
        merge_csv(given.times, timed, ("seed", "tokens"))
    print("\n".join(summed_up(measured, "way", FIGURES)))
    print("\n".join(summed_up(timed, "tokens", ("equal", "milliseconds_held", "ratio"))))


if __name__ == "__main__":
    main()

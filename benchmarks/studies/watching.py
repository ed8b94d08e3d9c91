"""Selective decoding of a stream of images: words where the foretold embedding changes, beside words every so many images.

    python -m benchmarks.studies.watching DIR0 DIR1 DIR2 --csv lab/reports/watching.csv [--model zoo:vision] [--streams 6]

The embedders are of `polydec train jepa --seed 0`, 1 and 2. A stream is made here of scenes that no training saw: each stays
for 1 to 24 images, drawn anew in each of them (its paper, and where in their places its things stand), and then another one
comes; 120 images in all. Every image is asked for a caption. At each image what was said last is held against the scene: f1 of
the (colour, thing, place) that both name. Ways: a text every 1, 2, 4, 8, 12 and 16 images; clusters of the whole stream (Ward),
as many as scenes, or as uniform decoding has; changes as the stream comes, by a threshold. calls, tokens: of a stream on
average. A row is one way and one embedder.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np
import torch
from benchmarks.csv_rows import merge_csv

from polydec import Image, load
from polydec.api import LoadedModel
from polydec.lab.bench.intervals import student_interval
from polydec.lab.train.scenes import CAPTION, CELL, Scene, caption_of, draw_scene, draw_scene_pixels
from polydec.models.text.picture_view import DrawnPicture
from polydec.request.stream_policies import (
    ChangeSegments,
    SegmentPolicy,
    UniformSegments,
    WardSegments,
)
from polydec.request.watching import embedder_of, foretold_embedding, write_segments

IMAGES = 120
LONGEST = 24
"""Images of a scene at most."""
THRESHOLDS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)


def moved_scene(scene: Scene, rng: np.random.Generator) -> Scene:
    """The same scene, its things elsewhere within their places."""
    return tuple(
        replace(
            part,
            down=int(rng.integers(1, CELL - part.size)),
            right=int(rng.integers(1, CELL - part.size)),
        )
        for part in scene
    )


def draw_stream(seed: int) -> tuple[list[Scene], list[Image], int]:
    """Of each image its scene and file, and how many scenes there are."""
    rng = np.random.default_rng([6021, seed])
    scenes = list[Scene]()
    count = 0
    while len(scenes) < IMAGES:
        scene = draw_scene(rng, unseen=True)
        scenes += [scene] * int(rng.integers(1, LONGEST + 1))
        count += 1
    scenes = scenes[:IMAGES]
    pixels = [draw_scene_pixels(moved_scene(scene, rng), rng) for scene in scenes]
    return scenes, [Image(DrawnPicture(x).png_file) for x in pixels], count


def named_parts(caption: str) -> set[str]:
    """What a caption names: each thing with its colour and place."""
    return {part.strip() for part in caption.split(" and ") if part.strip()}


def f1_of(said: str, scene: Scene) -> float:
    """Of what is said and what is there."""
    told = named_parts(said)
    there = named_parts(caption_of(scene))
    return 2 * len(told & there) / (len(told) + len(there))


def ways_of(scenes: int) -> dict[str, SegmentPolicy]:
    """What is compared on a stream of so many scenes."""
    return {
        **{f"every {k}": UniformSegments(k) for k in (1, 2, 4, 8, 12, 16)},
        "clusters, one a scene": WardSegments(scenes),
        **{f"clusters, {IMAGES // k}": WardSegments(IMAGES // k) for k in (4, 8, 12, 16)},
        **{f"change {x}": ChangeSegments(x) for x in THRESHOLDS},
    }


def measured_rows(lm: LoadedModel, seed: int, streams: int) -> list[dict[str, Any]]:
    """All ways on the same streams."""
    embedder = embedder_of(lm)
    asked = lm.encoder.encode_prompt(CAPTION)
    found = dict[str, list[tuple[float, int, int]]]()
    for number in range(streams):
        scenes, images, count = draw_stream(100 * seed + number)
        made = [foretold_embedding(lm, embedder, image, asked) for image in images]
        for name, policy in ways_of(count).items():
            segments = policy.part_stream(torch.stack(made))
            texts = write_segments(lm, embedder, asked, segments, max_tokens=40, method="plain")
            said = [
                text
                for segment, (text, _) in zip(segments, texts, strict=True)
                for _ in range(segment.first, segment.stop)
            ]
            f1 = fmean(f1_of(text, scene) for text, scene in zip(said, scenes, strict=True))
            found.setdefault(name, []).append((f1, len(segments), sum(n for _, n in texts)))
    rows = list[dict[str, Any]]()
    for name, of in found.items():
        f1, calls, tokens = (fmean(column) for column in zip(*of, strict=True))
        rows.append(
            {
                "way": name,
                "seed": seed,
                "f1": round(f1, 4),
                "calls": round(calls, 2),
                "tokens": round(tokens, 1),
            }
        )
        print(rows[-1], flush=True)
    return rows


def uniform_calls(rows: Sequence[Mapping[str, Any]], f1: float) -> float:
    """How many calls uniform decoding needs for a quality, between the rates that were measured."""
    known = sorted(
        (row["f1"], row["calls"]) for row in rows if str(row["way"]).startswith("every ")
    )
    return float(np.interp(f1, [q for q, _ in known], [c for _, c in known]))


def summed_up(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Of each way the means over embedders, and of uniform decoding's calls at its quality."""
    lines = list[str]()
    for name in dict.fromkeys(row["way"] for row in rows):
        own = [row for row in rows if row["way"] == name]
        times = [
            uniform_calls([r for r in rows if r["seed"] == row["seed"]], row["f1"]) / row["calls"]
            for row in own
        ]
        low, high = student_interval(times)
        figures = ", ".join(
            f"{key} {fmean(row[key] for row in own):.3f}" for key in ("f1", "calls")
        )
        lines.append(
            f"{name}: {figures}; uniform needs {fmean(times):.2f} ({low:.2f} to {high:.2f})"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("embedders", nargs="+", help="of `polydec train jepa`, one a seed")
    parser.add_argument("--model", default="zoo:vision")
    parser.add_argument("--csv", required=True)
    parser.add_argument("--streams", type=int, default=6, help="of 120 images, for each embedder")
    given = parser.parse_args()
    rows = list[dict[str, Any]]()
    for seed, name in enumerate(given.embedders):
        lm = load(given.model, draft=None, trained=(name,), threads=1)
        rows += measured_rows(lm, seed, given.streams)
        merge_csv(given.csv, rows, ("way", "seed"))
    print("\n".join(summed_up(rows)))


if __name__ == "__main__":
    main()

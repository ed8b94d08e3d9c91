"""Absent things that a model says of an image: multi-view multi-path and guidance beside greedy decoding.

    python -m benchmarks.studies.hallucination DIR0 DIR1 DIR2 --csv lab/reports/hallucination.csv [--count 120]

The models are of `polydec train vision --start zoo:vision --drop 0.2 --told 0.5 --steps 500 --rate 3e-4 --muon 0.005
--seed 1`, 2 and 3. Each answers about scenes of its own that no training saw. Of each it is asked whether a thing is there that
is, and whether one is that is not, and it writes a caption. Columns of questions (way, presence): right, and invented: the
share of absent things that are said to be there; found: that of things that are there. Of captions: right to the last word;
invented: the share of the things named that are absent (CHAIR by things), lying: of captions that name one (CHAIR by captions),
found: of the things of a scene that are named. passes, fed: of the target, and positions fed, for a text on average. Paths and
views are drawn at the published 0.7, all else is greedy. A row is one way and one model; after the rows means are printed with
Student's 95 % interval of the difference from greedy.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np
from benchmarks.csv_rows import merge_csv

from polydec import Ask, Engine, Image, Sampling, load
from polydec.api import LoadedModel
from polydec.lab.bench.intervals import student_interval
from polydec.lab.train.scenes import (
    CAPTION,
    THINGS,
    VIEWS,
    Scene,
    caption_of,
    draw_scene,
    draw_scene_pixels,
)
from polydec.models.text.picture_view import DrawnPicture

PRESENCE = "presence"
CAPTIONS = "captions"
GREEDY = "greedy"
HEAT = 0.7
"""The published temperature of views and paths."""
FRAMED = {"apart": True, "most": 4, "answers": "yes|no"}
PUBLISHED_VIEWS = "|".join(VIEWS)


@dataclass(frozen=True)
class AnswerWay:
    """method, options, steer: fields of a request; heat: its temperature."""

    method: str = "plain"
    options: Mapping[str, Any] = field(default_factory=dict)
    scale: float | None = None
    heat: float = 0.0


GUIDED = {f"guidance {scale}": AnswerWay(scale=scale) for scale in (0.5, 1.5, 2.0, 3.0)}
WAYS: Mapping[str, Mapping[str, AnswerWay]] = {
    CAPTIONS: {GREEDY: AnswerWay(), **GUIDED},
    PRESENCE: {
        GREEDY: AnswerWay(),
        **GUIDED,
        "one view, one path": AnswerWay(
            "multi-view-multi-path", {**FRAMED, "views": CAPTION, "width": 1}, heat=HEAT
        ),
        "three views, one path": AnswerWay(
            "multi-view-multi-path", {**FRAMED, "views": PUBLISHED_VIEWS, "width": 1}, heat=HEAT
        ),
        "three views, three paths": AnswerWay(
            "multi-view-multi-path", {**FRAMED, "views": PUBLISHED_VIEWS}, heat=HEAT
        ),
        "no views, three paths": AnswerWay(
            "multi-view-multi-path", {"most": 4, "answers": "yes|no"}, heat=HEAT
        ),
    },
}


@dataclass(frozen=True, eq=False)
class SceneCase:
    """A scene with its image, a thing that it has, and one that it has not."""

    scene: Scene
    image: Image
    present: str
    absent: str

    @property
    def things(self) -> set[str]:
        """What it has."""
        return {part.thing for part in self.scene}


def draw_cases(count: int, seed: int) -> list[SceneCase]:
    """Scenes that no training saw."""
    rng = np.random.default_rng([5150, seed])
    out = list[SceneCase]()
    for _ in range(count):
        scene = draw_scene(rng, unseen=True)
        image = Image(DrawnPicture(draw_scene_pixels(scene, rng)).png_file)
        there = [part.thing for part in scene]
        missing = [thing for thing in THINGS if thing not in there]
        out.append(
            SceneCase(
                scene,
                image,
                there[int(rng.integers(len(there)))],
                missing[int(rng.integers(len(missing)))],
            )
        )
    return out


def said_texts(
    lm: LoadedModel, asked: Sequence[tuple[str, Image]], way: AnswerWay, seed: int
) -> tuple[list[str], dict[str, float]]:
    """The model's answers, and what they cost."""
    steered = {} if way.scale is None else {"steer": "cfg", "steer_options": {"scale": way.scale}}
    engine = Engine(lm)
    tickets = [
        engine.submit(
            Ask(
                text,
                source=image,
                method=way.method,
                options=way.options,
                sampling=Sampling(temperature=way.heat),
                max_tokens=48,
                seed=1000 * seed + at,
                **steered,
            )
        )
        for at, (text, image) in enumerate(asked)
    ]
    made = engine.run(tickets)
    cost = {
        "passes": round(fmean(one.metrics["target_passes"] for one in made), 2),
        "fed": round(fmean(one.metrics["positions_fed"] for one in made), 1),
    }
    return [one.choices[0].text.strip() for one in made], cost


def judged_presence(cases: Sequence[SceneCase], said: Sequence[str]) -> dict[str, float]:
    """said: of each case the answer about what is there, then that about what is not."""
    there = [text.startswith("yes") for text in said[::2]]
    invented = [text.startswith("yes") for text in said[1::2]]
    return {
        "right": (sum(there) + len(cases) - sum(invented)) / (2 * len(cases)),
        "invented": fmean(invented),
        "found": fmean(there),
        "lying": 0.0,
    }


def judged_captions(cases: Sequence[SceneCase], said: Sequence[str]) -> dict[str, float]:
    """said: a caption of each case."""
    named = [[word for word in text.split() if word in THINGS] for text in said]
    absent = [
        [w for w in words if w not in case.things] for case, words in zip(cases, named, strict=True)
    ]
    found = [len(case.things & {*words}) for case, words in zip(cases, named, strict=True)]
    return {
        "right": fmean(
            text == caption_of(case.scene) for case, text in zip(cases, said, strict=True)
        ),
        "invented": sum(map(len, absent)) / max(1, sum(map(len, named))),
        "found": sum(found) / sum(len(case.things) for case in cases),
        "lying": fmean(bool(words) for words in absent),
    }


def measured_rows(lm: LoadedModel, seed: int, count: int) -> list[dict[str, Any]]:
    """All ways on the same scenes."""
    cases = draw_cases(count, seed)
    asked = {
        CAPTIONS: [(CAPTION, case.image) for case in cases],
        PRESENCE: [
            (f"is there a {thing}", case.image)
            for case in cases
            for thing in (case.present, case.absent)
        ],
    }
    judges = {CAPTIONS: judged_captions, PRESENCE: judged_presence}
    rows = list[dict[str, Any]]()
    for kind, ways in WAYS.items():
        for name, way in ways.items():
            said, cost = said_texts(lm, asked[kind], way, seed)
            figures = {key: round(value, 4) for key, value in judges[kind](cases, said).items()}
            rows.append({"kind": kind, "way": name, "seed": seed, **figures, **cost})
            print(rows[-1], flush=True)
    return rows


def summed_up(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Of each way the means over models, and how far they are from greedy decoding."""
    lines = list[str]()
    for kind, name in dict.fromkeys((row["kind"], row["way"]) for row in rows):
        told = list[str]()
        for key in ("right", "invented", "found", "lying"):
            values, plain = (
                [row[key] for row in rows if (row["kind"], row["way"]) == (kind, way)]
                for way in (name, GREEDY)
            )
            low, high = student_interval([a - b for a, b in zip(values, plain, strict=True)])
            apart = fmean(values) - fmean(plain)
            told.append(f"{key} {fmean(values):.3f}, {apart:+.3f} ({low:+.3f} to {high:+.3f})")
        lines.append(f"{kind}, {name}: " + "; ".join(told))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", help="trained with --drop and --told, one a seed")
    parser.add_argument("--csv", required=True)
    parser.add_argument("--count", type=int, default=120, help="scenes a model")
    given = parser.parse_args()
    rows = list[dict[str, Any]]()
    for seed, name in enumerate(given.models):
        rows += measured_rows(load(name, draft=None, threads=1), seed, given.count)
        merge_csv(given.csv, rows, ("kind", "way", "seed"))
    print("\n".join(summed_up(rows)))


if __name__ == "__main__":
    main()

"""What can be asked of a scene for masks, and which patches are right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polydec.lab.train.scenes import (
    NUMBERS,
    Scene,
    ScenePart,
    part_pixels,
)

ASKS = "<seg>"
"""Stands in an answer where a mask is asked for."""
MARK = "<mask>"
"""Stands for a patch of a mask."""
WORDS = ("segment", "all")
"""Words of the questions that other questions about scenes have not."""
INSIDE = "yes"
OUTSIDE = "no"
"""The words of a mask that is written, a patch after the other."""
TOUCHED = 0.1
"""Share of a patch's pixels from which on it belongs to what covers them: strokes of a digit are thin."""


@dataclass(frozen=True)
class MaskQuestion:
    """Something that is asked of a scene, whose answer asks for masks.

    Attributes:
        asked: The question, in words that a space parts.
        answer: The answer, likewise, with ASKS where masks belong.
        masks: Of each of these the things that it covers.
        kind: What is asked about.
    """

    asked: str
    answer: str
    masks: tuple[Scene, ...]
    kind: str

    def written_answer(self, patch: int) -> str:
        """The answer with each mask in words behind what asks for it.

        Args:
            patch: Pixels of a patch's side.

        Returns:
            The answer, a word for each patch, row by row.
        """
        # What is said between the masks.
        parts = self.answer.split(ASKS)
        # One mask stands behind each part but the last.
        out = [parts[0]]
        for things, rest in zip(self.masks, parts[1:], strict=True):
            cells = patch_mask(things, patch).flatten()
            out.append(" ".join([ASKS, *(INSIDE if cell else OUTSIDE for cell in cells), rest]))
        return "".join(out)


def draw_mask_questions(scene: Scene, rng: np.random.Generator) -> tuple[MaskQuestion, ...]:
    """Ask for masks in all ways: of a named thing, of what stands at a place, of a colour, and of all things one by one.

    Args:
        scene: The scene.
        rng: Decides what is asked about; it is advanced.

    Returns:
        A question of each kind.
    """
    # Each kind asks about a thing of its own choice.
    named, placed, coloured = (scene[int(at)] for at in rng.integers(len(scene), size=3))
    alike = tuple(part for part in scene if part.colour == coloured.colour)
    return (
        MaskQuestion(f"segment the {named.thing}", _told(named), ((named,),), "thing"),
        MaskQuestion(
            f"segment what is at {placed.place_words}", _told(placed), ((placed,),), "place"
        ),
        MaskQuestion(
            f"segment the {coloured.colour} things",
            f"{NUMBERS[len(alike)]} {coloured.colour} things {ASKS}",
            (alike,),
            "colour",
        ),
        MaskQuestion(
            "segment all things",
            " and ".join(f"{part.full_description} {ASKS}" for part in scene),
            tuple((part,) for part in scene),
            "all",
        ),
    )


def _told(part: ScenePart) -> str:
    return f"a {part.colour} {part.thing} {ASKS}"


def patch_mask(things: Sequence[ScenePart], patch: int) -> NDArray[np.bool_]:
    """Which patches of a picture things cover.

    Args:
        things: Things of a scene.
        patch: Pixels of a patch's side, which divides that of a picture.

    Returns:
        Rows of patches, bool: those of which TOUCHED of the pixels or more are covered.
    """
    # Things do not overlap, and one mask may cover several.
    covered = np.logical_or.reduce([part_pixels(part) for part in things])
    side = len(covered) // patch
    share = covered.reshape(side, patch, side, patch).mean((1, 3))
    return share >= TOUCHED


def mask_words() -> tuple[str, ...]:
    """What a model's vocabulary gets for these questions."""
    return (ASKS, MARK, *WORDS)

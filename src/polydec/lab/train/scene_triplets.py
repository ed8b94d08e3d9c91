"""What can be asked of a scene for boxes and masks in triplets, and which are right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from polydec.lab.train.scenes import (
    MOST,
    NUMBERS,
    SIDE,
    Scene,
    ScenePart,
    SceneQuestion,
    draw_questions,
)
from polydec.laws.constraints.triplets import NO_UNITS, PLAN_END, PLAN_HEAD, REFERENCE

UNITS = ("box", "mask")
"""What is asked for."""
MARKS: Mapping[str, str] = MappingProxyType(
    {
        "<Task>": "<Task>",
        "<False>": NO_UNITS.removeprefix("<Task>").removesuffix(f"\n{PLAN_END}"),
        "<True>": PLAN_HEAD.removeprefix("<Task>"),
        "<Name>": "\n- Name:",
        "<Kind>": " Unit: ",
        **{f"<unit:{unit}>": f"<Unit>{unit}</Unit>" for unit in UNITS},
        "<Num>": " Num:",
        "</Task>": f"\n{PLAN_END}",
        **{mark: mark for mark in ("<Phrase>", "</Phrase>", "(", ")", REFERENCE)},
        **{f"[{at}]": f"[{at}]" for at in range(MOST)},
    }
)
"""Tokens of the format, and what each writes: no two parts of it are one token, and none is two."""
WORDS = ("all", "mask")
"""Words of the questions that other questions about scenes have not."""


@dataclass(frozen=True)
class SceneConcept:
    """A concept of an answer.

    Attributes:
        name: What it is called, in words that a space parts.
        unit: One of UNITS.
        things: The things that it stands for, one a reference.
    """

    name: str
    unit: str
    things: Scene

    @property
    def plan_words(self) -> str:
        """What the plan says of it."""
        return f"<Name> {self.name} <Kind> <unit:{self.unit}> <Num> {len(self.things)}"

    @property
    def answer_words(self) -> str:
        """What the answer says of it."""
        marks = " ".join(f"[{at}] {REFERENCE}" for at in range(len(self.things)))
        return f"<Phrase> {self.name} </Phrase> ( <unit:{self.unit}> {marks} )"


@dataclass(frozen=True)
class TripletQuestion:
    """Something that is asked of a scene, whose answer refers to things.

    Attributes:
        question: The question and its answer, in words and marks that a space parts.
        concepts: What the answer refers to, in its order.
    """

    question: SceneQuestion
    concepts: tuple[SceneConcept, ...]

    @property
    def reference_targets(self) -> tuple[tuple[str, ScenePart], ...]:
        """Unit and thing of each reference, in order."""
        return tuple((one.unit, thing) for one in self.concepts for thing in one.things)


def draw_triplet_questions(scene: Scene, rng: np.random.Generator) -> tuple[TripletQuestion, ...]:
    """Ask for a box or a mask in all ways: of a named thing, of what stands at a place, of the things of a colour, and of all
    things one by one; and something that nothing is decoded for.

    Args:
        scene: The scene.
        rng: Decides what is asked about, and for which unit; it is advanced.

    Returns:
        A question of each kind.
    """
    # One thing may be asked about in several ways.
    named, placed, coloured = (scene[int(at)] for at in rng.integers(len(scene), size=3))
    units = [UNITS[int(at)] for at in rng.integers(len(UNITS), size=4)]
    # The thing itself is one of them, so there is at least one.
    alike = tuple(part for part in scene if part.colour == coloured.colour)
    many = SceneConcept(f"{coloured.colour} things", units[2], alike)
    words = [
        _located_question(
            "thing", f"{units[0]} the {named.thing}", [(_concept(named, units[0]), named)]
        ),
        _located_question(
            "place",
            f"{units[1]} what is at {placed.place_words}",
            [(_concept(placed, units[1]), placed)],
        ),
        TripletQuestion(
            SceneQuestion(
                f"{units[2]} the {coloured.colour} things",
                f"{_plan([many])} {NUMBERS[len(alike)]} {many.answer_words}",
                "colour",
            ),
            (many,),
        ),
        _located_question(
            "all", f"{units[3]} all things", [(_concept(x, units[3]), x) for x in scene]
        ),
    ]
    # What a question about a colour or a number is answered with has no place in the image.
    asked = draw_questions(scene, rng)
    kind = ("colour", "count")[int(rng.integers(2))]
    # Every scene is asked about the colour and the number of its things.
    plain = next(one for one in asked if one.kind == kind)
    said = f"{_plan([])} {plain.answer}"
    return (*words, TripletQuestion(SceneQuestion(plain.asked, said, "nothing"), ()))


def _concept(part: ScenePart, unit: str) -> SceneConcept:
    # The colour belongs to the name: two things of one kind may differ by it alone.
    return SceneConcept(f"{part.colour} {part.thing}", unit, (part,))


def _located_question(
    kind: str, asked: str, located: Sequence[tuple[SceneConcept, ScenePart]]
) -> TripletQuestion:
    """A question whose answer says of each thing where it stands."""
    concepts = tuple(concept for concept, _ in located)
    said = " and ".join(f"{one.answer_words} at {part.place_words}" for one, part in located)
    return TripletQuestion(SceneQuestion(asked, f"{_plan(concepts)} {said}", kind), concepts)


def _plan(concepts: Sequence[SceneConcept]) -> str:
    # A plan without concepts says that no unit follows.
    lines = [one.plan_words for one in concepts]
    return " ".join(["<Task>", "<True>" if lines else "<False>", *lines, "</Task>"])


def shown_answer(words: str) -> str:
    """What an answer of words and marks reads as.

    Args:
        words: Words and marks, which a space parts.

    Returns:
        The text, in which each word but no mark has a space before it.
    """
    return "".join(MARKS.get(word, f" {word}") for word in words.split())


def part_box(part: ScenePart) -> tuple[float, float, float, float]:
    """The square that a thing fills: left, upper, right and lower side, as shares of the picture's."""
    return (
        part.left_column / SIDE,
        part.top_row / SIDE,
        (part.left_column + part.size) / SIDE,
        (part.top_row + part.size) / SIDE,
    )

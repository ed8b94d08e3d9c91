"""Scenes of coloured shapes and digits that we draw, and what can be said and asked of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from polydec.lab.train.data import held_out

SIDE = 48
"""Pixels of a side of a picture."""
CELL = SIDE // 3
"""Pixels of a side of a place; three stand in a row."""
GRID = 8
"""Squares of a side of a picture, in which boxes are told."""
COLOURS = {
    "red": (214, 48, 49),
    "green": (46, 160, 67),
    "blue": (47, 103, 214),
    "yellow": (240, 200, 40),
    "purple": (140, 70, 190),
    "orange": (240, 130, 40),
}
SHAPES = ("circle", "square", "triangle", "cross")
_DIGITS = {
    "0": "01110 10001 10011 10101 11001 10001 01110",
    "1": "00100 01100 00100 00100 00100 00100 01110",
    "2": "01110 10001 00001 00110 01000 10000 11111",
    "3": "11110 00001 00001 01110 00001 00001 11110",
    "4": "00010 00110 01010 10010 11111 00010 00010",
    "5": "11111 10000 11110 00001 00001 10001 01110",
    "6": "00110 01000 10000 11110 10001 10001 01110",
    "7": "11111 00001 00010 00100 01000 01000 01000",
    "8": "01110 10001 10001 01110 10001 10001 01110",
    "9": "01110 10001 10001 01111 00001 00010 01100",
}
THINGS = (*SHAPES, *_DIGITS)
ROWS = ("top", "middle", "bottom")
COLUMNS = ("left", "centre", "right")
NUMBERS = ("no", "one", "two", "three", "four")
"""How many things a scene has, in words."""
MOST = len(NUMBERS) - 1
CAPTION = "describe it"
"""What is asked for a caption."""
MISTOLD = 0.1
"""Chance that a caption which stands before a question names another thing than the one that is
there: who reads it must look as well."""


@dataclass(frozen=True)
class ScenePart:
    """A thing of a scene.

    Attributes:
        thing: One of THINGS.
        colour: One of COLOURS.
        row: 0 (top) to 2.
        column: 0 (left) to 2.
        size: Pixels of a side of the square that it fills, 11 to 14.
        down: Pixels between the upper side of its place and that square, 1 to 4.
        right: The same, from the left side.
    """

    thing: str
    colour: str
    row: int
    column: int
    size: int = 12
    down: int = 2
    right: int = 2

    @property
    def top_row(self) -> int:
        """The first row of its pixels."""
        return CELL * self.row + self.down

    @property
    def left_column(self) -> int:
        """The first column of its pixels."""
        return CELL * self.column + self.right

    @property
    def box_words(self) -> str:
        """The first column and row, and the last, of the squares of GRID that its square touches."""
        # Coarse enough to be told in single figures.
        square = SIDE // GRID
        last = self.size - 1
        ends = (self.left_column, self.top_row, self.left_column + last, self.top_row + last)
        return " ".join(str(end // square) for end in ends)

    @property
    def place_words(self) -> str:
        """Where it stands, in words."""
        return f"{ROWS[self.row]} {COLUMNS[self.column]}"

    @property
    def full_description(self) -> str:
        """What it is, and where."""
        return f"a {self.colour} {self.thing} at {self.place_words}"


Scene = tuple[ScenePart, ...]
"""Things row by row; no two are of one kind, and no two stand in one place."""


@dataclass(frozen=True)
class SceneQuestion:
    """Something that is asked of a scene, and what is right.

    Attributes:
        asked: The question, in words that a space parts.
        answer: The answer, likewise.
        kind: What it is about.
    """

    asked: str
    answer: str
    kind: str


def draw_scene(rng: np.random.Generator, *, unseen: bool) -> Scene:
    """Make up a scene.

    Args:
        rng: Decides; it is advanced.
        unseen: Whether the scene is one of those that are held out.

    Returns:
        One to four things.
    """
    while True:
        # Kinds and places without repetition, so that every question has one answer.
        count = int(rng.integers(1, MOST + 1))
        kinds = rng.choice(len(THINGS), count, replace=False)
        places = sorted(rng.choice(9, count, replace=False))
        colours = rng.integers(len(COLOURS), size=count)
        scene = tuple(
            _placed(THINGS[kind], list(COLOURS)[colour], int(place), rng)
            for kind, colour, place in zip(kinds, colours, places, strict=True)
        )
        # By its caption: all pictures of a scene are learned from, or none.
        if held_out(caption_of(scene)) == unseen:
            return scene


def _placed(thing: str, colour: str, place: int, rng: np.random.Generator) -> ScenePart:
    """A thing somewhere within its place: sizes vary, so that no pixel alone tells a thing."""
    # Larger ones would touch their neighbours.
    size = int(rng.integers(11, 15))
    # A pixel at least stays free on each side.
    down, right = (int(x) for x in rng.integers(1, CELL - size, size=2))
    return ScenePart(thing, colour, place // 3, place % 3, size, down, right)


def caption_of(scene: Scene) -> str:
    """What a scene shows, thing by thing."""
    return " and ".join(part.full_description for part in scene)


def bottom_up_caption(scene: Scene) -> str:
    """What things and colours a scene has."""
    return " and ".join(f"a {part.colour} {part.thing}" for part in scene)


def top_down_caption(scene: Scene) -> str:
    """How many things a scene has, and where they stand."""
    # Colours are left to the view from the bottom up.
    told = " and ".join(f"a {part.thing} at {part.place_words}" for part in scene)
    if len(scene) == 1:
        return f"there is {told}"
    return f"there are {NUMBERS[len(scene)]} things {told}"


VIEWS: Mapping[str, Callable[[Scene], str]] = {
    "what colour are the things": bottom_up_caption,
    "where are the things": top_down_caption,
    CAPTION: caption_of,
}
"""What is asked for a caption of each kind: from the bottom up, from the top down, regular."""


def view_questions(scene: Scene) -> tuple[SceneQuestion, ...]:
    """The questions that ask for captions of the further kinds."""
    return tuple(
        SceneQuestion(asked, tell(scene), asked)
        for asked, tell in VIEWS.items()
        if asked != CAPTION
    )


def behind_captions(
    scene: Scene, questions: Sequence[SceneQuestion], rng: np.random.Generator
) -> tuple[SceneQuestion, ...]:
    """Put each question behind a caption of its scene, in which things may be told wrongly.

    Args:
        scene: The scene.
        questions: What is asked of it.
        rng: Decides; it is advanced.

    Returns:
        The same questions, but those that ask for a caption themselves.
    """
    out = list[SceneQuestion]()
    for question in questions:
        # A caption that stands there already would be asked for again.
        if question.asked == CAPTION:
            continue
        # Each question behind a caption of its own kind, so that none is always told alike.
        tell = list(VIEWS.values())[int(rng.integers(len(VIEWS)))]
        out.append(replace(question, asked=f"{tell(_mistold(scene, rng))} {question.asked}"))
    return tuple(out)


def _mistold(scene: Scene, rng: np.random.Generator) -> Scene:
    """A scene as somebody tells it who takes a thing for another one now and then."""
    return tuple(
        replace(part, thing=THINGS[int(rng.integers(len(THINGS)))])
        if rng.random() < MISTOLD
        else part
        for part in scene
    )


def draw_questions(scene: Scene, rng: np.random.Generator) -> tuple[SceneQuestion, ...]:
    """Ask something of each kind of a scene.

    Args:
        scene: The scene.
        rng: Decides; it is advanced.

    Returns:
        A question of each kind, with its answer; always in the same order.
    """
    # Whoever lays questions side by side counts on one of each kind.
    return tuple(ask(scene, rng) for ask in _KINDS)


def _any_part(scene: Scene, rng: np.random.Generator) -> ScenePart:
    return scene[int(rng.integers(len(scene)))]


def _caption(scene: Scene, rng: np.random.Generator) -> SceneQuestion:
    return SceneQuestion(CAPTION, caption_of(scene), "caption")


def _colour(scene: Scene, rng: np.random.Generator) -> SceneQuestion:
    part = _any_part(scene, rng)
    return SceneQuestion(f"what colour is the {part.thing}", part.colour, "colour")


def _place(scene: Scene, rng: np.random.Generator) -> SceneQuestion:
    part = _any_part(scene, rng)
    return SceneQuestion(f"where is the {part.thing}", part.place_words, "place")


def _thing(scene: Scene, rng: np.random.Generator) -> SceneQuestion:
    part = _any_part(scene, rng)
    asked = f"what is at {part.place_words}"
    return SceneQuestion(asked, f"a {part.colour} {part.thing}", "thing")


def _box(scene: Scene, rng: np.random.Generator) -> SceneQuestion:
    part = _any_part(scene, rng)
    return SceneQuestion(f"what box has the {part.thing}", part.box_words, "box")


def _region(scene: Scene, rng: np.random.Generator) -> SceneQuestion:
    part = _any_part(scene, rng)
    asked = f"what is in box {part.box_words}"
    return SceneQuestion(asked, f"a {part.colour} {part.thing}", "region")


def _count(scene: Scene, rng: np.random.Generator) -> SceneQuestion:
    # Half of the questions are about one colour, so that none may be right.
    if rng.random() < 0.5:
        return SceneQuestion("how many things are there", NUMBERS[len(scene)], "count")
    colour = list(COLOURS)[int(rng.integers(len(COLOURS)))]
    count = sum(part.colour == colour for part in scene)
    return SceneQuestion(f"how many things are {colour}", NUMBERS[count], "count")


def _presence(scene: Scene, rng: np.random.Generator) -> SceneQuestion:
    # Half of them name a thing that is there; what is made up may be there by chance.
    part = _any_part(scene, rng)
    if rng.random() < 0.5:
        thing = THINGS[int(rng.integers(len(THINGS)))]
    else:
        thing = part.thing
    right = any(part.thing == thing for part in scene)
    return SceneQuestion(f"is there a {thing}", "yes" if right else "no", "presence")


_KINDS = (_caption, _colour, _place, _thing, _box, _region, _count, _presence)


def scene_words() -> tuple[str, ...]:
    """All words of captions, questions and answers, each once."""
    known = (
        *("a", "and", "at", "there", "things", "yes", "is", "the", "what", "where", "how", "many"),
        *("are", "colour", "box", "has", "in"),
        *(*CAPTION.split(), *COLOURS, *THINGS, *ROWS, *COLUMNS, *NUMBERS),
    )
    return tuple(dict.fromkeys(known))


def draw_scene_pixels(scene: Scene, rng: np.random.Generator) -> np.ndarray:
    """Draw a scene.

    Args:
        scene: The scene.
        rng: Decides the shade of the paper; it is advanced.

    Returns:
        Red, green and blue, ``[SIDE, SIDE, 3]``, uint8.
    """
    pixels = np.full((SIDE, SIDE, 3), rng.integers(225, 256), dtype=np.uint8)
    for part in scene:
        pixels[part_pixels(part)] = COLOURS[part.colour]
    return pixels


def part_pixels(part: ScenePart) -> np.ndarray:
    """Which pixels of its picture a thing covers, ``[SIDE, SIDE]``, bool."""
    covered = np.zeros((SIDE, SIDE), bool)
    rows = slice(part.top_row, part.top_row + part.size)
    columns = slice(part.left_column, part.left_column + part.size)
    covered[rows, columns] = thing_mask(part.thing, part.size)
    return covered


def thing_mask(thing: str, size: int) -> np.ndarray:
    """Which pixels of a square a thing covers.

    Args:
        thing: One of THINGS.
        size: Pixels of a side of the square.

    Returns:
        ``[size, size]``, bool.
    """
    if thing in _DIGITS:
        glyph = np.array([[bit == "1" for bit in row] for row in _DIGITS[thing].split()])
        # The nearest pixel of the glyph, which is seven high and five wide.
        rows = np.arange(size) * 7 // size
        columns = np.arange(size) * 5 // size
        return glyph[rows][:, columns]
    # From -1 to 1, in the middle of each pixel.
    at = (np.arange(size) + 0.5) / size * 2 - 1
    y = at[:, None]
    x = at[None, :]
    # Coordinates grow to the right and downwards.
    masks = {
        "circle": x**2 + y**2 <= 1,
        "square": np.maximum(abs(x), abs(y)) <= 0.85,
        "triangle": abs(x) <= (y + 1) / 2,
        "cross": np.minimum(abs(x), abs(y)) <= 0.33,
    }
    return masks[thing]

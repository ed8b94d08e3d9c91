"""Records and remarks: a page of lines of which few must be looked up, and questions about these.

A line has six letters. A record `A4071;` gives a key a number; a remark `owlup;` is two of sixteen
words and is never asked for. A question is a key, and its answer the four digits behind it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from polydec.lab.train.data import held_out

KEYS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
NAMES = ["sun", "sea", "oak", "fog", "ice", "hen", "owl", "elm"]
PLACES = ["up", "in", "on", "at", "by", "to", "of", "or"]
LINE = 6
DIGITS = 4
"""Letters of a line, digits of an answer."""


@dataclass(frozen=True)
class FactPage:
    """A page of lines, and questions about it.

    Attributes:
        lines: The lines, in order.
        records: Indices of the lines that are records, ascending.
        asked: Pairs of a key and its number.
    """

    lines: tuple[str, ...]
    records: tuple[int, ...]
    asked: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        """The lines as one text."""
        return "".join(self.lines)


def draw_fact_page(
    seed: str, lines: int, records: int, questions: int, unseen: bool = False
) -> FactPage:
    """Draw the page of a name.

    Args:
        seed: Name of the page.
        lines: Number of lines.
        records: How many of the lines are records.
        questions: How many records are asked for, each once, at most `records`.
        unseen: Whether the page is held out from training (by SHA-1). Default False.

    Returns:
        The page.
    """
    dice = random.Random(f"page {seed} {lines} {records} {questions}")
    # Three of ten texts are held out, so a page of either side is found soon.
    while held_out((made := _page(dice, lines, records, questions)).text) != unseen:
        pass
    return made


def _page(dice: random.Random, lines: int, records: int, questions: int) -> FactPage:
    at = sorted(dice.sample(range(lines), records))
    # No key stands twice, so each question has one answer.
    keys = dice.sample(KEYS, records)
    number = {key: "".join(dice.choices("0123456789", k=DIGITS)) for key in keys}
    # Records take the places in `at` in order; all other lines are remarks.
    made = iter([f"{key}{number[key]};" for key in keys])
    text = [
        next(made) if i in at else f"{dice.choice(NAMES)}{dice.choice(PLACES)};"
        for i in range(lines)
    ]
    asked = tuple((key, number[key]) for key in dice.sample(keys, questions))
    return FactPage(tuple(text), tuple(at), asked)

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
    """lines: in order; records: which of them are records, ascending; asked: pairs of a key and its
    number."""

    lines: tuple[str, ...]
    records: tuple[int, ...]
    asked: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        return "".join(self.lines)


def draw_fact_page(
    seed: str, lines: int, records: int, questions: int, unseen: bool = False
) -> FactPage:
    """A page of this name. records: how many of its lines are; questions: how many are asked, of
    other records each, at most `records`. unseen: one that is held out from training (SHA-1), else
    one that is not."""
    dice = random.Random(f"page {seed} {lines} {records} {questions}")
    while held_out((made := _page(dice, lines, records, questions)).text) != unseen:
        pass
    return made


def _page(dice: random.Random, lines: int, records: int, questions: int) -> FactPage:
    at = sorted(dice.sample(range(lines), records))
    keys = dice.sample(KEYS, records)
    number = {key: "".join(dice.choices("0123456789", k=DIGITS)) for key in keys}
    made = iter([f"{key}{number[key]};" for key in keys])
    text = [
        next(made) if i in at else f"{dice.choice(NAMES)}{dice.choice(PLACES)};"
        for i in range(lines)
    ]
    asked = tuple((key, number[key]) for key in dice.sample(keys, questions))
    return FactPage(tuple(text), tuple(at), asked)

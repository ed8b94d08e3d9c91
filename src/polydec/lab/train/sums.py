"""Sums in steps whose last digit alone stays: many steps to say, one token to answer.

A question is `7+5-3*4` and is taken from left to right; each step goes on from the last digit of
the one before (`7+5` is 12, which leaves 2). The chain holds the digit after each step, and the
answer is the last of these.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from polydec.lab.train.data import held_out

ANSWER = "="
"""Stands before an answer."""

SIGNS = "+-*"


@dataclass(frozen=True)
class LastDigitSum:
    """A sum in steps of which only last digits are kept.

    Attributes:
        question: The sum as it is asked.
        chain: The digit after each step.
    """

    question: str
    chain: str

    @property
    def answer(self) -> str:
        """The digit after the last step."""
        # The chain has one digit a step.
        return self.chain[-1]


def draw_last_digit_sum(seed: str, steps: int, unseen: bool = False) -> LastDigitSum:
    """Draw the sum of a name.

    Args:
        seed: Name of the sum.
        steps: Steps of the sum, 1 or more.
        unseen: Whether its question is held out from training (by SHA-1). Default False.

    Returns:
        The sum.
    """
    dice = random.Random(f"sum {seed} {steps}")
    # Drawn again until it lies on the wanted side of the split.
    while held_out((made := _drawn(dice, steps)).question) != unseen:
        pass
    return made


def _drawn(dice: random.Random, steps: int) -> LastDigitSum:
    value = dice.randrange(10)
    question = str(value)
    chain = ""
    for _ in range(steps):
        sign = dice.choice(SIGNS)
        other = dice.randrange(10)
        # Only the last digit goes on; the remainder is never negative.
        value = (
            value + other if sign == "+" else value - other if sign == "-" else value * other
        ) % 10
        question = f"{question}{sign}{other}"
        chain = f"{chain}{value}"
    return LastDigitSum(question, chain)

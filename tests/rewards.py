"""Rewards for searches over toy models."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class ByToken:
    """A reward of the last two tokens, different for each pair."""

    salt: int = 0

    def success_chance(self, hidden_H):
        return (
            math.sin(12.9898 * float(hidden_H[0]) + 78.233 * float(hidden_H[1]) + self.salt) + 1
        ) / 2

"""Calibration of stated chances: counts of what came true, with a prior."""

from __future__ import annotations

from math import inf


class ChanceCalibration:
    """Chances that are learned cell by cell.

    A cell stands for cases that are expected to be alike (matches of one length, tokens that were
    given about the same probability). A cell in which `right` of `tried` came true has the chance
    (right + weight · prior) / (tried + weight): the prior at first, and the observed rate once
    there are many more trials than `weight`.

    Attributes:
        weight: How many trials the prior is worth, above 0.
        forget: A cell's counts are halved when it has that many trials, so that old text weighs
            less. inf: never.
        right: Cases of each cell that came true.
        tried: Cases of each cell.
    """

    __slots__ = ("forget", "right", "tried", "weight")

    def __init__(self, cells: int, weight: float, forget: float = inf) -> None:
        """Make cells without any case.

        Args:
            cells: Number of cells.
            weight: How many trials the prior is worth, above 0.
            forget: Trials of a cell at which its counts are halved. Default: never.
        """
        self.weight = weight
        self.forget = forget
        self.right = [0.0] * cells
        self.tried = [0.0] * cells

    def cell_chance(self, cell: int, prior: float) -> float:
        """Return the chance of a case in a cell, 0 to 1.

        Args:
            cell: Number of the cell, from 0.
            prior: Chance that is believed where nothing was seen, 0 to 1.
        """
        return (self.right[cell] + self.weight * prior) / (self.tried[cell] + self.weight)

    def add_cases(self, cell: int, right: float, tried: float = 1.0) -> None:
        """Add cases to a cell.

        Args:
            cell: Number of the cell, from 0.
            right: How many of the cases came true; a share of one counts as such.
            tried: How many cases. Default 1.
        """
        self.right[cell] += right
        self.tried[cell] += tried
        # Halving keeps the rate, and lets later cases count for more.
        if self.tried[cell] >= self.forget:
            self.right[cell] /= 2
            self.tried[cell] /= 2

    def copy(self) -> ChanceCalibration:
        twin = ChanceCalibration(0, self.weight, self.forget)
        twin.right = list(self.right)
        twin.tried = list(self.tried)
        return twin


def bin_of(probability: float, bins: int) -> int:
    """Return which of equal parts of 0 to 1 a probability lies in.

    Args:
        probability: 0 to 1, both included.
        bins: Number of parts, at least 1.
    """
    # A probability of 1 belongs to the last part.
    return min(int(probability * bins), bins - 1)

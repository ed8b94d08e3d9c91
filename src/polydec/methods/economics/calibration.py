"""What a stated chance has turned out to be worth: counts of what came true, with a prior."""

from __future__ import annotations

from math import inf


class ChanceCalibration:
    """Chances learned cell by cell, where a cell stands for cases that are expected to be alike (matches of one length, tokens
    that were given about the same probability).

    A cell in which `right` of `tried` came true has the chance (right + weight · prior) / (tried + weight): the prior at first,
    and the observed rate once there are many more trials than `weight`.

    cells: how many there are; weight: how many trials the prior is worth, above 0; forget: a cell's counts are halved when it
    has that many trials, so that old text weighs less (inf: never).
    """

    __slots__ = ("forget", "right", "tried", "weight")

    def __init__(self, cells: int, weight: float, forget: float = inf) -> None:
        self.weight = weight
        self.forget = forget
        self.right = [0.0] * cells
        self.tried = [0.0] * cells

    def chance(self, cell: int, prior: float) -> float:
        """The chance of a case in this cell, of which `prior` is believed where nothing was seen."""
        return (self.right[cell] + self.weight * prior) / (self.tried[cell] + self.weight)

    def observe(self, cell: int, right: float, tried: float = 1.0) -> None:
        """`tried` more cases of this cell (a share of one counts as such), of which `right` came true."""
        self.right[cell] += right
        self.tried[cell] += tried
        if self.tried[cell] >= self.forget:
            self.right[cell] /= 2
            self.tried[cell] /= 2

    def copy(self) -> ChanceCalibration:
        twin = ChanceCalibration(0, self.weight, self.forget)
        twin.right = list(self.right)
        twin.tried = list(self.tried)
        return twin


def bin_of(probability: float, bins: int) -> int:
    """Which of `bins` equal parts of 0 to 1 a probability lies in."""
    return min(int(probability * bins), bins - 1)

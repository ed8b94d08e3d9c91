"""Where the vectors of images stand for a rotary embedding of three parts: at rows and columns of their
image, while all else stands at places in the text. And where the vectors stand that are left of an image of
which some were left out: each where it stood before.

Source: M-RoPE, Wang et al. 2024, "Qwen2-VL", arXiv 2409.12191.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ImageGrid:
    """The vectors of an image in a text.

    Attributes:
        first: Place in the text of the first of them; they stand in a row.
        rows: Rows of the image.
        columns: Its columns; cells are counted row by row.
        saved: Positions that images before it saved: what follows an image goes on as if it had as
            many vectors as its longer side has cells. Below 0 where they lost more vectors than that.
        kept: The cells that have a vector, ascending. None: all of them.
    """

    first: int
    rows: int
    columns: int
    saved: int
    kept: tuple[int, ...] | None = None

    @property
    def vector_count(self) -> int:
        """How many vectors it has."""
        return self.rows * self.columns if self.kept is None else len(self.kept)

    @property
    def cells_end(self) -> int:
        """The place behind the last of them."""
        return self.first + self.vector_count

    @property
    def saved_behind(self) -> int:
        """Positions that it and images before it saved."""
        return self.saved + self.vector_count - max(self.rows, self.columns)

    def cell_at(self, place: int) -> int:
        """The cell whose vector stands at a place of the text."""
        nth = place - self.first
        return nth if self.kept is None else self.kept[nth]


Axes = tuple[list[int], list[int], list[int]]
"""Positions in time, by rows and by columns."""


def grid_positions(grids: Sequence[ImageGrid], places: Sequence[int]) -> Axes:
    """The three positions of some places of a text.

    Args:
        grids: Its images, in order.
        places: The places.

    Returns:
        Of each place its position in time, in rows and in columns. All three are the same but for
        vectors of an image, whose time stands still. A text whose positions have one part stands at
        those of its columns, where each image is one row.
    """
    times = list[int]()
    rows = list[int]()
    columns = list[int]()
    for place in places:
        # Few images stand in a text, so the last one that has begun is simply looked for.
        grid = next((grid for grid in reversed(grids) if grid.first <= place), None)
        saved = 0
        row = column = 0
        time = place
        # A cell of an image, or a word behind one.
        if grid is not None and place < grid.cells_end:
            row, column = divmod(grid.cell_at(place), grid.columns)
            saved = grid.saved
            time = grid.first
        elif grid is not None:
            saved = grid.saved_behind
        times.append(time - saved)
        rows.append(time - saved + row)
        columns.append(time - saved + column)
    return times, rows, columns

"""The likeliest one-to-one matching of some things with others."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polydec.base.errors import RequestError


def likeliest_matching(score_RC: NDArray[np.float64]) -> list[int]:
    """Match every row with a column of its own, so that the scores add up to the most.

    Args:
        score_RC: Finite scores, shape ``[R, C]``, R at most C.

    Returns:
        For each row its column; every column once at most.

    Raises:
        RequestError: There are more rows than columns.

    Source: the Hungarian method, Kuhn, 1955, as shortest augmenting paths (Jonker and Volgenant,
    1987).
    """
    R, C = score_RC.shape
    if R > C:
        raise RequestError(
            f"score has {R} rows and {C} columns: each row needs a column of its own"
        )
    # Column 0 stands for no column: rows and columns are counted from 1.
    row_price = np.zeros(R + 1)
    column_price = np.zeros(C + 1)
    row_at = np.zeros(C + 1, dtype=np.int64)
    for row in range(1, R + 1):
        row_at[0] = row
        # Of each column: how dear it is to reach, and from which one it is reached.
        came_from = np.zeros(C + 1, dtype=np.int64)
        slack = np.full(C + 1, np.inf)
        used = np.zeros(C + 1, dtype=bool)
        at = 0
        # A path from the new row to a column that nobody has, of least cost.
        while True:
            used[at] = True
            here = row_at[at]
            free = ~used[1:]
            cost = -score_RC[here - 1] - row_price[here] - column_price[1:]
            better = free & (cost < slack[1:])
            slack[1:][better] = cost[better]
            came_from[1:][better] = at
            # The cheapest column that is not on a path yet.
            follow = 1 + int(np.argmin(np.where(free, slack[1:], np.inf)))
            step = slack[follow]
            # Prices move so that the path's last edge costs nothing.
            row_price[row_at[used]] += step
            column_price[used] -= step
            slack[~used] -= step
            at = follow
            if row_at[at] == 0:
                break
        # Each column on the path takes the row of the one before it.
        while at:
            row_at[at] = row_at[came_from[at]]
            at = int(came_from[at])
    out = [0] * R
    for column in range(1, C + 1):
        if row_at[column]:
            out[int(row_at[column]) - 1] = column - 1
    return out

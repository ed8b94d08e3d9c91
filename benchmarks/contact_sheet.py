"""Pictures side by side in one file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from polydec.models.text.picture_view import DrawnPicture


def sheet(rows: Sequence[Sequence[np.ndarray]], path: Path) -> None:
    """Write pictures as one file, a row below another, with a line between them."""
    gap = 2

    def padded(pixels: np.ndarray) -> np.ndarray:
        return np.pad(pixels, ((gap, gap), (gap, gap), (0, 0)), constant_values=255)

    lines = [np.concatenate([padded(p) for p in row], 1) for row in rows]
    large = np.concatenate(lines, 0).repeat(2, 0).repeat(2, 1)
    DrawnPicture(large).save_png(path)
    print(path, large.shape, flush=True)

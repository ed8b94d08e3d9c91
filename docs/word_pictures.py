"""Draws docs/pictures/words.png: words as readers learn them, clean, blurred and sheared, and covered by bars.

python docs/word_pictures.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from polydec.lab.train.word_images import HEIGHT, ImageFaults, draw_word, draw_word_image

FILE = Path(__file__).with_name("pictures") / "words.png"
COLUMNS = (
    ImageFaults(blur=0.0, shear=0.0, noise=0.0, bars=0),
    ImageFaults(blur=0.6, shear=0.4, noise=0.1, bars=0),
    ImageFaults(blur=0.6, shear=0.4, noise=0.1, bars=3),
)
ROWS = 5
LETTERS = (4, 8)
WIDE = 60
"""Pixels of an image of a word at most, what stands beside it included."""
SCALE = 4


def word_sheet() -> np.ndarray:
    """The greys of the picture: a row of words below another, each column harder to read."""
    rng = np.random.default_rng(5)
    rows = list[np.ndarray]()
    for _ in range(ROWS):
        images = [draw_word_image(draw_word(rng, *LETTERS), faults, rng) for faults in COLUMNS]
        padded = [np.pad(x, ((1, 1), (0, WIDE - x.shape[1])), constant_values=255) for x in images]
        rows.append(np.concatenate(padded, 1))
    return np.concatenate(rows, 0).repeat(SCALE, 0).repeat(SCALE, 1)


def main() -> None:
    """Write the picture."""
    sheet = word_sheet()
    assert sheet.shape == (ROWS * (HEIGHT + 2) * SCALE, len(COLUMNS) * WIDE * SCALE)
    Image.fromarray(sheet).save(FILE, optimize=True)
    print(FILE, sheet.shape)


if __name__ == "__main__":
    main()

"""Words as images: letters that we draw, five pixels wide and seven high, and what makes them hard to
read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polydec.base.errors import RequestError

_ROWS = {
    "A": "01110 10001 10001 11111 10001 10001 10001",
    "B": "11110 10001 10001 11110 10001 10001 11110",
    "C": "01111 10000 10000 10000 10000 10000 01111",
    "D": "11110 10001 10001 10001 10001 10001 11110",
    "E": "11111 10000 10000 11110 10000 10000 11111",
    "F": "11111 10000 10000 11110 10000 10000 10000",
    "G": "01111 10000 10000 10011 10001 10001 01111",
    "H": "10001 10001 10001 11111 10001 10001 10001",
    "I": "11111 00100 00100 00100 00100 00100 11111",
    "J": "00111 00010 00010 00010 00010 10010 01100",
    "K": "10001 10010 10100 11000 10100 10010 10001",
    "L": "10000 10000 10000 10000 10000 10000 11111",
    "M": "10001 11011 10101 10101 10001 10001 10001",
    "N": "10001 11001 11001 10101 10011 10011 10001",
    "O": "01110 10001 10001 10001 10001 10001 01110",
    "P": "11110 10001 10001 11110 10000 10000 10000",
    "Q": "01110 10001 10001 10001 10101 10010 01101",
    "R": "11110 10001 10001 11110 10100 10010 10001",
    "S": "01111 10000 10000 01110 00001 00001 11110",
    "T": "11111 00100 00100 00100 00100 00100 00100",
    "U": "10001 10001 10001 10001 10001 10001 01110",
    "V": "10001 10001 10001 10001 01010 01010 00100",
    "W": "10001 10001 10001 10101 10101 11011 10001",
    "X": "10001 01010 01010 00100 01010 01010 10001",
    "Y": "10001 01010 01010 00100 00100 00100 00100",
    "Z": "11111 00001 00010 00100 01000 10000 11111",
}
LETTERS = "".join(_ROWS)
"""The letters that can be drawn."""
VOWELS = "AEIOUY"
CONSONANTS = "".join(letter for letter in LETTERS if letter not in VOWELS)
HEIGHT = 12
"""Rows of an image; a letter takes seven of them, two or three below its top."""
ADVANCE = 6
"""Columns from one letter to the next, before an image is sheared."""

GLYPHS = {
    letter: np.array([[int(bit) for bit in row] for row in rows.split()], dtype=np.float32)
    for letter, rows in _ROWS.items()
}
"""How much ink each pixel of a letter has, ``[7, 5]``."""


@dataclass(frozen=True)
class ImageFaults:
    """What makes an image hard to read; each is drawn anew for every image.

    Attributes:
        blur: Largest share of a pixel's ink that its neighbours get. 0 to 1.
        shear: Largest shift of a row against the next one, in columns. 0 to 1.
        noise: Standard deviation of what is added to each pixel. 0 to 1.
        bars: Bars of paper that cover letters, at most. 0 to 8.
    """

    blur: float = 0.5
    shear: float = 0.3
    noise: float = 0.1
    bars: int = 0


def draw_word(rng: np.random.Generator, least: int, most: int) -> str:
    """Make up a word: consonants and vowels in turn, now and then two of a kind.

    Args:
        rng: Decides; it is advanced.
        least: Letters of a word at least.
        most: Letters of a word at most.

    Returns:
        The word.
    """
    length = int(rng.integers(least, most + 1))
    vowel = rng.random() < 0.4
    letters = list[str]()
    for _ in range(length):
        kind = VOWELS if vowel else CONSONANTS
        letters.append(kind[int(rng.integers(len(kind)))])
        # Nine times of ten the other kind follows, so that what is covered may be guessed.
        vowel = vowel != (rng.random() < 0.9)
    return "".join(letters)


def draw_word_image(word: str, faults: ImageFaults, rng: np.random.Generator) -> np.ndarray:
    """Draw a word.

    Args:
        word: Letters of `LETTERS`, at least one.
        faults: What makes it hard to read.
        rng: Decides where it stands and what is wrong with it; it is advanced.

    Returns:
        Greys, 0 (ink) to 255 (paper), shape ``[HEIGHT, columns]``, uint8.

    Raises:
        RequestError: A letter cannot be drawn.
    """
    if unknown := [letter for letter in word if letter not in GLYPHS]:
        raise RequestError(
            f"word {word[:40]!r} has the letter {unknown[0]!r}: it must be of A to Z"
        )
    left = int(rng.integers(2, 6))
    right = int(rng.integers(2, 6))
    top = int(rng.integers(2, 4))
    ink_HC = np.zeros((HEIGHT, left + ADVANCE * len(word) + right), dtype=np.float32)
    for at, letter in enumerate(word):
        column = left + ADVANCE * at
        ink_HC[top : top + 7, column : column + 5] = GLYPHS[letter]
    # In the order in which a page is written, photographed and spoilt.
    ink_HC = _sheared(ink_HC, rng.uniform(-faults.shear, faults.shear))
    ink_HC = _blurred(ink_HC, rng.uniform(0, faults.blur))
    for _ in range(int(rng.integers(faults.bars + 1)) if faults.bars else 0):
        _cover(ink_HC, left, len(word), rng)
    ink_HC = ink_HC + rng.normal(0, faults.noise, ink_HC.shape)
    return (255 * (1 - ink_HC.clip(0, 1))).round().astype(np.uint8)


def _sheared(ink_HC: np.ndarray, slope: float) -> np.ndarray:
    """The image with each row shifted by `slope` columns against the next; shifts between two columns
    divide the ink among both."""
    columns = np.arange(ink_HC.shape[1])
    middle = (HEIGHT - 1) / 2
    rows = [
        np.interp(columns + slope * (at - middle), columns, row, 0, 0)
        for at, row in enumerate(ink_HC)
    ]
    return np.stack(rows).astype(np.float32)


def _blurred(ink_HC: np.ndarray, share: float) -> np.ndarray:
    """The image with a share of each pixel's ink spread evenly over its eight neighbours and itself."""
    # Beyond the edge there is paper.
    wide = np.pad(ink_HC, 1)
    height, width = ink_HC.shape
    near = sum(wide[i : i + height, j : j + width] for i in range(3) for j in range(3)) / 9
    return (1 - share) * ink_HC + share * near


def _cover(ink_HC: np.ndarray, left: int, letters: int, rng: np.random.Generator) -> None:
    """Cover a part of some letter with paper, in place: two or three of its columns, or its rows."""
    at = left + ADVANCE * int(rng.integers(letters))
    if rng.random() < 0.5:
        first = at + int(rng.integers(3))
        ink_HC[:, first : first + int(rng.integers(2, 4))] = 0
    else:
        first = int(rng.integers(2, 8))
        ink_HC[first : first + int(rng.integers(2, 4)), at : at + ADVANCE * 2] = 0

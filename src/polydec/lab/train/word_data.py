"""Images of words to learn from: drawn as they are asked for, or a folder of files with labels."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from polydec.base import edge
from polydec.base.errors import FileError
from polydec.lab.train.data import held_out
from polydec.lab.train.word_images import (
    HEIGHT,
    LETTERS,
    ImageFaults,
    draw_word,
    draw_word_image,
)
from polydec.models.formats.image_decoding import padded_strip, read_pixel_strip
from polydec.models.formats.images import Image, PixelStrip, StripShape
from polydec.models.nets.strips import strip_windows

STRIP = StripShape(HEIGHT, 3, 11, 512)
"""How the readers that are trained here cut an image: two positions a letter, each of which sees
the letter and a part of its neighbours."""
LABELS = "labels.jsonl"
TRIES = 1000
"""Words that are drawn before one of the other side is found; three of ten are held out."""


@dataclass(frozen=True)
class LabelledStrip:
    """An image and the word in it."""

    strip: PixelStrip
    word: str


class WordSource(Protocol):
    """Where images of words come from. Words whose `hash_bucket` is 7 to 9 are held out.

    Attributes:
        known_letters: All letters of the words, each once.
        longest_word: Letters of the longest word.
        content_digest: Tells these words from others.
    """

    @property
    def known_letters(self) -> str: ...
    @property
    def longest_word(self) -> int: ...
    @property
    def content_digest(self) -> str: ...

    def draw_examples(
        self, count: int, rng: np.random.Generator, unseen: bool
    ) -> list[LabelledStrip]:
        """Draw some images.

        Args:
            count: How many.
            rng: Decides; it is advanced.
            unseen: Whether they are held out.

        Returns:
            The images; none where there is none of this kind.
        """
        ...


@dataclass(frozen=True)
class DrawnWords:
    """Words that are made up and drawn as they are asked for.

    Attributes:
        least: Letters of a word at least.
        most: Letters of a word at most.
        faults: What makes the images hard to read.
        kept: Images that are drawn once, from which all that is learned is taken again and again.
            Default 0: new ones each time.
        seed: Of those that are drawn once. Default 0.
    """

    least: int
    most: int
    faults: ImageFaults
    kept: int = 0
    seed: int = 0

    known_letters = LETTERS
    content_digest = "drawn"

    @property
    def longest_word(self) -> int:
        """Letters of the longest word that may be drawn."""
        return self.most

    def draw_examples(
        self, count: int, rng: np.random.Generator, unseen: bool
    ) -> list[LabelledStrip]:
        """Draw some images of words.

        Args:
            count: How many.
            rng: Decides; it is advanced.
            unseen: Whether the words are held out.

        Returns:
            The images.
        """
        if self.kept and not unseen:
            images = _drawn_once(self)
            return [images[i] for i in rng.integers(len(images), size=count)]
        return [self.draw_example(rng, unseen) for _ in range(count)]

    def draw_example(self, rng: np.random.Generator, unseen: bool) -> LabelledStrip:
        """Draw a new image of a word.

        Args:
            rng: Decides; it is advanced.
            unseen: Whether the word is held out.

        Returns:
            The image.
        """
        word = draw_word(rng, self.least, self.most)
        # Of one letter there may be no word of a side.
        for _ in range(TRIES):
            if held_out(word) == unseen:
                break
            word = draw_word(rng, self.least, self.most)
        grey_HC = draw_word_image(word, self.faults, rng)
        return LabelledStrip(padded_strip(grey_HC.tobytes(), STRIP), word)


@lru_cache(maxsize=4)
def _drawn_once(words: DrawnWords) -> tuple[LabelledStrip, ...]:
    """The images that several trainings may learn from."""
    rng = np.random.default_rng([words.seed, 5])
    return tuple(words.draw_example(rng, unseen=False) for _ in range(words.kept))


@dataclass(frozen=True)
class FiledWords:
    """Images in a folder.

    Attributes:
        learned: Those that may be learned from.
        unseen: Those that are held out.
        known_letters: All letters of the words, in order.
        content_digest: Of all labels and pixels.
    """

    learned: tuple[LabelledStrip, ...]
    unseen: tuple[LabelledStrip, ...]
    known_letters: str
    content_digest: str

    @property
    def longest_word(self) -> int:
        """Letters of the longest word, held-out ones included."""
        return max(len(x.word) for x in (*self.learned, *self.unseen))

    def draw_examples(
        self, count: int, rng: np.random.Generator, unseen: bool
    ) -> list[LabelledStrip]:
        """Draw some of the images, with repetition.

        Args:
            count: How many.
            rng: Decides; it is advanced.
            unseen: Whether they are held out.

        Returns:
            The images; none where all words are on the other side.
        """
        of = self.unseen if unseen else self.learned
        if not of:
            return []
        return [of[i] for i in rng.integers(len(of), size=count)]


def read_word_folder(folder: str) -> FiledWords:
    """Read a folder of images with labels.jsonl, rows of `image`, a file's name, and `text`.

    Args:
        folder: The folder.

    Returns:
        The images.

    Raises:
        FileError: A row is malformed, or there is nothing to learn from.
        RequestError: An image cannot be read.
    """
    at = edge.read_bytes(Path(folder) / LABELS).decode("utf-8", "replace").splitlines()
    examples = list[LabelledStrip]()
    for number, line in enumerate(at, 1):
        if not line.strip():
            continue
        name, word = _label(line, f"{LABELS}, line {number}")
        examples.append(LabelledStrip(read_pixel_strip(Image(Path(folder) / name), STRIP), word))
    learned = tuple(x for x in examples if not held_out(x.word))
    if not learned:
        raise FileError(
            f"data is {folder!r}: none of its {len(examples)} images may be learned from"
        )
    # Another folder of the same name is another run.
    digest = hashlib.sha1()
    for x in examples:
        digest.update(x.word.encode() + x.strip.pixels)
    letters = "".join(sorted({letter for x in examples for letter in x.word}))
    unseen = tuple(x for x in examples if held_out(x.word))
    return FiledWords(learned, unseen, letters, digest.hexdigest())


def _label(line: str, where: str) -> tuple[str, str]:
    """The file's name and the text of a row. Raises FileError where it is none, and RequestError where
    its text is no Unicode."""
    row = edge.json_value_or_none(line)
    if not isinstance(row, dict):
        raise FileError(f"{where} is no JSON object: it must have image and text")
    for name in ("image", "text"):
        if not isinstance(row.get(name), str) or not row[name]:
            raise FileError(f"{where} has no {name}: it must be a text of at least one character")
    # A label must not lead out of its folder.
    if Path(row["image"]).name != row["image"]:
        raise FileError(
            f"{where} has the image {row['image'][:60]!r}: it must be a file of the folder"
        )
    return row["image"], edge.whole_text(row["text"], f"text of {where}")


def window_batch(strips: Sequence[PixelStrip]) -> tuple[Tensor, Tensor]:
    """Windows of some images side by side, the short ones filled up.

    Args:
        strips: B images.

    Returns:
        Windows, ``[B, S, pixels]``, and which positions are of an image, ``[B, S]``.
    """
    # Windows are rows by themselves, so filling up changes none of them.
    rows = [strip_windows(strip, STRIP) for strip in strips]
    there_BS = (
        torch.arange(max(map(len, rows)))[None] < torch.tensor([len(r) for r in rows])[:, None]
    )
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), there_BS

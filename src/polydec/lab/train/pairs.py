"""Pairs of a source and the text that is made of it, and steps of pairs that have like lengths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from polydec.base.edge import error_sentence, validate_record
from polydec.base.errors import FileError
from polydec.base.outside_records import StrictRecord
from polydec.models.formats import text_rows

NAMES = "source and target, or a question with its answer"


class PairLineRecord(StrictRecord):
    """A line of a file that is a pair by its names."""

    source: str
    target: str


@dataclass(frozen=True)
class TextPair:
    """A pair of texts.

    Attributes:
        source: What is read.
        target: What is written from it.
    """

    source: str
    target: str


def read_text_pairs(path: Path) -> Iterator[TextPair]:
    """The pairs of a file or a folder as `text_rows.list_text_files` takes them.

    These are JSON lines with `source` and `target`, and rows with a question and its answer.

    Raises:
        FileError: There is no pair, a line is wrong, or the text is too large; one sentence says
            which.
    """
    size = 0
    any_read = False
    for file in text_rows.list_text_files(path):
        for pair in _of_file(file):
            size += len(pair.source) + len(pair.target)
            # All pairs are held in memory, so their size has a bound.
            if size > text_rows.LARGEST:
                raise FileError(
                    error_sentence(
                        f"data is {str(path)!r}: it has more than {text_rows.LARGEST:,} characters"
                    )
                )
            any_read = True
            yield pair
    if not any_read:
        raise FileError(
            error_sentence(f"data is {str(path)!r}: there is no pair in it (a row needs {NAMES})")
        )


def _of_file(file: Path) -> Iterator[TextPair]:
    if not file.name.removesuffix(".gz").endswith(".jsonl"):
        exchanges = (item.exchange for item in text_rows.read_text_rows(file))
        yield from (TextPair(*exchange) for exchange in exchanges if exchange is not None)
        return
    for what, fields in text_rows.read_json_lines(file):
        # A line with one of the names must have both; a line with neither may be a question with
        # its answer.
        if "source" in fields or "target" in fields:
            line = validate_record(
                PairLineRecord,
                {k: v for k, v in fields.items() if k in PairLineRecord.model_fields},
                what,
            )
            if not line.source:
                raise FileError(error_sentence(f"{what}: source is empty"))
            yield TextPair(line.source, line.target)
        elif (exchange := text_rows.parse_text_row(fields, what, "").exchange) is not None:
            yield TextPair(*exchange)


@dataclass(frozen=True)
class LengthBucket:
    """Pairs of similar lengths.

    Attributes:
        longest: Tokens of the longest source, and of the longest target.
        chosen: Indices of the pairs.
    """

    longest: tuple[int, int]
    chosen: tuple[int, ...]


def bucket_by_length(
    lengths: Sequence[tuple[int, int]], first: int, second: int
) -> list[LengthBucket]:
    """Put every pair in exactly one bucket, by the lengths of its two sides.

    By the source's length into at most `first` parts with about as many source tokens each, and
    each of these by the target's length into at most `second` parts with about as many target
    tokens each. Source: Canary-Flash (2025), bucketing in two dimensions.

    Args:
        lengths: Tokens of source and target of each pair, at least 1 each.
        first: Parts by the source's length, at most.
        second: Parts of each of these by the target's length, at most.

    Returns:
        The buckets.
    """
    out = list[LengthBucket]()
    for part in _even(range(len(lengths)), [s for s, _ in lengths], first):
        for small in _even(part, [t for _, t in lengths], second):
            # All rows of a batch are filled up to these lengths.
            longest = max(lengths[i][0] for i in small), max(lengths[i][1] for i in small)
            out.append(LengthBucket(longest, tuple(small)))
    return out


def _even(chosen: Sequence[int], length: Sequence[int], count: int) -> list[list[int]]:
    """Cut indices, ordered by length, into at most `count` parts of about as much length."""
    order = sorted(chosen, key=lambda i: (length[i], i))
    total = sum(length[i] for i in order)
    seen = 0
    parts: list[list[int]] = [[] for _ in range(count)]
    for i in order:
        # The part follows from the length that lies before an index, so parts hold equal lengths,
        # not equal numbers.
        parts[min(count - 1, seen * count // total)].append(i)
        seen += length[i]
    return [part for part in parts if part]


@dataclass(frozen=True, eq=False)
class BucketBatchSampler:
    """Says which pairs of one bucket each step learns from.

    They are as many as fit `tokens` with their padding.

    `indices_of_step(step)` depends on (lengths, seed, step) alone. Buckets are drawn as often as they have
    tokens.

    Attributes:
        lengths: Tokens of source and target of each pair.
        tokens: Positions of a step, at most, padding included.
        first: Parts by the source's length. Default 8.
        second: Parts of each of these by the target's length. Default 3.
        seed: Seed of the draws. Default 0.
    """

    lengths: Sequence[tuple[int, int]]
    tokens: int
    first: int = 8
    second: int = 3
    seed: int = 0

    @cached_property
    def all(self) -> list[LengthBucket]:
        """All buckets."""
        return bucket_by_length(self.lengths, self.first, self.second)

    @cached_property
    def _shares(self) -> np.ndarray:
        # Tokens of a bucket, sources and targets together.
        mass = [sum(sum(self.lengths[i]) for i in b.chosen) for b in self.all]
        return np.asarray(mass) / sum(mass)

    def indices_of_step(self, step: int) -> list[int]:
        """The indices of a step's pairs."""
        rng = np.random.default_rng([self.seed, 3, step])
        bucket = self.all[rng.choice(len(self.all), p=self._shares)]
        # As many rows as fit at the bucket's longest lengths, one at least.
        rows = min(len(bucket.chosen), max(1, self.tokens // sum(bucket.longest)))
        return [bucket.chosen[i] for i in rng.choice(len(bucket.chosen), rows, replace=False)]

    def padding_share(self, steps: int) -> float:
        """The share of filled positions that hold no token, in so many steps."""
        filled = 0
        taken = 0
        for step in range(steps):
            lengths = [self.lengths[i] for i in self.indices_of_step(step)]
            filled += sum(s + t for s, t in lengths)
            # Positions that a step fills: rows times the longest source and target among them.
            taken += len(lengths) * (max(s for s, _ in lengths) + max(t for _, t in lengths))
        return 1 - filled / taken

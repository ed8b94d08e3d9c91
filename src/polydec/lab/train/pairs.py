"""Pairs of a source and the text that is made of it, and steps of pairs that have like lengths."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from polydec.base.edge import error_sentence, validate_record
from polydec.base.errors import FileError, RequestError
from polydec.base.outside_records import StrictRecord
from polydec.lab.train.data import ASSISTANT, BEGIN, END, USER, held_out
from polydec.models.formats import text_rows

NAMES = "source and target, or a question with its answer"
PLAIN: Mapping[str, Any] = {"add_special_tokens": False}
"""How a text is encoded that has its special tokens already."""


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
            # Characters and not bytes: what is held is text, not its file.
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
    # Files of other kinds have rows of one form, and no names to choose by.
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
                # Other fields of a line, such as an id or a language, are legal and unread.
                {k: v for k, v in fields.items() if k in PairLineRecord.model_fields},
                what,
            )
            if not line.source:
                raise FileError(error_sentence(f"{what}: source is empty"))
            yield TextPair(line.source, line.target)
        elif (exchange := text_rows.parse_text_row(fields, what, "").exchange) is not None:
            yield TextPair(*exchange)


@dataclass(frozen=True)
class EncodedPairs:
    """Pairs in tokens.

    Attributes:
        learned: Sources and targets to train on.
        unseen: Sources and targets that are held out.
    """

    learned: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]
    unseen: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]

    @property
    def lengths(self) -> list[tuple[int, int]]:
        """Tokens of source and target of each learned pair."""
        return [(len(source), len(target)) for source, target in self.learned]

    @property
    def digest(self) -> str:
        """A digest that tells these pairs from others."""
        # Of the tokens, so that another tokenizer makes another run.
        return hashlib.sha1(repr((self.learned, self.unseen)).encode()).hexdigest()


def encode_chat_pairs(
    texts: Sequence[TextPair], tokenizer: Tokenizer, context: int
) -> EncodedPairs:
    """Encode pairs as the chat template of `train lm` writes a question and its answer.

    Args:
        texts: The pairs.
        tokenizer: One with the special tokens of `lab/train/data.py`.
        context: Positions of both sides together, at most; longer pairs are left out.

    Returns:
        Of each pair all that stands before the answer, and the answer with its end. Pairs whose
        source has a `hash_bucket` of 7 to 9 are held out.

    Raises:
        RequestError: No pair can be learned.
    """
    asked = tokenizer.encode_batch_fast([question_text(p.source) for p in texts], **PLAIN)
    answers = tokenizer.encode_batch_fast([p.target + END for p in texts], **PLAIN)
    learned = list[Any]()
    unseen = list[Any]()
    for pair, source, target in zip(texts, asked, answers, strict=True):
        if len(source.ids) + len(target.ids) <= context:
            both = (tuple(source.ids), tuple(target.ids))
            # By the source alone: all answers to one question fall on the same side.
            (unseen if held_out(pair.source) else learned).append(both)
    if not learned:
        raise RequestError(
            f"pairs has {len(texts)} pairs: none is held in {context} positions and not held out "
            "(of ten questions seven are learned from, by their SHA-1)"
        )
    return EncodedPairs(learned, unseen)


def question_text(question: str) -> str:
    """What stands before the answer to a question, as the chat template writes it."""
    # In one place, so that what is trained and what is asked later begin alike.
    return BEGIN + USER + question + END + ASSISTANT


def empty_question(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Token ids of a question without words, as an empty negative prompt is read."""
    return tuple(tokenizer.encode(question_text(""), **PLAIN).ids)


def drop_sources(
    chosen: Sequence[tuple[Sequence[int], Sequence[int]]],
    share: float,
    empty: Sequence[int],
    rng: np.random.Generator,
) -> list[tuple[Sequence[int], Sequence[int]]]:
    """Leave out the sources of some pairs, for classifier-free guidance.

    Args:
        chosen: Token ids of sources and targets.
        share: Probability that a source is left out, 0 to 1.
        empty: Token ids of an empty source.
        rng: Draws which.

    Returns:
        The pairs, in order.
    """
    # One draw a pair, also where share is 0 or 1: later draws stay the same.
    dropped_N = rng.random(len(chosen)) < share
    return [
        (empty if dropped else source, target)
        for dropped, (source, target) in zip(dropped_N, chosen, strict=True)
    ]


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


def drop_length_outliers(lengths: Sequence[tuple[int, int]], first: int, times: float) -> list[int]:
    """Leave out pairs whose targets are far longer than those of sources of like length.

    Args:
        lengths: Tokens of source and target of each pair, at least 1 each.
        first: Parts by the source's length, at most; each has a median of its own.
        times: Medians of target tokens a source token above which a pair is left out.

    Returns:
        Indices of the pairs that stay, ascending.

    Source: Canary-Flash (2025), whose buckets have a threshold each.
    """
    stay = list[int]()
    for part in _even(range(len(lengths)), [s for s, _ in lengths], first):
        # Short sources often have longer targets, for their length.
        share = [lengths[i][1] / lengths[i][0] for i in part]
        bound = times * float(np.median(share))
        stay += [i for i, x in zip(part, share, strict=True) if x <= bound]
    return sorted(stay)


def _even(chosen: Sequence[int], length: Sequence[int], count: int) -> list[list[int]]:
    """Cut indices, ordered by length, into at most `count` parts of about as much length."""
    # The index breaks ties, so that the cut depends on nothing else.
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

    They are as many as fit `tokens` with their padding, or as many as `rows` says of the bucket.

    `indices_of_step(step)` depends on (lengths, seed, step) alone. Buckets are drawn as often as they have
    tokens.

    Attributes:
        lengths: Tokens of source and target of each pair.
        tokens: Positions of a step, at most, padding included.
        first: Parts by the source's length. Default 8.
        second: Parts of each of these by the target's length. Default 3.
        seed: Seed of the draws. Default 0.
        rows: Pairs of a step by the bucket's number, in place of `tokens`. Default: none is said.
    """

    lengths: Sequence[tuple[int, int]]
    tokens: int
    first: int = 8
    second: int = 3
    seed: int = 0
    rows: Sequence[int] = ()

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
        # The number in the middle keeps this stream apart from others of the same seed.
        rng = np.random.default_rng([self.seed, 3, step])
        number = int(rng.choice(len(self.all), p=self._shares))
        bucket = self.all[number]
        # As many rows as fit at the bucket's longest lengths, one at least.
        most = self.rows[number] if self.rows else max(1, self.tokens // sum(bucket.longest))
        rows = min(len(bucket.chosen), most)
        return [bucket.chosen[i] for i in rng.choice(len(bucket.chosen), rows, replace=False)]

    def padding_share(self, steps: int) -> float:
        """The share of filled positions that hold no token, in so many steps; 0 in none."""
        filled = 0
        taken = 0
        for step in range(steps):
            lengths = [self.lengths[i] for i in self.indices_of_step(step)]
            filled += sum(s + t for s, t in lengths)
            # Positions that a step fills: rows times the longest source and target among them.
            taken += len(lengths) * (max(s for s, _ in lengths) + max(t for _, t in lengths))
        # No step fills anything.
        return 1 - filled / taken if taken else 0.0

"""Every continuation of a text's last few tokens, as often as it was counted: nothing discounted, nothing left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import Field

from polydec.base.errors import FileError
from polydec.core.protocols import Target
from polydec.core.types import TokenVocabulary
from polydec.models.formats import edge
from polydec.models.formats.fields import StrictFields
from polydec.models.learned import artefact
from polydec.models.learned.kinds.ngrams import extend_context_key

KIND = artefact.ArtefactKind(
    "ngram-counts", "ngram_counts", "ngram_counts.safetensors", "ngrams --as-counted"
)


class NgramCountFields(StrictFields):
    """config.json of the counts."""

    order: Annotated[int, Field(ge=1, le=8)]
    contexts: Annotated[int, Field(ge=1)]
    pairs: Annotated[int, Field(ge=1)]
    vocab_size: Annotated[int, Field(ge=1, le=1 << 24)]
    tokenizer: Annotated[str, Field(max_length=100)]


@dataclass(frozen=True, eq=False)
class NgramCounts:
    """What followed each context, and how often.

    Attributes:
        order: Tokens of the longest context, 1 to 8.
        vocab: Size and tokenizer of the text.
        key_M: A 64-bit key for each context, ascending (`extend_context_key`).
        start_M: Where the followers of each context begin, ascending.
        follower_P: Token ids, context after context, the most frequent first.
        count_P: How often each of them stood behind its context.
    """

    called: ClassVar[str] = "a table of n-gram counts"
    kind: ClassVar[str] = "ngram-counts"
    made_by: ClassVar[str] = KIND.training_command
    reads_draft: ClassVar[bool] = False

    order: int
    vocab: TokenVocabulary
    key_M: np.ndarray
    start_M: np.ndarray
    follower_P: np.ndarray
    count_P: np.ndarray

    def check_fit(self, target: Target, draft: Target | None) -> None:
        """Check that it was counted in the target's vocabulary.

        Args:
            target: The model that it is to serve.
            draft: Not read.

        Raises:
            RequestError: The vocabularies differ in size, or their tokenizers are known and differ.
        """
        target.vocab.require_same(self.vocab, "the table of counts")

    @cached_property
    def _places(self) -> dict[int, tuple[int, int]]:
        """By a context's key where its followers begin and end."""
        # Each context's followers end where the next one's begin.
        ends = (*self.start_M[1:].tolist(), len(self.follower_P))
        return dict(
            zip(self.key_M.tolist(), zip(self.start_M.tolist(), ends, strict=True), strict=True)
        )

    def followers_of(self, tokens: Sequence[int]) -> list[tuple[float, int]]:
        """(share, token) of what follows these, by the longest context that was seen; likeliest first."""
        levels = self.followers_by_level(tokens)
        return levels[-1] if levels else []

    def followers_by_level(self, tokens: Sequence[int]) -> list[list[tuple[float, int]]]:
        """The same by each context that was seen, the last token alone first, then the last two, and so on."""
        key = 0
        out = list[list[tuple[float, int]]]()
        # The key grows from the nearest token outwards: each step gives the next longer context.
        for token in reversed(tokens[-self.order :]):
            key = extend_context_key(key, token)
            place = self._places.get(key)
            # Where a context was never seen, no longer one was.
            if place is None:
                break
            begin, end = place
            count = self.count_P[begin:end]
            share = (count / count.sum()).tolist()
            out.append(list(zip(share, self.follower_P[begin:end].tolist(), strict=True)))
        return out

    def seen_after(self, tokens: Sequence[int]) -> np.ndarray:
        """Look up every token that stood behind a context of just these tokens.

        Args:
            tokens: Token ids of the context, the last one nearest.

        Returns:
            Token ids, the most frequent first; none where there are no or more than `order` tokens,
            or the context was never seen.
        """
        key = 0
        for token in reversed(tokens):
            key = extend_context_key(key, token)
        # Longer contexts were not counted; the key of no token belongs to none.
        if not 1 <= len(tokens) <= self.order or key not in self._places:
            return self.follower_P[:0]
        begin, end = self._places[key]
        return self.follower_P[begin:end]


def examples(vocab: TokenVocabulary, width: int, draft_width: int) -> tuple[NgramCounts, ...]:
    """Make a small table for tests.

    Args:
        vocab: The target's vocabulary, which the artefact is made for.
        width: Not read: it reads tokens alone.
        draft_width: Not read.

    Returns:
        One table of order 2: behind each of the first 64 tokens stood its successor twice and the
        token itself once, and so it was behind each token and its successor.
    """
    size = min(vocab.size, 64)
    # By key the last token of the context, which alone says what followed.
    key_of = dict[int, int]()
    for last in range(size):
        single = extend_context_key(0, last)
        key_of[single] = last
        key_of[extend_context_key(single, (last - 1) % size)] = last
    # A table is ordered by its keys, which are hashes, so tokens stand in no order in it.
    tokens = [key_of[key] for key in sorted(key_of)]
    followers = np.array([[(a + 1) % size, a] for a in tokens]).reshape(-1)
    return (
        NgramCounts(
            2,
            vocab,
            np.array(sorted(key_of), np.uint64),
            np.arange(0, 2 * len(tokens), 2),
            followers,
            np.array([2, 1] * len(tokens)),
        ),
    )


def save(path: str | Path, table: NgramCounts, about: Mapping[str, Any]) -> None:
    """Write ngram_counts.safetensors and config.json into a directory.

    Args:
        path: Directory to write into; it is made where there is none.
        table: The counts.
        about: Further fields of config.json, by name. Fields that the artefact writes itself win.

    Raises:
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    artefact.save_artefact(
        path,
        KIND,
        {
            "key": torch.from_numpy(table.key_M.astype(np.uint64)),
            "start": torch.from_numpy(table.start_M.astype(np.int64)),
            "follower": torch.from_numpy(table.follower_P.astype(np.int32)),
            # A corpus is at most 1 GiB, so no count comes near the end of 32 bits.
            "count": torch.from_numpy(table.count_P.astype(np.int32)),
        },
        {
            **about,
            "order": table.order,
            "contexts": len(table.key_M),
            "pairs": len(table.follower_P),
            "vocab_size": table.vocab.size,
            "tokenizer": table.vocab.tokenizer,
        },
    )


def load(path: str | Path) -> NgramCounts:
    """The counts in a directory that `save` wrote. Raises FileError where there are none, or they are damaged."""
    path = edge.at_home(path)
    config, tensors = artefact.read_artefact_files(path, KIND)
    with artefact.report_artefact_damage(path, KIND):
        c = edge.validate_record(NgramCountFields, config, artefact.CONFIG)
        key, start, follower, count = (
            artefact.read_artefact_tensor(tensors, KIND, name, (size,)).numpy()
            for name, size in (
                ("key", c.contexts),
                ("start", c.contexts),
                ("follower", c.pairs),
                ("count", c.pairs),
            )
        )
        if [x.dtype for x in (key, start, follower, count)] != [
            np.uint64,
            np.int64,
            np.int32,
            np.int32,
        ]:
            raise FileError("its tensors must be of uint64, int64, int32 and int32")
        # Each context has a follower, and all of them are reached.
        steps = np.diff(np.append(start, c.pairs))
        # A start below 0 is looked for by itself: differences over all of int64 may wrap around.
        if start[0] != 0 or start.min() < 0 or steps.min() < 1 or count.min() < 1:
            raise FileError("its contexts and counts do not go together")
        if follower.min() < 0 or follower.max() >= c.vocab_size:
            raise FileError(f"it holds a token outside of the {c.vocab_size} of its vocabulary")
        return NgramCounts(
            c.order,
            TokenVocabulary(c.vocab_size, frozenset(), c.tokenizer),
            key,
            start,
            follower,
            count,
        )

"""A table of what follows the last few tokens of a text, counted in a model's own answers: a draft that costs no pass."""

from __future__ import annotations

from array import array
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
from polydec.models.formats import edge, zoo
from polydec.models.formats.fields import Count, StrictFields
from polydec.models.learned import artefact
from polydec.models.native import copy_drafts

KIND = artefact.ArtefactKind("ngrams", "ngrams", "ngrams.safetensors", "ngrams")
MIX = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1
LAST = 0xFFFF
"""Stands where a context has fewer followers than the table has columns; tokens are 16 bits wide."""


def extend_context_key(key: int, token: int) -> int:
    """Hash a context that has one more token before it.

    Args:
        key: Key of the context so far, 64 bits; 0 is the key of no token.
        token: The token before it.

    Returns:
        The key of the longer context, 64 bits.
    """
    # An odd factor near 2^64 divided by the golden ratio spreads near ids over all bits.
    key = (key ^ (token + 1)) * MIX & MASK
    # High bits come down: the next product would otherwise never mix them into low ones.
    return key ^ key >> 29


class NGramFields(StrictFields):
    """config.json of an n-gram table; tokens are 16 bits wide, and the largest stands for none."""

    order: Annotated[int, Field(ge=1, le=8)]
    vocab_size: Count
    tokenizer: Annotated[str, Field(max_length=100)]


@dataclass(frozen=True, eq=False)
class NGrams:
    """order: tokens of the longest context, 1 to 8; vocab: size and tokenizer of the text.

    key_M: a 64-bit key for each context, ascending (see `longer`; two contexts share one with probability M² / 2⁶⁵);
    follower_MK: 16-bit ids of the likeliest next tokens, likeliest first, LAST where there are fewer; chance_MK: theirs,
    in 255ths. Where a context is known, so is every shorter one that ends it.
    """

    called: ClassVar[str] = "an n-gram table"
    kind: ClassVar[str] = "ngrams"
    made_by: ClassVar[str] = KIND.training_command
    reads_draft: ClassVar[bool] = False

    order: int
    vocab: TokenVocabulary
    key_M: np.ndarray
    follower_MK: np.ndarray
    chance_MK: np.ndarray

    def check_fit(self, target: Target, draft: Target | None) -> None:
        """Check that it was counted in the target's vocabulary.

        Args:
            target: The model that it is to serve.
            draft: Draft model of the request, or None; not read.

        Raises:
            RequestError: The vocabularies differ in size, or their tokenizers are known and differ.
        """
        target.vocab.require_same(self.vocab, "the n-gram table")

    @cached_property
    def _at(self) -> dict[int, int]:
        # Keys point into one flat row of followers, which plain Python reads faster than numpy.
        width = self.follower_MK.shape[1]
        return dict(zip(self.key_M.tolist(), range(0, len(self.key_M) * width, max(width, 1))))

    @cached_property
    def _flat(self) -> tuple[array[int], array[int]]:
        return (
            array("H", self.follower_MK.astype(np.uint16).tobytes()),
            array("B", self.chance_MK.astype(np.uint8).tobytes()),
        )

    @cached_property
    def compiled(self) -> copy_drafts.NativeNgramTable | None:
        """What the compiled library makes of it; None where there is none."""
        return copy_drafts.build_native_table(
            self.order, self.key_M, self.follower_MK, self.chance_MK
        )

    def followers_of(self, tokens: Sequence[int]) -> list[tuple[float, int]]:
        """(chance, token) of what follows these, by the longest context that is known; likeliest first."""
        known = self._known(tokens)
        if known:
            return self._row(known[-1])
        return []

    def followers_by_level(self, tokens: Sequence[int]) -> list[list[tuple[float, int]]]:
        """The same by each context that is known, the last token alone first, then the last two, and so on."""
        return [self._row(place) for place in self._known(tokens)]

    def exactly_after(self, tokens: Sequence[int]) -> list[tuple[float, int]]:
        """(chance, token) of what follows a context of just these, at most `order`; nothing where it is not known."""
        known = self._known(tokens)
        if known and len(known) == len(tokens):
            return self._row(known[-1])
        return []

    def _known(self, tokens: Sequence[int]) -> list[int]:
        """Where the contexts that end these tokens stand, the last token alone first, as far as they are known."""
        at = self._at
        key = 0
        out = list[int]()
        for i in range(1, min(self.order, len(tokens)) + 1):
            # `longer`, without the call: this runs for every token
            key = (key ^ (tokens[-i] + 1)) * MIX & MASK
            key ^= key >> 29
            place = at.get(key)
            # Every shorter ending of a known context is known, so nothing longer can be there.
            if place is None:
                break
            out.append(place)
        return out

    def _row(self, place: int) -> list[tuple[float, int]]:
        follower, chance = self._flat
        end = place + self.follower_MK.shape[1]
        return [(chance[i] / 255.0, follower[i]) for i in range(place, end) if follower[i] != LAST]


def examples(vocab: TokenVocabulary, width: int, draft_width: int) -> tuple[NGrams, ...]:
    """Make a small table for tests.

    Args:
        vocab: The target's vocabulary, which the artefact is made for.
        width: Not read: it reads tokens alone.
        draft_width: Width of the draft model's states; not read.

    Returns:
        One table of order 2: what follows each of the first 64 tokens, and each pair of these of
        which the first is even.
    """
    size = min(vocab.size, 64)
    keys = dict[int, int]()
    for b in range(size):
        # A key grows to the left: the last token first, then those before it.
        keys[single := extend_context_key(0, b)] = b
        keys |= {extend_context_key(single, a): a + b for a in range(0, size, 2)}
    key_M = np.array(sorted(keys), np.uint64)
    follower_MK = np.array([[(keys[k] + 1) % size, (2 * keys[k]) % size] for k in sorted(keys)])
    # A row must not name one token twice.
    follower_MK[follower_MK[:, 0] == follower_MK[:, 1], 1] = LAST
    return (NGrams(2, vocab, key_M, follower_MK, np.broadcast_to([140, 80], follower_MK.shape)),)


def save(path: str | Path, table: NGrams, about: Mapping[str, Any]) -> None:
    """Write ngrams.safetensors and config.json into a directory.

    Args:
        path: Directory to write into; it is made where there is none.
        table: The table.
        about: Further fields of config.json, by name. Fields that the artefact writes itself win.

    Raises:
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    arrays = {
        "key": table.key_M.astype(np.uint64),
        "follower": table.follower_MK.astype(np.uint16),
        "chance": table.chance_MK.astype(np.uint8),
    }
    artefact.save_artefact(
        path,
        KIND,
        {name: torch.from_numpy(a) for name, a in arrays.items()},
        {
            "model_type": "polydec-ngrams",
            **about,
            "order": table.order,
            "vocab_size": table.vocab.size,
            "tokenizer": table.vocab.tokenizer,
        },
    )


def load(name: str) -> NGrams:
    """The table in a directory, or of a `zoo:NAME`. Raises FileError where there is none, or it is damaged."""
    if name.startswith("zoo:"):
        path = zoo.zoo_model_path(name)
    else:
        path = edge.at_home(name)
    config, t = artefact.read_artefact_files(path, KIND)
    with artefact.report_artefact_damage(path, KIND):
        c = edge.validate_record(NGramFields, config, artefact.CONFIG)
        m = t["key"].numel() if "key" in t else 0
        # A table without its tensor counts as empty here, and is refused by the next lines.
        k = (*t.get("follower", torch.empty(0, 0)).shape, 0, 0)[1]
        key, follower, chance = (
            artefact.read_artefact_tensor(t, KIND, x, s).numpy()
            for x, s in (("key", (m,)), ("follower", (m, k)), ("chance", (m, k)))
        )
        if (key.dtype, follower.dtype, chance.dtype) != (np.uint64, np.uint16, np.uint8):
            raise FileError(
                f"its tables are of {key.dtype}, {follower.dtype}, {chance.dtype}: they must be of uint64, uint16 "
                "and uint8"
            )
        # One id outside the vocabulary would break whichever draft meets it, much later.
        if m and (bad := int(follower[follower != LAST].max(initial=0))) >= c.vocab_size:
            raise FileError(f"it holds token {bad}, the vocabulary {c.vocab_size} tokens")
        return NGrams(
            c.order, TokenVocabulary(c.vocab_size, frozenset(), c.tokenizer), key, follower, chance
        )

"""How often each place of a draft tree was accepted: counts from which a tree takes its shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field

from polydec.base.errors import FileError
from polydec.core.protocols import Target
from polydec.core.types import TokenVocabulary
from polydec.models.formats import edge
from polydec.models.formats.fields import StrictFields
from polydec.models.learned import artefact

KIND = artefact.ArtefactKind("draft-tree", "draft_tree", "draft_tree.safetensors", "draft-tree")
NONE = -1
"""Stands behind the last rank of a place that lies above the deepest ones."""


class DraftTreeFields(StrictFields):
    """config.json of the counts."""

    places: Annotated[int, Field(ge=1, le=1024)]
    levels: Annotated[int, Field(ge=1, le=64)]
    vocab_size: Annotated[int, Field(ge=1, le=1 << 24)]
    tokenizer: Annotated[str, Field(max_length=100)]


@dataclass(frozen=True, eq=False)
class DraftTreeCounts:
    """What was counted in one larger tree.

    Attributes:
        accepted: By the place of a node (its rank among its siblings and that of each node above it,
            top down) how often it was accepted.
        vocab: Size and tokenizer of the text that was drafted.
    """

    called: ClassVar[str] = "the counts of a draft tree's places"
    kind: ClassVar[str] = "draft-tree"
    made_by: ClassVar[str] = KIND.training_command
    reads_draft: ClassVar[bool] = False

    accepted: Mapping[tuple[int, ...], int]
    vocab: TokenVocabulary

    def check_fit(self, target: Target, draft: Target | None) -> None:
        """Check that it was counted for a model of this vocabulary.

        Args:
            target: The model that drafts are for.
            draft: Not read.

        Raises:
            RequestError: The vocabularies differ in size, or their tokenizers are known and differ.
        """
        target.vocab.require_same(self.vocab, "the draft tree")


def examples(vocab: TokenVocabulary, width: int, draft_width: int) -> tuple[DraftTreeCounts, ...]:
    """Make small counts for tests.

    Args:
        vocab: The target's vocabulary, which the artefact is made for.
        width: Not read: places are counted, not states.
        draft_width: Not read.

    Returns:
        One tree of four places.
    """
    return (DraftTreeCounts({(0,): 9, (0, 0): 5, (1,): 4, (0, 0, 0): 3}, vocab),)


def save(path: str | Path, tree: DraftTreeCounts, about: Mapping[str, Any]) -> None:
    """Write draft_tree.safetensors and config.json into a directory.

    Args:
        path: Directory to write into; it is made where there is none.
        tree: The counts.
        about: Further fields of config.json, by name. Fields that the artefact writes itself win.

    Raises:
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    # A tensor needs rows of one length: shorter places are filled up behind their end.
    levels = max(map(len, tree.accepted))
    rows = [[*place, *[NONE] * (levels - len(place))] for place in tree.accepted]
    artefact.save_artefact(
        path,
        KIND,
        {
            "rank": torch.tensor(rows, dtype=torch.int32),
            "accepted": torch.tensor(list(tree.accepted.values()), dtype=torch.int64),
        },
        {
            **about,
            "places": len(rows),
            "levels": levels,
            "vocab_size": tree.vocab.size,
            "tokenizer": tree.vocab.tokenizer,
        },
    )


def load(path: str | Path) -> DraftTreeCounts:
    """The counts in a directory that `save` wrote. Raises FileError where there are none, or they are damaged."""
    path = edge.at_home(path)
    config, tensors = artefact.read_artefact_files(path, KIND)
    with artefact.report_artefact_damage(path, KIND):
        c = edge.validate_record(DraftTreeFields, config, artefact.CONFIG)
        rank_PL = artefact.read_artefact_tensor(tensors, KIND, "rank", (c.places, c.levels))
        accepted_P = artefact.read_artefact_tensor(tensors, KIND, "accepted", (c.places,))
        # Fractions would pass the ranges below, and fail far from here as indices.
        if rank_PL.is_floating_point() or accepted_P.is_floating_point():
            raise FileError("its ranks and counts must be whole numbers")
        accepted = dict[tuple[int, ...], int]()
        for row, count in zip(rank_PL.tolist(), accepted_P.tolist(), strict=True):
            # What stands behind the first NONE is not read.
            depth = row.index(NONE) if NONE in row else c.levels
            place = tuple(row[:depth])
            # A rank above 63 has no place in a shape's child counts.
            if not place or count < 0 or not all(0 <= r < 64 for r in place):
                raise FileError("a place in it is no path of ranks from 0 to 63 with a count")
            # One of two counts would be lost without a word.
            if place in accepted:
                raise FileError(f"the place {place} stands in it twice")
            accepted[place] = count
        return DraftTreeCounts(accepted, TokenVocabulary(c.vocab_size, frozenset(), c.tokenizer))

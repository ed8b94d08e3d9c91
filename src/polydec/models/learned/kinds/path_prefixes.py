"""Learned prefixes behind which a model reads one input along several paths, an embedding each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from polydec.core.protocols import Target
from polydec.core.types import TokenVocabulary
from polydec.models.formats import edge
from polydec.models.formats.fields import StrictFields
from polydec.models.learned import artefact
from polydec.models.sessions.soft import SoftToken, make_soft_tokens

KIND = artefact.ArtefactKind(
    "path-prefixes", "prefixes", "path_prefixes.safetensors", "parallel-embeddings"
)


class PathPrefixFields(StrictFields):
    """config.json of prefixes."""

    vocab_size: Annotated[int, Field(ge=2, le=1 << 24)]
    tokenizer: Annotated[str, Field(max_length=100)]
    width: Annotated[int, Field(ge=2, le=1 << 14)]
    paths: Annotated[int, Field(ge=1, le=64)]
    length: Annotated[int, Field(ge=1, le=1024)]


@dataclass(frozen=True, eq=False)
class PathPrefixes:
    """Vectors that stand before an input, for each of several paths.

    Attributes:
        vocab: Of the model that reads.
        prefix_KMW: The M vectors of each of K paths, ``[K, M, width]``, fp32.

    Source: Wang et al., "Explore more, learn better: parallel MLLM embeddings under mutual
    information minimization" (2025).
    """

    called: ClassVar[str] = "prefixes of parallel embeddings"
    kind: ClassVar[str] = "path-prefixes"
    made_by: ClassVar[str] = KIND.training_command
    reads_draft: ClassVar[bool] = False

    vocab: TokenVocabulary
    prefix_KMW: Tensor

    @property
    def path_count(self) -> int:
        """Embeddings of an input."""
        return self.prefix_KMW.shape[0]

    @property
    def prefix_length(self) -> int:
        """Vectors before an input."""
        return self.prefix_KMW.shape[1]

    def check_fit(self, target: Target, draft: Target | None) -> None:
        """Check that they were trained for the target's vocabulary and states.

        Args:
            target: The model that reads.
            draft: Draft model of the request, or None; not read.

        Raises:
            RequestError: The vocabularies differ in size, or their tokenizers are known and differ.
            FileError: The widths differ.
        """
        target.vocab.require_same(self.vocab, "the target of the prefixes")
        artefact.require_width(target, self.prefix_KMW.shape[2], "prefixes")

    def prefix_ids(self, path: int) -> tuple[SoftToken, ...]:
        """The ids that stand for the vectors of a path in a text.

        Args:
            path: Number of the path, from 0.

        Returns:
            One id a vector, which carries it.
        """
        vectors_MW = self.prefix_KMW[path]
        return make_soft_tokens(vectors_MW, self.vocab.size, vectors_MW.shape[1], "the prefix")


def examples(vocab: TokenVocabulary, width: int, draft_width: int) -> tuple[PathPrefixes, ...]:
    """Make random ones for tests.

    Args:
        vocab: The target's vocabulary.
        width: Of the target's states.
        draft_width: Width of the draft model's states; not read.

    Returns:
        Prefixes of two paths.
    """
    # The same vectors on every machine.
    draw = torch.Generator().manual_seed(8)
    return (PathPrefixes(vocab, torch.randn(2, 3, width, generator=draw)),)


def save(path: str | Path, prefixes: PathPrefixes, about: Mapping[str, Any]) -> None:
    """Write path_prefixes.safetensors and config.json into a directory.

    Args:
        path: Directory to write into; it is made where there is none.
        prefixes: The prefixes.
        about: Further fields of config.json, by name. Fields that the artefact writes itself win.

    Raises:
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    paths, length, width = prefixes.prefix_KMW.shape
    artefact.save_artefact(
        path,
        KIND,
        {"prefixes": prefixes.prefix_KMW.float()},
        {
            **about,
            "vocab_size": prefixes.vocab.size,
            "tokenizer": prefixes.vocab.tokenizer,
            "width": width,
            "paths": paths,
            "length": length,
        },
    )


def load(path: str | Path) -> PathPrefixes:
    """Those in a directory that `save` wrote. Raises FileError where there are none, or they are damaged."""
    config, tensors = artefact.read_artefact_files(edge.at_home(path), KIND)
    with artefact.report_artefact_damage(path, KIND):
        c = edge.validate_record(PathPrefixFields, config, artefact.CONFIG)
        # The shape is compared before the tensor is read.
        prefix_KMW = artefact.read_float_tensor(
            tensors, KIND, "prefixes", c.paths, c.length, c.width
        )
        return PathPrefixes(TokenVocabulary(c.vocab_size, frozenset(), c.tokenizer), prefix_KMW)

"""An answer embedder: it foretells the embedding of what a model would say of an image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from polydec.base.errors import FileError
from polydec.core.protocols import Target
from polydec.core.types import TokenVocabulary
from polydec.models.formats import edge
from polydec.models.formats.fields import StrictFields
from polydec.models.learned import artefact
from polydec.models.nets.answer_embedding import (
    EmbeddingSizes,
    embedding_tensor_shapes,
    foretell_answers,
    read_answers,
    vectors_of_embeddings,
)

KIND = artefact.ArtefactKind(
    "answer-embedder", "answer embedder", "answer_embedder.safetensors", "jepa"
)


class AnswerEmbedderFields(StrictFields):
    """config.json of an answer embedder."""

    vocab_size: Annotated[int, Field(ge=2, le=1 << 24)]
    tokenizer: Annotated[str, Field(max_length=100)]
    width: Annotated[int, Field(ge=2, le=1 << 14)]
    head: Annotated[int, Field(ge=2, le=1 << 14, multiple_of=2)]
    foretelling: Annotated[int, Field(ge=1, le=64)]
    reading: Annotated[int, Field(ge=1, le=64)]
    size: Annotated[int, Field(ge=2, le=1 << 14)]
    shown: Annotated[int, Field(ge=1, le=1024)]


@dataclass(frozen=True, eq=False)
class AnswerEmbedder:
    """Foretells embeddings of answers, and shows them to the model that writes. Arithmetic is fp32.

    Attributes:
        vocab: Of the model that writes, whose vision tower reads the images.
        sizes: Of the networks.
        tensors: Of the networks, by name.
    """

    called: ClassVar[str] = "an answer embedder"
    kind: ClassVar[str] = "answer-embedder"
    made_by: ClassVar[str] = KIND.training_command
    reads_draft: ClassVar[bool] = False

    vocab: TokenVocabulary
    sizes: EmbeddingSizes
    tensors: Mapping[str, Tensor]

    def check_fit(self, target: Target, draft: Target | None) -> None:
        """Check that it was trained for the target's vocabulary and vectors.

        Args:
            target: The model that it is to serve.
            draft: Draft model of the request, or None; not read.

        Raises:
            RequestError: The vocabularies differ in size, or their tokenizers are known and differ.
            FileError: The widths differ.
        """
        # Both questions and answers are read as the target's tokens.
        target.vocab.require_same(self.vocab, "the target of the answer embedder")
        # Vectors of images go in, and vectors of a prompt come out.
        artefact.require_width(target, self.sizes.width, "answer embedders")

    @torch.no_grad()
    def foretell_answer(self, image_PW: Tensor, asked: Sequence[int]) -> Tensor:
        """Foretell the embedding of an answer.

        Args:
            image_PW: Vectors of an image.
            asked: Token ids of the question.

        Returns:
            An embedding of length 1, ``[size]``.
        """
        # One image at a time: a batch would change the last bits with its company.
        id_1T = torch.tensor([list(asked)])
        there_1T = torch.ones(1, len(asked), dtype=torch.bool)
        return foretell_answers(self.sizes, self.tensors, image_PW[None].float(), id_1T, there_1T)[
            0
        ]

    @torch.no_grad()
    def read_answer(self, answer: Sequence[int]) -> Tensor:
        """The embedding of an answer that is there, ``[size]``, from its token ids."""
        there_1T = torch.ones(1, len(answer), dtype=torch.bool)
        return read_answers(self.sizes, self.tensors, torch.tensor([list(answer)]), there_1T)[0]

    @torch.no_grad()
    def shown_vectors(self, embedding_E: Tensor) -> Tensor:
        """The vectors that stand for an embedding in a prompt, ``[shown, width]``."""
        return vectors_of_embeddings(self.sizes, self.tensors, embedding_E[None])[0]


def examples(vocab: TokenVocabulary, width: int, draft_width: int) -> tuple[AnswerEmbedder, ...]:
    """Make a random one for tests.

    Args:
        vocab: The target's vocabulary, which the artefact is made for.
        width: Of the target's states.
        draft_width: Width of the draft model's states; not read.

    Returns:
        One embedder.
    """
    # One head, so that any width that is even will do.
    sizes = EmbeddingSizes(vocab.size, width, width, 1, 1, 8, 2)
    # The same weights on every machine.
    draw = torch.Generator().manual_seed(6)
    tensors = {
        name: torch.ones(*shape) if "norm" in name else torch.randn(*shape, generator=draw) * 0.3
        for name, shape in embedding_tensor_shapes(sizes).items()
    }
    return (AnswerEmbedder(vocab, sizes, tensors),)


def save(path: str | Path, embedder: AnswerEmbedder, about: Mapping[str, Any]) -> None:
    """Write answer_embedder.safetensors and config.json into a directory.

    Args:
        path: Directory to write into; it is made where there is none.
        embedder: The embedder.
        about: Further fields of config.json, by name. Fields that the artefact writes itself win.

    Raises:
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    # The vocabulary has a name of its own in the file.
    sizes = {k: v for k, v in asdict(embedder.sizes).items() if k != "vocab"}
    artefact.save_artefact(
        path,
        KIND,
        {name: t.float() for name, t in embedder.tensors.items()},
        {
            **about,
            "vocab_size": embedder.sizes.vocab,
            "tokenizer": embedder.vocab.tokenizer,
            **sizes,
        },
    )


def load(path: str | Path) -> AnswerEmbedder:
    """The one in a directory that `save` wrote. Raises FileError where there is none, or it is damaged."""
    config, tensors = artefact.read_artefact_files(edge.at_home(path), KIND)
    with artefact.report_artefact_damage(path, KIND):
        c = edge.validate_record(AnswerEmbedderFields, config, artefact.CONFIG)
        sizes = EmbeddingSizes(
            c.vocab_size, c.width, c.head, c.foretelling, c.reading, c.size, c.shown
        )
        # Checked before a tensor is read: its shapes are made of both.
        if c.width % c.head:
            raise FileError(f"width is {c.width}: it must be a multiple of head ({c.head})")
        # fp32, whatever the file has.
        whole = artefact.read_float_tensors(tensors, KIND, embedding_tensor_shapes(sizes))
        return AnswerEmbedder(TokenVocabulary(c.vocab_size, frozenset(), c.tokenizer), sizes, whole)

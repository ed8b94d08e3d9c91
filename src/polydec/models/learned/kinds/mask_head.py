"""What reads a mask of an image behind a text: a token for each patch, and whether the patch belongs to it (STAMP)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from polydec.core.protocols import Target
from polydec.core.types import TokenVocabulary
from polydec.models.formats import edge
from polydec.models.learned import artefact
from polydec.models.learned.artefact_fields import MaskHeadFields
from polydec.models.sessions.soft import last_image_vectors

KIND = artefact.ArtefactKind("mask-head", "head", "mask_head.safetensors", "stamp")


@dataclass(frozen=True, eq=False)
class MaskHead:
    """A trained classifier of patches, with the tokens that a model was taught for it.

    Attributes:
        vocab: Of the model.
        asks: The token of an answer behind which a mask is read.
        mark: The token that stands for each patch of a mask.
        rows: Rows of patches of an image, as the model reads it.
        columns: Patches of a row.
        patch: Pixels of a patch's side.
        weight_H: Of a state, whether its patch belongs to the mask: their product is a logit.
        bias: Added to it.
    """

    called: ClassVar[str] = "a head that reads masks of images"
    kind: ClassVar[str] = KIND.name
    made_by: ClassVar[str] = KIND.training_command
    reads_draft: ClassVar[bool] = False

    vocab: TokenVocabulary
    asks: int
    mark: int
    rows: int
    columns: int
    patch: int
    weight_H: Tensor
    bias: float

    def check_fit(self, target: Target, draft: Target | None) -> None:
        """Check that it was trained with this model, and that the model reads slots.

        Args:
            target: The model that it is to serve.
            draft: Draft model of the request, or None; not read.

        Raises:
            RequestError: The vocabularies differ in size, or their tokenizers are known and differ.
            FileError: The model's states have another width or are not shown behind its final norm.
            PolydecError: The model lets no token see what follows it.
        """
        target.vocab.require_same(self.vocab, "the target of the head that reads masks")
        width = len(self.weight_H)
        artefact.require_laws(target, width, "heads that read masks", head=False, normed=True)
        # A session needs a token to begin with; any one does, since nothing is scored.
        session = target.open_session((0,))
        try:
            # None of them: what cannot be read is refused at the call.
            session.read_slots(torch.zeros(0, width)).close()
        finally:
            session.close()

    @property
    def cell_count(self) -> int:
        """Patches of an image."""
        return self.rows * self.columns

    def last_image(self, vectors: Mapping[int, Tensor]) -> Tensor | None:
        """The vectors of the last image of a text, patch by patch; see `last_image_vectors`."""
        return last_image_vectors(vectors, self.cell_count, "the head that reads masks")

    def slot_vectors(self, mark_H: Tensor, image_NH: Tensor) -> Tensor:
        """What enters the model's first layer for the slots of a mask.

        Args:
            mark_H: What enters it for the token of a patch.
            image_NH: The image's vectors.

        Returns:
            Their sum for each patch, ``[N, H]``.
        """
        return mark_H.to(image_NH) + image_NH

    def patch_logits(self, state_NH: Tensor) -> Tensor:
        """How surely each patch belongs to the mask.

        Args:
            state_NH: The slots' states behind the model's final norm.

        Returns:
            Logits, ``[rows, columns]``, float32: above 0 it does.
        """
        # A product of one column: nothing is gained by a pass of its own.
        logit_N = state_NH.float().cpu() @ self.weight_H + self.bias
        return logit_N.view(self.rows, self.columns)


def examples(vocab: TokenVocabulary, width: int, draft_width: int) -> tuple[MaskHead, ...]:
    """Make small ones for the contracts.

    Args:
        vocab: The target's vocabulary.
        width: Width of the target's states.
        draft_width: Width of the draft model's.

    Returns:
        One with random weights for each width, of images of one patch: it fits any image.
    """
    # Where both models have one width, one head serves both.
    generator = torch.Generator().manual_seed(5)
    return tuple(
        MaskHead(vocab, 1, 0, 1, 1, 4, torch.randn(states, generator=generator), 0.1)
        for states in dict.fromkeys((width, draft_width))
    )


def save(path: str | Path, head: MaskHead, about: Mapping[str, Any]) -> None:
    """Write mask_head.safetensors and config.json into a directory.

    Args:
        path: Directory to write into; it is made where there is none.
        head: The head.
        about: Further fields of config.json, by name. Fields that the artefact writes itself win.

    Raises:
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    artefact.save_artefact(
        path,
        KIND,
        {"weight": head.weight_H.float(), "bias": torch.tensor([head.bias])},
        {
            **about,
            "vocab_size": head.vocab.size,
            "tokenizer": head.vocab.tokenizer,
            "asks": head.asks,
            "mark": head.mark,
            "rows": head.rows,
            "columns": head.columns,
            "patch": head.patch,
            "width": len(head.weight_H),
        },
    )


def load(path: str | Path) -> MaskHead:
    """The one in a directory that `save` wrote. Raises FileError where there is none, or it is damaged."""
    config, tensors = artefact.read_artefact_files(edge.at_home(path), KIND)
    with artefact.report_artefact_damage(path, KIND):
        c = edge.validate_record(MaskHeadFields, config, artefact.CONFIG)
        vocab = TokenVocabulary(c.vocab_size, frozenset(), c.tokenizer)
        weight_H = artefact.read_float_tensor(tensors, KIND, "weight", c.width)
        bias = float(artefact.read_float_tensor(tensors, KIND, "bias", 1))
        return MaskHead(vocab, c.asks, c.mark, c.rows, c.columns, c.patch, weight_H, bias)

"""What makes boxes and masks of the states of an answer's references, with the image's vectors (REF-VLM)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polydec.core.protocols import Target
from polydec.core.request import ImageMask, ReferenceState
from polydec.core.types import TokenVocabulary
from polydec.models.formats import edge
from polydec.models.learned import artefact
from polydec.models.learned.artefact_fields import UnitDecoderFields
from polydec.models.sessions.soft import last_image_vectors

KIND = artefact.ArtefactKind("unit-decoders", "decoders", "unit_decoders.safetensors", "ref-vlm")


class UnitNetwork(nn.Module):
    """Decoders of references: a query for each, which a projector of its unit makes of the state, looks at an image.

    Args:
        width: Size of the states, and of an image's vectors.
        cells: Vectors of an image.
        inner: Size of queries, at least 1.
        seed: Of the first weights.
    """

    def __init__(self, width: int, cells: int, inner: int, seed: int = 0) -> None:
        super().__init__()
        # The global generator is left as it was.
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            self.box_query = nn.Linear(width, inner)
            self.box_key = nn.Linear(width, inner)
            self.box_value = nn.Linear(width, inner)
            # Small, so that at first the state decides where a query looks.
            self.box_place = nn.Parameter(0.02 * torch.randn(cells, inner))
            self.box_inside = nn.Linear(2 * inner, inner)
            self.box_sides = nn.Linear(inner, 4)
            self.mask_query = nn.Linear(width, inner)
            self.mask_key = nn.Linear(width, inner)
            # Most vectors of an image belong to no mask.
            self.mask_bias = nn.Parameter(torch.full((1,), -1.0))

    def decode_boxes(self, state_RH: Tensor, image_RNH: Tensor) -> Tensor:
        """Make a box of each state.

        Args:
            state_RH: States of references, behind the model's final norm.
            image_RNH: Vectors of the image that each refers to.

        Returns:
            Left, upper, right and lower side as shares of the image's sides, ``[R, 4]``, 0 to 1.
        """
        query_R1I = self.box_query(state_RH)[:, None]
        key_RNI = self.box_key(image_RNH) + self.box_place
        value_RNI = self.box_value(image_RNH) + self.box_place
        # One look at the image, at what the reference asks for.
        seen_RI = F.scaled_dot_product_attention(query_R1I, key_RNI, value_RNI)[:, 0]
        inner_RI = F.gelu(self.box_inside(torch.cat([query_R1I[:, 0], seen_RI], 1)))
        middle_R2, size_R2 = self.box_sides(inner_RI).sigmoid().split(2, 1)
        # Around its middle, so that no side lies behind the one across.
        return torch.cat([middle_R2 - size_R2 / 2, middle_R2 + size_R2 / 2], 1).clamp(0.0, 1.0)

    def decode_masks(self, state_RH: Tensor, image_RNH: Tensor) -> Tensor:
        """Make a mask of each state.

        Args:
            state_RH: States of references, behind the model's final norm.
            image_RNH: Vectors of the image that each refers to.

        Returns:
            A logit of each vector, above 0 where it belongs to the mask, ``[R, N]``.
        """
        query_R1I = self.mask_query(state_RH)[:, None]
        key_RNI = self.mask_key(image_RNH)
        # Products of wide vectors are large: they are scaled as attention scales its own.
        return (query_R1I * key_RNI).sum(-1) * key_RNI.shape[-1] ** -0.5 + self.mask_bias


@dataclass(frozen=True, eq=False)
class UnitDecoders:
    """Trained decoders of boxes and masks.

    Attributes:
        vocab: Of the model.
        rows: Rows of patches of an image, as the model reads it.
        columns: Patches of a row.
        patch: Pixels of a patch's side.
        network: The decoders.
    """

    called: ClassVar[str] = "decoders of boxes and masks"
    kind: ClassVar[str] = KIND.name
    made_by: ClassVar[str] = KIND.training_command
    reads_draft: ClassVar[bool] = False

    vocab: TokenVocabulary
    rows: int
    columns: int
    patch: int
    network: UnitNetwork

    def check_fit(self, target: Target, draft: Target | None) -> None:
        """Check that they were trained with this model.

        Args:
            target: The model that they are to serve.
            draft: Draft model of the request, or None; not read.

        Raises:
            RequestError: The vocabularies differ in size, or their tokenizers are known and differ.
            FileError: The model's states have another width or are not shown behind its final norm.
        """
        target.vocab.require_same(self.vocab, "the target of the decoders of boxes and masks")
        width = self.network.box_query.in_features
        artefact.require_laws(target, width, "decoders of boxes", head=False, normed=True)

    def last_image(self, vectors: Mapping[int, Tensor]) -> Tensor | None:
        """The vectors of the last image of a text, patch by patch; see `last_image_vectors`."""
        return last_image_vectors(vectors, self.rows * self.columns, "what decodes boxes and masks")

    @torch.no_grad()
    def decode_references(
        self, references: Sequence[ReferenceState], image_NH: Tensor
    ) -> tuple[tuple[ReferenceState, ...], tuple[ImageMask, ...]]:
        """Decode the boxes and masks of an answer, all of a unit at once.

        Args:
            references: References with their states.
            image_NH: The image's vectors.

        Returns:
            The references, those whose unit is "box" with theirs; and a mask for each whose unit is "mask".
        """
        out = list(references)
        masks = list[ImageMask]()
        # Other units are named in answers only: nothing decodes them here.
        boxed = [at for at, one in enumerate(references) if one.unit == "box"]
        masked = [one for one in references if one.unit == "mask"]
        if boxed:
            state_RH = torch.stack([references[at].state_H for at in boxed]).float().cpu()
            box_R4 = self.network.decode_boxes(state_RH, _for_each(image_NH, state_RH))
            # From shares of the image's sides to pixels.
            side_4 = self.patch * torch.tensor([self.columns, self.rows] * 2)
            for at, box_4 in zip(boxed, box_R4 * side_4, strict=True):
                out[at] = replace(references[at], box=tuple(box_4.tolist()))
        if masked:
            state_RH = torch.stack([one.state_H for one in masked]).float().cpu()
            logit_RN = self.network.decode_masks(state_RH, _for_each(image_NH, state_RH))
            for one, logit_N in zip(masked, logit_RN, strict=True):
                logit_HW = logit_N.view(self.rows, self.columns)
                masks.append(ImageMask(one.place, logit_HW, self.patch))
        return tuple(out), tuple(masks)


def _for_each(image_NH: Tensor, state_RH: Tensor) -> Tensor:
    """One image for all references."""
    return image_NH.float().cpu().expand(len(state_RH), -1, -1)


def examples(vocab: TokenVocabulary, width: int, draft_width: int) -> tuple[UnitDecoders, ...]:
    """Make small ones for the contracts.

    Args:
        vocab: The target's vocabulary.
        width: Width of the target's states.
        draft_width: Width of the draft model's.

    Returns:
        One with random weights for each width, of images of one patch: it fits any image.
    """
    # Where both models have one width, one set serves both.
    return tuple(
        UnitDecoders(vocab, 1, 1, 4, UnitNetwork(states, 1, 4))
        for states in dict.fromkeys((width, draft_width))
    )


def save(path: str | Path, decoders: UnitDecoders, about: Mapping[str, Any]) -> None:
    """Write unit_decoders.safetensors and config.json into a directory.

    Args:
        path: Directory to write into; it is made where there is none.
        decoders: The decoders.
        about: Further fields of config.json, by name. Fields that the artefact writes itself win.

    Raises:
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    artefact.save_artefact(
        path,
        KIND,
        {name: tensor.float() for name, tensor in decoders.network.state_dict().items()},
        {
            **about,
            "vocab_size": decoders.vocab.size,
            "tokenizer": decoders.vocab.tokenizer,
            "rows": decoders.rows,
            "columns": decoders.columns,
            "patch": decoders.patch,
            "width": decoders.network.box_query.in_features,
            "inner": decoders.network.box_query.out_features,
        },
    )


def load(path: str | Path) -> UnitDecoders:
    """Those in a directory that `save` wrote. Raises FileError where there are none, or they are damaged."""
    config, tensors = artefact.read_artefact_files(edge.at_home(path), KIND)
    with artefact.report_artefact_damage(path, KIND):
        c = edge.validate_record(UnitDecoderFields, config, artefact.CONFIG)
        # Without memory: a file of other sizes is refused before any weight is made.
        with torch.device("meta"):
            network = UnitNetwork(c.width, c.rows * c.columns, c.inner)
        shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
        network.load_state_dict(artefact.read_float_tensors(tensors, KIND, shapes), assign=True)
        vocab = TokenVocabulary(c.vocab_size, frozenset(), c.tokenizer)
        return UnitDecoders(vocab, c.rows, c.columns, c.patch, network.requires_grad_(False))

"""FLASH's drafter: of an image a few learned mixtures enter its layer, and a pass guesses several states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from polydec.core.protocols import Target
from polydec.core.types import TokenVocabulary
from polydec.models.formats import edge
from polydec.models.learned import artefact, state_layer
from polydec.models.learned.artefact_fields import FlashFields
from polydec.models.learned.block_layer import BlockLayer
from polydec.models.learned.kinds.eagle import EagleModel
from polydec.models.learned.kinds.msd import MsdModel
from polydec.models.learned.state_layer import rms_normalised
from polydec.models.nets.query import NeuralNetwork

KIND = artefact.ArtefactKind("flash", "flash", "flash.safetensors", "flash")


@dataclass(frozen=True, eq=False)
class FlashModel:
    """What drafts behind images from few rows of each, several tokens a pass.

    Attributes:
        fuse_H2: Joins a token with the state before it; see `EagleModel`.
        layer: Guesses a block of states at once.
        query_CH: What asks the vectors of an image, one for each row that it becomes, shape
            ``[C, H]``. None: each vector is a row, as MSD has it.
        vocab: The target's.
        rates: By level how often the token of each rank was right on held-out answers.
        share: Passes of the target that a draft costs, as measured where it was trained.
        scaled: Whether products with queries are divided by the root of H before the softmax.
    """

    called: ClassVar[str] = "a FLASH drafter"
    kind: ClassVar[str] = "flash"
    made_by: ClassVar[str] = KIND.training_command
    window: ClassVar[int] = 1

    fuse_H2: Tensor
    layer: BlockLayer
    query_CH: Tensor | None
    vocab: TokenVocabulary
    rates: Sequence[Sequence[float]]
    share: float = 0.0
    scaled: bool = True
    normed: bool = False
    depth: int = 64

    @property
    def block(self) -> int:
        """States that a pass guesses."""
        return self.layer.block

    @cached_property
    def eagle_model(self) -> EagleModel:
        """What joins words and states, and what runs the layer."""
        return EagleModel(self.fuse_H2, self.layer, self.vocab, self.rates, self.share)

    @property
    def network(self) -> NeuralNetwork:
        return self.eagle_model.network

    def check_fit(self, target: Target, draft: Target | None) -> None:
        """Check that it was trained for such a target.

        Args:
            target: The model that it is to serve.
            draft: Draft model of the request, or None; not read.

        Raises:
            RequestError: The vocabularies differ in size, or their tokenizers are known and differ.
            FileError: The states have another width, or the target makes no laws of guessed states.
        """
        target.vocab.require_same(self.vocab, "the target of the FLASH drafter")
        artefact.require_laws(target, self.layer.width, "FLASH's weights")

    def layer_inputs(self, embed_NWH: Tensor, state_NH: Tensor) -> Tensor:
        """Join words and the states before them: EAGLE's rows.

        Args:
            embed_NWH: Embeddings of the tokens, shape ``[N, 1, H]``.
            state_NH: The states before these tokens, shape ``[N, H]``.

        Returns:
            The rows, shape ``[N, H]``.
        """
        return self.eagle_model.layer_inputs(embed_NWH, state_NH)

    def prompt_inputs(self, entry_MH: Tensor, visual_M: Tensor, state_NH: Tensor) -> Tensor:
        """Make the rows of a text in which images stand: MSD's, with fewer for each image.

        Args:
            entry_MH: What entered the target's first layer at each place, shape ``[M, H]``.
            visual_M: Whether a vector of an image stands there, shape ``[M]``.
            state_NH: The target's state at each place but the last, shape ``[N, H]``, N = M - 1.

        Returns:
            The rows in the order of the text, shape ``[R, H]``: R is N where no image stands.
        """
        row_NH = MsdModel(self.eagle_model).prompt_inputs(entry_MH, visual_M, state_NH)
        if self.query_CH is None:
            return row_NH
        # Parts stay in order: the draft counts them as they come, and needs no map of places.
        return torch.cat(
            [
                self.latent_rows(row_NH[start:stop]) if visual else row_NH[start:stop]
                for start, stop, visual in image_runs(visual_M[:-1])
            ]
        )

    def latent_rows(self, vector_VH: Tensor) -> Tensor:
        """The rows that an image becomes: mixtures of its vectors, by how much each query asks for
        each of them.

        Where the vectors stand does not matter, except for what they say of it themselves.

        Args:
            vector_VH: Its vectors, evened, shape ``[V, H]``, V at least 1.

        Returns:
            The rows, evened as all rows are, shape ``[C, H]``.
        """
        assert self.query_CH is not None, "there is something to compress with"
        asked_CV = self.query_CH.float() @ vector_VH.T
        # Scaled, as many numbers would make a softmax of one vector each.
        if self.scaled:
            asked_CV = asked_CV / vector_VH.shape[-1] ** 0.5
        # A mean of vectors is shorter than they are.
        return rms_normalised(asked_CV.softmax(-1) @ vector_VH)

    def row_places(self, visual_N: Tensor) -> Tensor:
        """Which place of the text each row stands for.

        Args:
            visual_N: Whether a vector of an image stands at a place, shape ``[N]``.

        Returns:
            A place for each row of `prompt_inputs`, -1 for a mixture, shape ``[R]``.
        """
        # Losses read words alone, whose rows move as images become shorter.
        place_N = torch.arange(len(visual_N))
        if self.query_CH is None:
            return place_N
        mixed_C = torch.full((len(self.query_CH),), -1)
        return torch.cat(
            [
                mixed_C if visual else place_N[start:stop]
                for start, stop, visual in image_runs(visual_N)
            ]
        )


def image_runs(visual_N: Tensor) -> list[tuple[int, int, bool]]:
    """Part the places of a text where images begin and end.

    Args:
        visual_N: Whether a vector of an image stands at a place, shape ``[N]``.

    Returns:
        Of each part its first place, the place behind its last, and whether it is an image. Images
        between which nothing stands are one.
    """
    kinds = visual_N.tolist()
    # An empty text has no part: then both edges are 0.
    edges = [0, *[at for at in range(1, len(kinds)) if kinds[at] != kinds[at - 1]], len(kinds)]
    return [(start, stop, kinds[start]) for start, stop in pairwise(edges) if start < stop]


def examples(vocab: TokenVocabulary, width: int, draft_width: int) -> tuple[FlashModel, ...]:
    """Make a random one for tests.

    Args:
        vocab: The target's vocabulary, which the artefact is made for.
        width: Width H of the target's states.
        draft_width: Width of the draft model's states; not read.

    Returns:
        One drafter of blocks of two states, which makes two rows of an image.
    """
    # A seed of its own, so that tests tell it from EAGLE's and MSD's.
    g = torch.Generator().manual_seed(13)
    fuse_H2 = torch.randn(width, 2 * width, generator=g) / width**0.5
    # Two states, so that drafts of three levels take a second pass.
    layer = BlockLayer(state_layer.random_state_layer(width, 13, states=2), 2)
    query_CH = torch.randn(2, width, generator=g)
    return (FlashModel(fuse_H2, layer, query_CH, vocab, ((0.5, 0.2), (0.4, 0.2))),)


def save(path: str | Path, flash: FlashModel, about: Mapping[str, Any]) -> None:
    """Write flash.safetensors and config.json into a directory.

    Args:
        path: Directory to write into; it is made where there is none.
        flash: The drafter.
        about: Further fields of config.json, by name. Fields that the artefact writes itself win.

    Raises:
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    layer = flash.layer.layer
    queries = {} if flash.query_CH is None else {"latents.weight": flash.query_CH.float()}
    artefact.save_artefact(
        path,
        KIND,
        {"fuse.weight": flash.fuse_H2.float(), **queries, **layer.named},
        {
            **about,
            "width": layer.width,
            "block": flash.block,
            "latents": 0 if flash.query_CH is None else len(flash.query_CH),
            "scaled": flash.scaled,
            **artefact.said_of(flash),
            "layer": layer.fields,
        },
    )


def load(path: str | Path) -> FlashModel:
    """The drafter in a directory that `save` wrote. Raises FileError where there is none, or it is damaged."""
    path = edge.at_home(path)
    config, t = artefact.read_artefact_files(path, KIND)
    with artefact.report_artefact_damage(path, KIND):
        c = edge.validate_record(FlashFields, config, artefact.CONFIG)
        fuse_H2 = artefact.read_float_tensor(t, KIND, "fuse.weight", c.width, 2 * c.width)
        # Without compression there are no queries.
        query_CH = None
        if c.latents:
            query_CH = artefact.read_float_tensor(t, KIND, "latents.weight", c.latents, c.width)
        layer = state_layer.read_state_layer(c.layer, t, KIND, c.width, states=c.block)
        return FlashModel(
            fuse_H2,
            BlockLayer(layer, c.block),
            query_CH,
            artefact.vocab_of(c),
            c.rates,
            c.share,
            c.scaled,
        )

"""MSD's drafter: EAGLE's layer, which of an image reads the very vectors that the target reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from polydec.core.protocols import Target
from polydec.core.types import TokenVocabulary
from polydec.models.formats import edge
from polydec.models.learned import artefact, state_layer
from polydec.models.learned.artefact_fields import MsdFields
from polydec.models.learned.kinds.eagle import EagleModel
from polydec.models.learned.state_layer import StateLayer, rms_normalised
from polydec.models.nets.query import NeuralNetwork

KIND = artefact.ArtefactKind("msd", "msd", "msd.safetensors", "msd")


@dataclass(frozen=True, eq=False)
class MsdModel:
    """What drafts behind images; `normed`, `depths` and `depth` are as an EAGLE has them.

    Attributes:
        eagle: What it is where no image stands, of one layer and states before the final norm.
        decoupled: Whether a place of an image enters as its vector alone; else it enters as a word
            does, fused with the target's state there.
    """

    called: ClassVar[str] = "an MSD drafter"
    kind: ClassVar[str] = "msd"
    made_by: ClassVar[str] = KIND.training_command
    window: ClassVar[int] = 1

    eagle: EagleModel
    decoupled: bool = True
    normed: bool = False
    depths: tuple[int, ...] = ()
    depth: int = 64

    @property
    def vocab(self) -> TokenVocabulary:
        return self.eagle.vocab

    @property
    def rates(self) -> Sequence[Sequence[float]]:
        return self.eagle.rates

    @property
    def share(self) -> float:
        return self.eagle.share

    @property
    def network(self) -> NeuralNetwork:
        return self.eagle.network

    def check_fit(self, target: Target, draft: Target | None) -> None:
        """Check that it was trained for such a target.

        Args:
            target: The model that it is to serve.
            draft: Draft model of the request, or None; not read.

        Raises:
            RequestError: The vocabularies differ in size, or their tokenizers are known and differ.
            FileError: The states have another width, or the target makes no laws of guessed states.
        """
        target.vocab.require_same(self.vocab, "the target of the MSD drafter")
        artefact.require_laws(target, self.eagle.layer.width, "MSD's weights")

    def layer_inputs(self, embed_NWH: Tensor, state_NH: Tensor) -> Tensor:
        """Join words and the states before them: EAGLE's rows.

        Args:
            embed_NWH: Embeddings of the tokens, shape ``[N, 1, H]``.
            state_NH: The states before these tokens, shape ``[N, H]``.

        Returns:
            The rows, shape ``[N, H]``.
        """
        return self.eagle.layer_inputs(embed_NWH, state_NH)

    def prompt_inputs(self, entry_MH: Tensor, visual_M: Tensor, state_NH: Tensor) -> Tensor:
        """Make the rows of a text in which images stand.

        A word before an image is joined with the image's first vector, as with the word that
        follows any other.

        Args:
            entry_MH: What entered the target's first layer at each place, embeddings of words and
                vectors of images, shape ``[M, H]``.
            visual_M: Whether a vector of an image stands there, shape ``[M]``.
            state_NH: The target's state at each place but the last, shape ``[N, H]``, N = M - 1.

        Returns:
            A row for each place but the last, shape ``[N, H]``.
        """
        # The entry behind each place: of the word before an image that is its first vector.
        joined_NH = self.eagle.layer_inputs(entry_MH[1:, None], state_NH)
        if not self.decoupled:
            return joined_NH
        # All rows are evened by their root mean square, so vectors are too.
        return torch.where(visual_M[:-1, None], rms_normalised(entry_MH[:-1]), joined_NH)

    def drafted_inputs(self, embed_NWH: Tensor, above_NH: Tensor) -> Tensor:
        """Make the rows of drafted words; see `EagleModel.drafted_inputs`.

        Args:
            embed_NWH: Embeddings of the drafted tokens, shape ``[N, 1, H]``.
            above_NH: The states that were guessed at the nodes above, shape ``[N, H]``.

        Returns:
            The rows, shape ``[N, H]``.
        """
        return self.eagle.drafted_inputs(embed_NWH, above_NH)

    def read_states(self, k: int, true_H: Tensor, out_NS: Tensor) -> tuple[Tensor, Tensor]:
        """Read what left the layer; see `EagleModel.read_states`.

        Args:
            k: Levels that the nodes lie below the root.
            true_H: The last true state, shape ``[H]``.
            out_NS: What left the layer, shape ``[N, H]``.

        Returns:
            What the nodes below stand on, and the guessed states.
        """
        return self.eagle.read_states(k, true_H, out_NS)


def examples(vocab: TokenVocabulary, width: int, draft_width: int) -> tuple[MsdModel, ...]:
    """Make a random one for tests.

    Args:
        vocab: The target's vocabulary, which the artefact is made for.
        width: Width H of the target's states.
        draft_width: Width of the draft model's states; not read.

    Returns:
        One drafter.
    """
    fuse_H2 = torch.randn(width, 2 * width, generator=torch.Generator().manual_seed(8)) / width**0.5
    layer = state_layer.random_state_layer(width, 8)
    # Another seed than EAGLE's example, so that tests tell the two apart.
    return (MsdModel(EagleModel(fuse_H2, layer, vocab, ((0.5, 0.2),))),)


def save(path: str | Path, msd: MsdModel, about: Mapping[str, Any]) -> None:
    """Write msd.safetensors and config.json into a directory.

    Args:
        path: Directory to write into; it is made where there is none.
        msd: The drafter, whose layer is a `StateLayer`.
        about: Further fields of config.json, by name. Fields that the artefact writes itself win.

    Raises:
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    layer = msd.eagle.layer
    assert isinstance(layer, StateLayer), "training makes no other"
    artefact.save_artefact(
        path,
        KIND,
        {"fuse.weight": msd.eagle.fuse_H2.float(), **layer.named},
        {
            **about,
            "width": layer.width,
            **artefact.said_of(msd),
            "layer": layer.fields,
            "decoupled": msd.decoupled,
        },
    )


def load(path: str | Path) -> MsdModel:
    """The drafter in a directory that `save` wrote. Raises FileError where there is none, or it is damaged."""
    path = edge.at_home(path)
    config, t = artefact.read_artefact_files(path, KIND)
    with artefact.report_artefact_damage(path, KIND):
        c = edge.validate_record(MsdFields, config, artefact.CONFIG)
        fuse_H2 = artefact.read_float_tensor(t, KIND, "fuse.weight", c.width, 2 * c.width)
        # Its shapes are compared in the file before anything is read.
        layer = state_layer.read_state_layer(c.layer, t, KIND, c.width)
        eagle = EagleModel(fuse_H2, layer, artefact.vocab_of(c), c.rates, c.share)
        return MsdModel(eagle, c.decoupled)

"""A small network on a target's last hidden states: of a state and the token behind it the next state (EAGLE)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear

from polydec.base.errors import FileError
from polydec.core.protocols import Target
from polydec.core.types import TokenVocabulary
from polydec.models.formats import edge
from polydec.models.learned import artefact, state_layer, state_stack
from polydec.models.learned.artefact_fields import EagleFields
from polydec.models.learned.state_layer import StateLayer, rms_normalised
from polydec.models.learned.state_stack import StateStack
from polydec.models.nets.query import NeuralNetwork

KIND = artefact.ArtefactKind("eagle", "eagle", "eagle.safetensors", "eagle")


class EagleLayer(Protocol):
    """A layer that reads H numbers a position, or several one behind another."""

    @property
    def width(self) -> int:
        """H."""
        ...

    @property
    def cost(self) -> float: ...
    def layer_network(self) -> Any: ...


@dataclass(frozen=True, eq=False)
class EagleModel:
    """fuse_H2: weight [H, 2 H] that joins a token's embedding with the state before it, each divided by its root mean square;
    vocab: the target's; rates: of levels below the root, how often the token of each rank was right on held-out text (levels
    beyond go as the last); share: passes of the target that a draft costs, as measured where it was trained. normed: states
    enter as the target's final norm leaves them, embeddings as they are, and what leaves the layer is such a state (the
    published form); bias_H: is added where both are joined, None: nothing."""

    called: ClassVar[str] = "an EAGLE drafter"
    kind: ClassVar[str] = "eagle"
    made_by: ClassVar[str] = KIND.training_command
    window: ClassVar[int] = 1

    fuse_H2: Tensor
    layer: EagleLayer
    vocab: TokenVocabulary
    rates: Sequence[Sequence[float]]
    share: float = 0.0
    normed: bool = False
    bias_H: Tensor | None = None

    def check_fit(self, target: Target, draft: Target | None) -> None:
        """Check that it was trained for such a target.

        Args:
            target: The model that it is to serve.
            draft: Draft model of the request, or None; not read.

        Raises:
            RequestError: The vocabularies differ in size, or their tokenizers are known and differ.
            FileError: The states have another width, or the target makes no laws of guessed states.
        """
        target.vocab.require_same(self.vocab, "the target of the EAGLE drafter")
        artefact.require_laws(target, self.layer.width, "EAGLE's weights", normed=self.normed)

    @property
    def depths(self) -> tuple[int, ...]:
        """Of the target's states the last alone."""
        return ()

    @property
    def depth(self) -> int:
        """Most levels of a draft: it goes on from what it made itself."""
        return 64

    @property
    def cost(self) -> float:
        return self.layer.cost + self.fuse_H2.numel()

    def layer_inputs(self, embed_NWH: Tensor, state_NH: Tensor) -> Tensor:
        """Join tokens and the states before them to the rows that enter the layer.

        Args:
            embed_NWH: Embeddings of the tokens, shape ``[N, W, H]``; the last of each window is
                read.
            state_NH: The states before these tokens, shape ``[N, H]``.

        Returns:
            The rows, shape ``[N, H]``.
        """
        return linear(
            # Published weights have the token first and the state second.
            torch.cat([self._entry(embed_NWH[:, -1]), self._entry(state_NH)], -1),
            self.fuse_H2,
            self.bias_H,
        )

    def _entry(self, x_NH: Tensor) -> Tensor:
        # The published form was trained on raw embeddings, so nothing is evened there.
        if self.normed:
            return x_NH.float()
        return rms_normalised(x_NH)

    def drafted_inputs(self, embed_NWH: Tensor, above_NH: Tensor) -> Tensor:
        """Make the rows that enter the layer for drafted tokens, as `enter` does for true states.

        Args:
            embed_NWH: Embeddings of the drafted tokens, shape ``[N, W, H]``.
            above_NH: The states that were guessed at the nodes above, shape ``[N, H]``.

        Returns:
            The rows, shape ``[N, H]``.
        """
        return self.layer_inputs(embed_NWH, above_NH)

    def read_states(self, k: int, true_H: Tensor, out_NS: Tensor) -> tuple[Tensor, Tensor]:
        """Read what left the layer at nodes of one level.

        Args:
            k: Levels that the nodes lie below the root; not read.
            true_H: The last true state, shape ``[H]``; not read.
            out_NS: What left the layer, shape ``[N, H]``.

        Returns:
            What the nodes below stand on, and the guessed states, of which the target makes laws.
            Both are what left the layer.
        """
        return out_NS, out_NS

    @cached_property
    def network(self) -> NeuralNetwork:
        """The layer, asked for states alone."""
        return self.layer.layer_network()


def examples(vocab: TokenVocabulary, width: int, draft_width: int) -> tuple[EagleModel, ...]:
    """Make a random one for tests.

    Args:
        vocab: The target's vocabulary, which the artefact is made for.
        width: Width H of the target's states.
        draft_width: Width of the draft model's states; not read.

    Returns:
        One drafter of one layer.
    """
    fuse_H2 = torch.randn(width, 2 * width, generator=torch.Generator().manual_seed(6)) / width**0.5
    return (EagleModel(fuse_H2, state_layer.random_state_layer(width, 6), vocab, ((0.5, 0.2),)),)


def save(path: str | Path, eagle: EagleModel, about: Mapping[str, Any]) -> None:
    """Write eagle.safetensors and config.json into a directory.

    Args:
        path: Directory to write into; it is made where there is none.
        eagle: The drafter, with a layer or several of this package's form.
        about: Further fields of config.json, by name. Fields that the artefact writes itself win.

    Raises:
        FileError: It came in the published form, which `polydec export` writes.
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    # The published layer has no norm before attention, which this file's form needs.
    if not isinstance(eagle.layer, StateLayer | StateStack):
        raise FileError("a published EAGLE drafter is written by `polydec export`")
    artefact.save_artefact(
        path,
        KIND,
        {"fuse.weight": eagle.fuse_H2.float(), **eagle.layer.named},
        {
            **about,
            "width": eagle.layer.width,
            **artefact.said_of(eagle),
            "layer": eagle.layer.fields,
        },
    )


def load(path: str | Path) -> EagleModel:
    """The drafter in a directory that `save` wrote. Raises FileError where there is none, or it is damaged."""
    path = edge.at_home(path)
    config, t = artefact.read_artefact_files(path, KIND)
    with artefact.report_artefact_damage(path, KIND):
        c = edge.validate_record(EagleFields, config, artefact.CONFIG)
        fuse_H2 = artefact.read_float_tensor(t, KIND, "fuse.weight", c.width, 2 * c.width)
        return EagleModel(
            fuse_H2,
            state_stack.read_state_layers(c.layer, t, KIND, c.width),
            artefact.vocab_of(c),
            c.rates,
            c.share,
        )

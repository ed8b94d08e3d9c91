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
from polydec.models.formats.fields import EagleFields
from polydec.models.learned import artefact, state_layer, state_stack
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
    def network(self) -> Any: ...


@dataclass(frozen=True, eq=False)
class EagleModel:
    """fuse_H2: weight [H, 2 H] that joins a token's embedding with the state before it, each divided by its root mean square;
    vocab: the target's; rates: of levels below the root, how often the token of each rank was right on held-out text (levels
    beyond go as the last); share: passes of the target that a level costs, as measured where it was trained. normed: states
    enter as the target's final norm leaves them, embeddings as they are, and what leaves the layer is such a state (the
    published form); bias_H: is added where both are joined, None: nothing."""

    called: ClassVar[str] = "an EAGLE drafter"
    kind: ClassVar[str] = "eagle"
    made_by: ClassVar[str] = "polydec train eagle"
    window: ClassVar[int] = 1

    fuse_H2: Tensor
    layer: EagleLayer
    vocab: TokenVocabulary
    rates: Sequence[Sequence[float]]
    share: float = 0.0
    normed: bool = False
    bias_H: Tensor | None = None

    def fit(self, target: Target, draft: Target | None) -> None:
        """Raise FileError where it was trained for another vocabulary, for states of another width, or where the target
        makes no laws of states that were guessed."""
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

    def enter(self, embed_NWH: Tensor, state_NH: Tensor) -> Tensor:
        """What enters the layer for tokens and the states before them."""
        return linear(
            torch.cat([self._entry(embed_NWH[:, -1]), self._entry(state_NH)], -1),
            self.fuse_H2,
            self.bias_H,
        )

    def _entry(self, x_NH: Tensor) -> Tensor:
        if self.normed:
            return x_NH.float()
        return rms_normalised(x_NH)

    def below(self, embed_NWH: Tensor, above_NH: Tensor) -> Tensor:
        """The same for drafted tokens, behind what was made at the ones before them."""
        return self.enter(embed_NWH, above_NH)

    def read(self, k: int, true_H: Tensor, out_NS: Tensor) -> tuple[Tensor, Tensor]:
        """Of what left the layer at nodes k levels below the root: what their children stand on, and the states guessed there,
        which the target makes laws of."""
        return out_NS, out_NS

    @cached_property
    def network(self) -> NeuralNetwork:
        """The layer, asked for states alone."""
        return self.layer.network()


def examples(vocab: TokenVocabulary, width: int, draft_width: int) -> tuple[EagleModel, ...]:
    """A random one for tests."""
    fuse_H2 = torch.randn(width, 2 * width, generator=torch.Generator().manual_seed(6)) / width**0.5
    return (EagleModel(fuse_H2, state_layer.random_state_layer(width, 6), vocab, ((0.5, 0.2),)),)


def save(path: str | Path, eagle: EagleModel, about: Mapping[str, Any]) -> None:
    """Write eagle.safetensors and config.json into the directory `path`; about: what else the config says.
    Raises FileError for one that came in the published form."""
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
        fuse_H2 = artefact.read_artefact_tensor(
            t, KIND, "fuse.weight", (c.width, 2 * c.width)
        ).float()
        return EagleModel(
            fuse_H2,
            state_stack.read_state_layers(c.layer, t, KIND, c.width),
            artefact.vocab_of(c),
            c.rates,
            c.share,
        )

"""A small net over the confidences of a block: which of its tokens are right already? (Learn2PD)"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import linear, relu

from polydec.core.protocols import Target
from polydec.core.types import Vocab
from polydec.models import artefact, edge
from polydec.models.fields import FilterFields

KIND = artefact.Kind("filter", "filter", "filter.safetensors", "filter")


@dataclass(frozen=True, eq=False)
class Filter:
    """Two layers: weights [B, B] and biases [B] each, with a ReLU between them. It reads the confidences of a block's B
    positions in order, and gives for each how likely its likeliest token is the final one. Arithmetic is fp32."""
    called: ClassVar[str] = "a filter of confidences"
    kind: ClassVar[str] = "filter"
    made_by: ClassVar[str] = "polydec train filter"

    layers: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]

    def fit(self, target: Target, draft: Target | None) -> None:
        """It reads probabilities, which every model has."""

    @property
    def size(self) -> int:
        """Positions of a block."""
        return self.layers[0][1].shape[0]

    def logits(self, sure_NB: Tensor) -> Tensor:
        """[N, B], before the sigmoid."""
        return linear(relu(linear(sure_NB, *self.layers[0])), *self.layers[1])

    def __call__(self, sure_B: Tensor) -> Tensor:
        """Of each position of one block how likely its token is right, 0 to 1."""
        return self.logits(sure_B[None])[0].sigmoid()


def fresh(size: int, seed: int) -> Filter:
    """A filter to train."""
    g = torch.Generator().manual_seed(seed)

    def draw() -> tuple[Tensor, Tensor]:
        return torch.randn(size, size, generator=g) / size ** 0.5, torch.zeros(size)
    return Filter((draw(), draw()))


def examples(vocab: Vocab, width: int, draft_width: int) -> tuple[Filter, ...]:
    """One for tests: it takes what is at least 0.6 sure, in blocks of 8."""
    eye = torch.eye(8)
    return Filter(((eye, torch.zeros(8)), (40.0 * eye, torch.full((8,), -20.0)))),


def save(path: str | Path, one: Filter, about: Mapping[str, Any]) -> None:
    """Write filter.safetensors and config.json into the directory `path`; about: what else the config says."""
    tensors = {f"{i}.{name}": t.float() for i, layer in enumerate(one.layers) for name, t in zip(("weight", "bias"), layer)}
    artefact.save(path, KIND, tensors, {**about, "block": one.size})


def load(path: str | Path) -> Filter:
    """The filter in a directory that `save` wrote. Raises ValueError where there is none, or it is damaged."""
    path = edge.at_home(path)
    config, t = artefact.read(path, KIND)
    with artefact.damaged(path, KIND):
        size = edge.check(FilterFields, config, artefact.CONFIG).block

        def layer(i: int) -> tuple[Tensor, Tensor]:
            return (artefact.tensor(t, KIND, f"{i}.weight", (size, size)).float(),
                    artefact.tensor(t, KIND, f"{i}.bias", (size,)).float())
        return Filter((layer(0), layer(1)))

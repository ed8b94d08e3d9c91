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
from polydec.core.types import TokenVocabulary
from polydec.models.formats import edge
from polydec.models.learned import artefact
from polydec.models.learned.artefact_fields import FilterFields

KIND = artefact.ArtefactKind("filter", "filter", "filter.safetensors", "probe --recipe filter")


@dataclass(frozen=True, eq=False)
class ConfidenceFilter:
    """Two layers: weights [H, B] and [B, H], biases [H] and [B], with a ReLU between them. It reads the confidences of a
    block's B positions in order, and gives for each how likely its likeliest token is the final one. Arithmetic is fp32.

    written: where a token stands it reads the model's confidence in its likeliest token there, as published; else 1.
    """

    called: ClassVar[str] = "a filter of confidences"
    kind: ClassVar[str] = "filter"
    made_by: ClassVar[str] = KIND.training_command

    layers: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]
    written: bool = False

    def check_fit(self, target: Target, draft: Target | None) -> None:
        """Accept any model: it reads probabilities, which every one has.

        Args:
            target: The model that it is to serve; not read.
            draft: Draft model of the request, or None; not read.
        """

    @property
    def size(self) -> int:
        """Positions of a block."""
        return self.layers[1][1].shape[0]

    def filter_logits(self, sure_NB: Tensor) -> Tensor:
        """[N, B], before the sigmoid."""
        return linear(relu(linear(sure_NB, *self.layers[0])), *self.layers[1])

    def __call__(self, sure_B: Tensor) -> Tensor:
        """Of each position of one block how likely its token is right, 0 to 1."""
        return self.filter_logits(sure_B[None])[0].sigmoid()


def new_confidence_filter(size: int, hidden: int, seed: int) -> ConfidenceFilter:
    """Make a filter to train.

    Args:
        size: Number B of positions in a block.
        hidden: Number of hidden units.
        seed: Seed of the weights; biases begin as zeros.

    Returns:
        The filter.
    """
    g = torch.Generator().manual_seed(seed)

    def draw_matrix(into: int, out: int) -> tuple[Tensor, Tensor]:
        """Draw one layer.

        Args:
            into: Numbers that it reads.
            out: Numbers that it gives.

        Returns:
            Weight ``[out, into]`` and bias ``[out]``.
        """
        return torch.randn(out, into, generator=g) / into**0.5, torch.zeros(out)

    return ConfidenceFilter((draw_matrix(size, hidden), draw_matrix(hidden, size)))


def examples(vocab: TokenVocabulary, width: int, draft_width: int) -> tuple[ConfidenceFilter, ...]:
    """Make one for tests, which takes what is at least 0.6 sure.

    Args:
        vocab: Not read: it reads probabilities.
        width: Not read: it reads probabilities.
        draft_width: Width of the draft model's states; not read.

    Returns:
        One filter of blocks of 8.
    """
    # The sigmoid of 40 x - 20 is a half at x = 0.5, and all but 1 at 0.6.
    eye = torch.eye(8)
    return (ConfidenceFilter(((eye, torch.zeros(8)), (40.0 * eye, torch.full((8,), -20.0)))),)


def save(path: str | Path, trained: ConfidenceFilter, about: Mapping[str, Any]) -> None:
    """Write filter.safetensors and config.json into a directory.

    Args:
        path: Directory to write into; it is made where there is none.
        trained: The filter.
        about: Further fields of config.json, by name. Fields that the artefact writes itself win.

    Raises:
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    tensors = {
        f"{i}.{name}": t.float()
        for i, layer in enumerate(trained.layers)
        for name, t in zip(("weight", "bias"), layer)
    }
    artefact.save_artefact(
        path,
        KIND,
        tensors,
        {
            **about,
            "block": trained.size,
            "hidden": trained.layers[0][1].shape[0],
            "written": trained.written,
        },
    )


def load(path: str | Path) -> ConfidenceFilter:
    """The filter in a directory that `save` wrote. Raises FileError where there is none, or it is damaged."""
    path = edge.at_home(path)
    config, t = artefact.read_artefact_files(path, KIND)
    with artefact.report_artefact_damage(path, KIND):
        c = edge.validate_record(FilterFields, config, artefact.CONFIG)
        # Older files name no size: hidden units were as many as positions.
        hidden = c.hidden or c.block
        layers = (
            artefact.read_float_layer(t, KIND, "0", hidden, c.block),
            artefact.read_float_layer(t, KIND, "1", c.block, hidden),
        )
        return ConfidenceFilter(layers, c.written)

"""What makes a vector for a model's first layer of another model's state: a thought in the place of
written steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from polydec.base.errors import FileError
from polydec.core.protocols import Target
from polydec.core.types import TokenVocabulary
from polydec.models.formats import edge
from polydec.models.learned import artefact
from polydec.models.learned.artefact_fields import ThoughtFields

KIND = artefact.ArtefactKind("thought", "thought", "thought.safetensors", "context")


@dataclass(frozen=True, eq=False)
class ThoughtProjection:
    """weight [width, states], bias and scale [width]: a state goes through weight and bias, is
    divided as a layer norm does, and multiplied by scale. mark: the token at which the model that
    thinks (the draft) is read. Arithmetic is fp32."""

    called: ClassVar[str] = "what makes thoughts of states"
    kind: ClassVar[str] = "thought"
    made_by: ClassVar[str] = KIND.training_command

    weight: Tensor
    bias: Tensor
    scale: Tensor
    mark: int

    def check_fit(self, target: Target, draft: Target | None) -> None:
        """Check that it was trained for this pair of models.

        Args:
            target: The model that reads thoughts.
            draft: The model that thinks. None: it is not checked.

        Raises:
            FileError: The states of either have another width, or the draft's vocabulary does not
                hold the mark.
        """
        artefact.require_width(target, self.weight.shape[0], "thoughts")
        # Where no draft is known yet, only the model that reads can be compared.
        if draft is not None:
            artefact.require_width(draft, self.weight.shape[1], "thoughts", "draft")
            if self.mark >= draft.vocab.size:
                raise FileError(
                    f"thoughts are read at token {self.mark}: this draft has {draft.vocab.size} tokens"
                )

    def thought_vector(self, state_H: Tensor) -> Tensor:
        """The vector of a state that lies behind the final norm [width]."""
        x = self.weight @ state_H.float() + self.bias
        # The scale gives the vector the size of embeddings, which the first layer expects.
        return layer_norm(x, x.shape) * self.scale


def examples(vocab: TokenVocabulary, width: int, draft_width: int) -> tuple[ThoughtProjection, ...]:
    """Make a random one for tests.

    Args:
        vocab: Not read: it reads states.
        width: Width of the target's embeddings, which thoughts have.
        draft_width: Width of the draft model's states, of which thoughts are made.

    Returns:
        One projection, read at token 0.
    """
    dice = torch.Generator().manual_seed(11)
    weight = torch.randn(width, draft_width, generator=dice) / draft_width**0.5
    return (ThoughtProjection(weight, torch.zeros(width), torch.full((width,), 0.1), 0),)


def save(path: str | Path, thought: ThoughtProjection, about: Mapping[str, Any]) -> None:
    """Write thought.safetensors and config.json into a directory.

    Args:
        path: Directory to write into; it is made where there is none.
        thought: The projection.
        about: Further fields of config.json, by name. Fields that the artefact writes itself win.

    Raises:
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    tensors = {"weight": thought.weight, "bias": thought.bias, "scale": thought.scale}
    width, states = thought.weight.shape
    sizes = {"width": width, "states": states, "mark": thought.mark}
    artefact.save_artefact(
        path, KIND, {k: v.float() for k, v in tensors.items()}, {**about, **sizes}
    )


def load(path: str | Path) -> ThoughtProjection:
    """What `save` wrote into a directory. Raises FileError where there is none, or it is
    damaged."""
    path = edge.at_home(path)
    config, t = artefact.read_artefact_files(path, KIND)
    with artefact.report_artefact_damage(path, KIND):
        c = edge.validate_record(ThoughtFields, config, artefact.CONFIG)
        return ThoughtProjection(
            artefact.read_float_tensor(t, KIND, "weight", c.width, c.states),
            artefact.read_float_tensor(t, KIND, "bias", c.width),
            artefact.read_float_tensor(t, KIND, "scale", c.width),
            c.mark,
        )

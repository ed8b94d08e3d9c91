"""What makes one vector of a window of text, which the model reads before the next window (added
recurrence)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import gelu, layer_norm

from polydec.base.errors import FileError
from polydec.core.protocols import Target
from polydec.core.types import TokenVocabulary
from polydec.models.formats import edge
from polydec.models.formats.fields import StrictFields
from polydec.models.learned import artefact

KIND = artefact.ArtefactKind(
    "window-summary", "window_summary", "window_summary.safetensors", "recurrence"
)


class WindowSummaryFields(StrictFields):
    """config.json of what makes vectors of windows.

    Attributes:
        width: Size of states and vectors.
        inner: Size between the two maps.
        window: Tokens of a window.
        begin: The token that every window is read behind.
    """

    width: Annotated[int, Field(ge=1, le=1 << 20)]
    inner: Annotated[int, Field(ge=1, le=1 << 20)]
    window: Annotated[int, Field(ge=1, le=1 << 20)]
    begin: Annotated[int, Field(ge=0, le=1 << 24)]


def summary_of_states(tensors: Mapping[str, Tensor], state_BWH: Tensor) -> Tensor:
    """Make a vector of each window: the mean of its states through two maps.

    Args:
        tensors: `up` and `up_bias`, `down` and `down_bias`, and `scale`, which gives a vector the
            size of an embedding.
        state_BWH: States of the windows' tokens behind the final norm, shape ``[B, W, H]``.

    Returns:
        The vectors, shape ``[B, H]``.
    """
    mean_BH = state_BWH.mean(1)
    inner = gelu(mean_BH @ tensors["up"].T + tensors["up_bias"])
    # The mean goes round the maps, which then learn what is to be added to it.
    made_BH = mean_BH + inner @ tensors["down"].T + tensors["down_bias"]
    return layer_norm(made_BH, made_BH.shape[-1:]) * tensors["scale"]


def summary_shapes(width: int, inner: int) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor, by name.

    Args:
        width: Size of states and vectors.
        inner: Size between the two maps.
    """
    return {
        "up": (inner, width),
        "up_bias": (inner,),
        "down": (width, inner),
        "down_bias": (width,),
        "scale": (width,),
    }


@dataclass(frozen=True, eq=False)
class WindowSummary:
    """Two maps over the mean state of a window. Arithmetic is fp32.

    Attributes:
        tensors: See `summary_of_states`.
        window_length: Tokens of a window.
        begin_token: The token that every window is read behind.
    """

    called: ClassVar[str] = "what makes vectors of windows"
    kind: ClassVar[str] = "window-summary"
    made_by: ClassVar[str] = KIND.training_command
    reads_draft: ClassVar[bool] = False

    tensors: Mapping[str, Tensor]
    window_length: int
    begin_token: int

    def check_fit(self, target: Target, draft: Target | None) -> None:
        """Check that the target has states of this size, and the token that windows begin with.

        Args:
            target: The model that it is to serve.
            draft: Not read.

        Raises:
            FileError: It has states of another size, or fewer tokens.
        """
        artefact.require_width(target, len(self.tensors["scale"]), "vectors of windows")
        if self.begin_token >= target.vocab.size:
            raise FileError(
                f"windows begin with token {self.begin_token}: this target has {target.vocab.size} tokens"
            )

    @torch.no_grad()
    def summary_vector(self, state_WH: Tensor) -> Tensor:
        """The vector of one window, shape ``[H]``, of its states behind the final norm."""
        return summary_of_states(self.tensors, state_WH[None].float())[0]


def examples(vocab: TokenVocabulary, width: int, draft_width: int) -> tuple[WindowSummary, ...]:
    """Make a random one for tests.

    Args:
        vocab: Not read: it reads states.
        width: Size of the target's states.
        draft_width: Not read.

    Returns:
        One for windows of three tokens behind token 0.
    """
    dice = torch.Generator().manual_seed(19)
    tensors = {
        name: torch.randn(shape, generator=dice) * shape[-1] ** -0.5
        for name, shape in summary_shapes(width, 2 * width).items()
    }
    return (WindowSummary({**tensors, "scale": torch.full((width,), 0.5)}, 3, 0),)


def save(path: str | Path, made: WindowSummary, about: Mapping[str, Any]) -> None:
    """Write window_summary.safetensors and config.json into a directory.

    Args:
        path: Directory to write into; it is made where there is none.
        made: The maps.
        about: Further fields of config.json, by name. Fields that the artefact writes itself win.

    Raises:
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    inner, width = made.tensors["up"].shape
    sizes = {
        "width": width,
        "inner": inner,
        "window": made.window_length,
        "begin": made.begin_token,
    }
    artefact.save_artefact(
        path, KIND, {k: v.float() for k, v in made.tensors.items()}, {**about, **sizes}
    )


def load(path: str | Path) -> WindowSummary:
    """What `save` wrote into a directory. Raises FileError where there is none, or it is
    damaged."""
    path = edge.at_home(path)
    config, tensors = artefact.read_artefact_files(path, KIND)
    with artefact.report_artefact_damage(path, KIND):
        c = edge.validate_record(WindowSummaryFields, config, artefact.CONFIG)
        read = artefact.read_float_tensors(tensors, KIND, summary_shapes(c.width, c.inner))
        return WindowSummary(read, c.window, c.begin)

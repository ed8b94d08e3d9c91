"""Which models a trainer takes: those of its own family, and of a kind that it trains right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from polydec.base.edge import error_sentence
from polydec.base.errors import RequestError
from polydec.methods.registry.family import (
    AUTOREGRESSIVE,
    INSERTION,
    MASKED_DIFFUSION,
    PATCH_FILLING,
    DecodingFamily,
    family_of,
)
from polydec.models.formats import zoo
from polydec.models.sessions import checkpoint, denoiser, inserter
from polydec.models.sessions.checkpoint import ModelBundle

SUCH = {AUTOREGRESSIVE: "zoo:smollm2", MASKED_DIFFUSION: "zoo:diffusion"}
"""A model of each family, to name where another one was given."""


def require_family(
    family: DecodingFamily, family_read: DecodingFamily, name: str, field: str = "target"
) -> None:
    """Check that a model is of the family that a trainer takes.

    Args:
        family: The family that it must be of.
        family_read: The family that it is of.
        name: Name or directory of the model, for the sentence of the error.
        field: The option that named it. Default "target".

    Raises:
        RequestError: The families differ.
    """
    if family_read is not family:
        raise RequestError(
            error_sentence(
                f"{field} is {name!r}, {family_read.called} model: it must be {family.called} model, "
                f"such as {SUCH[family]}"
            )
        )


def load_autoregressive_model(name: str, field: str = "target", **how: Any) -> ModelBundle:
    """Load a model that continues texts.

    Args:
        name: Name or directory of the model.
        field: The option that named it. Default "target".
        **how: Options of `checkpoint.load_bundle`.

    Returns:
        The model with its tokenizer.

    Raises:
        RequestError: The model is of another family.
    """
    point = checkpoint.load_bundle(name, **how)
    require_family(AUTOREGRESSIVE, family_of(point.lm), name, field)
    return point


def load_target_and_draft(target: str, draft: str | None) -> tuple[ModelBundle, ModelBundle, str]:
    """Load a target and its draft model.

    Args:
        target: Name or directory of the target.
        draft: Name or directory of the draft; None: the embedded draft of the target.

    Returns:
        The target, the draft, and the draft's name.

    Raises:
        RequestError: There is no draft, or the two do not write the same tokens.
    """
    name = draft or zoo.default_draft(target)
    if name is None:
        raise RequestError(f"draft is none and {target} has no embedded one: name the draft model")
    point = load_autoregressive_model(target)
    small = load_autoregressive_model(name, "draft")
    # Tokens of both are compared by id, so ids must mean the same.
    point.lm.vocab.require_same(small.lm.vocab, "the draft")
    return point, small, name


def family_of_config(config: Mapping[str, Any]) -> DecodingFamily:
    """Of a model by its config.json."""
    if inserter.is_inserter(config):
        return INSERTION
    if denoiser.fills_patches(config):
        return PATCH_FILLING
    # What neither inserts nor fills masks continues texts.
    if denoiser.is_masked(config):
        return MASKED_DIFFUSION
    return AUTOREGRESSIVE


def of_one_canvas(model: Any, name: str) -> None:
    """Check that a model is a masked-diffusion model whose positions see the whole canvas.

    A trainer that takes this for granted would write a model of another kind, or teach a layer on
    laws that the model does not have.

    Args:
        model: The model.
        name: Its name or directory, for the sentence of the error.

    Raises:
        RequestError: It is of another family, reads a canvas in blocks of its own, or has each law
            one position before its gap.
    """
    require_family(MASKED_DIFFUSION, family_of(model), name)
    # A block-causal model does not see later blocks.
    if model.block:
        raise RequestError(
            error_sentence(
                f"target is {name!r}, which is block-causal (blocks of {model.block}): this training is for models "
                f"whose positions see the whole canvas, such as {SUCH[MASKED_DIFFUSION]}"
            )
        )
    # A shifted model has the law of a gap at another position.
    if model.shifted:
        raise RequestError(
            error_sentence(
                f"target is {name!r}, whose laws stand one position before their gaps: this training is for models "
                f"where they stand at the gaps, such as {SUCH[MASKED_DIFFUSION]}"
            )
        )

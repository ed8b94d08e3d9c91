"""Recipes built from bare models, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from polydec.core.decoder import Decoder
from polydec.core.protocols import Target
from polydec.methods.economics.costs import PassCosts
from polydec.methods.registry import registry
from polydec.methods.registry.kit import Kit, ModelArtefact


def build(
    name: str,
    target: Target,
    draft: Target | None = None,
    options: Mapping[str, Any] | None = None,
    *,
    artefacts: Sequence[ModelArtefact] = (),
    costs: PassCosts | None = None,
    memory: dict[str, Any] | None = None,
) -> tuple[Decoder, dict[str, Any]]:
    """The recipe's decoder over these, and all its options with the values they have. What shapes the target says which texts
    are allowed."""
    shapers = getattr(target, "shapers", ())
    language = next((s.language for s in shapers if hasattr(s, "language")), None)
    kit = Kit(
        target,
        draft,
        tuple(artefacts),
        lambda: costs or PassCosts(),
        {} if memory is None else memory,
        language=language,
    )
    return registry.build(name, kit, options)

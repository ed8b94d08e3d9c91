"""Recipes built from bare models, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from polydec.core.decoder import Decoder
from polydec.core.protocols import Target
from polydec.methods.economics.costs import PassCosts
from polydec.methods.registry import registry
from polydec.methods.registry.kit import Kit, ModelArtefact
from polydec.models.formats.images import PixelStrip


def example_strip() -> PixelStrip:
    """An image of five positions, for readers of `word_reader.examples`."""
    return PixelStrip(8, 4, bytes((37 * i) % 256 for i in range(8 * 20)))


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
    """Build a recipe's decoder from bare models.

    What shapes the target also says which texts are allowed: a constraint's language is read from
    its shapers. Recipes that read an image are given one.

    Args:
        name: Name of the recipe, such as ``eagle``.
        target: The model to decode, shaped or not.
        draft: Draft model, for recipes that need one. None: there is none.
        options: Values of the recipe's options; what is not given has its default. None: all
            defaults.
        artefacts: Trained parts that the recipe may ask for.
        costs: Measured times of passes. None: no time was measured.
        memory: State that decoders of one process share, by name. None: an empty one.

    Returns:
        The decoder, and all options of the recipe with the values they have.

    Raises:
        RequestError: The recipe is unknown, or an option has no such value.
        MissingError: Something that the recipe needs is not there.
    """
    shapers = getattr(target, "shapers", ())
    # A constraint is compiled into a shaper; a recipe that jumps over forced tokens needs its
    # language.
    language = next((s.language for s in shapers if hasattr(s, "language")), None)
    kit = Kit(
        target,
        draft,
        tuple(artefacts),
        lambda: costs or PassCosts(),
        {} if memory is None else memory,
        language=language,
        strip=example_strip(),
        shows_image=True,
    )
    return registry.build(name, kit, options)

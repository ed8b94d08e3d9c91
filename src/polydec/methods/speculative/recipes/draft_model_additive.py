"""Speculative sampling whose drafts grow and shrink."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast, InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import DRAFT, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue

CARD = Card(
    name="draft-model-additive",
    title="Speculative sampling, length by success",
    summary="The draft gets two tokens longer after it was accepted whole, one shorter after it was not.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="Leviathan et al., 2023; the heuristic schedule of Hugging Face transformers (Gante, Assisted generation, 2023)",
    reduces_to="draft-model where rise and fall are 0",
    parent="draft-model",
    home="texts in which easy and hard stretches take turns",
    needs=(DRAFT,),
    aliases=("assisted-generation-heuristic", "aimd"),
)
PUBLISHED = PublishedPreset(
    {
        "most": PublishedValue(
            64, "a draft may get as long as the answer; ours is bounded, as rows cost here"
        ),
    }
)


def build(
    kit: Kit,
    *,
    first: Annotated[int, "depth of the first draft, least to most"] = 5,
    least: Annotated[int, AtLeast(1), "shortest draft, at most most"] = 1,
    most: Annotated[int, InRange(1, 64), "longest draft"] = 16,
    rise: Annotated[int, InRange(0, 64), "tokens more after a draft that was accepted whole"] = 2,
    fall: Annotated[int, InRange(0, 64), "tokens less after any other"] = 1,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.model import ModelDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.additive import AdditivePolicy
    from polydec.methods.speculative.trees.chain import ChainTree
    from polydec.methods.speculative.verifiers.exact import ExactVerifier

    # As `draft-model`; only the length moves, with what was accepted.
    return SpeculativeDecoder(
        kit.target,
        ModelDrafter(kit.drafting, ChainTree()),
        ExactVerifier(),
        AdditivePolicy(first, least, most, rise, fall),
    )

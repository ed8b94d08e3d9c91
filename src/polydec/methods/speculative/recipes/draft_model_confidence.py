"""Speculative sampling that stops where the draft model is unsure."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import DRAFT, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue

CARD = Card(
    name="draft-model-confidence",
    title="Speculative sampling, length by confidence",
    summary="The draft stops after a token that its model held for unlikely.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="Leviathan et al., 2023; the confidence threshold of Hugging Face transformers (Assisted generation)",
    reduces_to="draft-model where threshold is 0",
    parent="draft-model",
    home="any text; most where passes over more tokens cost more, as on CPUs",
    needs=(DRAFT,),
    aliases=("assisted-generation-confidence",),
)
PUBLISHED = PublishedPreset(
    {
        "depth": PublishedValue(20, "drafts of up to 20 tokens; ours are bounded for a CPU"),
    }
)


def build(
    kit: Kit,
    *,
    threshold: Annotated[
        float, InRange(0, 1), "least probability of a token that the draft goes on after"
    ] = 0.4,
    depth: Annotated[int, InRange(0, 64), "longest draft"] = 8,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.model import ModelDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.confidence import ConfidencePolicy
    from polydec.methods.speculative.trees.chain import ChainTree
    from polydec.methods.speculative.verifiers.exact import ExactVerifier

    # As `draft-model`; only the length moves, with the draft model's own probabilities.
    return SpeculativeDecoder(
        kit.target,
        ModelDrafter(kit.drafting, ChainTree()),
        ExactVerifier(),
        ConfidencePolicy(threshold, depth),
    )

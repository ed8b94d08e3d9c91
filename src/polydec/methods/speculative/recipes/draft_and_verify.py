"""Draft & Verify: the target without some of its attentions and MLPs drafts."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import LAYERS, Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="draft-and-verify",
    title="Draft & Verify self-speculation",
    summary="The target drafts without some attentions and MLPs, and stops where it is less sure than a threshold that adapts.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="Zhang et al., Draft & verify: lossless large language model acceleration via self-speculative decoding, 2023",
    reduces_to="plain at depth 0",
    parent="plain",
    home="large models without a draft",
    needs=(LAYERS,),
    aliases=(
        "layer-skip",
        "draft & verify",
        "self-speculation",
        "self-speculative decoding by skipping",
    ),
    arxiv="2309.08168",
)
PUBLISHED = PublishedPreset(
    refused="the layers that it skips are found by Bayesian optimisation, which is not built; `skip` takes them"
)


def build(
    kit: Kit,
    *,
    skip: Annotated[
        str | None,
        "what does not draft, such as 3,5a,7m: layer 3, attention of 5, MLP of 7; none: every second layer",
    ] = None,
    depth: Annotated[int, InRange(0, 64), "longest draft"] = 12,
    threshold: Annotated[
        float, InRange(0, 1), "first threshold of a token's draft probability"
    ] = 0.8,
    rate: Annotated[float, InRange(0, 1), "acceptance rate to hold"] = 0.9,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.economics.depth import (
        kept_layers,
        parse_layer_halves,
        remaining_layer_halves,
    )
    from polydec.methods.speculative.drafters.self_speculative import SelfSpeculativeDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.threshold import ThresholdPolicy
    from polydec.methods.speculative.trees.chain import ChainTree
    from polydec.methods.speculative.verifiers.exact import ExactVerifier

    L = kit.target.layers
    # Without a search of one's own (`skip`) half of the layers draft, evenly spaced.
    run = (
        (kept_layers(L, 2.0, even=True), frozenset[int]())
        if skip is None
        else remaining_layer_halves(parse_layer_halves(skip, L), L)
    )
    # The published rule moves the stopping threshold towards an acceptance rate.
    return SpeculativeDecoder(
        kit.target,
        SelfSpeculativeDrafter(ChainTree(), *run),
        ExactVerifier(),
        ThresholdPolicy(threshold, rate, depth),
    )

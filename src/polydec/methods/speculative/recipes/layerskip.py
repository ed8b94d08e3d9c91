"""Early exit: the first layers draft."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast, InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import LAYERS, Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="layerskip",
    title="LayerSkip self-speculation",
    summary="The first layers draft through the final norm and head, and verification goes on where they stopped.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="Elhoushi et al., LayerSkip: enabling early exit inference and self-speculative decoding, 2024",
    reduces_to="plain at depth 0",
    parent="plain",
    home="models trained with an early-exit loss",
    needs=(LAYERS,),
    aliases=("early-exit", "layer skip self-speculation", "self-speculative decoding"),
    arxiv="2404.16710",
)
PUBLISHED = PublishedPreset()


def build(
    kit: Kit,
    *,
    exit: Annotated[
        int | None, AtLeast(1), "layers that draft, at most the model's; none: a quarter of them"
    ] = None,
    depth: Annotated[int, InRange(0, 64), "tokens of a draft"] = 6,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.economics.depth import first_layers
    from polydec.methods.speculative.drafters.self_speculative import SelfSpeculativeDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.trees.chain import ChainTree
    from polydec.methods.speculative.verifiers.exact import ExactVerifier

    # The exit's layers are not computed again by the verification, which goes on from their states.
    return SpeculativeDecoder(
        kit.target,
        SelfSpeculativeDrafter(ChainTree(), first_layers(exit, kit.target.layers)),
        ExactVerifier(),
        FixedPolicy(depth),
    )

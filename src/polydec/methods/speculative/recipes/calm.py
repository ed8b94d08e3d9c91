"""Confidence exit: each token leaves at the first depth that is sure of it."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import LAYERS, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue

CARD = Card(
    name="calm",
    title="Confident adaptive language modeling (early exit)",
    summary="Each token leaves the network at the first exit whose best two tokens lie far enough apart.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.APPROXIMATE,
    source="Schuster et al., Confident adaptive language modeling, 2022",
    reduces_to="plain at threshold above 1.2",
    parent="plain",
    home="models trained with an early-exit loss, where a near text is good enough",
    needs=(LAYERS,),
    aliases=("confidence-exit", "confident adaptive language modeling"),
    arxiv="2207.07061",
    unexercised=dict.fromkeys(
        ("drafted", "accepted", "rejected"), "the layers that a token leaves out draft nothing"
    ),
)
PUBLISHED = PublishedPreset(
    {
        "every": PublishedValue(
            1,
            "an exit after every layer of the decoder; ours skips every second one, as each exit "
            "costs a head",
        ),
        "decay": PublishedValue(
            4.0, "the threshold falls along the text, with exp(-4 t / N); ours stays"
        ),
    },
    unknown="its threshold is calibrated on held-out texts for a loss that is allowed, and is yours "
    "to set",
)


def build(
    kit: Kit,
    *,
    threshold: Annotated[float, AtLeast(0), "least gap between the two likeliest tokens"] = 0.9,
    every: Annotated[int, AtLeast(1), "an exit after every so many layers"] = 2,
    decay: Annotated[
        float | None, AtLeast(0), "how fast the threshold falls along the text"
    ] = None,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.laws.targets.confident import EarlyExitTarget
    from polydec.methods.economics.depth import exits_every
    from polydec.methods.speculative.drafters.nothing import NothingDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.verifiers.match import MatchVerifier

    # Exits change the law itself, so the decoder drafts nothing and verifies nothing: it samples
    # plainly from a law that is approximate.
    law = EarlyExitTarget(kit.target, exits_every(every, kit.target.layers), threshold, decay)
    return SpeculativeDecoder(
        law, NothingDrafter(), MatchVerifier(), FixedPolicy(0), Exactness.APPROXIMATE
    )

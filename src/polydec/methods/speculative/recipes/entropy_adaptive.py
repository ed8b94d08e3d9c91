"""Entropy Adaptive Decoding."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import DRAFT, Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="entropy-adaptive",
    title="Entropy Adaptive Decoding",
    summary="The small model writes, and hands over to the large one while its predictions are uncertain.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.APPROXIMATE,
    source="Entropy Adaptive Decoding: Dynamic Model Switching for Efficient Inference, 2025 (published: window 5)",
    reduces_to="plain, of the target at tau below 0, of the draft at tau none",
    parent="plain",
    home="a small model that is nearly as good, where a text near the large model's is good enough",
    needs=(DRAFT,),
    aliases=("entropy-adaptive-decoding", "ead-switch"),
    arxiv="2502.06833",
    published="50.4 % right on MATH where the large model has 52.1 %, with that model on 43 % of the tokens "
    "(Llama, up to 11B); 74.3 % of 80.0 % with 25 % (Qwen, up to 14B)",
    unexercised=dict.fromkeys(
        ("drafted", "accepted", "rejected"),
        "each token is written by one of the two models, unverified",
    ),
)
PUBLISHED = PublishedPreset(
    unknown="its threshold is swept, and its least distance between two switches could not be read: tau and hold stay ours"
)


def build(
    kit: Kit,
    *,
    tau: Annotated[
        float | None, "bits of mean entropy above which the target takes over, none: never"
    ] = 1.0,
    tau_down: Annotated[float | None, "bits at or below which the draft does, none: tau"] = None,
    window: Annotated[int, InRange(1, 256), "tokens of the mean"] = 5,
    hold: Annotated[int, InRange(1, 4096), "least tokens between two switches"] = 10,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.laws.targets.switch import EntropySwitchRule, SwitchTarget
    from polydec.methods.speculative.drafters.nothing import NothingDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.verifiers.match import MatchVerifier

    # The switch changes the law itself: where it trusts the small model, that one writes. So
    # nothing is drafted or verified.
    law = SwitchTarget(kit.drafting, kit.target, EntropySwitchRule(tau, tau_down, window, hold))
    return SpeculativeDecoder(
        law, NothingDrafter(), MatchVerifier(), FixedPolicy(0), Exactness.APPROXIMATE
    )

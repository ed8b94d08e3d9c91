"""S2D: one nested draft, left at the exit that is sure."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast, InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import DRAFT, DRAFT_LAYERS, Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="s2d",
    title="Sorted speculative decoding",
    summary="A draft model trained at three depths; each token leaves it at the first one that is sure enough.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="Kavehzadeh et al., S2D: sorted speculative decoding for more efficient deployment of nested large language "
    "models, 2024",
    reduces_to="draft-model at tau_1 and tau_2 above 1 and stop 0; a draft of half the layers at tau_1 0",
    parent="draft-model",
    home="one draft for several targets",
    needs=(DRAFT, DRAFT_LAYERS),
    aliases=("sorted speculative decoding",),
    arxiv="2407.01955",
    published="about 1.55 times plain decoding on average over targets of 7B to 70B (Spec-Bench)",
)
PUBLISHED = PublishedPreset(refused="its thresholds could not be read")


def build(
    kit: Kit,
    *,
    tau_1: Annotated[
        float, AtLeast(0), "probability from which half the draft's layers suffice (above 1: never)"
    ] = 0.9,
    tau_2: Annotated[float, AtLeast(0), "the same of three quarters"] = 0.8,
    stop: Annotated[float, InRange(0, 1), "drafting ends below this probability"] = 0.3,
    depth: Annotated[int, InRange(0, 64), "longest draft"] = 5,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.sorted_exits import SortedExitsDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.verifiers.exact import ExactVerifier

    # Exits after a half, three quarters and all of the draft's layers.
    last = kit.drafting.layers
    drafter = SortedExitsDrafter.of_exits(
        kit.drafting, (last // 2, 3 * last // 4, last), stop, tau_1=tau_1, tau_2=tau_2
    )
    return SpeculativeDecoder(kit.target, drafter, ExactVerifier(), FixedPolicy(depth))

"""Lexical unit decoding, verified: the pass that follows anyway checks each span."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast, InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import ArtefactNeed, Kit
from polydec.methods.registry.published_presets import PublishedPreset

NEED = ArtefactNeed("probes", "prompt tokens (lud or ppd)", lambda probes: probes.maps is None)
CARD = Card(
    name="lexical-unit-decoding-verified",
    title="Lexical unit decoding, verified",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    summary="As lexical-unit-decoding, and the pass that feeds a span checks it.",
    source="Sun et al., Decoding at the speed of thought: harnessing parallel decoding of lexical units for LLMs, 2024",
    reduces_to="plain at a confidence above 1",
    parent="plain",
    home="text of fixed phrases",
    needs=(NEED,),
    needs_training=True,
    aliases=("lud-verified",),
)
PUBLISHED = PublishedPreset(refused="the paper verifies nothing: that is ours")


def build(
    kit: Kit,
    *,
    confidence: Annotated[float, AtLeast(0), "probability that each guessed token needs"] = 0.9,
    rows: Annotated[int, InRange(1, 256), "tokens and pads fed beside the last token"] = 8,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.probes import ProbesDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.trees.sure_prefix import SurePrefixTree
    from polydec.methods.speculative.verifiers.match import MatchVerifier
    from polydec.models.learned.kinds.probes import SoftProbes

    probes = kit.needed_artefact(SoftProbes, NEED.which)
    drafter = ProbesDrafter(probes, SurePrefixTree(confidence, repeats=False), rows)
    # The pass that feeds a span scores it anyway, so verifying it costs nothing.
    return SpeculativeDecoder(
        kit.target, drafter, MatchVerifier(), FixedPolicy(2 * len(probes), rows)
    )

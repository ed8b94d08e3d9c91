"""Lexical unit decoding, verified: spans that the model is sure of are checked in the pass that follows anyway."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast, Within
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit, Trained

NEED = Trained("probes", "prompt tokens (lud or ppd)", lambda probes: probes.maps is None)
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


def build(
    kit: Kit,
    *,
    confidence: Annotated[float, AtLeast(0), "probability that each guessed token needs"] = 0.9,
    rows: Annotated[int, Within(1, 256), "tokens and pads fed beside the last token"] = 8,
) -> Decoder:
    from polydec.methods.speculative.drafters.probes import FromProbes
    from polydec.methods.speculative.loop.speculative import Speculative
    from polydec.methods.speculative.policies.fixed import Fixed
    from polydec.methods.speculative.trees.sure_prefix import SurePrefix
    from polydec.methods.speculative.verifiers.match import Match
    from polydec.models.learned.kinds.probes import Probes

    probes = kit.need(Probes, NEED.which)
    drafter = FromProbes(probes, SurePrefix(confidence, repeats=False), rows)
    return Speculative(kit.target, drafter, Match(), Fixed(2 * len(probes), rows))

"""CopySpec without a draft model."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue
from polydec.methods.speculative.loop.with_source import with_source_text
from polydec.methods.speculative.recipes._options import CostAwareFormerlyThrift

CARD = Card(
    name="copyspec",
    title="CopySpec",
    summary="Copies the block that followed the last few tokens when they stood in the conversation before.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="Dumitru et al., CopySpec: accelerating LLMs with speculative copy-and-paste without compromising quality, 2025",
    reduces_to="plain with block 0; prompt-lookup with one length of match, without loop",
    parent="plain",
    home="later turns of a chat that repeat what was said",
    arxiv="2502.08923",
    published="up to 2.35 times plain decoding on CNN/DM, 3.08 times on the second turn of some categories "
    "of MT-Redundant, 2.66 times on the third turn of GSM8K self-correction",
)
PUBLISHED = PublishedPreset(
    {
        "cost_aware": PublishedValue(
            False,
            "the whole draft is verified; ours leaves out what rows cost more than they bring here",
        ),
    }
)


def build(
    kit: Kit,
    *,
    gamma: Annotated[
        int | None, InRange(1, 16), "tokens that must match; none: 3 (adapt tries 2 to 5 instead)"
    ] = None,
    block: Annotated[int, InRange(0, 64), "tokens copied"] = 10,
    first: Annotated[bool, "copy from the earliest occurrence instead of the latest"] = True,
    adapt: Annotated[bool, "choose the lengths of match and copy by what was right so far"] = False,
    cost: Annotated[
        float | None,
        InRange(0, 1),
        "of adapt, the price of a drafted token beside that of a pass; none: 0.1",
    ] = None,
    cost_aware: CostAwareFormerlyThrift = True,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.copying import CopySpecDrafter
    from polydec.methods.speculative.drafters.cost_aware import CostAwareDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.verifiers.match import MatchVerifier

    drafter = with_source_text(CopySpecDrafter(gamma, block, first, adapt, cost), kit.source)
    # Copies are certain, so the target's own draws decide.
    return SpeculativeDecoder(
        kit.target,
        CostAwareDrafter(drafter, None, kit.costs) if cost_aware else drafter,
        MatchVerifier(),
        FixedPolicy(block),
    )

"""EasySpec: layers of the draft model run in parallel while it drafts."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import DRAFT, DRAFT_LAYERS, Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="easyspec",
    title="EasySpec",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    summary="Neighbouring attentions of the draft model read the same input, as if several devices ran them at once.",
    source="Wu et al., EasySpec: Layer-parallel speculative decoding for efficient multi-GPU utilization, 2025",
    reduces_to="draft-model at together 1",
    parent="draft-model",
    home="a draft of many layers, and idle devices beside it (none here: it shows what is accepted)",
    needs=(DRAFT, DRAFT_LAYERS),
    aliases=("layer-parallel drafting",),
    published="up to 4.17 times plain decoding (Llama-3-70B-Instruct and others with drafts of their "
    "families, eight A100)",
)
PUBLISHED = PublishedPreset()


def build(
    kit: Kit,
    *,
    depth: Annotated[int, InRange(0, 64), "tokens drafted a pass"] = 4,
    together: Annotated[int, InRange(1, 64), "attentions that read the same input"] = 4,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.grouped import GroupedDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.trees.chain import ChainTree
    from polydec.methods.speculative.verifiers.exact import ExactVerifier

    # Groups of layers change what is drafted, not what is written: nodes carry the row that they
    # were drawn from.
    return SpeculativeDecoder(
        kit.target,
        GroupedDrafter(kit.drafting, ChainTree(), together),
        ExactVerifier(),
        FixedPolicy(depth),
    )

"""Token Recycling."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue
from polydec.methods.speculative.recipes._options import (
    CandidateCount,
    CostAwareFormerlyThrift,
)

CARD = Card(
    name="token-recycling",
    title="Token Recycling",
    summary="Remembers what the model found likely after each token and unfolds these notes into a draft tree.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="Luo et al., Turning trash into treasure: accelerating inference of LLMs with Token Recycling, 2024",
    reduces_to="plain while its table is empty",
    parent="plain",
    home="free text and code; it beats prompt lookup where nothing can be copied",
    aliases=("turning trash into treasure",),
    arxiv="2408.08696",
    published="2.09 times plain decoding (Vicuna-7B); on Spec-Bench 2.22 times, 2.73 tokens a pass "
    "(Vicuna-7B, one A100), 1.40 times on an RTX 3090",
)
PUBLISHED = PublishedPreset(
    {
        "nodes": PublishedValue(
            80, "a tree of 80 nodes for one GPU; ours is as wide as pays on a CPU"
        ),
        "hot": PublishedValue(
            True,
            "the table goes over from request to request; ours begins anew, so that no request shows another",
        ),
        "cost_aware": PublishedValue(
            False,
            "the whole draft is verified; ours leaves out what rows cost more than they bring here",
        ),
    },
    unknown="which places the 80 nodes have could not be read: they are chosen by rates",
)


def build(
    kit: Kit,
    *,
    k: CandidateCount = 8,
    nodes: Annotated[
        int | None, InRange(1, 256), "tokens of a draft tree; none: 7, or as shape says"
    ] = None,
    depth: Annotated[int, InRange(0, 64), "its levels"] = 8,
    recycle_prefill: Annotated[
        bool, "learn from the prompt's rows too (they are computed for it)"
    ] = False,
    shape: Annotated[
        tuple[int, ...] | None,
        InRange(0, 64),
        "child counts of the nodes, breadth first, such as 3,2,1; none: by rates",
    ] = None,
    hot: Annotated[
        bool,
        "keep the table for later requests of the engine: drafts then show what other requests wrote",
    ] = False,
    cost_aware: CostAwareFormerlyThrift = True,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.cost_aware import CostAwareDrafter
    from polydec.methods.speculative.drafters.recycling import RecyclingDrafter, RecyclingTable
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.verifiers.match import MatchVerifier

    # Writing the prompt's rows needs a pass over all of it.
    kit.read_prompt(CARD.name, recycle_prefill, "set recycle_prefill=false")
    # A hot table lives in the kit's memory, which later requests of the same engine share.
    drafter = RecyclingDrafter(
        k,
        nodes,
        recycle_prefill,
        memory=kit.memory.setdefault("memory", RecyclingTable()) if hot else None,
        shape=shape or (),
    )
    return SpeculativeDecoder(
        kit.target,
        CostAwareDrafter(drafter, None, kit.costs) if cost_aware else drafter,
        MatchVerifier(),
        FixedPolicy(depth, len(drafter.template)),
    )

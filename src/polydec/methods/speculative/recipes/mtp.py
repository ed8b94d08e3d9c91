"""MTP: masks with gated low-rank matrices make the target itself guess ahead."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import ArtefactNeed, Kit
from polydec.methods.registry.published_presets import PublishedPreset
from polydec.methods.speculative.recipes._options import CostAware

CARD = Card(
    name="mtp",
    title="MTP with gated LoRA",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    summary="Masks behind every drafted token run with matrices of their own in the target's pass; a small sampler reads them.",
    source="Samragh et al., Your LLM knows the future: Uncovering its multi-token prediction potential, 2025",
    reduces_to="plain at depth 0",
    parent="ppd",
    home="rows that cost little (a draft of k tokens takes k * k rows), and the torch path",
    needs=(ArtefactNeed("mtp"),),
    needs_training=True,
    aliases=("gated lora", "quadratic decoding"),
    arxiv="2507.11851",
    published="3.17 tokens a pass on average; 5.22 on GSM8K and 5.35 on HumanEval with eight masks "
    "(Tulu3-8B)",
)
PUBLISHED = PublishedPreset()


def build(
    kit: Kit,
    *,
    depth: Annotated[int, InRange(0, 16), "tokens drafted a pass, as far as there are masks"] = 8,
    quadratic: Annotated[
        bool, "masks behind every drafted token (false: behind the last one)"
    ] = True,
    sampler: Annotated[bool, "a guess depends on the token before it"] = True,
    cost_aware: CostAware = False,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.mtp import MtpDrafter
    from polydec.methods.speculative.drafters.trained_tree import cost_aware_proposal
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.trees.chain import ChainTree
    from polydec.methods.speculative.verifiers.exact import ExactVerifier
    from polydec.models.learned.kinds.mtp import MtpModel

    mtp = kit.needed_artefact(MtpModel)
    drafter = MtpDrafter(mtp, ChainTree(), quadratic, sampler)
    # Off by default: its tokens are drawn, so a seed's text hangs on what was drafted, and what pays
    # hangs on who shares the pass.
    drafter = cost_aware_proposal(drafter, mtp, kit.costs) if cost_aware else drafter
    # No more tokens than masks can be drafted: each mask gives one level.
    drafted = min(depth, len(mtp))
    # Rows of a pass: a block of masks after the root and every drafted token, or after the last one
    # alone.
    rows = (drafted + 1) * (len(mtp) + 1) - 1 if quadratic else drafted + len(mtp)
    return SpeculativeDecoder(
        kit.target,
        drafter,
        ExactVerifier(),
        FixedPolicy(drafted + len(mtp) if drafted else 0, rows if drafted else 0),
    )

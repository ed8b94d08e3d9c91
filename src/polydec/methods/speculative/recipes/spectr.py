"""Several independent sequences, verified by optimal transport."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import DRAFT, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue

CARD = Card(
    name="spectr",
    title="SpecTr",
    summary="Several sequences are drawn independently, and those still there are tried at each node with one threshold.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="Sun et al., SpecTr: fast speculative decoding via optimal transport, 2023",
    reduces_to="draft-model where count is 1",
    parent="draft-model",
    home="sampling at high temperature, where passes over several tokens cost little more than one",
    needs=(DRAFT,),
    aliases=("k-seq",),
    arxiv="2310.15141",
    published="2.13 times plain decoding, 4.0 tokens a pass, with eight drafts of eight tokens; one draft: "
    "1.56 times (PaLM-2 Gecko for Bison, LM1B)",
)
PUBLISHED = PublishedPreset(
    {
        "count": PublishedValue(8, "8 sequences; on a CPU their rows cost too much"),
        "depth": PublishedValue(4, "sequences of 4 tokens, or 8"),
    }
)


def build(
    kit: Kit,
    *,
    count: Annotated[int, InRange(1, 64), "sequences drawn"] = 2,
    depth: Annotated[int, InRange(0, 64), "tokens of a sequence"] = 3,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.model import ModelDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.trees.sequences import SequencesTree
    from polydec.methods.speculative.verifiers.k_seq import KSeqVerifier

    # k-SEQ needs independent siblings of one law, which the sequences give.
    return SpeculativeDecoder(
        kit.target,
        ModelDrafter(kit.drafting, SequencesTree(count)),
        KSeqVerifier(),
        FixedPolicy(depth, min(count * depth, 1024)),
    )

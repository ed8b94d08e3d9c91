"""Prompt lookup decoding."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast, InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue
from polydec.methods.speculative.loop.with_source import with_source_text
from polydec.methods.speculative.recipes._options import CostAwareFormerlyThrift

CARD = Card(
    name="prompt-lookup",
    title="Prompt lookup decoding",
    summary="Finds the last few tokens earlier in the text and proposes what followed them there.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="Saxena, Prompt lookup decoding, 2023",
    reduces_to="plain where no n-gram of the text comes back",
    parent="plain",
    home="text that copies from its prompt: edits, summaries, code",
    aliases=("pld", "ngram", "prompt-lookup-decoding"),
    published="2 to 4 times plain decoding where answers repeat their prompt; by others on Spec-Bench 1.66 "
    "times, 1.75 tokens a pass, summaries 2.66 times (Vicuna-7B, one A100)",
)
PUBLISHED = PublishedPreset(
    {
        "max_ngram": PublishedValue(
            3, "runs of 3 tokens at most; ours looks for longer ones first"
        ),
        "growth": PublishedValue(
            0, "always 10 tokens are copied; ours copies as many as the match lets hope for"
        ),
        "loop": PublishedValue(False, "a copy ends with the text; ours goes on from its start"),
        "first": PublishedValue(True, "the earliest occurrence; ours takes the latest"),
        "cost_aware": PublishedValue(
            False,
            "the whole draft is verified; ours leaves out what rows cost more than they bring here",
        ),
    }
)


def build(
    kit: Kit,
    *,
    max_ngram: Annotated[int, InRange(1, 16), "longest run of tokens that is looked up"] = 8,
    min_ngram: Annotated[
        int, AtLeast(1), "shortest run of tokens that is looked up, at most max_ngram"
    ] = 1,
    depth: Annotated[int, InRange(0, 64), "most tokens a draft may hold"] = 10,
    growth: Annotated[
        int,
        InRange(0, 16),
        "tokens copied for each token that matched (0: always depth, as published)",
    ] = 2,
    loop: Annotated[
        bool, "a copy that reaches the end of the text goes on from its own start"
    ] = True,
    first: Annotated[bool, "copy from the earliest occurrence instead of the latest"] = False,
    cost_aware: CostAwareFormerlyThrift = True,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.cost_aware import CostAwareDrafter
    from polydec.methods.speculative.drafters.lookup import LookupDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.verifiers.match import MatchVerifier

    drafter = with_source_text(LookupDrafter(max_ngram, min_ngram, first, loop, growth), kit.source)
    # Copies are certain, so the target's own draws decide.
    return SpeculativeDecoder(
        kit.target,
        CostAwareDrafter(drafter, None, kit.costs) if cost_aware else drafter,
        MatchVerifier(),
        FixedPolicy(depth),
    )

"""ADED (Adaptix)."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtMost, GreaterThan, InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue
from polydec.methods.speculative.recipes._options import CostAwareFormerlyThrift

CARD = Card(
    name="aded",
    title="ADED (Adaptix)",
    summary="Searches a trigram table that follows the output, and drafts the most visited short sequences as a tree.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="ADED: Adaptive draft-verification for efficient large language model decoding, 2024",
    reduces_to="plain where no pair of tokens comes back",
    parent="plain",
    home="text of a narrow kind, with a table of its like (corpus=true)",
    aliases=("adaptix", "adaptive draft-verification"),
    arxiv="2407.12021",
    published="up to 2.5 times faster; 1.9 times with a corpus of 253 MB",
)
PUBLISHED = PublishedPreset(
    {
        "nodes": PublishedValue(64, "64 nodes for a GPU; 8 on a CPU"),
        "iterations": PublishedValue(150, "150 searches a pass; ours makes 32, which cost less"),
        "window": PublishedValue(
            16, "trigrams of the last 16 tokens gain at each pass; ours gain once"
        ),
        "longest_first": PublishedValue(
            True, "the longest sequences go first where nodes are short; ours keeps the likeliest"
        ),
        "corpus": PublishedValue(
            True,
            "the table begins with a corpus, so a model's n-gram table is needed; ours begins empty",
        ),
        "cost_aware": PublishedValue(
            False,
            "the whole draft is verified; ours leaves out what rows cost more than they bring here",
        ),
    }
)


def build(
    kit: Kit,
    *,
    nodes: Annotated[int, InRange(0, 1024), "most tokens of a draft tree"] = 8,
    iterations: Annotated[
        int,
        InRange(0, 1024),
        "searches a pass (0: the likeliest sequences, best first; published: 150)",
    ] = 32,
    length: Annotated[int, InRange(1, 16), "tokens of a search"] = 3,
    rate: Annotated[
        float, InRange(0, 1), "what a trigram of the output gains (0: no adaptation)"
    ] = 0.04,
    window: Annotated[
        int,
        InRange(0, 1024),
        "how far back trigrams gain at each pass (0: new ones once, else at least 3; published: 16)",
    ] = 0,
    decay: Annotated[
        float, GreaterThan(0), AtMost(1), "what other followers of the pair keep of their weight"
    ] = 1.0,
    longest_first: Annotated[
        bool, "leave out the longest sequences where nodes are short, as published"
    ] = False,
    corpus: Annotated[
        bool,
        "begin with the model's n-gram table, of contexts of two tokens or more (--ngrams DIR; as published: true)",
    ] = False,
    cost_aware: CostAwareFormerlyThrift = True,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.cost_aware import CostAwareDrafter
    from polydec.methods.speculative.drafters.trigram import (
        NgramTableFollowers,
        TrigramDrafter,
        TrigramWeights,
    )
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.verifiers.match import MatchVerifier
    from polydec.models.learned.kinds.ngrams import NGrams

    # Without a corpus the search begins with the prompt's own trigrams alone.
    drafter = TrigramDrafter(
        iterations,
        length,
        rate=rate,
        window=window,
        decay=decay,
        longest_first=longest_first,
        table=NgramTableFollowers(kit.needed_artefact(NGrams, lambda table: table.order >= 2))
        if corpus
        else TrigramWeights(),
    )
    # The depth is bounded by the length of a search, the tree by `nodes`.
    return SpeculativeDecoder(
        kit.target,
        CostAwareDrafter(drafter, None, kit.costs) if cost_aware else drafter,
        MatchVerifier(),
        FixedPolicy(64, nodes),
    )

"""STAND."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast, InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue

CARD = Card(
    name="stand",
    title="STAND: stochastic adaptive n-gram drafting",
    summary="Averages the model's rows after each n-gram and draws a token tree from these averages, without replacement.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="Accelerated test-time scaling with model-free speculative sampling (STAND), 2025",
    reduces_to="plain while no n-gram comes back",
    parent="token-recycling",
    home="several sampled answers to one question that share their rows (shared=true)",
    arxiv="2506.04708",
    published="60 to 65 % lower latency than plain decoding with several texts at once, 48 to 58 % with one "
    "(AIME-2024, GPQA-Diamond, LiveCodeBench)",
)
PUBLISHED = PublishedPreset(
    {
        "counted": PublishedValue(
            80,
            "the best 80 places of a tree of 625, counted on 30 problems; ours is set by hand, as small as pays on a CPU",
        ),
        "shortest": PublishedValue(
            2, "it backs off to two tokens; ours goes down to one, which finds more here"
        ),
        "shared": PublishedValue(
            True, "the answers to one question share their rows; ours are apart, so a seed says all"
        ),
    },
    unknown="how drawn siblings are verified and the shape of the 625 could not be read: ours are the exact rule and "
    "low ranks",
)


def build(
    kit: Kit,
    *,
    shape: Annotated[
        tuple[int, ...] | None,
        InRange(0, 64),
        "child counts of the tree's nodes, breadth first, such as 3,2,1; none: as counted, else 3,2,1,1,1,1,0,1",
    ] = None,
    counted: Annotated[
        int | None,
        InRange(1, 1024),
        "nodes of the tree: so many of the places that were accepted most often, as `polydec train draft-tree` "
        "counted them (--with DIR; without one those of zoo:smollm2, 80 at most); none: 80 with such a DIR",
    ] = None,
    longest: Annotated[int, InRange(1, 16), "longest n-gram that is looked up"] = 4,
    shortest: Annotated[
        int, AtLeast(1), "shortest n-gram that is looked up, at most longest (published: 2)"
    ] = 1,
    keep: Annotated[int, InRange(1, 64), "tokens kept of an averaged row"] = 10,
    draws: Annotated[bool, "draw the tree, else take the likeliest tokens"] = True,
    shared: Annotated[
        bool,
        "the request's choices share their rows, as published: a seed's text, not its law, then depends on their pace",
    ] = False,
    hot: Annotated[
        bool,
        "keep the rows for later requests of the engine: a seed's text, not its law, then depends on these",
    ] = False,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters._tree_shapes import chosen_tree_shape
    from polydec.methods.speculative.drafters.ngram_rows import NgramRowsDrafter, NgramRowStore
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.verifiers.exact import ExactVerifier
    from polydec.models.learned.kinds.draft_tree import DraftTreeCounts

    counts = kit.find_artefact(DraftTreeCounts)
    accepted = None if counts is None else counts.accepted
    # A hot store lives in the kit's memory, which later requests of the same engine share.
    drafter = NgramRowsDrafter(
        chosen_tree_shape(shape, counted, accepted),
        longest,
        shortest,
        keep,
        draws,
        store=kit.memory.setdefault("rows", NgramRowStore()) if hot else None,
        shared=shared,
    )
    return SpeculativeDecoder(kit.target, drafter, ExactVerifier(), FixedPolicy(64, 1024))

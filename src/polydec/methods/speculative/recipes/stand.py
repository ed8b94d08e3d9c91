"""STAND."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast, InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset

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
    refused="its tree of 80 nodes is made from data, which no command here does yet"
)


def build(
    kit: Kit,
    *,
    shape: Annotated[
        tuple[int, ...],
        InRange(0, 64),
        "child counts of the tree's nodes, breadth first, such as 3,2,1",
    ] = (3, 2, 1, 1, 1, 1, 0, 1),
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
    from polydec.methods.speculative.drafters.ngram_rows import NgramRowsDrafter, NgramRowStore
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.verifiers.exact import ExactVerifier

    # A hot store lives in the kit's memory, which later requests of the same engine share.
    drafter = NgramRowsDrafter(
        shape,
        longest,
        shortest,
        keep,
        draws,
        store=kit.memory.setdefault("rows", NgramRowStore()) if hot else None,
        shared=shared,
    )
    return SpeculativeDecoder(kit.target, drafter, ExactVerifier(), FixedPolicy(64, 256))

"""Input-guided aggressive decoding."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange, ValueNote
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue
from polydec.methods.speculative.loop.with_source import with_source_text
from polydec.methods.speculative.recipes._options import CostAwareFormerlyThrift

CARD = Card(
    name="aggressive-decoding",
    title="Input-guided aggressive decoding",
    summary="Copies the prompt's text on and on, and finds its place again after each departure from it.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="Ge, Xia, Sun, Chen, Wei, Lossless acceleration for seq2seq generation with aggressive decoding, 2022 "
    "(input-guided; the generalised form needs an encoder-decoder)",
    reduces_to="plain where the output shares no token with the source",
    parent="plain",
    home="grammar correction and code edits",
    aliases=("input-guided aggressive decoding",),
    arxiv="2205.10350",
    published="7 to 9 times on grammatical error correction and simplification, over a Transformer-big with "
    "beam 5",
)
PUBLISHED = PublishedPreset(
    {
        "near": PublishedValue(False, "it goes on where the last tokens stand once in the source"),
        "eager": PublishedValue(True, "the whole source is the first draft"),
        "block": PublishedValue(
            1024,
            "all that is left of the source is drafted, here at most so much; ours is for a CPU",
        ),
        "cost_aware": PublishedValue(
            False, "every draft is checked whole; ours leaves out what does not pay here"
        ),
    }
)


def build(
    kit: Kit,
    *,
    start: Annotated[
        int, "where the source begins in the prompt, in tokens (negative: from its end)"
    ] = 0,
    stop: Annotated[
        int | None, "where it ends (negative: from the prompt's end), none: with the prompt"
    ] = None,
    near: Annotated[
        bool,
        "after a departure, look near the place that was left (ours), else for what is unambiguous (as published)",
    ] = True,
    eager: Annotated[
        bool,
        "begin with the source's first token: for a span that is just the text to be rewritten",
    ] = False,
    block: Annotated[
        int,
        InRange(1, 1024),
        ValueNote("published: all of the rest, as many as the source has"),
        "most tokens of a copy",
    ] = 10,
    cost_aware: CostAwareFormerlyThrift = True,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.cost_aware import CostAwareDrafter
    from polydec.methods.speculative.drafters.input_guided import InputGuidedDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.verifiers.match import MatchVerifier

    # A separate source (an encoder's input) stands before the prompt for the drafter: all of it is
    # the text to copy, and `start` and `stop` count from its beginning.
    end = len(kit.source) if stop is None and kit.source else stop
    drafter = with_source_text(InputGuidedDrafter(start, end, near, eager, block), kit.source)
    return SpeculativeDecoder(
        kit.target,
        CostAwareDrafter(drafter, None, kit.costs) if cost_aware else drafter,
        MatchVerifier(),
        FixedPolicy(block),
    )

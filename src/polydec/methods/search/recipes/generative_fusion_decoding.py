"""Generative fusion decoding."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from polydec.base.options import AtLeast, InRange, ValueNote
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import ANY_DRAFT, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue

CARD = Card(
    name="generative-fusion-decoding",
    title="Generative fusion decoding",
    summary="Beam search of a recogniser that also weighs what a language model of any tokenizer says of the bytes written.",
    kind="search",
    family="ar",
    guarantee=Exactness.APPROXIMATE,
    source="Hsu et al., Let's fuse step by step: a generative fusion decoding algorithm with LLMs for multi-modal text "
    "recognition, 2024",
    reduces_to="greedy decoding at width 1, beam search that ends where the likeliest token ends at share 0",
    parent="beam",
    home="a recogniser or translator that hears letters, and a --draft that knows the language, of any tokenizer",
    needs=(ANY_DRAFT,),
    aliases=("gfd", "generative fusion", "shallow-fusion-search"),
    arxiv="2405.14259",
)
PUBLISHED = PublishedPreset(
    {
        "heat": PublishedValue(1.7, "the language model's law is read at 1.7; ours as it is"),
        "own": PublishedValue(
            True, "its sum is over beginnings of the own spelling; ours follows other spellings too"
        ),
        "apart": PublishedValue(20, "the search ends there; ours goes on until all have ended"),
    },
    unknown="a repetition penalty of 2 is an option there as well (penalty=2)",
)


WINDOW = 50
"""Last tokens that the repetition penalty counts."""


def build(
    kit: Kit,
    *,
    width: Annotated[int, InRange(1, 64), "texts that are followed at once"] = 5,
    share: Annotated[
        float, InRange(0, 1), ValueNote("0: the language model is not asked"), "what --draft counts"
    ] = 0.2,
    lagging: Annotated[
        bool, "the verdict is that of a text without its newest token, as published"
    ] = True,
    mean: Annotated[bool, "scores are those of a token, as published; false: of the text"] = True,
    heat: Annotated[
        float,
        InRange(1e-5, 1e6),
        ValueNote("published: 1.7"),
        "temperature of the language model's law",
    ] = 1.0,
    covers: Annotated[
        int,
        InRange(0, 64),
        ValueNote("0: those alone that the tokenizer writes"),
        "sequences of tokens that are followed for the same bytes",
    ] = 2,
    own: Annotated[
        bool,
        "a text's probability is added up over beginnings of the tokenizer's own spelling, as published",
    ] = False,
    penalty: Annotated[
        float,
        InRange(0.001, 1000),
        ValueNote("1: none; published: 2"),
        "repetition penalty of the language model, over the last 50 tokens",
    ] = 1.0,
    apart: Annotated[
        int,
        AtLeast(0),
        ValueNote("0: never; published: 20"),
        "tokens that a text may be longer than one that has ended, else the search ends",
    ] = 0,
    before: Annotated[
        str, ValueNote("none: nothing"), "text that the language model reads first, such as names"
    ] = "",
) -> Decoder:
    from polydec.laws.shapers.repetition import RepetitionPenaltyRule
    from polydec.laws.shapers.temperature import TemperatureRule
    from polydec.laws.targets.read_as_bytes import EMPTY, read_as_bytes
    from polydec.laws.targets.search_target import drop_greedy_rule
    from polydec.laws.targets.shaped import ShapedTarget
    from polydec.methods.search.loop.fused_beam import FusedBeamSearch, FusionReader
    from polydec.models.text.byte_text import lead_of

    # The language model is read over bytes, so that its tokenizer need not be the recogniser's.
    law = drop_greedy_rule(kit.drafting)
    # The penalty is defined on logits, so it comes before the temperature.
    spoken = law if penalty == 1.0 else ShapedTarget(law, RepetitionPenaltyRule(penalty, WINDOW))
    heated = spoken if heat == 1.0 else ShapedTarget(spoken, TemperatureRule(heat))
    read = replace(read_as_bytes(heated, covers, "the draft"), own_prefixes=own)
    target = drop_greedy_rule(kit.target)
    words = target.vocab.words
    # A space that the recogniser's tokenizer writes before every text is no part of what is read.
    lead = b"" if words is None else lead_of(words)
    # What the context leaves after the tokens that begin a text.
    most = (read.context or 1 << 20) - len(read.start) - len(read.lead)
    reader = FusionReader(read, EMPTY, lead, before, most)
    return FusedBeamSearch(target, reader, width, share, lagging, mean, apart)

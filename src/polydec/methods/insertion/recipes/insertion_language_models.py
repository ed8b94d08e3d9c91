"""Insertion language models: a token at a time, anywhere, until nothing is missing."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast, InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue

CARD = Card(
    name="insertion-language-models",
    title="Insertion language models (ILM)",
    aliases=("ilm", "insertion"),
    summary="Puts a token where the model finds one missing, anywhere in the answer, until it finds nothing missing.",
    kind="insertion",
    family="insertion",
    guarantee=Exactness.APPROXIMATE,
    source="Insertion language models: sequence generation with arbitrary-position insertions, 2025",
    reduces_to="plain, in law, for a model whose only slot is the last one (draw=true)",
    parent="plain",
    home="answers and gaps of unknown length whose tokens depend on each other",
    needs_training=True,
)
PUBLISHED = PublishedPreset(
    {
        "least": PublishedValue(
            0.9, "of text; 0.8 of gaps, and 0.5, which is ours, of paths in graphs"
        )
    },
    unknown="its tokens are drawn by top-p, 0.2 to 0.9, which the request's sampling says (top_p)",
)


def build(
    kit: Kit,
    *,
    least: Annotated[
        float,
        InRange(0, 1),
        "probability that nothing is missing from which on the answer is whole",
    ] = 0.5,
    draw: Annotated[
        bool, "slots and the end are drawn, too: with temperature 1 the model's own law"
    ] = False,
    count: Annotated[
        int, AtLeast(1), "tokens of a pass, in as many slots, which do not see each other"
    ] = 1,
    share: Annotated[
        float, InRange(0, 1), "how likely the next token must come to a slot beside the first"
    ] = 0.3,
) -> Decoder:
    from polydec.methods.insertion.loop.inserting import InsertionDecoder

    return InsertionDecoder(kit.inserter, kit.shapers, count, least, draw, share)

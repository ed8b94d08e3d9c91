"""ARC-Encoder."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange, OneOf, ValueNote
from polydec.core.protocols import Target
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import OWN_PROMPT, ArtefactNeed, Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="arc-encoder",
    title="ARC-Encoder (passages pooled for an untouched decoder)",
    summary="Passages of a prompt are read as one vector for every few tokens, which an encoder makes for a decoder that was "
    "not tuned.",
    kind="steering",
    family="ar",
    guarantee=None,
    source="Pilchen, Grave and Pérez, ARC-Encoder: learning compressed text representations for large language models, 2025",
    reduces_to="no steering at factor 1, or where no passage stands in the prompt",
    home="long passages before a decoder whose weights must stay, with an encoder that was trained for it "
    "(`polydec train context --kind arc-encoder`)",
    needs=(OWN_PROMPT, ArtefactNeed("arc-encoder")),
    aliases=("pooled passages", "context compression"),
    arxiv="2510.20535",
    published="Mistral-7B, six tasks of five examples: 46.5 at 4 tokens a vector and 43.4 at 8, 49.2 with the text itself",
)
PUBLISHED = PublishedPreset(
    unknown="how many tokens a vector has is a matter of the training: 4 there, after 8"
)


def build(
    kit: Kit,
    *,
    factor: Annotated[
        int, InRange(0, 64), ValueNote("0: as it was trained"), "tokens for each vector"
    ] = 0,
    task: Annotated[
        str, OneOf("continue", "rewrite"), "learned vector that stands behind each passage"
    ] = "continue",
    coded: Annotated[
        bool,
        "passages are kept as codes of some bytes a vector, and read as what these stand for (an encoder of --pieces)",
    ] = False,
) -> Target:
    from polydec.laws.targets.pooled_passages import pool_prompt_passages
    from polydec.models.learned.kinds.arc_encoder import ArcEncoder

    encoder = kit.needed_artefact(ArcEncoder)
    return pool_prompt_passages(kit.target, kit.prompt, encoder, factor, task, coded)

"""Dynamic tokenization."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange, OneOf
from polydec.core.protocols import Target
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import OWN_PROMPT, ArtefactNeed, Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="dynamic-tokenization",
    title="Dynamic tokenization (a prompt in fewer, longer tokens)",
    summary="Neighbouring tokens of a prompt that stand together often are read as one vector, which a hypernetwork makes.",
    kind="steering",
    family="ar",
    guarantee=None,
    source="Feher, Vulić and Minixhofer, Retrofitting large language models with dynamic tokenization, 2024",
    reduces_to="no steering at share 0, or where no pair may be merged",
    home="long prompts in words that the tokenizer cuts into many pieces, with a hypernetwork that was trained for the "
    "model (`polydec train hypernetwork`)",
    needs=(OWN_PROMPT, ArtefactNeed("hypernetwork")),
    aliases=("merged tokens", "hypernetwork"),
    arxiv="2411.18553",
    published="XLM-R, 14 languages: inputs more than 20 % shorter at less than 2 % loss; "
    "Mistral-7B: prompts up to 17 % shorter at minimal loss",
)
PUBLISHED = PublishedPreset(
    refused="its boundaries are the model's own, and how far it merges is a table of merges for each "
    "model"
)

CUTS = ("word", "pretoken", "sentence")
"""Names of boundaries (models/text/token_merges.py has what they are, and is not loaded to tell them)."""


def build(
    kit: Kit,
    *,
    share: Annotated[
        float, InRange(0, 1), "part of the way to as few tokens as the boundary allows"
    ] = 0.5,
    boundary: Annotated[str, OneOf(*CUTS), "what one token may hold"] = "word",
) -> Target:
    from polydec.laws.targets.merged_prompt import merge_prompt_tokens
    from polydec.models.learned.kinds.hypernetwork import MergedTokenMaker

    encoder = kit.needed_artefact(MergedTokenMaker)
    return merge_prompt_tokens(kit.target, kit.prompt, encoder, share, boundary)

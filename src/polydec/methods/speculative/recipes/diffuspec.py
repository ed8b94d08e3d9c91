"""A masked-diffusion model drafts for an autoregressive one."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast, InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import MASKED_DRAFT, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue

CARD = Card(
    name="diffuspec",
    title="DiffuSpec",
    aliases=("diffusion-drafter",),
    summary="A masked-diffusion model fills several gaps behind the text in one pass; a path through their laws is verified.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="DiffuSpec: unlocking diffusion language models for speculative decoding, 2025",
    reduces_to="plain where nothing is accepted",
    parent="plain",
    home="text that a masked-diffusion model of the same tokenizer predicts well, several tokens ahead",
    needs=(MASKED_DRAFT,),
    published="3.08 times plain decoding, 6.99 tokens accepted on average (Qwen2.5-32B with Dream-7B as "
    "draft, one A100, greedy)",
)
PUBLISHED = PublishedPreset(
    {
        "least": PublishedValue(20, "drafts of 20 tokens at least, by a model of 7B"),
        "most": PublishedValue(30, "and of 30 at most; ours has 12"),
        "rise": PublishedValue(10, "a draft that was accepted whole grows by 10"),
        "corpus": PublishedValue(
            1.0, "the table of a corpus alone; ours is what the text itself holds"
        ),
        "ends": PublishedValue(True, "a draft ends where its gaps' likeliest tokens first end"),
    }
)


def build(
    kit: Kit,
    *,
    least: Annotated[int, InRange(1, 64), "tokens of a draft at least; itself at most `most`"] = 4,
    most: Annotated[int, InRange(1, 64), "tokens of a draft at most (published: 30)"] = 12,
    rise: Annotated[
        int, InRange(0, 64), "tokens more than the average draft, where all of these were accepted"
    ] = 3,
    rate: Annotated[float, InRange(0, 0.99), "share of the old averages that stays"] = 0.5,
    weight: Annotated[
        float,
        InRange(0, 1),
        "of the model's laws beside what stood behind the same two tokens before",
    ] = 0.5,
    mass: Annotated[
        float,
        InRange(0, 1),
        "keep of a gap the likeliest tokens that have this probability together",
    ] = 0.8,
    top: Annotated[int, AtLeast(1), "and at most so many"] = 15,
    beam: Annotated[int, AtLeast(1), "paths that are looked at side by side"] = 3,
    corpus: Annotated[
        float,
        InRange(0, 1),
        "of the shares of the model's n-gram table (`polydec train ngrams`); the text so far has the rest (1: as published)",
    ] = 0.0,
    ends: Annotated[
        bool, "a draft's length is where its gaps' likeliest tokens first end, as published"
    ] = False,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.diffusion import DiffusionDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.average import MovingAveragePolicy
    from polydec.methods.speculative.verifiers.exact import ExactVerifier
    from polydec.models.learned.kinds.ngrams import NGrams

    # `corpus` is both the switch and the weight of the table.
    table = kit.needed_artefact(NGrams) if corpus else None
    drafter = DiffusionDrafter(kit.masked_draft, weight, mass, top, beam, table, corpus, ends)
    # The length follows what was accepted: the published adaptive draft length.
    return SpeculativeDecoder(
        kit.target, drafter, ExactVerifier(), MovingAveragePolicy(least, most, rise, rate)
    )

"""Speculative sampling."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import DRAFT, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue

CARD = Card(
    name="draft-model",
    title="Speculative sampling",
    summary="A cheap model drafts a few tokens, the target scores them in one pass and keeps its own law.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="Leviathan et al., Fast inference from transformers via speculative decoding, 2023; Chen et al., Accelerating large "
    "language model decoding with speculative sampling, 2023",
    reduces_to="plain where nothing is accepted",
    parent="plain",
    home="any text that the draft predicts well; gains as the target grows",
    needs=(DRAFT,),
    aliases=("speculative-sampling", "speculative-decoding", "assisted-generation", "leviathan"),
    arxiv="2211.17192",
    published="2.6 times plain decoding (T = 1) to 3.4 times (T = 0) from English to German (T5-XXL with "
    "T5-small); 1.92 times on XSum and 2.46 times on HumanEval (Chinchilla 70B)",
)
PUBLISHED = PublishedPreset(
    {
        "depth": PublishedValue(
            7, "7 tokens for translation, of which its highest figures are; ours are for a CPU"
        ),
    },
    unknown="for summaries it has 5, and Chen et al. have 4",
)


def build(
    kit: Kit, *, depth: Annotated[int, InRange(0, 64), "tokens drafted a pass"] = 2
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.model import ModelDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.trees.chain import ChainTree
    from polydec.methods.speculative.verifiers.exact import ExactVerifier

    # The published loop: a chain of the draft model's draws, rejection sampling, a fixed length.
    return SpeculativeDecoder(
        kit.target, ModelDrafter(kit.drafting, ChainTree()), ExactVerifier(), FixedPolicy(depth)
    )

"""Speculative sampling with drafts as long as pay."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast, InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import DRAFT, Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="draft-model-goodput",
    title="Speculative sampling with drafts as long as pay",
    summary="Drafts while the next token is expected to save more time than it costs by the costs measured here, or nothing.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="Liu et al., TurboSpec: closed-loop speculation control (goodput), 2024",
    reduces_to="plain, but for exploring rounds, where the draft is never right",
    parent="draft-model",
    home="text of changing difficulty, machines on which no one length is best",
    needs=(DRAFT,),
)
PUBLISHED = PublishedPreset(refused="it is put together here, and no paper has it")


def build(
    kit: Kit,
    *,
    depth: Annotated[int, InRange(0, 64), "most tokens of a draft"] = 10,
    explore: Annotated[int, AtLeast(1), "rounds without a draft after which one is tried"] = 16,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.model import ModelDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.goodput import GoodputPolicy
    from polydec.methods.speculative.trees.chain import ChainTree
    from polydec.methods.speculative.verifiers.exact import ExactVerifier

    # The policy decides by measured costs, so the same options draft differently on another
    # machine; the law is the same.
    return SpeculativeDecoder(
        kit.target,
        ModelDrafter(kit.drafting, ChainTree()),
        ExactVerifier(),
        GoodputPolicy(kit.costs, depth, explore=explore),
    )

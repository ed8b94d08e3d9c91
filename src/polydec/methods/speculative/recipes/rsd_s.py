"""Whole paths drawn without replacement."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import DRAFT, Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="rsd-s",
    title="Recursive speculative decoding, stochastic beam",
    summary="A stochastic beam draws whole paths without replacement: branches that became unlikely end early.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="Jeon et al., Recursive speculative decoding: accelerating LLM inference via sampling without replacement, 2024",
    reduces_to="draft-model at width 1",
    parent="rsd-c",
    home="sampling, where passes over several tokens cost little more than one",
    needs=(DRAFT,),
    aliases=("stochastic beam",),
)
PUBLISHED = PublishedPreset(
    refused="its trees are a sweep over budgets of 6 to 30 tokens, and none is named as the one"
)


def build(
    kit: Kit,
    *,
    width: Annotated[int, InRange(1, 64), "paths drawn"] = 2,
    depth: Annotated[int, InRange(0, 64), "levels"] = 3,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.model import ModelDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.trees.stochastic_beam import StochasticBeamTree
    from polydec.methods.speculative.verifiers.exact import ExactVerifier

    drafter = ModelDrafter(kit.drafting, StochasticBeamTree(width))
    # A beam of `width` paths has at most width · depth nodes.
    return SpeculativeDecoder(
        kit.target, drafter, ExactVerifier(), FixedPolicy(depth, min(width * depth, 1024))
    )

"""DistillSpec's lenient acceptance: a draft passes more often than the model's law allows."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtMost, GreaterThan, InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import DRAFT, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue

CARD = Card(
    name="distillspec",
    title="DistillSpec with lenience",
    summary="A drawn token passes with probability p / (lenience q): more of a distilled draft stands, off the model's law.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.APPROXIMATE,
    source="Zhou et al., DistillSpec: improving speculative decoding via knowledge distillation, 2023",
    reduces_to="draft-model at lenience 1, and under greedy laws",
    parent="draft-model",
    home="sampling where speed counts more than the model's own law; `polydec train draft` distils the draft",
    needs=(DRAFT,),
    aliases=("lenience", "lenient speculative sampling", "lossy speculative decoding"),
    arxiv="2310.08461",
)
PUBLISHED = PublishedPreset(
    {
        "lenience": PublishedValue(
            1.0, "lossless in its main results; ours shows what lenience brings"
        ),
    }
)


def build(
    kit: Kit,
    *,
    depth: Annotated[int, InRange(0, 64), "tokens drafted a pass"] = 5,
    lenience: Annotated[
        float,
        GreaterThan(0),
        AtMost(1),
        "a token passes with probability p / (lenience q); 1: exact",
    ] = 0.5,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.model import ModelDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.trees.chain import ChainTree
    from polydec.methods.speculative.verifiers.lenient import LenientVerifier

    # Distillation happens in training; what differs here is the acceptance rule.
    drafter = ModelDrafter(kit.drafting, ChainTree())
    return SpeculativeDecoder(kit.target, drafter, LenientVerifier(lenience), FixedPolicy(depth))

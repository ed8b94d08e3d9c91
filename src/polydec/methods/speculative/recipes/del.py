"""DEL: exit and length from running acceptance."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast, InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import LAYERS, Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="del",
    title="DEL, dynamic exit layer",
    summary="Early exit whose depth and length follow from what every depth would have got right so far.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="Entezari Zarch et al., DEL: context-aware dynamic exit layer for efficient self-speculative decoding, 2025",
    reduces_to="plain where no exit promises more than a plain pass; layerskip with one eligible exit and length",
    parent="layerskip",
    home="models trained with an early-exit loss, on mixed tasks",
    needs=(LAYERS,),
    aliases=("dynamic-exit", "dynamic exit layer"),
    arxiv="2504.05598",
    published="2.16 to 2.50 times plain decoding (LayerSkip Llama, 1B to 70B, seven tasks)",
)
PUBLISHED = PublishedPreset()


def build(
    kit: Kit,
    *,
    every: Annotated[
        int, AtLeast(1), "exits after every so many layers, at most the model's less one"
    ] = 1,
    depth: Annotated[int, InRange(0, 64), "longest draft"] = 18,
    omega: Annotated[float, InRange(0, 1), "discount of earlier rounds"] = 0.95,
    prompt: Annotated[int, InRange(0, 4096), "last prompt positions that count"] = 32,
    head: Annotated[float, AtLeast(0), "what the head costs, in layers"] = 1.0,
    by_length: Annotated[bool, "draft as long as pays best (else up to depth)"] = True,
    by_confidence: Annotated[bool, "stop below a token that is rather a miss"] = True,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.dynamic_exit import DynamicExitDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.trees.chain import ChainTree
    from polydec.methods.speculative.verifiers.exact import ExactVerifier

    # With prompt=0 no row of the prompt is read, which a cached prefix would have to be computed
    # again for.
    kit.read_prompt(CARD.name, bool(prompt), "set prompt=0")
    # The drafter chooses its length itself, so the policy only bounds it.
    drafter = DynamicExitDrafter(
        ChainTree(), kit.target.layers, every, depth, omega, prompt, head, by_length, by_confidence
    )
    return SpeculativeDecoder(kit.target, drafter, ExactVerifier(), FixedPolicy(depth))

"""Drafter-invariant speculative sampling with a token tree."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import DRAFT, Kit
from polydec.methods.registry.published_presets import PublishedPreset
from polydec.methods.speculative.recipes._options import LevelChildren

CARD = Card(
    name="draft-model-coupled-tree",
    title="Drafter-invariant speculative sampling with a token tree",
    summary="At each node the draft proposes the tokens that come first under the noise that the target will draw with.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="Daliri, Musco, Suresh, Coupling without communication and drafter-invariant speculative decoding, 2024; "
    "Kool et al., Stochastic beams and where to find them, 2019",
    reduces_to="draft-model-coupled where every level has one child",
    parent="draft-model-coupled",
    home="sampling where a text must be reproducible under any draft",
    needs=(DRAFT,),
)
PUBLISHED = PublishedPreset(refused="it is put together here, and no paper has it")


def build(
    kit: Kit,
    *,
    levels: LevelChildren = (2, 1, 1),
    nodes: Annotated[int, InRange(0, 1024), "most tokens of a tree"] = 16,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.model import ModelDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.trees.coupled_static import CoupledStaticTree
    from polydec.methods.speculative.verifiers.coupled import CoupledVerifier

    # Tree and verifier must go together: both draw with the noise of a token's position. The tree's
    # levels bound its depth.
    return SpeculativeDecoder(
        kit.target,
        ModelDrafter(kit.drafting, CoupledStaticTree(levels)),
        CoupledVerifier(),
        FixedPolicy(64, nodes),
    )

"""Early exit: the first layers draft."""
from __future__ import annotations

from polydec.core.card import Card
from polydec.core.decode import Speculative
from polydec.core.protocols import Target
from polydec.core.types import Exactness
from polydec.drafters.self_speculative import SelfSpeculative
from polydec.models.depth import first_layers
from polydec.policies.fixed import Fixed
from polydec.trees.chain import Chain
from polydec.verifiers.exact import Exact

CARD = Card(
    name="early-exit",
    title="LayerSkip self-speculation",
    summary="The first layers draft through the final norm and head, and verification goes on where they stopped.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.LAW,
    source="Elhoushi et al., LayerSkip: enabling early exit inference and self-speculative decoding, 2024",
    reduces_to="plain at depth 0",
    parent="plain", home="models trained with an early-exit loss",
    needs=("layers",),
    options={"exit": "layers that draft, 1 to the model's; none: a quarter of them", "depth": "tokens of a draft, 0 to 64"},
)


def build(target: Target, *, draft: Target | None = None, exit: int | None = None, depth: int = 6) -> Speculative:
    return Speculative(target, SelfSpeculative(Chain(), first_layers(exit, target.layers)), Exact(), Fixed(depth))

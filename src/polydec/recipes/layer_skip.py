"""Layer skip: the target without some of its attentions and MLPs drafts."""
from __future__ import annotations

from polydec.core.card import Card
from polydec.core.decode import Speculative
from polydec.core.protocols import Target
from polydec.core.types import Exactness
from polydec.drafters.self_speculative import SelfSpeculative
from polydec.models.depth import halves, kept_layers, left
from polydec.policies.threshold import Threshold
from polydec.trees.chain import Chain
from polydec.verifiers.exact import Exact

CARD = Card(
    name="layer-skip",
    title="Draft & Verify self-speculation",
    summary="The target drafts without some attentions and MLPs, and stops where it is less sure than a threshold that adapts.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.LAW,
    source="Zhang et al., Draft & verify: lossless large language model acceleration via self-speculative decoding, 2023",
    reduces_to="plain at depth 0",
    parent="plain", home="large models without a draft",
    needs=("layers",),
    options={"skip": "what does not draft, such as 3,5a,7m: layer 3, attention of 5, MLP of 7; none: every second layer",
             "depth": "longest draft, 0 to 64",
             "threshold": "first threshold of a token's draft probability, 0 to 1", "rate": "acceptance rate to hold, 0 to 1"},
)


def build(target: Target, *, draft: Target | None = None, skip: str | None = None, depth: int = 12,
          threshold: float = 0.8, rate: float = 0.9) -> Speculative:
    L = target.layers
    run = (kept_layers(L, 2.0, even=True), frozenset[int]()) if skip is None else left(halves(skip, L), L)
    return Speculative(target, SelfSpeculative(Chain(), *run), Exact(), Threshold(threshold, rate, depth))

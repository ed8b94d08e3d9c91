"""Layer skip: the target without some of its layers drafts."""
from __future__ import annotations

from polydec.core.card import Card
from polydec.core.decode import Speculative
from polydec.core.protocols import Target
from polydec.core.types import Exactness
from polydec.drafters.part import FromPart
from polydec.models.depth import kept_layers
from polydec.policies.threshold import Threshold
from polydec.trees.chain import Chain
from polydec.verifiers.exact import Exact

CARD = Card(
    name="layer-skip",
    title="Draft & Verify self-speculation",
    summary="The target drafts without some of its layers, and stops where it is less sure than a threshold that adapts.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.LAW,
    source="Zhang et al., Draft & verify: lossless large language model acceleration via self-speculative decoding, 2023 "
           "(published: attention and MLP skipped separately)",
    reduces_to="plain at depth 0",
    parent="plain", home="large models without a draft",
    needs=("layers",),
    options={"keep": "layers that draft, such as 0,1,5,6; none: every second one", "depth": "longest draft, 0 to 64",
             "threshold": "first threshold of a token's draft probability, 0 to 1", "rate": "acceptance rate to hold, 0 to 1"},
)


def build(target: Target, *, draft: Target | None = None, keep: tuple[int, ...] | None = None, depth: int = 12,
          threshold: float = 0.8, rate: float = 0.9) -> Speculative:
    layers = kept_layers(target.layers, 2.0, even=True) if keep is None else keep
    return Speculative(target, FromPart(Chain(), layers), Exact(), Threshold(threshold, rate, depth))

"""Token Recycling."""
from __future__ import annotations

from polydec.core.card import Card
from polydec.core.decode import Speculative
from polydec.core.protocols import Target
from polydec.core.types import Exactness
from polydec.drafters.recycling import Recycling
from polydec.policies.fixed import Fixed
from polydec.verifiers.match import Match

CARD = Card(
    name="token-recycling",
    title="Token Recycling",
    summary="Remembers what the model found likely after each token and unfolds these notes into a draft tree.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.LAW,
    source="Luo et al., Turning trash into treasure: accelerating inference of large language models with Token Recycling, "
           "2024",
    reduces_to="plain while its table is empty",
    parent="plain", home="free text and code; it beats prompt lookup where nothing can be copied",
    options={
        "k": "candidates remembered after each token, 1 to 64",
        "nodes": "tokens of a draft tree, 1 to 256",
        "depth": "levels of a draft tree, 0 to 64",
        "recycle_prefill": "learn from the prompt's rows too (they are computed for it)",
    },
)


def build(target: Target, *, draft: Target | None = None, k: int = 8, nodes: int = 7, depth: int = 8,
          recycle_prefill: bool = False) -> Speculative:
    return Speculative(target, Recycling(k, nodes, recycle_prefill), Match(), Fixed(depth, nodes))

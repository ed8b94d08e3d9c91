"""Token Recycling."""
from __future__ import annotations

from typing import Any

from polydec.core.card import Card
from polydec.core.costs import Costs
from polydec.core.decode import Speculative
from polydec.core.protocols import Target
from polydec.core.types import Exactness
from polydec.drafters.cost_aware import CostAware
from polydec.drafters.recycling import Memory, Recycling
from polydec.policies.fixed import Fixed
from polydec.verifiers.match import Match

CARD = Card(
    name="token-recycling", title="Token Recycling",
    summary="Remembers what the model found likely after each token and unfolds these notes into a draft tree.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.LAW,
    source="Luo et al., Turning trash into treasure: accelerating inference of LLMs with Token Recycling, 2024",
    reduces_to="plain while its table is empty",
    parent="plain", home="free text and code; it beats prompt lookup where nothing can be copied",
    options={
        "k": "candidates remembered after each token, 1 to 64",
        "nodes": "tokens of a draft tree, 1 to 256; none: 7, or as shape says", "depth": "its levels, 0 to 64",
        "recycle_prefill": "learn from the prompt's rows too (they are computed for it)",
        "shape": "child counts of the nodes, 0 to 64 each, breadth first, such as 3,2,1; none: by rates",
        "hot": "keep the table for later requests of the engine: drafts then show what other requests wrote",
        "thrift": "feed only what is worth its rows by the costs measured here (as published: false)",
    },
)


def build(target: Target, *, draft: Target | None = None, costs: Costs, kept: dict[str, Any], k: int = 8,
          nodes: int | None = None, depth: int = 8, recycle_prefill: bool = False, shape: tuple[int, ...] | None = None,
          hot: bool = False, thrift: bool = True) -> Speculative:
    drafter = Recycling(k, nodes, recycle_prefill, memory=kept.setdefault("memory", Memory()) if hot else None,
                        shape=shape or ())
    return Speculative(target, CostAware(drafter, None, costs) if thrift else drafter, Match(),
                       Fixed(depth, len(drafter.template)))

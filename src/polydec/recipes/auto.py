"""Choose by goodput, step by step, what to draft and how much."""
from __future__ import annotations

from polydec.core.card import Card
from polydec.core.costs import Costs
from polydec.core.decode import Speculative
from polydec.core.protocols import Target
from polydec.core.types import Exactness
from polydec.drafters.grafted import Grafted
from polydec.drafters.lookup import Lookup
from polydec.drafters.model import FromModel
from polydec.drafters.recycling import Recycling
from polydec.drafters.suffix import Suffix
from polydec.drafters.thrift import Thrift
from polydec.policies.fixed import Fixed
from polydec.shapers.greedy import Greedy
from polydec.targets.shaped import Shaped
from polydec.trees.chain import Chain
from polydec.verifiers.match import Match

CARD = Card(
    name="auto",
    title="Goodput",
    summary="Of what the text and the model's own notes propose, feeds what is worth its rows by the costs measured here, or "
            "nothing.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.LAW,
    source="Liu et al., TurboSpec: closed-loop speculation control (goodput), 2024",
    reduces_to="plain where every further row costs more than the token it may bring",
    parent="plain", home="everywhere: it is never to be slower than plain",
    options={"depth": "most levels of a draft, 0 to 64", "nodes": "most tokens of a draft, 0 to 1024",
             "ask": "ask the draft model too, where there is one and it pays"},
)


def build(target: Target, *, draft: Target | None = None, costs: Costs, depth: int = 12, nodes: int = 32,
          ask: bool = False) -> Speculative:
    free = Grafted((Lookup(8, 1), Suffix(floor=0.05), Recycling()))
    paid = FromModel(Shaped(draft, Greedy()), Chain(), 128) if ask and draft is not None else None
    return Speculative(target, Thrift(free, paid, costs), Match(), Fixed(depth, nodes))

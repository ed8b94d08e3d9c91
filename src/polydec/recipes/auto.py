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
    name="auto", title="Goodput",
    summary="Of what cheap drafters propose, feeds what is worth its rows by the costs measured here, or nothing.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.LAW,
    source="Liu et al., TurboSpec: closed-loop speculation control (goodput), 2024",
    reduces_to="plain where every further row costs more than the token it may bring",
    parent="plain", home="everywhere: it is never to be slower than plain",
    options={"depth": "most levels of a draft, 0 to 64", "nodes": "most tokens of a draft, 0 to 1024",
             "wide": "weigh prompt lookup and Token Recycling too; none: where four rows cost less than 1.5 passes",
             "ask": "ask the draft model too, where there is one and it pays; none: where rows cost as little"},
)


def build(target: Target, *, draft: Target | None = None, costs: Costs, depth: int = 12, nodes: int = 32,
          wide: bool | None = None, ask: bool | None = None) -> Speculative:
    cheap, copy = costs.share(4) < 1.5 * costs.share(1), Suffix(floor=0.05)
    free = Grafted((Lookup(8, 1), copy, Recycling())) if (cheap if wide is None else wide) else copy
    asked = draft if (cheap if ask is None else ask) else None
    paid = None if asked is None else FromModel(Shaped(asked, Greedy()), Chain(), 128)
    return Speculative(target, Thrift(free, paid, costs), Match(), Fixed(depth, nodes))

"""CopySpec without a draft model."""
from __future__ import annotations

from polydec.core.card import Card
from polydec.core.costs import Costs
from polydec.core.decode import Speculative
from polydec.core.protocols import Target
from polydec.core.types import Exactness
from polydec.drafters.copying import Copying
from polydec.drafters.cost_aware import CostAware
from polydec.policies.fixed import Fixed
from polydec.verifiers.match import Match

CARD = Card(
    name="copyspec",
    title="CopySpec",
    summary="Copies the block that followed the last few tokens when they stood in the conversation before.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.LAW,
    source="Dumitru et al., CopySpec: accelerating LLMs with speculative copy-and-paste without compromising quality, 2025",
    reduces_to="plain with block 0; prompt-lookup with one length of match, without loop",
    parent="plain", home="later turns of a chat that repeat what was said",
    options={
        "gamma": "tokens that must match, 1 to 16; none: 3 (adapt tries 2 to 5 instead)",
        "block": "tokens copied, 0 to 64",
        "first": "copy from the earliest occurrence instead of the latest",
        "adapt": "choose the lengths of match and copy by what was right so far",
        "cost": "of adapt, the price of a drafted token beside that of a pass, 0 to 1; none: 0.1",
        "thrift": "feed only what is worth its rows by the costs measured here (as published: false)",
    },
)


def build(target: Target, *, draft: Target | None = None, costs: Costs, gamma: int | None = None, block: int = 10,
          first: bool = True, adapt: bool = False, cost: float | None = None, thrift: bool = True) -> Speculative:
    drafter = Copying(gamma, block, first, adapt, cost)
    return Speculative(target, CostAware(drafter, None, costs) if thrift else drafter, Match(), Fixed(block))

"""Choose by goodput, step by step, what to draft and how much."""
from __future__ import annotations

from polydec.core.card import Card
from polydec.core.costs import Costs
from polydec.core.decode import Speculative
from polydec.core.protocols import Target
from polydec.core.types import Exactness
from polydec.drafters.copy_ngram_mixture import CopyNGramMixture
from polydec.drafters.cost_aware import CostAware
from polydec.drafters.merged_tree import MergedTree
from polydec.drafters.model import FromModel, required_draft
from polydec.drafters.recycling import Recycling
from polydec.drafters.suffix import Suffix
from polydec.models.ngrams import NGrams
from polydec.policies.fixed import Fixed
from polydec.shapers.greedy import Greedy
from polydec.targets.shaped import Shaped
from polydec.trees.chain import Chain
from polydec.verifiers.match import Match

CARD = Card(
    name="auto", title="Goodput", source="Liu et al., TurboSpec: closed-loop speculation control (goodput), 2024",
    summary="Of what cheap drafters propose (copies, the model's n-gram table), feeds what is worth its rows here, or nothing.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.LAW, parent="plain", home="everywhere: never slower than plain",
    reduces_to="plain where every further row costs more than the token it may bring",
    options={"depth": "most levels of a draft, 0 to 64", "nodes": "most tokens of a draft, 0 to 1024",
             "wide": "weigh Token Recycling too; none: where four rows cost less than 1.5 passes",
             "ask": "ask the draft model too; none: where there is one, rows cost as little, and it pays"},
)


def build(target: Target, *, draft: Target | None = None, ngrams: NGrams | None, costs: Costs, depth: int = 12, nodes: int = 32,
          wide: bool | None = None, ask: bool | None = None) -> Speculative:
    cheap, copies = costs.share(4) < 1.5 * costs.share(1), Suffix(floor=0.05)
    known = copies if ngrams is None else CopyNGramMixture(copies, ngrams)
    free = MergedTree((known, Recycling())) if (cheap if wide is None else wide) else known
    asked = cheap and draft is not None if ask is None else ask
    paid = FromModel(Shaped(required_draft(draft, "ask is true"), Greedy()), Chain(), 128) if asked else None
    return Speculative(target, CostAware(free, paid, costs), Match(), Fixed(depth, nodes))

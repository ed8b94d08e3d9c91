"""Choose by goodput, step by step, what to draft and how much."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset
from polydec.methods.speculative.loop.with_source import with_source_text

CARD = Card(
    name="auto",
    title="Chooses for you (goodput)",
    source="Liu et al., TurboSpec: closed-loop speculation control (goodput), 2024",
    summary="Chooses for you: feeds of what copies, counts and trained drafters propose what is worth its rows, or nothing.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    parent="plain",
    home="wherever a pass takes a millisecond: never slower than plain",
    reduces_to="plain where every further row costs more than the token it may bring",
    aliases=("goodput", "turbospec", "smartspec"),
    arxiv="2406.14066",
)
PUBLISHED = PublishedPreset(refused="it chooses by the costs of this machine, which no paper sets")


RIGHT = 0.2
"""How often a draft model is supposed to be right where copies and counts say little:
zoo:smollm2-draft is in a third of all steps. A text is too short to find out, and trying took a
twentieth of the speed."""

LONG_MS = 10.0
"""From a pass of this length on Token Recycling pays beside copies and counts: it brings about a
fiftieth more tokens a pass, and takes 0.3 ms of each, for itself and for rows of the law that
nobody else reads."""


def build(
    kit: Kit,
    *,
    depth: Annotated[int, InRange(0, 64), "most levels of a draft"] = 12,
    nodes: Annotated[int, InRange(0, 1024), "most tokens of a draft"] = 32,
    wide: Annotated[
        bool | None,
        "weigh Token Recycling too; none: where four rows cost less than 1.5 passes, and a pass 10 ms or more",
    ] = None,
    ask: Annotated[
        bool | None,
        "ask the draft model too; none: where there is one, rows cost as little, and it pays",
    ] = None,
    states: Annotated[
        bool, "ask what was trained on the model's states too, where its levels pay"
    ] = False,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.laws.shapers.greedy import GreedyRule
    from polydec.laws.targets.shaped import ShapedTarget
    from polydec.methods.speculative.drafters import trained_tree
    from polydec.methods.speculative.drafters.copy_ngram_mixture import CopyNGramMixtureDrafter
    from polydec.methods.speculative.drafters.cost_aware import CostAwareDrafter
    from polydec.methods.speculative.drafters.merged_tree import MergedTreeDrafter
    from polydec.methods.speculative.drafters.model import ModelDrafter
    from polydec.methods.speculative.drafters.priced_tree import PricedTree
    from polydec.methods.speculative.drafters.recycling import RecyclingDrafter
    from polydec.methods.speculative.drafters.suffix import SuffixDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.trees.best_first import BestFirstTree
    from polydec.methods.speculative.trees.chain import ChainTree
    from polydec.methods.speculative.verifiers.match import MatchVerifier
    from polydec.models.learned.kinds.ngrams import NGrams

    # What is missing is said before costs are asked for, which may have to be measured.
    best = BestFirstTree(trained_tree.WIDTH, trained_tree.TIPS)
    grown = trained_tree.require_tree_drafter(kit, best) if states else None
    _ = ask and kit.drafting
    # On a processor that computes a row at a time nothing but sure tokens pays; four rows tell
    # which kind this is.
    rows_are_cheap = kit.costs.request_share(4) < 1.5 * kit.costs.request_share(1)
    table = kit.find_artefact(NGrams)
    copies = SuffixDrafter(floor=0.05)
    # Free candidates: copies from the text, mixed with the model's n-gram table where it has one.
    free = with_source_text(
        copies if table is None else CopyNGramMixtureDrafter(copies, table), kit.source
    )
    # Token Recycling needs rows of the law and time of its own: it joins only where passes are long
    # beside that.
    noted = rows_are_cheap and kit.costs.request_share(1) >= LONG_MS if wide is None else wide
    free = MergedTreeDrafter((free, RecyclingDrafter())) if noted else free
    # `kit.draft` may load the draft model, so cheap rows are asked for first.
    asked = (
        rows_are_cheap and kit.draft is not None and kit.costs.draft_pays(RIGHT)
        if ask is None
        else ask
    )
    # A greedy draft gives certain candidates, which may be chosen freely; it reads the prompt's
    # end only, since a long prompt would cost it more than it brings.
    paid = (
        ModelDrafter(ShapedTarget(kit.drafting, GreedyRule()), ChainTree(), 128) if asked else None
    )
    tree = None if grown is None else PricedTree.by_costs(grown, kit.costs)
    # The trained tree takes the place of the draft model: the two are not asked together.
    drafter = CostAwareDrafter(
        free, paid if tree is None else None, kit.costs, lasting=False, tree=tree
    )
    return SpeculativeDecoder(kit.target, drafter, MatchVerifier(), FixedPolicy(depth, nodes))

"""PPD: trained prompt tokens behind every drafted token make the target itself guess ahead."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import ArtefactNeed, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue
from polydec.methods.speculative.recipes._options import CostAware

NEED = ArtefactNeed("probes", "prompt tokens (ppd)", lambda probes: probes.maps is None)
CARD = Card(
    name="ppd",
    title="PPD",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    summary="A few trained prompt tokens ride behind every drafted token in the target's own pass and guess what follows.",
    source="Chen et al., Hardware-aware parallel prompt decoding for memory-efficient acceleration of LLM inference, 2024",
    reduces_to="plain without rows for probes",
    parent="medusa",
    home="rows that cost little, and no memory for further weights",
    needs=(NEED,),
    needs_training=True,
    aliases=("parallel prompt decoding", "prompt tokens"),
    arxiv="2405.18628",
    published="up to 2.49 times plain decoding; 1.22 times on top of a draft model",
)
PUBLISHED = PublishedPreset(
    {
        "by_state": PublishedValue(
            True,
            "a tree for each number of levels that have guesses; ours is one, which is simpler to read",
        ),
        "hardware_aware": PublishedValue(True, "as many rows as pay here"),
        "cost_aware": PublishedValue(
            False, "the whole tree is verified; ours feeds what is worth its rows and levels here"
        ),
    }
)


def build(
    kit: Kit,
    *,
    nodes: Annotated[int, InRange(1, 64), "tokens of a tree, unless by_state"] = 8,
    rows: Annotated[int, InRange(1, 256), "tokens and probes fed beside the root, at most"] = 24,
    by_state: Annotated[
        bool,
        "a tree for each number of levels that have guesses, by the Markov chain of these (as published); false: one tree",
    ] = False,
    hardware_aware: Annotated[
        bool, "by_state with so many rows as pay by the costs measured here (as published)"
    ] = False,
    cost_aware: CostAware = True,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.economics import state_trees
    from polydec.methods.speculative.drafters.probes import ProbesDrafter
    from polydec.methods.speculative.drafters.trained_tree import cost_aware_proposal
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.trees.ranked import RankedTree
    from polydec.methods.speculative.verifiers.match import MatchVerifier
    from polydec.models.learned.kinds.probes import SoftProbes

    # Probes of several kinds share a class: NEED.which picks those that enter at the first layer.
    probes = kit.needed_artefact(SoftProbes, NEED.which)
    rates = tuple(tuple(level) for level in probes.rates)
    # Trees by the number of probes that the last round left: best for the costs measured here, or
    # best for the number of rows; without either the same tree each time.
    fitted = state_trees.fastest_state_trees(rates, rows, kit.costs) if hardware_aware else None
    made = fitted or (state_trees.best_state_trees(rates, rows) if by_state else ())
    drafter = ProbesDrafter(
        probes,
        RankedTree.of_rates(rates, nodes),
        rows,
        tuple((masks, RankedTree(masks.paths or ((0,),))) for masks in made),
    )
    drafter = cost_aware_proposal(drafter, probes, kit.costs) if cost_aware else drafter
    # Probes stand below drafted tokens, so a draft may have twice as many levels as there are
    # probes.
    return SpeculativeDecoder(
        kit.target, drafter, MatchVerifier(), FixedPolicy(2 * len(probes), rows)
    )

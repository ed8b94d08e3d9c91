"""Hidden Transfer: trained maps move middle states on, which finish the pass as guesses."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import LAYERS, ArtefactNeed, Kit
from polydec.methods.registry.published_presets import PublishedPreset
from polydec.methods.speculative.recipes._options import CostAware

NEED = ArtefactNeed(
    "probes", "transferred states (hidden-transfer)", lambda probes: probes.maps is not None
)
CARD = Card(
    name="hidden-transfer",
    title="Hidden Transfer",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    summary="At a middle layer trained maps make states of the next tokens, which ride through the rest of the target's pass.",
    source="Wu et al., Parallel decoding via hidden transfer for lossless large language model acceleration, 2024",
    reduces_to="plain without rows for probes",
    parent="medusa",
    home="rows that cost little, and a target whose layers can run alone",
    needs=(NEED, LAYERS),
    needs_training=True,
    aliases=("pseudo hidden states",),
    arxiv="2404.12022",
)
PUBLISHED = PublishedPreset(refused="its trees have 16 to 64 nodes, and none is named as the one")


def build(
    kit: Kit,
    *,
    nodes: Annotated[int, InRange(1, 64), "tokens of a tree"] = 8,
    rows: Annotated[int, InRange(1, 256), "tokens and probes fed beside the root"] = 24,
    cost_aware: CostAware = True,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.probes import ProbesDrafter
    from polydec.methods.speculative.drafters.trained_tree import cost_aware_proposal
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.trees.ranked import RankedTree
    from polydec.methods.speculative.verifiers.match import MatchVerifier
    from polydec.models.learned.kinds.probes import SoftProbes

    # Probes of several kinds share a class: NEED.which picks those that enter at a middle layer.
    probes = kit.needed_artefact(SoftProbes, NEED.which)
    drafter = ProbesDrafter(probes, RankedTree.of_rates(probes.rates, nodes), rows)
    drafter = cost_aware_proposal(drafter, probes, kit.costs) if cost_aware else drafter
    # Probes stand below drafted tokens, so a draft may have twice as many levels as there are
    # probes.
    return SpeculativeDecoder(
        kit.target, drafter, MatchVerifier(), FixedPolicy(2 * len(probes), rows)
    )

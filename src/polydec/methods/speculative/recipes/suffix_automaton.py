"""Suffix automaton decoding."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue
from polydec.methods.speculative.loop.with_source import with_source_text
from polydec.methods.speculative.recipes._options import CostAwareFormerlyThrift

CARD = Card(
    name="suffix-automaton",
    title="Suffix automaton decoding",
    summary="Finds the longest run of tokens that stood in the text before and copies on for as long as that looks likely.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="Hu et al., SAM decoding: speculative decoding via suffix automaton, 2024; Oliaro et al., SuffixDecoding, 2024",
    reduces_to="plain where no token of the text comes back",
    parent="prompt-lookup",
    home="text that copies in long runs from its prompt or from itself",
    aliases=("sam-decoding", "sam", "suffix-decoding", "suffixdecoding"),
    arxiv="2411.10666",
)
PUBLISHED = PublishedPreset(
    {
        "depth": PublishedValue(60, "copies of up to 60 tokens; ours are bounded for a CPU"),
        "nodes": PublishedValue(60, "the copy is one run"),
        "width": PublishedValue(1, "one continuation of a run; ours tries two"),
        "cost_aware": PublishedValue(
            False, "every copy is checked whole; ours leaves out what does not pay here"
        ),
    },
    unknown="a copy is as long as its run allows (4 times that), where ours goes on by its chance; "
    "the automaton of a text collection and the second drafter beside it are other methods "
    "here",
)


def build(
    kit: Kit,
    *,
    min_match: Annotated[int, InRange(1, 64), "shortest run of tokens that is copied from"] = 1,
    floor: Annotated[
        float, InRange(0, 1), "go on while the whole copy is right with at least this chance"
    ] = 0.3,
    width: Annotated[int, InRange(1, 16), "most alternatives after a run"] = 2,
    depth: Annotated[int, InRange(0, 64), "most tokens in a row"] = 16,
    nodes: Annotated[int, InRange(0, 1024), "most tokens of a draft"] = 16,
    hot: Annotated[
        bool, "copy from the engine's earlier requests as well: drafts then show what these hold"
    ] = False,
    cost_aware: CostAwareFormerlyThrift = True,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.automaton import SuffixStore
    from polydec.methods.speculative.drafters.cost_aware import CostAwareDrafter
    from polydec.methods.speculative.drafters.suffix import SuffixDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.verifiers.match import MatchVerifier

    # A hot store lives in the kit's memory, which later requests of the same engine share; each
    # text is added to it when it ends.
    store = kit.memory.setdefault("store", SuffixStore()) if hot else None
    drafter = with_source_text(
        SuffixDrafter(min_match, floor, width, store=store, add=hot), kit.source
    )
    return SpeculativeDecoder(
        kit.target,
        CostAwareDrafter(drafter, None, kit.costs) if cost_aware else drafter,
        MatchVerifier(),
        FixedPolicy(depth, nodes),
    )

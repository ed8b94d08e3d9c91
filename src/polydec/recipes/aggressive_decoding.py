"""Input-guided aggressive decoding."""
from __future__ import annotations

from polydec.core.card import Card
from polydec.core.costs import Costs
from polydec.core.decode import Speculative
from polydec.core.protocols import Target
from polydec.core.types import Exactness
from polydec.drafters.cost_aware import CostAware
from polydec.drafters.source import Source
from polydec.policies.fixed import Fixed
from polydec.verifiers.match import Match

CARD = Card(
    name="aggressive-decoding",
    title="Input-guided aggressive decoding",
    summary="Copies the prompt's text on and on, and finds its place again after each departure from it.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.LAW,
    source="Ge, Xia, Sun, Chen, Wei, Lossless acceleration for seq2seq generation with aggressive decoding, 2022 "
           "(input-guided; the generalised form needs an encoder-decoder)",
    reduces_to="plain where the output shares no token with the source",
    parent="plain", home="grammar correction and code edits",
    options={
        "start": "where the source begins in the prompt, in tokens (negative: from its end)",
        "stop": "where it ends (negative: from the prompt's end), none: with the prompt",
        "near": "after a departure, look near the place that was left (ours), else for what is unambiguous (as published)",
        "eager": "begin with the source's first token: for a span that is just the text to be rewritten",
        "block": "most tokens of a copy, 1 to 64",
        "thrift": "feed only what is worth its rows by the costs measured here (as published: false)",
    },
)


def build(target: Target, *, draft: Target | None = None, costs: Costs, start: int = 0, stop: int | None = None,
          near: bool = True, eager: bool = False, block: int = 10, thrift: bool = True) -> Speculative:
    drafter = Source(start, stop, near, eager, block)
    return Speculative(target, CostAware(drafter, None, costs) if thrift else drafter, Match(), Fixed(block))

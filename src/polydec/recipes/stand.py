"""STAND."""
from __future__ import annotations

from typing import Any

from polydec.core.card import Card
from polydec.core.decode import Speculative
from polydec.core.protocols import Target
from polydec.core.types import Exactness
from polydec.drafters.ngram_rows import NgramRows, Rows
from polydec.policies.fixed import Fixed
from polydec.verifiers.exact import Exact

CARD = Card(
    name="stand",
    title="STAND: stochastic adaptive n-gram drafting",
    summary="Averages the model's rows after each n-gram and draws a token tree from these averages, without replacement.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.LAW,
    source="Accelerated test-time scaling with model-free speculative sampling (STAND), 2025",
    reduces_to="plain while no n-gram comes back",
    parent="token-recycling", home="several sampled answers to one question that share their rows",
    options={
        "shape": "child counts of the tree's nodes, 0 to 64 each, breadth first, such as 3,2,1",
        "longest": "longest n-gram that is looked up, 1 to 16",
        "shortest": "shortest n-gram that is looked up, 1 to longest (published: 2)",
        "keep": "tokens kept of an averaged row, 1 to 64",
        "draws": "draw the tree, else take the likeliest tokens",
        "hot": "keep the rows for later requests of the engine: a seed's text, not its law, then depends on these",
    },
)


def build(target: Target, *, draft: Target | None = None, kept: dict[str, Any],
          shape: tuple[int, ...] = (3, 2, 1, 1, 1, 1, 0, 1), longest: int = 4, shortest: int = 1, keep: int = 10,
          draws: bool = True, hot: bool = False) -> Speculative:
    drafter = NgramRows(shape, longest, shortest, keep, draws, store=kept.setdefault("rows", Rows()) if hot else None)
    return Speculative(target, drafter, Exact(), Fixed(64, 256))

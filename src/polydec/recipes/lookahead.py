"""Lookahead decoding."""
from __future__ import annotations

from polydec.core.card import Card
from polydec.core.decode import Speculative
from polydec.core.protocols import Target
from polydec.core.types import Exactness
from polydec.drafters.lookahead import Lookahead
from polydec.policies.fixed import Fixed
from polydec.verifiers.match import Match

CARD = Card(
    name="lookahead",
    title="Lookahead decoding",
    summary="A window of Jacobi guesses runs ahead in each pass, and the n-grams that it leaves behind are tried as drafts.",
    kind="draft-and-verify", family="ar", guarantee=Exactness.LAW,
    source="Fu et al., Break the sequential dependency of LLM inference using Lookahead decoding, 2024 (published: window 15, "
           "ngram 5, guesses 15 for 7B on an A100; 7, 5, 7 in Spec-Bench)",
    reduces_to="plain where the pool has nothing to try",
    parent="jacobi", home="devices on which fifty tokens of a pass cost little more than one; code and other repetitive text",
    options={"window": "columns of the window, 1 to 32", "ngram": "length of the n-grams that are kept, 2 to 16",
             "guesses": "n-grams tried in a pass, 0 to 64"},
)


def build(target: Target, *, draft: Target | None = None, window: int = 4, ngram: int = 3, guesses: int = 4) -> Speculative:
    drafter = Lookahead(window, ngram, guesses)
    return Speculative(target, drafter, Match(), Fixed(64, min(drafter.nodes, 1024)))

"""Lookahead decoding."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue

CARD = Card(
    name="lookahead",
    title="Lookahead decoding",
    summary="A window of Jacobi guesses runs ahead in each pass, and the n-grams that it leaves behind are tried as drafts.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="Fu et al., Break the sequential dependency of LLM inference using Lookahead decoding, 2024 (published: window 15, "
    "ngram 5, guesses 15 for 7B on an A100; 7, 5, 7 in Spec-Bench)",
    reduces_to="plain where the pool has nothing to try",
    parent="jacobi",
    home="devices on which fifty tokens of a pass cost little more than one; code and other repetitive text",
    aliases=("lookahead-decoding",),
    arxiv="2402.02057",
    published="up to 1.8 times plain decoding on MT-Bench, 4 times on code with several GPUs; on Spec-Bench "
    "1.34 times (Vicuna-7B, one A100)",
)
PUBLISHED = PublishedPreset(
    {
        "window": PublishedValue(
            15, "15 columns, for a model of 7B on an A100; wide passes cost too much on a CPU"
        ),
        "ngram": PublishedValue(5, "n-grams of 5 tokens"),
        "guesses": PublishedValue(15, "15 n-grams tried in a pass"),
    }
)


def build(
    kit: Kit,
    *,
    window: Annotated[int, InRange(1, 32), "columns of the window"] = 4,
    ngram: Annotated[int, InRange(2, 16), "length of the n-grams that are kept"] = 3,
    guesses: Annotated[int, InRange(0, 64), "n-grams tried in a pass"] = 4,
) -> Decoder:
    # Imported here, so that reading the card loads nothing that computes.
    from polydec.methods.speculative.drafters.lookahead import LookaheadDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.verifiers.match import MatchVerifier

    drafter = LookaheadDrafter(window, ngram, guesses)
    # The budget must hold window and candidates together; 1024 nodes is the most that a budget
    # allows.
    return SpeculativeDecoder(
        kit.target, drafter, MatchVerifier(), FixedPolicy(64, min(drafter.nodes, 1024))
    )

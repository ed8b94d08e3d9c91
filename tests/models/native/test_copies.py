"""Copies and counts by the compiled library are what the same drafter says in Python, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polydec.core.effects import Coro
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, TokenVocabulary
from polydec.lab.testing.toy import toy_law
from polydec.methods.speculative.drafters.copy_ngram_mixture import (
    CompiledGuess,
    CopyNGramMixtureDrafter,
    CopyNGramMixtureGuess,
)
from polydec.methods.speculative.drafters.suffix import SuffixDrafter
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.models.learned.kinds.ngrams import LAST, NGrams, extend_context_key

VOCAB = TokenVocabulary(12, frozenset())
SESSION = toy_law(1, 12).open_session((0,))


def table(seed: int, order: int, width: int, contexts: int) -> NGrams:
    """Random contexts, each with all that end it, and random followers."""
    rng = np.random.default_rng(seed)
    keys = set[int]()
    for _ in range(contexts):
        key = 0
        for _ in range(rng.integers(1, order + 1)):
            keys.add(key := extend_context_key(key, int(rng.integers(VOCAB.size))))
    key_M = np.array(sorted(keys), np.uint64)
    follower_MK = rng.integers(0, VOCAB.size, (len(keys), width))
    follower_MK[rng.random(follower_MK.shape) < 0.2] = LAST
    return NGrams(order, VOCAB, key_M, follower_MK, rng.integers(1, 200, follower_MK.shape))


def proposal(guess, root: int, budget: DraftBudget) -> Draft:
    asked: Coro = guess.propose_draft(root, 0, budget, Rng.of_choice(1))
    return run_coroutines([asked])[0]


def both(config: CopyNGramMixtureDrafter, prompt: list[int]):
    compiled = config.open_guess(prompt, SESSION)
    if not isinstance(compiled, CompiledGuess):
        pytest.skip("the native step was not built")
    return compiled, CopyNGramMixtureGuess(config, config.copy.open_guess(prompt, SESSION))


def same(a: Draft, b: Draft) -> None:
    assert (a.token, a.parent, a.chance) == (
        b.token,
        b.parent,
        b.chance,
    )  # to the bit: nothing is rounded


texts = st.integers(2, 12).flatmap(
    lambda size: st.lists(st.integers(0, size - 1), min_size=4, max_size=120)
)


@settings(max_examples=150)
@given(
    texts,
    st.integers(1, 8),
    st.integers(0, 4),
    st.integers(0, 40),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.0, 0.02, 0.1, 0.5, 1.0]),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from([0.5, 4.0]),
    st.integers(1, 3),
    st.integers(0, 9),
    st.integers(0, 24),
)
def test_every_proposal_along_a_text(
    text, order, followers, contexts, seed, floor, width, copies, trust, match, depth, nodes
):
    config = CopyNGramMixtureDrafter(
        SuffixDrafter(match, 0.3, copies, trust),
        table(seed, order, followers, contexts),
        floor,
        width,
    )
    some = both(config, text[:2])
    for i in range(2, len(text)):
        a, b = (proposal(g, text[i - 1], DraftBudget(depth, nodes)) for g in some)
        same(a, b)
        if i == len(text) // 2:  # both go on as forks
            some = tuple(g.fork_guess(SESSION) for g in some)
        for g in some:
            g.learn_round(Draft.chain_draft(text[i - 1]), None, Verdict((), text[i]))


def test_a_fork_goes_its_own_way():
    config = CopyNGramMixtureDrafter(SuffixDrafter(), table(1, 3, 3, 50), 0.01)
    one, _ = both(config, [1, 2, 3, 1, 2, 3, 1])
    before = proposal(one, 1, DraftBudget(4, 9))
    twin = one.fork_guess(SESSION)
    for x in (5, 6, 7, 1):
        twin.learn_round(Draft.chain_draft(0), None, Verdict((), x))
    same(before, proposal(one, 1, DraftBudget(4, 9)))
    assert proposal(twin, 1, DraftBudget(4, 9)).token != before.token


def test_a_long_text_of_few_words():
    """States with many followers, long runs that come back, and a budget larger than the last one."""
    rng = np.random.default_rng(3)
    words = [rng.integers(0, 12, rng.integers(1, 9)).tolist() for _ in range(20)]
    text = [x for k in rng.integers(0, 20, 600) for x in words[k]]
    some = both(
        CopyNGramMixtureDrafter(SuffixDrafter(floor=0.05), table(2, 4, 4, 300), 0.01), text[:1500]
    )
    for i in range(1500, len(text)):
        a, b = (proposal(g, text[i - 1], DraftBudget(12, 8 + i % 90)) for g in some)
        same(a, b)
        for g in some:
            g.learn_round(Draft.chain_draft(text[i - 1]), None, Verdict((), text[i]))
    assert len(text) > 2000 and len(a) > 1


def test_a_store_is_read_in_python():
    from polydec.methods.speculative.drafters.automaton import SuffixStore

    config = CopyNGramMixtureDrafter(
        SuffixDrafter(store=SuffixStore.of_corpus([[1, 2, 3, 4]])), table(1, 3, 3, 50)
    )
    assert isinstance(config.open_guess([1, 2], SESSION), CopyNGramMixtureGuess)

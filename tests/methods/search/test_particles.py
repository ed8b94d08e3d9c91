"""Adaptive weighted rejection sampling: unbiased by enumeration, and the posterior is the exact one."""

import math
from collections import defaultdict

import pytest
import torch

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.lab.testing.enumerate import (
    enumerate_executions,
    law_of,
    target_law,
    text_law_distance,
)
from polydec.lab.testing.examples import bend_target
from polydec.lab.testing.toy import toy_law
from polydec.laws.constraints.any_of import AnyOf
from polydec.laws.constraints.everything import UnrestrictedLanguage
from polydec.laws.constraints.regex import Regex
from polydec.laws.shapers.constrained import ConstraintRule
from polydec.methods.search.loop.particles import ParticleSearch
from polydec.methods.search.loop.rejection import (
    draw_by_geometric_rejection,
    draw_by_recursive_rejection,
)
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.match import MatchVerifier

PROMPT = (0, 1, 0)
P_V = torch.tensor([0.35, 0.3, 0.18, 0.12, 0.05], dtype=torch.float64)
SETS = [
    frozenset({1, 4}),
    frozenset({0}),
    frozenset({4}),
    frozenset(range(5)),
    frozenset({0, 1, 2, 3}),
]


def ways(good):
    return (lambda x: x in good), (lambda: torch.tensor([i in good for i in range(5)]))


@pytest.mark.parametrize("good", SETS, ids=sorted)
@pytest.mark.parametrize("looks", [1, 2, 32])
def test_the_recursive_estimator_is_unbiased_exactly(good, looks):
    mean, total = [0.0] * 5, 0.0
    for drawn, p in enumerate_executions(
        lambda rng: draw_by_recursive_rejection(P_V, *ways(good), rng, looks)
    ):
        total += p
        if drawn.token is not None:
            mean[drawn.token] += p * drawn.weight
        assert drawn.checks <= looks + 1 and (drawn.masked or drawn.checks >= 1)
    assert total == pytest.approx(1.0) and mean == pytest.approx(
        [float(P_V[i]) if i in good else 0.0 for i in range(5)]
    )


def test_without_an_allowed_token_the_weight_is_0():
    for draw in (draw_by_recursive_rejection, draw_by_geometric_rejection):
        drawn = draw(P_V, *ways(frozenset()), Rng.of_choice(1))
        assert drawn.token is None and drawn.weight == 0.0


def test_where_all_is_allowed_the_weight_is_1_after_two_looks():
    drawn = draw_by_recursive_rejection(P_V, *ways(frozenset(range(5))), Rng.of_choice(2))
    assert (drawn.weight, drawn.checks) == (1.0, 2)
    drawn = draw_by_geometric_rejection(P_V, *ways(frozenset(range(5))), Rng.of_choice(2))
    assert drawn.weight == 1.0 and drawn.checks <= 2


@pytest.mark.parametrize("looks", [1, 32])
@pytest.mark.parametrize("accepts", [2, 4])
def test_the_geometric_estimator_is_unbiased(looks, accepts):
    good, count = frozenset({1, 4}), 8000
    drawn = [
        draw_by_geometric_rejection(P_V, *ways(good), Rng.of_choice(i), accepts, looks)
        for i in range(count)
    ]
    for token in good:
        mean = sum(d.weight for d in drawn if d.token == token) / count
        assert abs(mean - float(P_V[token])) < 4 * math.sqrt(0.25 * float(P_V[token]) / count)
    assert {d.token for d in drawn} == good


def allowed_law(target, language, length):
    """The exact law of texts that the language allows, or begins with where they are cut; and the share that it has of all."""
    law = {}
    for text, p in target_law(target, PROMPT, length).items():
        state = language.start_state()
        for x in text:
            if not language.allows_token(state, x):
                break
            state = language.next_state(state, x)
        else:
            law[text] = p
    share = sum(law.values())
    return {text: p / share for text, p in law.items()}, share


@pytest.mark.parametrize(
    "constraint, particles, looks, laws, length",
    [
        (Regex("a*b"), 1, 32, 3, 3),
        (AnyOf(("ab", "b", "bb")), 1, 2, 2, 3),
        pytest.param(AnyOf(("ab", "b")), 2, 1, 2, 2, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_weights_are_unbiased_for_whole_texts_exactly(constraint, particles, looks, laws, length):
    """With particles drawn anew as well: E[estimate of the normaliser, where the answer is a text] is its probability."""
    for seed in range(laws):
        target = toy_law(seed, 3)
        language = constraint.token_language(target.vocab, target.vocab.eos)
        want, share = allowed_law(target, language, length)
        decoder, got = (
            ParticleSearch(target, language, particles, threshold=0.9, certain=1.0, looks=looks),
            defaultdict(float),
        )

        def attempt(rng, decoder=decoder):
            try:
                return run_coroutines([answer_one(decoder, Request(PROMPT, length), rng)])[0]
            except ValueError:  # all particles came to a dead end: their weight is 0
                return None

        for result, p in enumerate_executions(attempt):
            if result is not None:
                got[result.token_ids] += p * math.exp(result.stats.systems[0].log_normaliser)
        assert sum(got.values()) == pytest.approx(share, abs=1e-9)
        assert {x: p / share for x, p in got.items()} == pytest.approx(want, abs=1e-9)


def test_without_a_constraint_it_is_plain_sampling():
    for seed in range(4):
        target = toy_law(seed, 3)
        for language in (None, UnrestrictedLanguage(3)):
            got = law_of(
                lambda rng, t=target, k=language: answer_one(
                    ParticleSearch(t, k, 1, certain=1.0), Request(PROMPT, 2), rng
                )
            )
            assert text_law_distance(got, target_law(target, PROMPT, 2)) < 1e-9


def test_particles_come_nearer_to_the_exact_law_than_the_mask():
    """A beginning that is likely, and hardly ever comes to a legal end: the mask writes it far too often."""
    target = next(t for t in (toy_law(s, 3, sharp=2.0) for s in range(400)) if _trap(t))
    language = AnyOf(("aab", "b")).token_language(target.vocab, target.vocab.eos)
    want, _ = allowed_law(target, language, 4)
    shapers = (ConstraintRule(language, tuple(target.vocab.eos)),)
    plain = SpeculativeDecoder(
        bend_target(target, shapers), NothingDrafter(), MatchVerifier(), FixedPolicy(0)
    )
    masked = text_law_distance(law_of(lambda rng: answer_one(plain, Request(PROMPT, 4), rng)), want)
    count, got = 150, defaultdict(float)
    for seed in range(count):
        result = run_coroutines(
            [answer_one(ParticleSearch(target, language, 8), Request(PROMPT, 4, seed=seed))]
        )[0]
        got[result.token_ids] += 1 / count
        assert sum(result.stats.systems[0].shares) == pytest.approx(1.0)
        assert 1.0 <= result.stats.systems[0].effective <= 8 + 1e-9
    assert text_law_distance(got, want) < masked / 2


def _trap(target):
    """Whether the mask is far off, and no text so rare under it that a few particles miss it."""
    language = AnyOf(("aab", "b")).token_language(target.vocab, target.vocab.eos)
    masked = target_law(target, PROMPT, 4, (ConstraintRule(language, tuple(target.vocab.eos)),))
    return (
        len(masked) == 2
        and min(masked.values()) > 0.15
        and text_law_distance(masked, allowed_law(target, language, 4)[0]) > 0.25
    )


def test_dead_ends_end_with_an_error():
    target = toy_law(1, 4)
    language = Regex("a(z|b)").token_language(target.vocab, target.vocab.eos)
    shapers = (ConstraintRule(AnyOf(("c",)).token_language(target.vocab, target.vocab.eos), (3,)),)
    with pytest.raises(ValueError, match="constraint leaves no token"):
        run_coroutines(
            [
                answer_one(
                    ParticleSearch(bend_target(target, shapers), language, 4), Request(PROMPT, 5)
                )
            ]
        )


def test_metrics_of_several_answers():
    target = toy_law(4, 4)
    language = AnyOf(("ab", "ba")).token_language(target.vocab, target.vocab.eos)
    from polydec.lab.testing.check_search import run_search

    found = run_search(ParticleSearch(target, language, 3), Request(PROMPT, 6, n=2))
    both = found[0].stats.plus_stats(found[1].stats).metrics()
    assert (
        len(both["weights"])
        == len(both["log_normaliser"])
        == len(both["effective_sample_size"])
        == 2
    )
    assert both["constraint_checks"] > 0 and all(len(w) == 3 for w in both["weights"])


@pytest.mark.parametrize("threshold", [0.0, 0.5, 0.9, 1.0])
def test_the_weight_is_never_carried_by_fewer_particles_than_the_threshold(threshold):
    """Where it is after a step, all are drawn anew and weigh the same."""
    few = 0
    for seed in range(30):
        target = toy_law(seed, 3)
        language = AnyOf(("aab", "b", "ba")).token_language(target.vocab, target.vocab.eos)
        decoder = ParticleSearch(target, language, 4, threshold)
        system = run_coroutines([answer_one(decoder, Request(PROMPT, 4, seed=seed))])[
            0
        ].stats.systems[0]
        assert system.effective >= threshold * 4 * (1 - 1e-9)
        few += system.effective < 3
    assert (few > 5) == (threshold <= 0.5)

"""Two models in turns: whose turn it is, what it costs, and the two ends where one of them speaks alone."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from polydec.core.decoder import answer_one
from polydec.core.law import float64_probabilities
from polydec.core.request import Request
from polydec.core.scheduler import Scheduler, run_coroutines
from polydec.core.types import Draft, Exactness, ScoreRequest
from polydec.lab.testing.check_target import check_target
from polydec.lab.testing.enumerate import law_of, target_law, text_law_distance
from polydec.lab.testing.examples import SHAPERS, bend_target
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy import toy_law
from polydec.laws.targets.switch import (
    EntropySwitchRule,
    RandomSwitchRule,
    SwitchSession,
    SwitchTarget,
    law_entropy_bits,
)
from polydec.methods.speculative.drafters.lookup import LookupDrafter
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.exact import ExactVerifier
from polydec.methods.speculative.verifiers.match import MatchVerifier

RULES = [
    EntropySwitchRule(1.0, hold=1),
    EntropySwitchRule(1.1, 0.9, 2, 2),
    EntropySwitchRule(1.2, window=1, hold=3),
    RandomSwitchRule(0.5, 2),
    RandomSwitchRule(0.5, 1, 3),
]
INF = math.inf


def models(seed=1, size=3):
    return toy_law(seed, size, cost=0.1), toy_law(seed + 50, size)


def turns(small, big, rule, prompt, text):
    """Whose turn it was before each token of the text and behind it: written with a fresh session for every row."""
    state, out = rule.start_state(), []
    for i in range(len(text) + 1):
        out.append(rule.is_large(state))
        row_V = fresh((small, big)[out[-1]], (*prompt, *text[:i])).base.logprob_row(0)
        state = rule.next_state(
            state, -sum(p * math.log2(p) for p in row_V.double().exp().tolist() if p > 0)
        )
    return out


def fresh(target, text):
    async def score():
        return await target.open_session(text).score_draft(
            Draft.chain_draft(text[-1]), ScoreRequest()
        )

    return run_coroutines([score()])[0]


def decode(target, tokens=60, seed=0):
    request = Request((0, 1, 0), tokens, ignore_eos=True, seed=seed)
    return run_coroutines(
        [
            answer_one(
                SpeculativeDecoder(target, NothingDrafter(), MatchVerifier(), FixedPolicy(0)),
                request,
            )
        ]
    )[0]


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("tree", [True, False], ids=["tree mask", "path by path"])
def test_contract(rule, tree):
    small, big = toy_law(1, 5, cost=0.1, tree=tree), toy_law(2, 5, tree=tree)
    check_target(SwitchTarget(small, big, rule), tolerance=1e-12, prefill=False)


@pytest.mark.parametrize("shaping", SHAPERS)
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_the_law_is_that_of_whose_turn_it_is(rule, shaping):
    """Enumerated with and without drafts, against laws that are made of fresh sessions."""
    bare = models()
    small, big = (bend_target(m, SHAPERS[shaping]) for m in bare)
    prompt, length = (0, 1, 0), 3

    def walk(text, p, states):
        turn = turns(*bare, rule, prompt, text)[-1]
        logw_V = fresh(bare[turn], (*prompt, *text)).log_weights(0)
        for s, state in zip(SHAPERS[shaping], states, strict=True):
            logw_V = s.shape_law(state, logw_V)
        for x, w in enumerate(torch.softmax(logw_V.double(), -1).tolist()):
            if w and (x == 2 or len(text) + 1 == length):
                law[(*text, x)] = p * w
            elif w:
                walk(
                    (*text, x),
                    p * w,
                    [
                        s.next_state(state, x)
                        for s, state in zip(SHAPERS[shaping], states, strict=True)
                    ],
                )

    law = {}
    walk((), 1.0, [s.start_state(prompt) for s in SHAPERS[shaping]])
    for drafter, verifier in (
        (NothingDrafter(), MatchVerifier()),
        (LookupDrafter(), ExactVerifier()),
    ):
        decoder = SpeculativeDecoder(
            SwitchTarget(small, big, rule), drafter, verifier, FixedPolicy(2)
        )
        assert (
            text_law_distance(
                law_of(lambda rng, d=decoder: answer_one(d, Request(prompt, length), rng)), law
            )
            < 1e-9
        )


@pytest.mark.parametrize("shaping", SHAPERS)
def test_at_the_ends_one_speaks_alone(shaping):
    for seed in range(4):
        small, big = (bend_target(m, SHAPERS[shaping]) for m in models(seed, 6))
        for rule, alone in (
            (EntropySwitchRule(INF), small),
            (EntropySwitchRule(None), small),
            (EntropySwitchRule(-1.0), big),
            (RandomSwitchRule(0.0), small),
            (RandomSwitchRule(1.0), big),
        ):
            assert (
                decode(SwitchTarget(small, big, rule), seed=seed).token_ids
                == decode(alone, seed=seed).token_ids
            )
    law = law_of(
        lambda rng: answer_one(
            SpeculativeDecoder(
                SwitchTarget(*models(), EntropySwitchRule(-1.0)),
                NothingDrafter(),
                MatchVerifier(),
                FixedPolicy(0),
            ),
            Request((0, 1), 2),
            rng,
        )
    )
    assert text_law_distance(law, target_law(models()[1], (0, 1), 2)) < 1e-9


def test_every_switch_is_held():
    small, big = models(3, 6)
    for hold in (1, 4, 9):
        rule = EntropySwitchRule(1.9, window=2, hold=hold)
        text = decode(SwitchTarget(small, big, rule), 80).token_ids
        at = [
            i
            for i, (a, b) in enumerate(pairwise(turns(small, big, rule, (0, 1, 0), text)))
            if a is not b
        ]
        assert len(at) > 2 and all(b - a >= hold for a, b in pairwise(at))


def test_a_higher_threshold_asks_the_large_model_less():
    """On one text, where both models have the same entropies and nothing is held. (In general the share of the large model
    need not fall: its own entropies enter too, and a hold shifts later turns.)"""
    model, text = toy_law(4, 6), [1, 2, 3, 0, 4, 1, 0, 2, 2, 3, 1, 4, 0, 0, 1]
    shares = [
        sum(turns(model, model, EntropySwitchRule(tau, hold=1), (0, 1), text))
        for tau in (0.0, 0.8, 1.2, 1.6, 1.8, 2.0, 2.6)
    ]
    assert shares == sorted(shares, reverse=True) and shares[0] > shares[5] > shares[-1] == 0


def test_what_it_costs():
    """A switch feeds what was missed, once; every token is fed to the model whose turn it is, in one pass."""
    (small, big), rule = models(3, 6), EntropySwitchRule(1.9, window=2, hold=4)
    scheduler = Scheduler()
    task = scheduler.submit_coroutine(
        answer_one(
            SpeculativeDecoder(
                SwitchTarget(small, big, rule), NothingDrafter(), MatchVerifier(), FixedPolicy(0)
            ),
            Request((0, 1, 0), 50, ignore_eos=True),
        )
    )
    while scheduler.step():
        pass
    turn = turns(small, big, rule, (0, 1, 0), task.result.token_ids)[:-1]
    assert True in turn and False in turn
    for large, model in ((False, small), (True, big)):
        use, last = task.usage[model.network], max(i for i, t in enumerate(turn) if t is large)
        assert use.positions == 3 + last, "every position up to the last turn, once"
        chunks = use.passes - sum(t is large for t in turn)
        assert 0 <= chunks <= use.positions // model.chunk, (
            "one pass a token, and those that long catch-ups are cut into"
        )


def test_entropy():
    for size in (2, 3, 8, 1000):
        assert law_entropy_bits(torch.zeros(size).log_softmax(-1)) == pytest.approx(
            math.log2(size), abs=1e-5
        )
    row_V = torch.full((5,), -INF)
    row_V[2] = 0.0
    assert law_entropy_bits(row_V) == 0.0
    row_V = torch.tensor([0.5, 0.25, 0.25, 0.0]).log()
    assert law_entropy_bits(row_V) == pytest.approx(1.5)


class NoCatchUp(SwitchSession):
    """The model that waits does not hear what the other one wrote."""

    def commit_tokens(self, tokens):
        _, scores, states = self._scored
        turn = self._rule.is_large(states[0])
        self._turn([*self._states, self._next(states[0], scores.of[0], 0)])
        self._both[turn].commit_tokens(tokens)


class EntropyAfterShaping(SwitchSession):
    """Looks at the row that was drawn from."""

    def _next(self, state, scores, node):
        return self._rule.next_state(state, law_entropy_bits(scores.logprob_row(node)))


class Lagging(SwitchSession):
    """Forgets to advance the state below the root of a tree."""

    async def _score(self, draft, want):
        draft, scores, states = await super()._score(draft, want)
        return draft, replace(scores, of=[scores.of[0]] * len(draft)), states


@pytest.mark.parametrize(
    "session, drafter",
    [
        (NoCatchUp, NothingDrafter()),
        (EntropyAfterShaping, NothingDrafter()),
        (Lagging, LookupDrafter()),
    ],
)
def test_faults_show(session, drafter, monkeypatch):
    monkeypatch.setattr("polydec.laws.targets.switch.SwitchSession", session)
    with pytest.raises(AssertionError):
        for rule in RULES[:3]:
            test_the_law_is_that_of_whose_turn_it_is(rule, "shaped")


def test_recipe():
    small, big = models()
    decoder, values = build(
        "entropy-adaptive", big, small, {"tau": "0.5", "tau_down": "none", "hold": 3}
    )
    assert decoder.exactness is Exactness.APPROXIMATE and decoder.target == SwitchTarget(
        small, big, EntropySwitchRule(0.5, None, 5, 3)
    )
    assert values["window"] == 5
    with pytest.raises(ValueError, match="layers cannot be read where two models take turns"):
        decoder.target.open_session((0, 1)).open_part(range(1))


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: EntropySwitchRule(math.nan), "tau is nan"),
        (lambda: EntropySwitchRule(1.0, math.nan), "tau_down is nan"),
        (lambda: EntropySwitchRule(window=0), "window is 0: it must lie in 1 to 256"),
        (lambda: EntropySwitchRule(hold=0), "hold is 0: it must lie in 1 to 4096"),
        (lambda: RandomSwitchRule(1.5), "share is 1.5: it must lie in 0 to 1"),
        (lambda: RandomSwitchRule(0.5, 0), "run is 0"),
        (
            lambda: SwitchTarget(toy_law(1), toy_law(2, 4), RandomSwitchRule(0.5)),
            "the small model has a vocabulary of 3",
        ),
    ],
)
def test_options(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_rows_are_laws():
    scores = fresh(SwitchTarget(*models(), RandomSwitchRule(0.5, 1)), (0, 1))
    assert scores.hidden_NH is None and float(
        float64_probabilities(scores.logprob_row(0)).sum()
    ) == pytest.approx(1.0)

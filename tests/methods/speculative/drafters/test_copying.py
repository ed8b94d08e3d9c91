"""CopySpec: its index, the choice of lengths, and the way it stands over a draft model."""

import random

import pytest

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft
from polydec.lab.testing.check_drafter import check_drafter
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy import toy_law
from polydec.methods.speculative.drafters.capped import CappedDrafter
from polydec.methods.speculative.drafters.copying import CopySpecDrafter
from polydec.methods.speculative.drafters.lookup import LookupDrafter
from polydec.methods.speculative.drafters.model import ModelDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.trees.chain import ChainTree
from polydec.methods.speculative.verifiers.exact import ExactVerifier
from polydec.methods.speculative.verifiers.match import MatchVerifier


def propose(guess, depth=64):
    return run_coroutines(
        [
            guess.propose_draft(
                guess.windows.text[-1],
                len(guess.windows.text),
                DraftBudget(depth, depth),
                Rng.of_choice(0),
            )
        ]
    )[0]


@pytest.mark.parametrize(
    "how",
    [
        CopySpecDrafter(gamma=2, block=4),
        CopySpecDrafter(gamma=3, first=False),
        CopySpecDrafter(gamma=1, block=2),
    ],
    ids=str,
)
def test_index_equals_a_scan_and_never_matches_itself(how):
    dice = random.Random(1)
    for _ in range(150):
        text = [dice.randrange(dice.choice((2, 3, 6))) for _ in range(dice.randint(1, 30))]
        guess = how.open_guess(text[:1], None)
        for i, x in enumerate(text[1:], 1):
            head, n = text[:i], how.gamma
            ends = [e for e in range(n, i) if head[e - n : e] == head[-n:]] if i >= n else []
            start = (ends[0] if how.first else ends[-1]) if ends else i
            assert propose(guess).token[1:] == tuple(head[start : start + how.block])
            guess.learn_round(Draft.chain_draft(head[-1]), None, Verdict((), x))


def test_is_lookup_with_one_length():
    target, request = toy_law(4, 5, eos=-1), Request((0, 1, 2, 0, 1), max_tokens=60)
    for first in (False, True):
        a, b = (
            run_coroutines(
                [
                    answer_one(
                        SpeculativeDecoder(target, d, MatchVerifier(), FixedPolicy(6)), request
                    )
                ]
            )[0]
            for d in (CopySpecDrafter(2, 6, first), LookupDrafter(2, 2, first, loop=False))
        )
        assert a == b


def test_rates_follow_what_came():
    guess = CopySpecDrafter(2).open_guess((1, 2, 3, 1, 2), None)
    assert propose(guess).chance == (1.0, 0.5, 0.5, 0.5)
    guess.learn_round(Draft.chain_draft(2), None, Verdict((), 3))
    assert guess.rate == {2: pytest.approx(0.55)}
    guess.learn_round(Draft.chain_draft(3), None, Verdict((), 7))
    assert guess.rate == {2: pytest.approx(0.495)}


def test_adapts_the_lengths_to_what_pays():
    guess = CopySpecDrafter(adapt=True, cost=0.2).open_guess(
        (1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4), None
    )
    guess.rate.update({2: 0.1, 3: 0.1, 4: 0.9})
    # (1 + .9 + … ) / (1 + .2 n): 1.58, 1.94, 2.15, 2.27, 2.34, 2.37, 2.37, …
    best = max(range(1, 10), key=lambda n: sum(0.9**i for i in range(n + 1)) / (1 + 0.2 * n))
    assert (
        propose(guess).token[1:] == (5, 6, 7, 8, 9, 1, 2, 3)[:best]
        and propose(guess).chance[1] == 0.9
    )
    guess.rate.update({4: 0.15})
    assert len(propose(guess)) == 1  # nothing pays: nothing is copied
    free = CopySpecDrafter(adapt=True, cost=0.0).open_guess((1, 2, 3, 4, 5, 1, 2), None)
    assert propose(free).token[1:] == (3, 4, 5, 1, 2)


@pytest.mark.parametrize(
    "drafter",
    [
        CopySpecDrafter(adapt=True),
        CopySpecDrafter(adapt=True, cost=0.0),
        CopySpecDrafter(1, first=False),
    ],
    ids=str,
)
def test_contract(record_counts, drafter):
    record_counts(check_drafter(drafter))


def test_a_repeated_answer_is_copied_block_by_block():
    target = toy_law(3, 9, eos=-1)
    target.network.weight[:] = -50.0
    for a in range(9):
        target.network.weight[:, a, (a + 1) % 9] = 50.0
    request = Request((*range(9), *range(9), *range(9), 0, 1, 2, 3), max_tokens=110)
    out = run_coroutines(
        [
            answer_one(
                SpeculativeDecoder(target, CopySpecDrafter(), MatchVerifier(), FixedPolicy(10)),
                request,
            )
        ]
    )[0]
    assert len(out.token_ids) / out.stats.passes >= 0.8 * 11


def test_without_a_block_it_is_the_draft_model():
    target, draft, request = (
        toy_law(4, 5, eos=-1),
        toy_law(5, 5, cost=0.1),
        Request((0, 1, 2, 0, 1), max_tokens=40, seed=2),
    )
    ours = build("copyspec-draft", target, draft, {"block": 0, "depth": 3})[0]
    theirs = build("draft-model", target, draft, {"depth": 3})[0]
    assert (
        run_coroutines([answer_one(ours, request)])[0]
        == run_coroutines([answer_one(theirs, request)])[0]
    )


def test_copies_and_model_drafts_take_turns():
    """Caches stay in step: with copies the greedy text is the same, and both sources are used."""
    target, draft, request = (
        toy_law(7, 6, eos=-1, sharp=3.0),
        toy_law(8, 6, cost=0.1),
        Request((0, 1, 2, 0, 1), max_tokens=60),
    )
    both = build("copyspec-draft", target, draft, {"gamma": 1, "depth": 2})[0]
    events = []
    out = run_coroutines([answer_one(both, request, on=events.append)])[0]
    lengths = {len(e.token) - 1 for e in events if hasattr(e, "parent")}
    assert out.stats.accepted and {2, 10} <= lengths
    twin = SpeculativeDecoder(
        target, ModelDrafter(draft, ChainTree()), ExactVerifier(), FixedPolicy(2)
    )
    assert len(run_coroutines([answer_one(twin, request)])[0].token_ids) == len(out.token_ids)


def test_capped():
    target, request = toy_law(4, 5, eos=-1), Request((0, 1, 2, 0), max_tokens=30, seed=3)
    drafter = ModelDrafter(toy_law(91, 5, cost=0.1), ChainTree())
    a, b = (
        run_coroutines(
            [answer_one(SpeculativeDecoder(target, d, ExactVerifier(), FixedPolicy(n)), request)]
        )[0]
        for d, n in ((CappedDrafter(drafter, 2), 9), (drafter, 2))
    )
    assert a == b
    assert (
        run_coroutines(
            [
                answer_one(
                    SpeculativeDecoder(
                        target, CappedDrafter(drafter, 9), ExactVerifier(), FixedPolicy(2)
                    ),
                    request,
                )
            ]
        )[0]
        == a
    )
    with pytest.raises(ValueError, match="depth is -1: it must lie in 0 to 64"):
        CappedDrafter(drafter, -1)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"gamma": 0}, "gamma is 0: it must lie in 1 to 16"),
        ({"block": 65}, "block is 65: it must lie in 0 to 64"),
        ({"cost": 2.0, "adapt": True}, "cost is 2.0: it must lie in 0 to 1"),
    ],
)
def test_bad_options(fields, message):
    with pytest.raises(ValueError, match=message):
        CopySpecDrafter(**fields)

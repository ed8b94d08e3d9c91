"""PEARL: laws, the two modes, caches, and the same text whether the passes overlap or not."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from studies.overlap import Timed, commits_per_round, overlapped, rounds

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import Scheduler, run_coroutines
from polydec.core.types import Draft, Exactness, ScoreRequest
from polydec.lab.testing.check_decoder import check_decoder, check_law
from polydec.lab.testing.kits import build
from polydec.lab.testing.strict import StrictRng
from polydec.lab.testing.toy import toy_law
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.shapers.temperature import TemperatureRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.speculative.loop.events import ProposedEvent, VerifiedEvent
from polydec.methods.speculative.loop.pearl import PearlDecoder, TruncatedScores
from polydec.methods.speculative.verifiers.coupled import CoupledVerifier
from polydec.methods.speculative.verifiers.exact import ExactVerifier
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.models.sessions.lm import CausalLaw

PROMPT = (0, 1, 0)


def decode(decoder, tokens=60, seed=0, on=None, scheduler=None, **request):
    extra = {} if on is None else {"on": on}
    return run_coroutines(
        [answer_one(decoder, Request(PROMPT, tokens, seed=seed, **request), **extra)], scheduler
    )[0]


@pytest.mark.parametrize(
    "verifier", [ExactVerifier(), MatchVerifier(), CoupledVerifier()], ids=repr
)
@pytest.mark.parametrize(
    "gamma, laws", [(1, 1), *(pytest.param(n, 3, marks=pytest.mark.slow) for n in (1, 2, 3))]
)
def test_law(record_counts, verifier, gamma, laws):
    record_counts(
        check_law(
            lambda target, draft: PearlDecoder(target, draft, verifier, gamma), laws=laws, length=3
        )
    )


@pytest.mark.parametrize(
    "gamma", [2, pytest.param(1, marks=pytest.mark.slow), pytest.param(5, marks=pytest.mark.slow)]
)
def test_contract(record_counts, gamma):
    record_counts(
        check_decoder(
            lambda target, draft: PearlDecoder(target, draft, ExactVerifier(), gamma),
            laws=2,
            length=2,
        )
    )


def test_under_match_it_writes_the_text_of_plain_decoding():
    for seed in range(6):
        target, draft = toy_law(seed, 5), toy_law(seed + (seed % 2), 5, cost=0.1)
        want = decode(build("plain", target)[0], 40, seed)
        assert (
            decode(PearlDecoder(target, draft, MatchVerifier(), 3), 40, seed).token_ids
            == want.token_ids
        )


def test_a_draft_that_is_the_target_is_never_stopped():
    """Behind the first round, which tests one token, every round writes gamma."""
    for gamma in (1, 2, 4):
        for seed in range(3):
            target, draft = toy_law(seed, 5, eos=-1), toy_law(seed, 5, eos=-1, cost=0.1)
            got = decode(PearlDecoder(target, draft, ExactVerifier(), gamma), 1 + 8 * gamma, seed)
            assert (
                got.stats.passes == 9 and got.stats.accepted == got.stats.drafted == 1 + 8 * gamma
            )


def test_a_draft_that_is_never_right_leaves_it_plain():
    """One token a round, and always pre-verify."""
    target, draft = toy_law(1, 4, eos=-1), toy_law(2, 4, eos=-1, cost=0.1)
    target.network.weight[..., 2:], draft.network.weight[..., :2] = -1e9, -1e9
    events = []
    got = decode(PearlDecoder(target, draft, ExactVerifier(), 3), 20, on=events.append)
    assert got.stats.passes == 20 and got.stats.accepted == 0
    assert all(len(e.token) == 2 for e in events if isinstance(e, ProposedEvent))
    assert all(e.path == () for e in events if isinstance(e, VerifiedEvent))


class Watched(CausalLaw):
    """Keeps its sessions for the test to look at."""

    def open_session(self, prompt):
        self.session = super().open_session(prompt)
        return self.session


def test_caches_hold_what_is_committed_and_drafted():
    """At the end of a round: of n committed tokens the target holds all but the last; the draft, before its staged chain
    is cut, up to the last token but one that it drafted."""
    for seed in range(4):
        target, draft = (
            Watched(m.network, m.vocab, chunk=2)
            for m in (toy_law(seed, 4, eos=-1), toy_law(seed, 4, eos=-1, cost=0.1))
        )
        fed, gamma = [], 3

        def look(event, target=target, draft=draft, fed=fed):
            if isinstance(event, ProposedEvent):
                held = len(event.token) - 2
                fed.append((event.position - target.session.ledger.cache.length, held))
                assert target.session.ledger.cache.end == event.position + held

        decode(PearlDecoder(target, draft, ExactVerifier(), gamma), 40, seed, on=look)
        assert {h for _, h in fed} <= {0, gamma - 1} | set(range(gamma)) and all(
            d == 1 for d, _ in fed
        )


def test_every_token_of_an_accepted_run_is_fed_to_the_draft_once():
    target, draft = toy_law(3, 5, eos=-1), toy_law(3, 5, eos=-1, cost=0.1)
    scheduler = Scheduler()
    task = scheduler.submit_coroutine(
        answer_one(PearlDecoder(target, draft, ExactVerifier(), 4), Request(PROMPT, 60))
    )
    while scheduler.step():
        pass
    assert task.usage[draft.network].positions <= len(PROMPT) + 60
    assert task.usage[target.network].positions <= len(PROMPT) + 60


class Measured(CausalLaw):
    """Notes how long each draft is that is scored."""

    def open_session(self, prompt):
        session = super().open_session(prompt)
        score, self.lengths = session.score_draft, []

        async def noted(draft, want):
            self.lengths.append(len(draft))
            return await score(draft, want)

        session.score_draft = noted
        return session


@pytest.mark.parametrize("gamma", [1, 3])
def test_a_round_costs_the_same_however_long_the_accepted_text_is(gamma):
    target, draft = (
        Measured(m.network, m.vocab, chunk=2)
        for m in (toy_law(3, 5, eos=-1), toy_law(3, 5, eos=-1, cost=0.1))
    )
    got = decode(PearlDecoder(target, draft, ExactVerifier(), gamma), 60)
    assert got.stats.accepted == got.stats.drafted == 60
    assert max(target.lengths) <= gamma and max(draft.lengths) <= 2 * gamma


def test_overlapped_and_one_after_the_other_write_the_same():
    with ThreadPoolExecutor(2) as pool:
        for seed in range(4):
            target, draft = toy_law(seed, 6, eos=-1), toy_law(seed + seed % 2, 6, eos=-1, cost=0.1)
            for shaper in (GreedyRule(), TemperatureRule(0.7)):
                decoder = PearlDecoder(
                    ShapedTarget(target, shaper), ShapedTarget(draft, shaper), ExactVerifier(), 3
                )
                requests = [Request(PROMPT, 30, seed=s) for s in range(3)]
                texts = [
                    [
                        r.token_ids
                        for r in run_coroutines([answer_one(decoder, q) for q in requests], s)
                    ]
                    for s in (None, Scheduler(pool=pool))
                ]
                assert texts[0] == texts[1]


@pytest.mark.parametrize("gamma", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_commits_a_round_are_those_of_the_two_modes(gamma):
    """With laws that do not look at the text every drafted token has the same chance, one less their distance."""
    target, draft = toy_law(1, 3, eos=-1), toy_law(2, 3, eos=-1, cost=0.1)
    target.network.weight[:], draft.network.weight[:] = (
        torch.tensor([0.5, 0.3, 0.2]).log(),
        torch.tensor([0.3, 0.4, 0.3]).log(),
    )
    results = [
        decode(PearlDecoder(target, draft, ExactVerifier(), gamma), 400, seed) for seed in range(6)
    ]
    got = sum(len(r.token_ids) for r in results) / sum(r.stats.passes for r in results)
    assert got == pytest.approx(commits_per_round(0.8, gamma), rel=0.06)
    assert commits_per_round(1.0, 5) == 5.0 and commits_per_round(0.0, 5) == 1.0


def test_simulated_overlap():
    log = [
        ("d", 1, 2.0),
        ("d", 1, 1.0),
        ("t", 1, 4.0),
        ("t", 3, 5.0),
        ("d", 1, 6.0),
        ("t", 1, 5.0),
        ("d", 1, 9.0),
    ]
    assert rounds(log, "t") == [(3.0, 4.0), (0.0, 5.0), (6.0, 5.0)] and overlapped(log, "t") == (
        23.0,
        15.0,
    )
    target, draft = toy_law(1), toy_law(2, cost=0.1)
    slow = Timed(target.network, "t")
    timed = (
        CausalLaw(slow, target.vocab, chunk=2),
        CausalLaw(Timed(draft.network, "d", slow.log), draft.vocab, chunk=2),
    )
    assert (
        decode(PearlDecoder(*timed, ExactVerifier()), 20).token_ids
        == decode(PearlDecoder(target, draft, ExactVerifier()), 20).token_ids
    )
    assert slow.log and {name for name, _, _ in slow.log} == {"t", "d"}


def test_logprobs_are_those_of_the_rows():
    target, draft = toy_law(3, 5), toy_law(3, 5, cost=0.1)
    got = decode(PearlDecoder(target, draft, MatchVerifier(), 3), 12, ignore_eos=True, logprobs=2)
    want = decode(build("plain", target)[0], 12, ignore_eos=True, logprobs=2)
    assert got.token_ids == want.token_ids
    for a, b in zip(got.logprobs, want.logprobs, strict=True):
        assert a.token == b.token and a.logp == pytest.approx(b.logp) and a.top[0][0] == b.top[0][0]


def test_draws_have_names_of_their_own():
    for seed in range(8):
        target, draft = toy_law(seed, 5, eos=-1), toy_law(seed + seed % 2, 5, eos=-1, cost=0.1)
        run_coroutines(
            [
                answer_one(
                    PearlDecoder(target, draft, ExactVerifier(), 3),
                    Request(PROMPT, 40),
                    StrictRng.of_choice(seed),
                )
            ]
        )


class Fault(ExactVerifier):
    """Puts a draw from the row before an accepted last token in its place."""

    def verify_draft(self, draft, scores, rng, position):
        verdict = super().verify_draft(draft, scores, rng, position)
        return (
            verdict
            if len(verdict.path) < len(draft) - 1
            else replace(
                verdict,
                path=verdict.path[:-1],
                bonus=rng.child_stream("token", position + 77).draw_categorical(
                    scores.logprob_row(len(draft) - 2).exp()
                ),
            )
        )


class DraftLaw(ExactVerifier):
    """Tests with the law of the token before."""

    def verify_draft(self, draft, scores, rng, position):
        return super().verify_draft(
            replace(draft, law=(None, *[draft.law[max(1, i - 1)] for i in range(1, len(draft))])),
            scores,
            rng,
            position,
        )


class Late(TruncatedScores):
    """Reads the rows one place too early."""

    def logprob_row(self, i):
        return super().logprob_row(max(0, i - 1))


@pytest.mark.parametrize(
    "verifier, length", [(Fault(), 2), (DraftLaw(), 3)], ids=lambda v: type(v).__name__
)
def test_faulty_tests_show_in_the_law(verifier, length):
    with pytest.raises(AssertionError):
        check_law(
            lambda target, draft: PearlDecoder(target, draft, verifier, 2),
            laws=3,
            length=length,
            shapings=["plain"],
        )


def test_rows_of_another_place_show_in_the_law(monkeypatch):
    monkeypatch.setattr("polydec.methods.speculative.loop.pearl.TruncatedScores", Late)
    with pytest.raises(AssertionError):
        check_law(
            lambda target, draft: PearlDecoder(target, draft, ExactVerifier(), 2),
            laws=3,
            length=3,
            shapings=["plain"],
        )


def test_recipe():
    decoder, values = build("pearl", toy_law(1), toy_law(2, cost=0.1), {"gamma": "3"})
    assert decoder.exactness is Exactness.LAW and values == {"gamma": 3}
    with pytest.raises(ValueError, match="gamma is 0: it must lie in 1 to 64"):
        build("pearl", toy_law(1), toy_law(2), {"gamma": 0})


def test_the_view_of_rows_that_are_known():
    async def rows():
        return (
            await toy_law(1)
            .open_session(PROMPT)
            .score_draft(Draft.chain_draft(0, (1, 0)), ScoreRequest())
        )

    inner = run_coroutines([rows()])[0]
    view = TruncatedScores.rows_of(inner, range(2))
    assert (
        view.certain_token(1) is None
        and view.certain_token(2) == 0
        and view.likeliest_token(1) == inner.likeliest_token(1)
    )
    assert view.likeliest_tokens(1, 2) == inner.likeliest_tokens(1, 2) and view.topk_rows(
        (0, 1), 2
    ) == inner.topk_rows((0, 1), 2)
    assert (
        view.token_logprobs(1, (0, 1)) == inner.token_logprobs(1, (0, 1))
        and torch.equal(view.base.logprob_row(1), inner.base.logprob_row(1))
        and view.hidden_NH is None
    )
    assert torch.equal(view.log_weights(1), inner.log_weights(1)) and torch.equal(
        view.logprob_row(1), inner.logprob_row(1)
    )


def test_an_observer_reads_what_is_proposed():
    events = []
    decode(build("pearl", toy_law(1, 5), toy_law(2, 5))[0], 12, on=events.append)
    told = [e for e in events if isinstance(e, ProposedEvent)]
    assert told
    for e in told:
        assert e.piece == tuple(toy_law(1, 5).vocab.words.decode([x]) for x in e.token)

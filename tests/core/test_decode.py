"""The autoregressive loop."""

from dataclasses import dataclass, replace

import pytest

from polydec.core.decoder import answer_one, run_decoder
from polydec.core.protocols import of_choice
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import Scheduler, run_coroutines
from polydec.core.trace import EditedEvent, FinishedEvent, OpenedEvent, replay
from polydec.core.types import Draft, Exactness, RowDetail, ScoreRequest
from polydec.lab.testing.toy import toy_law
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.shapers.temperature import TemperatureRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.speculative.drafters.lookup import LookupDrafter
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.loop.events import ProposedEvent, VerifiedEvent
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.loop.types import Verdict
from polydec.methods.speculative.loop.walk import Walk
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.match import MatchVerifier


@dataclass(frozen=True)
class Oracle:
    """Drafts these tokens, whatever the text."""

    tokens: tuple
    seen: list
    prompt: bool = False

    price = 0.0

    @property
    def want(self):
        return ScoreRequest(
            law=RowDetail.NOTHING,
            base=RowDetail.ROW if self.prompt else RowDetail.NOTHING,
            prompt=self.prompt,
        )

    def open_guess(self, prompt, session):
        return self

    async def propose_draft(self, root, position, budget, rng):
        return Draft.chain_draft(root, self.tokens[position : position + budget.depth])

    def learn_round(self, draft, scores, verdict):
        self.seen.append((draft, scores, verdict))

    def fork_guess(self, session=None, choice=None):
        return self

    def close(self):
        self.seen.append("closed")


def plain(target):
    return SpeculativeDecoder(target, NothingDrafter(), MatchVerifier(), FixedPolicy(0))


def decode(decoder, request, on=None):
    return run_coroutines(
        [answer_one(decoder, request) if on is None else answer_one(decoder, request, on=on)]
    )[0]


def test_exactness_is_the_verifiers():
    assert plain(toy_law(1)).exactness is Exactness.LAW


def test_a_perfect_draft_takes_one_pass_for_depth_plus_one_tokens():
    target, request = toy_law(2, 6, eos=-1), Request((0, 1), max_tokens=20)
    text = decode(plain(target), request).token_ids
    seen, events = [], []
    out = decode(
        SpeculativeDecoder(target, Oracle((0, 1, *text), seen), MatchVerifier(), FixedPolicy(4)),
        request,
        events.append,
    )
    assert out.token_ids == text and out.finish_reason == "length"
    s = out.stats
    assert (s.passes, s.drafts, s.drafted, s.accepted, s.first) == (4, 4, 16, 16, 5)
    assert s.accepted_at == s.tried_at == (4, 4, 4, 4) and 1 + s.accepted / s.drafts == 5.0
    assert [e.accepted for e in events if isinstance(e, EditedEvent)] == [4, 4, 4, 4]
    assert seen[-1] == "closed"


def test_drafts_never_pass_the_room_that_is_left():
    target, events = toy_law(2, 6, eos=-1), []
    request = Request((0, 1), max_tokens=7)
    text = decode(plain(target), request).token_ids
    decode(
        SpeculativeDecoder(
            target, Oracle((0, 1, *text, 0, 0, 0, 0), []), MatchVerifier(), FixedPolicy(4)
        ),
        request,
        events.append,
    )
    assert [len(e.token) for e in events if isinstance(e, ProposedEvent)] == [5, 2]


def test_a_rejected_draft_costs_nothing_but_the_pass():
    target, request = toy_law(2, 6, eos=-1), Request((0, 1), max_tokens=6)
    text = decode(plain(target), request).token_ids
    wrong = tuple((x + 1) % 6 for x in text)
    out = decode(
        SpeculativeDecoder(target, Oracle((0, 1, *wrong), []), MatchVerifier(), FixedPolicy(3)),
        request,
    )
    assert out.token_ids == text and out.stats.accepted == 0 and out.stats.passes == 6
    assert out.stats.tried_at == (5, 4, 3) and out.stats.accepted_at == (0, 0, 0)


@pytest.mark.parametrize("place", range(6))
def test_an_end_inside_an_accepted_run(place):
    """Wherever EOS falls in a draft of five: accepted or drawn, it is the last token, and nothing below it is fed."""
    target, request = toy_law(5, 8, eos=-1), Request((0, 1), max_tokens=12)
    text = decode(plain(target), request).token_ids
    place = next(i for i in range(place, 12) if text[i] not in text[:i])
    ends = toy_law(5, 8, eos=text[place])
    events = []
    out = decode(
        SpeculativeDecoder(ends, Oracle((0, 1, *text), []), MatchVerifier(), FixedPolicy(5)),
        request,
        events.append,
    )
    assert out.token_ids == text[: place + 1] and out.finish_reason == "stop"
    fed = [e for e in events if isinstance(e, ProposedEvent)][-1]
    assert text[place] not in fed.token[1:-1]
    stop = decode(
        SpeculativeDecoder(target, Oracle((0, 1, *text), []), MatchVerifier(), FixedPolicy(5)),
        replace(request, stop_ids=frozenset({text[place]})),
    )
    assert stop.token_ids == out.token_ids and stop.finish_reason == "stop"
    ignored = decode(
        SpeculativeDecoder(ends, Oracle((0, 1, *text), []), MatchVerifier(), FixedPolicy(5)),
        replace(request, ignore_eos=True),
    )
    assert ignored.token_ids == text


class Letters:
    def __init__(self, stop):
        self.stop, self.text, self.stopped = stop, "", False

    def push_token(self, token):
        self.text += str(token)
        self.stopped = self.text.endswith(self.stop)
        return "" if self.stopped else str(token)

    def end_text(self):
        return ""


def test_a_stop_string_inside_an_accepted_run():
    target, request = toy_law(5, 8, eos=-1), Request((0, 1), max_tokens=12)
    text = decode(plain(target), request).token_ids
    stop = "".join(map(str, text[2:4]))
    end = "".join(map(str, text)).index(stop) + 2
    asked = replace(request, writer=lambda: Letters(stop))
    out = decode(
        SpeculativeDecoder(target, Oracle((0, 1, *text), []), MatchVerifier(), FixedPolicy(8)),
        asked,
    )
    assert out.token_ids == text[:end] and out.finish_reason == "stop"


def test_events_in_order_and_replay():
    target, events = toy_law(2, 6, eos=-1), []
    request = Request((0, 1, 0, 1), max_tokens=15, choice=2)
    out = decode(
        SpeculativeDecoder(target, LookupDrafter(), MatchVerifier(), FixedPolicy(3)),
        request,
        events.append,
    )
    assert events[0] == OpenedEvent(2, (0, 1, 0, 1)) and events[-1] == FinishedEvent(2, "length")
    kinds = [type(e) for e in events[1:-1]]
    assert kinds == [ProposedEvent, VerifiedEvent, EditedEvent] * (len(kinds) // 3)
    assert (
        tuple(replay((0, 1, 0, 1), [e.edit for e in events if isinstance(e, EditedEvent)]))
        == out.token_ids
    )


@pytest.mark.parametrize(
    "shapers", [(), (TemperatureRule(0.5),), (GreedyRule(),)], ids=["plain", "warm", "greedy"]
)
def test_logprobs_of_the_shaped_law_and_of_the_model(shapers):
    base = toy_law(4, 5, eos=-1)
    target = ShapedTarget(base, *shapers) if shapers else base
    request = Request((0, 1), max_tokens=9, logprobs=2, seed=1)
    alone = decode(plain(target), request)
    drafted = decode(
        SpeculativeDecoder(
            target, Oracle((0, 1, *alone.token_ids), []), MatchVerifier(), FixedPolicy(3)
        ),
        request,
    )
    assert drafted.logprobs == alone.logprobs and len(alone.logprobs) == 9
    text = [0, 1]
    for note in alone.logprobs:

        async def row(of, text=tuple(text)):
            return (
                await of.open_session(text).score_draft(Draft.chain_draft(text[-1]), ScoreRequest())
            ).logprob_row(0)

        model, shaped = run_coroutines([row(base)])[0], run_coroutines([row(target)])[0]
        assert note.model_logp == pytest.approx(float(model[note.token]))
        assert note.logp == pytest.approx(float(shaped[note.token]))
        assert note.top == tuple(
            (int(i), pytest.approx(float(model[i]))) for i in model.topk(2).indices
        )
        text.append(note.token)
    none = decode(plain(target), replace(request, logprobs=0))
    assert none.logprobs[0].top == () and none.logprobs[0].logp == alone.logprobs[0].logp
    assert decode(plain(target), replace(request, logprobs=None)).logprobs is None


def test_prompt_rows_reach_a_drafter_that_wants_them():
    target, seen = toy_law(4, 5), []
    decode(
        SpeculativeDecoder(target, Oracle((), seen, prompt=True), MatchVerifier(), FixedPolicy(0)),
        Request((0, 1, 2, 3), max_tokens=2),
    )
    draft, scores, verdict = seen[0]
    assert draft.token == (0, 1, 2) and verdict == Verdict((1, 2), 3, prompt=True)
    assert scores.base.likeliest_tokens(2, 1)[0][0] == int(target.network.weight[1, 2].argmax())
    seen.clear()
    decode(
        SpeculativeDecoder(target, Oracle((), seen, prompt=True), MatchVerifier(), FixedPolicy(0)),
        Request((1,), max_tokens=1),
    )
    assert seen == ["closed"]  # a prompt of one token has no rows before its root's


@dataclass(frozen=True)
class Asked:
    """A target whose sessions note what they are asked for: (verb, Want)."""

    inner: object
    wants: list

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def open_session(self, prompt):
        session = self.inner.open_session(prompt)
        for verb in ("prefill_prompt", "score_draft"):
            setattr(session, verb, self.noted(verb, getattr(session, verb)))
        return session

    def noted(self, verb, real):
        async def call(*given):
            self.wants.append((verb, given[-1]))
            return await real(*given)

        return call


@dataclass(frozen=True)
class Wishes(Oracle):
    """Drafts like an oracle, and has wishes of its own."""

    wish: ScoreRequest | None = None

    @property
    def want(self):
        return self.wish


@pytest.mark.parametrize("own", RowDetail)
@pytest.mark.parametrize("asked", RowDetail)
def test_every_pass_reads_what_the_drafter_and_the_request_ask_for(own, asked):
    async def go():
        walk = await Walk.open_walk(method, (0, 1, 2), base=asked)
        for _ in range(3):
            walk.commit_round(await walk.next_round(Rng.of_choice(0), 9))
        walk.commit_round(await walk.score_given_tokens((1, 0)))
        twin = walk.fork()
        twin.commit_round(await twin.next_round(Rng.of_choice(0), 9))
        twin.close()
        walk.close()

    wants, wish = [], ScoreRequest(law=RowDetail.NOTHING, base=own, hidden=True, exits=(1,))
    method = SpeculativeDecoder(
        Asked(toy_law(4, 5), wants),
        Wishes((0, 1, 2, 3, 4), [], wish=wish),
        MatchVerifier(),
        FixedPolicy(1),
    )
    run_coroutines([go()])
    passes = [want for verb, want in wants if verb == "score_draft"]
    assert len(passes) >= 4
    for want in passes:
        assert (want.law, want.base) == (RowDetail.ROW, max(own, asked))
        assert want.hidden and want.exits == (1,) and not want.prompt and not want.last


@pytest.mark.parametrize("depth", [0, 1, 4])
@pytest.mark.parametrize("counts", [(1, 2, 3, None, 1), (None, 4, 2, 5, 1), (9, 1, 9, 1)], ids=str)
def test_a_round_that_is_cut_teaches_each_token_once(counts, depth):
    """However many tokens of each round stand, a drafter is taught the text, and along the nodes of its draft."""
    target, seen, text = toy_law(2, 6, eos=-1), [], [0, 1]
    whole = decode(plain(target), Request((0, 1), max_tokens=30)).token_ids
    method = SpeculativeDecoder(
        target, Oracle((0, 1, *whole), seen), MatchVerifier(), FixedPolicy(depth)
    )

    async def go():
        walk = await Walk.open_walk(method, (0, 1))
        for count in counts:
            made = await walk.next_round(Rng.of_choice(0), 9)
            walk.commit_round(made, count)
            text.extend(made.tokens[:count])
            assert (walk.position, walk.root) == (len(text), text[-1])
        walk.close()

    run_coroutines([go()])
    assert seen.pop() == "closed" and tuple(text[2:]) == whole[: len(text) - 2]
    taught = [verdict.written_tokens(draft) for draft, _, verdict in seen]
    assert [x for some in taught for x in some] == text[2:]


@pytest.mark.parametrize("prompt", [(0, 1), (3, 1, 2), (0, 4, 2, 3, 1, 0)])
def test_a_drafter_that_wants_the_last_row_is_shown_that_one(prompt):
    """Of the prompt's last token but one, which the root follows."""
    target, seen = toy_law(4, 5), []

    async def opened():
        walk = await Walk.open_walk(method, prompt)
        walk.close()

    async def row():
        return (
            await target.open_session(prompt[:-1]).score_draft(
                Draft.chain_draft(prompt[-2]), ScoreRequest()
            )
        ).logprob_row(0)

    wish = ScoreRequest(law=RowDetail.NOTHING, base=RowDetail.ROW, last=True)
    method = SpeculativeDecoder(
        target, Wishes((), seen, wish=wish), MatchVerifier(), FixedPolicy(0)
    )
    run_coroutines([opened()])
    draft, scores, verdict = seen[0]
    assert draft.token == prompt[-2:-1] and verdict == Verdict((), prompt[-1], prompt=True)
    assert scores.base.logprob_row(0).tolist() == pytest.approx(run_coroutines([row()])[0].tolist())


def test_a_drafter_that_fails_to_open_still_closes_the_session():
    class Fails(NothingDrafter):
        def open_guess(self, prompt, session):
            raise OSError("no")

    closed = []

    @dataclass(frozen=True)
    class Watched:
        inner: object

        @property
        def vocab(self):
            return self.inner.vocab

        def open_session(self, prompt):
            session = self.inner.open_session(prompt)
            session.close = lambda: closed.append(True)
            return session

    with pytest.raises(OSError):
        decode(
            SpeculativeDecoder(Watched(toy_law(1)), Fails(), MatchVerifier(), FixedPolicy(0)),
            Request((0,)),
        )
    assert closed == [True]


def test_cancelled_requests_close_their_sessions_and_leave_the_others_alone():
    target, seen = toy_law(2, 6, eos=-1), []
    request = Request((0, 1), max_tokens=30)
    alone = decode(plain(target), request).token_ids
    scheduler, written = Scheduler(), []
    kept = scheduler.submit_coroutine(answer_one(plain(target), request))

    def watch(event):
        written.append(event)
        if isinstance(event, EditedEvent) and len(written) > 9:
            scheduler.cancel(cut)  # from inside its own step

    cut = scheduler.submit_coroutine(
        answer_one(
            SpeculativeDecoder(
                target, Oracle((0, 1, *alone), seen), MatchVerifier(), FixedPolicy(1)
            ),
            request,
            on=watch,
        )
    )
    while scheduler.step():
        pass
    assert kept.result.token_ids == alone
    assert cut.done and cut.result is None and seen[-1] == "closed"
    got = replay((0, 1), [e.edit for e in written if isinstance(e, EditedEvent)])
    assert 0 < len(got) < 30 and tuple(got) == alone[: len(got)]


def test_all_answers_of_a_request_and_one_of_them():
    target = toy_law(4, 6, eos=-1)
    request = Request((0, 1), 12, seed=3, n=3)
    texts = [r.token_ids for r in run_coroutines([run_decoder(plain(target), request)])[0]]
    assert len(set(texts)) == 3
    assert texts == [
        run_coroutines([answer_one(plain(target), replace(request, n=1, choice=i))])[0].token_ids
        for i in range(3)
    ]
    other = run_coroutines([answer_one(plain(target), replace(request, n=1), Rng.of_choice(3, 2))])[
        0
    ]  # a stream in place of its own
    assert other.token_ids == texts[2]


@dataclass(frozen=True)
class Numbered:
    """A rule that knows which answer it shapes."""

    choice: int = 0

    def for_choice(self, choice):
        return Numbered(choice)


def test_the_rule_of_another_choice():
    assert of_choice(Numbered(), 2) == Numbered(2) and of_choice(GreedyRule(), 2) == GreedyRule()

"""The contract of searches: decoders that try many texts and answer with the best."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from polydec.base.errors import PolydecError
from polydec.core.decoder import Decoder, run_decoder
from polydec.core.protocols import Target
from polydec.core.request import Request, Result, TextWriter
from polydec.core.scheduler import Scheduler, run_coroutines
from polydec.core.trace import (
    BranchedEvent,
    EditedEvent,
    FinishedEvent,
    Observer,
    OpenedEvent,
    PrunedEvent,
    ScoredEvent,
    TraceEvent,
    from_json,
    ignore_event,
    replay,
    to_json,
)
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.lab.testing.enumerate import target_law
from polydec.lab.testing.examples import SHAPERS, bend_target
from polydec.lab.testing.exercised import (
    ContractCounts,
    require_mechanism_exercised,
)
from polydec.lab.testing.toy import ToyWords, toy_law
from polydec.laws.shapers.presence import PresencePenaltyRule
from polydec.laws.shapers.repetition import RepetitionPenaltyRule
from polydec.models.sessions.lm import CausalLaw

Make = Callable[[Target], Decoder]
"""A target -> the search to check."""
Wide = Callable[[Target, int], Decoder]
"""(a target, a width) -> the search that follows so many texts at once."""
Ranked = list[tuple[float, tuple[int, ...]]]
"""Texts with their scores, the best first."""

PROMPT = (0, 1, 0)


@dataclass(frozen=True)
class SearchCounts(ContractCounts):
    """What a check saw a search do.

    Args:
        answers: Answers whose traces were read. 0 or more, like all of these.
        branched: Branches that were begun beside the first one of a request.
        pruned: Branches that were given up.
        scored: Scores that branches were ranked by.
        tied: Answers that are worth as much as the one before them, in a law with pairs of equal texts.
        refused: Requests for more answers than the search gives, which it refused.
    """

    answers: int = 0
    branched: int = 0
    pruned: int = 0
    scored: int = 0
    tied: int = 0
    refused: int = 0


SEARCH_KINDS = ("branched", "pruned", "scored", "tied", "refused")
"""What a check of a search must have seen."""


def counted_branches(events: Sequence[TraceEvent], answers: int) -> SearchCounts:
    """What the events of one request tell of its branches."""
    begun, given_up, scored = (
        sum(isinstance(e, kind) for e in events)
        for kind in (BranchedEvent, PrunedEvent, ScoredEvent)
    )
    return SearchCounts(answers, max(0, begun - 1), given_up, scored)


def mean_logp(result: Result) -> float:
    """The score of a search that ranks texts by their mean log-probability."""
    assert result.logprobs is not None
    return sum(t.logp for t in result.logprobs) / len(result.logprobs)


def check_search(
    make: Make,
    width: int,
    *,
    wide: Wide | None = None,
    expected: Callable[[Target, int], Ranked] | None = None,
    score: Callable[[Result], float] | None = mean_logp,
    ranked: bool = True,
) -> SearchCounts:
    """Raise AssertionError unless what `make` gives is a search that can be relied on, and unless it was seen to begin, give up
    and score branches, to give texts that tie, and to refuse more answers than it has. A class attribute `unexercised` says, by
    the name of a count (SearchCounts), why that is 0.

    width: the most answers that it gives; wide: the same search at any width, which must find the best texts of all where it is
    as wide as there are texts, ranked by their mean log-probability (None: no width does that); expected: what `make` itself
    finds of a target within a number of tokens, from a reference (None: there is none); score: what a result's score must be,
    from its log-probabilities (None: something else counts in); ranked: whether answers are sorted by a score, else they are
    drawn, in this order. Returns the counts."""
    counts = check_refusal(make, width)
    check_sessions(make)
    counts += check_events(make, min(width, 2))
    counts += check_ties(make, min(width, 2))
    check_results(make, min(width, 2), score, ranked)
    check_neighbours(make, min(width, 2))
    if wide is not None:
        check_exhaustive(wide)
    if expected is not None:
        check_expected(make, expected)
    require_mechanism_exercised(counts, make(toy_law(1)), SEARCH_KINDS)
    return counts


def run_search(decoder: Decoder, request: Request, on: Observer = ignore_event) -> list[Result]:
    """All answers to one request."""
    return run_coroutines([run_decoder(decoder, request, on)])[0]


def check_exhaustive(wide: Wide) -> None:
    """As wide as there are texts, the answers are the best of all: under the request's shapers, where temperature 0 means the
    law before the argmax, and with stop strings."""
    for seed, size, length in ((1, 2, 4), (2, 3, 3), (4, 4, 2)):
        target = toy_law(seed, size)
        for name, shapers in SHAPERS.items():
            law = tuple(s for s in shapers if s.reads is not RowDetail.ARGMAX)
            for stop in ("", "aa", "ba"):
                want = _brute(target, length, law, stop)[:4]
                request = Request(
                    PROMPT, length, logprobs=0, n=len(want), writer=toy_writer_factory(target, stop)
                )
                got = run_search(wide(bend_target(target, shapers), size**length), request)
                _same(got, want, f"law {seed}, {name}, stop {stop!r}, {size**length} texts at once")


def check_expected(make: Make, expected: Callable[[Target, int], Ranked]) -> None:
    """What is found is what the reference finds."""
    for seed in range(12):
        if seed % 2:
            target, length = (toy_law(seed, 6), 6)
        else:
            target, length = (toy_law(seed, 4), 10)
        want = expected(target, length)
        _same(
            run_search(make(target), Request(PROMPT, length, logprobs=0, n=len(want))),
            want,
            f"law {seed}",
        )


def _same(got: Sequence[Result], want: Ranked, where: str) -> None:
    for i, (result, (score, text)) in enumerate(zip(got, want, strict=True)):
        assert result.token_ids == text, (
            f"{where}: answer {i} is {result.token_ids}, the best such text is {text}"
        )
        assert result.score is not None and abs(result.score - score) < 1e-9, (
            f"{where}: answer {i} has score {result.score}, it is {score}"
        )


def _brute(target: CausalLaw, length: int, shapers: Sequence[Any], stop: str) -> Ranked:
    """Every text by its mean log-probability."""
    law = defaultdict[tuple[int, ...], float](float)
    for text, p in target_law(target, PROMPT, length, shapers).items():
        law[_cut(target, text, stop)] += p  # what a stop string cuts off is summed over
    return sorted(((math.log(p) / len(text), text) for text, p in law.items()), reverse=True)


def check_results(
    make: Make, n: int, score: Callable[[Result], float] | None, ranked: bool = True
) -> None:
    """Answers differ and are sorted by their scores; each ends where it must; log-probabilities are those of its own tokens,
    and its score is made of them."""
    for seed in range(24):
        target = toy_law(seed, 5, sharp=2.0)
        stop = ("", "ab", "cc", "d")[seed % 4]
        ids = frozenset[int]({2} if seed % 5 == 4 else ())
        request = Request(
            PROMPT,
            4 + seed % 9,
            ids,
            seed % 3 == 1,
            logprobs=2,
            n=n,
            writer=toy_writer_factory(target, stop),
        )
        if seed % 2:
            shapers = (RepetitionPenaltyRule(1.3), PresencePenaltyRule(0.4))
        else:
            shapers = ()
        found = run_search(make(bend_target(target, shapers)), request)
        texts = [r.token_ids for r in found]
        scores = [r.score for r in found if r.score is not None]
        assert len(found) == n and [r.choice for r in found] == list(request.choices), (
            "not every choice has an answer"
        )
        assert len(set(texts)) == n, f"one text is given twice: {texts}"
        assert not ranked or len(scores) == n, f"an answer has no score: {scores}"
        assert scores == sorted(scores, reverse=True), f"the scores are not sorted: {scores}"
        for r in found:
            ends_rightly(target, r, request, stop)
            noted_rightly(bend_target(target, shapers), r)
            if score is None:
                off = 0.0
            else:
                off = abs(score(r) - (r.score or 0.0))
            assert off < 1e-9, (
                f"the score {r.score} of {r.token_ids} is not made of its log-probabilities"
            )
            assert r.stats.passes >= 1, "an answer without a pass"


def ends_rightly(target: CausalLaw, r: Result, request: Request, stop: str) -> None:
    """A text ends at its first end, and nowhere else; it reads as its tokens do."""
    ends = request.stop_ids | (frozenset[int]() if request.ignore_eos else target.vocab.eos)
    assert not ends & set(r.token_ids[:-1]), f"{r.token_ids} goes on after an end"
    assert r.token_ids == _cut(target, r.token_ids, stop), (
        f"{r.token_ids} goes on after the stop string {stop!r}"
    )
    words = _words(target)
    said = words.decode(r.token_ids[:-1] if r.token_ids[-1] in ends else r.token_ids)
    stopped = r.token_ids[-1] in ends or (stop and stop in said)
    assert r.text == (said.split(stop)[0] if stop else said), (
        f"{r.text!r} is the text of {r.token_ids}, stop string {stop!r}"
    )
    assert r.finish_reason == ("stop" if stopped else "length"), (
        f"{r.token_ids} ended by {r.finish_reason}"
    )
    assert stopped or len(r.token_ids) == request.max_tokens, (
        f"{len(r.token_ids)} tokens, no end among them"
    )


def noted_rightly(target: Target, r: Result) -> None:
    """The log-probabilities that stand beside a text are its own, from a fresh session that feeds all of it as one chain."""

    async def scores() -> Any:
        session = target.open(PROMPT)
        return await session.score(
            Draft.chain(PROMPT[-1], r.token_ids[:-1]), ScoreRequest(base=RowDetail.ROW)
        )

    rows = run_coroutines([scores()])[0]
    assert r.logprobs is not None and tuple(t.token for t in r.logprobs) == r.token_ids, (
        "log-probabilities of other tokens"
    )
    for i, t in enumerate(r.logprobs):
        here = rows.logp(i, (t.token,))[0], rows.base.logp(i, (t.token,))[0]
        assert max(abs(here[0] - t.logp), abs(here[1] - t.model_logp)) < 1e-9, (
            f"token {i} of {r.token_ids} has log-probabilities {t.logp}, {t.model_logp}; they are {here}"
        )
        assert [x for x, _ in t.top] == list(rows.base.topk(i, len(t.top))[0]), (
            "the likeliest tokens of another place"
        )


def check_ties(make: Make, n: int) -> SearchCounts:
    """Texts that tie are different texts, and the same ones when they are asked for again, alone or with the others. Returns
    how many answers tied."""
    counts = SearchCounts()
    for seed in range(12):
        request = Request(PROMPT, 8, n=n)
        found = run_search(make(twin_tokens(seed)), request)
        texts = [r.token_ids for r in found]
        assert len(set(texts)) == n, f"one text is given twice where texts tie: {texts}"
        again = [r.token_ids for r in run_search(make(twin_tokens(seed)), request)]
        assert again == texts, f"texts that tie are others when asked for again: {again}"
        for r in found:
            alone = run_search(make(twin_tokens(seed)), replace(request, n=1, choice=r.choice))[0]
            assert alone.token_ids == r.token_ids, f"choice {r.choice} alone is another text"
        scores = [r.score for r in found if r.score is not None]
        tied = sum(abs(a - b) < 1e-9 for a, b in pairwise(scores))
        counts += SearchCounts(tied=tied)
    return counts


def twin_tokens(seed: int) -> CausalLaw:
    """A toy of which two tokens are equally likely everywhere, and make no difference to what follows."""
    target = toy_law(seed, 4)
    weight = target.network.weight  # pyright: ignore[reportAttributeAccessIssue]
    weight[1] = weight[0]
    weight[:, 1] = weight[:, 0]
    weight[..., 1] = weight[..., 0]
    return target


def check_refusal(make: Make, width: int) -> SearchCounts:
    """More answers than the search gives are refused with one sentence, before anything is fed. Returns how many were."""
    target = toy_law(5, 5)
    counts = SearchCounts()
    for request in (Request(PROMPT, 6, n=width + 1), Request(PROMPT, 6, choice=width)):
        try:
            run_search(make(target), request)
        except PolydecError as error:
            assert f"n is {width + 1}" in str(error) and "\n" not in str(error), (
                f"the refusal does not say why: {error}"
            )
            counts += SearchCounts(refused=1)
        else:
            raise AssertionError(
                f"{width + 1} answers of a search of width {width} were not refused"
            )
    assert not target.network.runs, "something was fed before the refusal"  # pyright: ignore[reportAttributeAccessIssue]
    return counts


def check_events(make: Make, n: int) -> SearchCounts:
    """Of every choice, the first event says that it begins and the last one that it ends; each stands once; edits add up to the
    answer; events are what their JSON says; and what is watched is what comes unwatched. Returns
    what was seen of branches."""
    counts = SearchCounts()
    for seed in range(8):
        target = toy_law(seed, 5, sharp=2.0)
        events = list[TraceEvent]()
        request = Request(PROMPT, 16, n=n)
        found = run_search(make(target), request, events.append)
        assert [from_json(json.loads(json.dumps(to_json(e)))) for e in events] == events, (
            "an event is not what its JSON says"
        )
        for r in found:
            mine = [e for e in events if e.choice == r.choice]
            assert isinstance(mine[0], OpenedEvent) and isinstance(mine[-1], FinishedEvent), (
                "the first or the last event is missing"
            )
            assert sum(isinstance(e, (OpenedEvent, FinishedEvent)) for e in mine) == 2, (
                "a choice begins or ends twice"
            )
            assert mine[-1].finish_reason == r.finish_reason, (
                "the trace ends for another reason than the answer"
            )
            edits = [e for e in mine if isinstance(e, EditedEvent)]
            assert tuple(replay(PROMPT, [e.edit for e in edits])) == r.token_ids, (
                "the trace replays to another text"
            )
            assert tuple(x for e in edits for x in e.tokens) == r.token_ids, (
                "tokens became final that are not the answer's"
            )
        assert [r.token_ids for r in run_search(make(target), request)] == [
            r.token_ids for r in found
        ], "watching changed the answer"
        counts += counted_branches(events, len(found))
    return counts


def check_sessions(make: Make) -> None:
    """Every session is closed, once, wherever the search is cut off; one that was cut off has promised nothing that it would
    have taken back."""
    steps = 0
    more = True
    whole = run_search(make(toy_law(4, 6, eos=-1)), Request(PROMPT, 12))[0].token_ids
    while more:
        target = CountedTarget(toy_law(4, 6, eos=-1))
        scheduler = Scheduler()
        edits = list[EditedEvent]()

        def on(event: TraceEvent, edits: list[EditedEvent] = edits) -> None:
            if isinstance(event, EditedEvent):
                edits.append(event)

        task = scheduler.submit(run_decoder(make(target), Request(PROMPT, 12), on))
        more = all(scheduler.step() for _ in range(steps))
        scheduler.cancel(task)
        assert sorted(target.closed) == list(range(target.opened)), (
            f"cancelled after {steps} steps, {target.opened} sessions were opened and these closed: {sorted(target.closed)}"
        )
        early = tuple(x for e in edits for x in e.tokens)
        assert early == whole[: len(early)], (
            f"after {steps} steps {early} was certain, the answer is {whole}"
        )
        steps += 1


def check_neighbours(make: Make, n: int) -> None:
    """An answer does not depend on what runs beside it, nor on how many others are asked for."""
    decoder = make(toy_law(11, 6))
    requests = [
        Request((0, 1, 2, 3, 4, 0, 1)[i % 3 :], 3 + 4 * (i % 3), n=1 + i % n) for i in range(6)
    ]
    alone = [run_search(decoder, r) for r in requests]
    for order in (range(6), range(5, -1, -1)):
        together = dict(
            zip(
                order,
                run_coroutines([run_decoder(decoder, requests[i]) for i in order]),
                strict=True,
            )
        )
        for i, want in enumerate(alone):
            same = [r.token_ids for r in together[i]] == [r.token_ids for r in want]
            assert same, f"request {i} has another answer beside its neighbours"
    for request in requests:
        for r in run_search(decoder, replace(request, n=n)):
            one = run_search(decoder, replace(request, n=1, choice=r.choice))[0]
            assert one.token_ids == r.token_ids and one.score == r.score, (
                f"choice {r.choice} alone is another text"
            )


class CountedTarget:
    """A target that counts its sessions. opened: how many; closed: the number of each that was closed."""

    def __init__(self, target: CausalLaw) -> None:
        self.target = target
        self.vocab = target.vocab
        self.layers = target.layers
        self.opened = 0
        self.closed = list[int]()

    def open(self, prompt: Sequence[int]) -> Any:
        return self.count(self.target.open(prompt))

    def count(self, session: Any) -> Any:
        self.opened += 1
        return CountedSession(self, session, self.opened - 1)


class CountedSession:
    """One of its sessions."""

    def __init__(self, of: CountedTarget, session: Any, number: int) -> None:
        self._of = of
        self._session = session
        self._number = number

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def fork(self, choice: int | None = None) -> Any:
        return self._of.count(self._session.fork(choice))

    def close(self) -> None:
        self._of.closed.append(self._number)
        self._session.close()


class StopStringWriter:
    """Makes a toy's text, and ends it before a stop string."""

    def __init__(self, words: ToyWords, stop: str, held: str = "", stopped: bool = False) -> None:
        self.words = words
        self.stop = stop
        self.held = held
        self.stopped = stopped

    def push(self, token: int) -> str:
        self.held += self.words.decode((token,))
        at = self.held.find(self.stop)
        if at >= 0:
            self.held = self.held[:at]
            self.stopped = True
        if self.stopped:
            sure = len(self.held)
        else:
            sure = max(0, len(self.held) - len(self.stop) + 1)
        out = self.held[:sure]
        self.held = self.held[sure:]
        return out

    def end(self) -> str:
        return self.held

    def fork(self) -> StopStringWriter:
        return StopStringWriter(self.words, self.stop, self.held, self.stopped)


def _words(target: CausalLaw) -> ToyWords:
    words = target.vocab.words
    assert isinstance(words, ToyWords)
    return words


def toy_writer_factory(target: CausalLaw, stop: str) -> Callable[[], TextWriter]:
    """What makes a toy's texts, for a request that ends before this stop string ("" for none)."""
    return lambda: StopStringWriter(_words(target), stop or "\n")  # no toy writes a line break


def _cut(target: CausalLaw, text: tuple[int, ...], stop: str) -> tuple[int, ...]:
    """The tokens up to the one that completes the stop string."""
    if not stop:
        return text
    words = _words(target)
    return next((text[:i] for i in range(1, len(text)) if stop in words.decode(text[:i])), text)

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
from polydec.lab.testing.exercised_counts import (
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

    Attributes:
        answers: Answers whose traces were read. 0 or more, like all of these.
        branched: Branches that were begun beside the first one of a request.
        pruned: Branches that were given up.
        scored: Scores that branches were ranked by.
        tied: Answers that are worth as much as the one before them, in a law with pairs of equal
            texts.
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
    """Count what the events of one request say of its branches.

    Args:
        events: All events of the request.
        answers: How many answers it had.

    Returns:
        The counts; the first branch of a request is not counted.
    """
    begun, given_up, scored = (
        sum(isinstance(e, kind) for e in events)
        for kind in (BranchedEvent, PrunedEvent, ScoredEvent)
    )
    return SearchCounts(answers, max(0, begun - 1), given_up, scored)


def mean_logp(result: Result) -> float:
    """Compute the score of a search that ranks texts by their mean log-probability.

    Args:
        result: An answer with the log-probabilities of its tokens.

    Returns:
        Their mean, in nats.
    """
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
    """Check everything that a search promises.

    It was seen to begin, give up and score branches, to give texts that tie, and to refuse more
    answers than it has. A class attribute `unexercised` of the decoder says, by the name of a count
    (SearchCounts), why that is 0.

    Args:
        make: Makes the search over a target.
        width: The most answers that it gives, at least 1.
        wide: Makes the same search at any width, which must find the best texts of all where it is
            as wide as there are texts, ranked by their mean log-probability. None: no width does
            that.
        expected: What `make` itself finds of a target within a number of tokens, from a reference.
            None: there is none.
        score: What a result's score must be, from its log-probabilities. None: something else
            counts in.
        ranked: Whether answers are sorted by a score; else they are drawn, in this order. Default
            True.

    Returns:
        The counts.

    Raises:
        AssertionError: A promise is broken, or something that is to be checked never happened.
    """
    # Refusal first: it requires that nothing of a fresh target is fed.
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
    """Run a search to its end.

    Args:
        decoder: The search.
        request: The request.
        on: Called with each event. Default: events are ignored.

    Returns:
        All answers to the request, by choice.
    """
    return run_coroutines([run_decoder(decoder, request, on)])[0]


def check_exhaustive(wide: Wide) -> None:
    """Require that the answers are the best of all where a search is as wide as there are texts.

    They are so under the request's shapers, where temperature 0 means the law before the argmax,
    and with stop strings.

    Args:
        wide: Makes the search over a target, at a width.

    Raises:
        AssertionError: An answer, or its score, is another one than brute force finds.
    """
    for seed, size, length in ((1, 2, 4), (2, 3, 3), (4, 4, 2)):
        target = toy_law(seed, size)
        for name, shapers in SHAPERS.items():
            # An argmax leaves one text: a search ranks by the law before it.
            law = tuple(s for s in shapers if s.reads is not RowDetail.ARGMAX)
            for stop in ("", "aa", "ba"):
                want = _brute(target, length, law, stop)[:4]
                request = Request(
                    PROMPT, length, logprobs=0, n=len(want), writer=toy_writer_factory(target, stop)
                )
                got = run_search(wide(bend_target(target, shapers), size**length), request)
                _same(got, want, f"law {seed}, {name}, stop {stop!r}, {size**length} texts at once")


def check_expected(make: Make, expected: Callable[[Target, int], Ranked]) -> None:
    """Require that a search finds what a reference finds.

    Args:
        make: Makes the search over a target.
        expected: From a target and a number of tokens to the texts with their scores, the best
            first.

    Raises:
        AssertionError: An answer, or its score, is another one.
    """
    for seed in range(12):
        if seed % 2:
            target = toy_law(seed, 6)
            length = 6
        else:
            target = toy_law(seed, 4)
            length = 10
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
    """Require that answers differ, are sorted by their scores, and end where they must.

    Log-probabilities are those of an answer's own tokens, and its score is made of them.

    Args:
        make: Makes the search over a target.
        n: Answers to each request, at least 1.
        score: What a result's score must be. None: it is not compared.
        ranked: Whether every answer must have a score. Default True.

    Raises:
        AssertionError: An answer breaks one of these.
    """
    for seed in range(24):
        target = toy_law(seed, 5, sharp=2.0)
        # Ends of all kinds over the seeds: stop strings, stop ids, EOS, EOS ignored, and the limit.
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
        # Rules that look at the text before show whether a search keeps each path's own text.
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
        # A search that returns one text twice has wasted an answer.
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
    """Require that a text ends at its first end, and nowhere else, and reads as its tokens do.

    Args:
        target: The toy that wrote it.
        r: The answer.
        request: What it answers: its stop ids, its length, and whether EOS is ignored.
        stop: The stop string, "" for none.

    Raises:
        AssertionError: The answer ends elsewhere, says so wrongly, or has another text.
    """
    ends = request.stop_ids | (frozenset[int]() if request.ignore_eos else target.vocab.eos)
    assert not ends & set(r.token_ids[:-1]), f"{r.token_ids} goes on after an end"
    assert r.token_ids == _cut(target, r.token_ids, stop), (
        f"{r.token_ids} goes on after the stop string {stop!r}"
    )
    words = _words(target)
    # What ends an answer is not part of its text.
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
    """Require that the log-probabilities beside a text are its own.

    They are compared with those of a fresh session that feeds all of the text as one chain.

    Args:
        target: The law that the text was decoded from.
        r: The answer, with log-probabilities.

    Raises:
        AssertionError: They are another token's, or another place's.
    """

    async def noted_scores() -> Any:
        session = target.open_session(PROMPT)
        return await session.score_draft(
            Draft.chain_draft(PROMPT[-1], r.token_ids[:-1]), ScoreRequest(base=RowDetail.ROW)
        )

    # All tokens of the text in one pass, by a session that has seen nothing of the search.
    rows = run_coroutines([noted_scores()])[0]
    assert r.logprobs is not None and tuple(t.token for t in r.logprobs) == r.token_ids, (
        "log-probabilities of other tokens"
    )
    for i, t in enumerate(r.logprobs):
        here = rows.token_logprobs(i, (t.token,))[0], rows.base.token_logprobs(i, (t.token,))[0]
        assert max(abs(here[0] - t.logp), abs(here[1] - t.model_logp)) < 1e-9, (
            f"token {i} of {r.token_ids} has log-probabilities {t.logp}, {t.model_logp}; they are {here}"
        )
        assert [x for x, _ in t.top] == list(rows.base.likeliest_tokens(i, len(t.top))[0]), (
            "the likeliest tokens of another place"
        )


def check_ties(make: Make, n: int) -> SearchCounts:
    """Require that texts that tie are different texts, and the same ones when they are asked for
    again.

    Args:
        make: Makes the search over a target.
        n: Answers to each request, at least 1; each is asked for alone as well.

    Returns:
        How many answers tied.

    Raises:
        AssertionError: A text is given twice, or another time is another one.
    """
    counts = SearchCounts()
    for seed in range(12):
        request = Request(PROMPT, 8, n=n)
        found = run_search(make(twin_tokens(seed)), request)
        texts = [r.token_ids for r in found]
        assert len(set(texts)) == n, f"one text is given twice where texts tie: {texts}"
        # Ties must be broken by a rule, not by an order of memory.
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
    """Make a toy of which two tokens are equally likely everywhere, and make no difference to what
    follows.

    Args:
        seed: Seed of the toy.

    Returns:
        The toy, over four tokens; tokens 0 and 1 are the twins.
    """
    target = toy_law(seed, 4)
    # The rows and columns of token 1 become those of token 0: as the last token, as the one before
    # it, and as the next.
    weight = target.network.weight  # pyright: ignore[reportAttributeAccessIssue]
    weight[1] = weight[0]
    weight[:, 1] = weight[:, 0]
    weight[..., 1] = weight[..., 0]
    return target


def check_refusal(make: Make, width: int) -> SearchCounts:
    """Require that more answers than the search gives are refused with one sentence, before
    anything is fed.

    Args:
        make: Makes the search over a target.
        width: The most answers that it gives, at least 1.

    Returns:
        How many requests were refused.

    Raises:
        AssertionError: One was not, or something was fed first.
    """
    target = toy_law(5, 5)
    counts = SearchCounts()
    # One answer too many, or a choice behind the last one.
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
    """Require that the events of each choice tell its answer.

    The first says that the choice begins and the last one that it ends, and each stands once; edits
    add up to the answer; events are what their JSON says; and watching a request does not change
    it.

    Args:
        make: Makes the decoder of a target.
        n: Answers to each request, at least 1.

    Returns:
        What was seen of branches.

    Raises:
        AssertionError: Events and answers differ.
    """
    counts = SearchCounts()
    for seed in range(8):
        target = toy_law(seed, 5, sharp=2.0)
        events = list[TraceEvent]()
        request = Request(PROMPT, 16, n=n)
        found = run_search(make(target), request, events.append)
        # A trace is read by other programs, so it must survive JSON.
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
        # Once more without anybody watching.
        assert [r.token_ids for r in run_search(make(target), request)] == [
            r.token_ids for r in found
        ], "watching changed the answer"
        counts += counted_branches(events, len(found))
    return counts


def check_sessions(make: Make) -> None:
    """Require that every session is closed, once, wherever the search is cut off.

    A search that was cut off has promised nothing that it would have taken back.

    Args:
        make: Makes the decoder of a target.

    Raises:
        AssertionError: A session stays open or is closed twice, or an early edit is not the
            answer's.
    """
    steps = 0
    more = True
    # The answer of a run that was not stopped, to compare with. It is
    # short, as a run is cut off at each of its steps: time grows with the square of the length.
    request = Request(PROMPT, 8)
    whole = run_search(make(toy_law(4, 6, eos=-1)), request)[0].token_ids
    while more:
        target = CountedTarget(toy_law(4, 6, eos=-1))
        scheduler = Scheduler()
        edits = list[EditedEvent]()

        def on_event(event: TraceEvent, edits: list[EditedEvent] = edits) -> None:
            """Collect the edits of one run.

            Args:
                event: An event of the run.
                edits: Where its edits go.
            """
            if isinstance(event, EditedEvent):
                edits.append(event)

        task = scheduler.submit_coroutine(run_decoder(make(target), request, on_event))
        # Cut off after 0, 1, 2, … steps, until a run comes to its end before that.
        more = all(scheduler.step() for _ in range(steps))
        scheduler.cancel(task)
        assert sorted(target.closed) == list(range(target.opened)), (
            f"cancelled after {steps} steps, {target.opened} sessions were opened and these closed: {sorted(target.closed)}"
        )
        # Edits are final: what a cut-off run has said begins the full run's answer.
        early = tuple(x for e in edits for x in e.tokens)
        assert early == whole[: len(early)], (
            f"after {steps} steps {early} was certain, the answer is {whole}"
        )
        steps += 1


def check_neighbours(make: Make, n: int) -> None:
    """Require that an answer does not depend on what runs beside it, nor on how many others are
    asked for.

    Args:
        make: Makes the decoder of a target.
        n: The most answers to a request, at least 1.

    Raises:
        AssertionError: An answer is another one in a batch, or alone.
    """
    decoder = make(toy_law(11, 6))
    requests = [
        Request((0, 1, 2, 3, 4, 0, 1)[i % 3 :], 3 + 4 * (i % 3), n=1 + i % n) for i in range(6)
    ]
    alone = [run_search(decoder, r) for r in requests]
    # In both orders, so that each request has been before and behind each other one.
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
    # And each choice alone, as answers of one request share their tree.
    for request in requests:
        for r in run_search(decoder, replace(request, n=n)):
            one = run_search(decoder, replace(request, n=1, choice=r.choice))[0]
            assert one.token_ids == r.token_ids and one.score == r.score, (
                f"choice {r.choice} alone is another text"
            )


class CountedTarget:
    """A target that counts its sessions.

    Attributes:
        opened: How many sessions were opened or forked.
        closed: Number of each session that was closed, in the order of closing.
    """

    def __init__(self, target: CausalLaw) -> None:
        self.target = target
        self.vocab = target.vocab
        self.layers = target.layers
        self.opened = 0
        self.closed = list[int]()

    def open_session(self, prompt: Sequence[int]) -> Any:
        return self.counting_session(self.target.open_session(prompt))

    def counting_session(self, session: Any) -> Any:
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
        return self._of.counting_session(self._session.fork(choice))

    def close(self) -> None:
        self._of.closed.append(self._number)
        self._session.close()


class StopStringWriter:
    """Makes a toy's text, and ends it before a stop string.

    Args:
        words: The toy's words.
        stop: The stop string, at least one character.
        held: Text that is not given out yet: it may be the beginning of the stop string.
        stopped: Whether the stop string was found.
    """

    def __init__(self, words: ToyWords, stop: str, held: str = "", stopped: bool = False) -> None:
        self.words = words
        self.stop = stop
        self.held = held
        self.stopped = stopped

    def push_token(self, token: int) -> str:
        """Add a token.

        Args:
            token: Token id.

        Returns:
            The text that is certain now.
        """
        self.held += self.words.decode((token,))
        at = self.held.find(self.stop)
        if at >= 0:
            self.held = self.held[:at]
            self.stopped = True
        # The last len(stop) - 1 characters may begin the stop string, and wait.
        if self.stopped:
            sure = len(self.held)
        else:
            sure = max(0, len(self.held) - len(self.stop) + 1)
        out = self.held[:sure]
        self.held = self.held[sure:]
        return out

    def end_text(self) -> str:
        return self.held

    def fork(self) -> StopStringWriter:
        return StopStringWriter(self.words, self.stop, self.held, self.stopped)


def _words(target: CausalLaw) -> ToyWords:
    words = target.vocab.words
    assert isinstance(words, ToyWords)
    return words


def toy_writer_factory(target: CausalLaw, stop: str) -> Callable[[], TextWriter]:
    """Give what makes a toy's texts, for a request.

    Args:
        target: The toy.
        stop: String before which the text ends, "" for none.

    Returns:
        A function that makes a new writer.
    """
    return lambda: StopStringWriter(_words(target), stop or "\n")  # no toy writes a line break


def _cut(target: CausalLaw, text: tuple[int, ...], stop: str) -> tuple[int, ...]:
    """The tokens up to the one that completes the stop string."""
    if not stop:
        return text
    words = _words(target)
    return next((text[:i] for i in range(1, len(text)) if stop in words.decode(text[:i])), text)

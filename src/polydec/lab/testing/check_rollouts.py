"""The contract of decoders that draw several texts and answer with one of them, where equal texts
may occur.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from polydec.core.decoder import Decoder, answer_one, run_decoder
from polydec.core.protocols import Target
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import Scheduler, run_coroutines
from polydec.core.trace import BranchedEvent, EditedEvent, Observer, TraceEvent, TriedEvent
from polydec.core.types import RowDetail
from polydec.lab.testing.check_search import (
    check_events,
    check_neighbours,
    check_sessions,
    ends_rightly,
    noted_rightly,
    toy_writer_factory,
)
from polydec.lab.testing.enumerate import Law, law_of, target_law, text_law_distance
from polydec.lab.testing.examples import SHAPERS, bend_target
from polydec.lab.testing.exercised_counts import (
    ContractCounts,
    require_mechanism_exercised,
)
from polydec.lab.testing.strict import StrictRng
from polydec.lab.testing.toy import toy_law
from polydec.methods.search.loop.stats import SearchStats
from polydec.models.sessions.lm import CausalLaw

Make = Callable[[Target], Decoder]
"""A target -> the decoder to check."""
Drawn = Sequence[tuple[tuple[int, ...], float]]
"""Texts in the order in which they were begun, each with its mean log-probability."""
Picked = Callable[[CausalLaw, Drawn, int], int]
"""(the target, what was drawn, the most tokens of a text) -> which of them is the answer."""

PROMPT = (0, 1, 0)


@dataclass(frozen=True)
class RolloutCounts(ContractCounts):
    """What a check saw of texts that are tried for an answer.

    Attributes:
        answers: Answers whose traces were read. 0 or more, like all of these.
        branched: Texts, or beginnings of texts, that were tried beside the first one of a request.
        distinct: Texts that differ among the answers to one request, beside the first one.
        picked_over_first: Answers that do not go on from the first text that was tried for them,
            though no limit cut it.
        laws: Laws of the answers that were enumerated.
    """

    answers: int = 0
    branched: int = 0
    distinct: int = 0
    picked_over_first: int = 0
    laws: int = 0


def check_rollouts(make: Make, *, tries: int = 2, picked: Picked | None = None) -> RolloutCounts:
    """Check everything that a decoder promises that draws several texts and answers with one of
    them.

    Texts beside the first, answers that differ, and answers other than the first text must have
    been seen, unless a class attribute `unexercised` says, by the name of a count (RolloutCounts),
    why that is 0.

    Args:
        make: Makes the decoder of a target.
        tries: How many texts it draws for an answer, at least 1. Default 2.
        picked: Which of them a reference takes: the law of the answers is then that of taking it
            from so many independent draws, enumerated. None: there is no reference.

    Returns:
        The counts.

    Raises:
        AssertionError: A promise is broken, or something that is to be checked never happened.
    """
    check_sessions(make)
    seen = check_events(make, 2)
    check_neighbours(make, 2)
    distinct = check_texts(make)
    check_ledger(make)
    check_clock(make)
    check_draws(make)
    over_first = picks_over_first(make)
    if picked is None:
        laws = 0
    else:
        laws = check_law(make, tries, picked).laws
    counts = RolloutCounts(seen.answers, seen.branched, distinct, over_first, laws)
    # Fails where the method never did what it is there for.
    require_mechanism_exercised(
        counts, make(toy_law(1)), ("branched", "distinct", "picked_over_first")
    )
    return counts


def check_law(
    make: Make, tries: int, picked: Picked, laws: int = 6, length: int = 2
) -> RolloutCounts:
    """Require that the enumerated law of the answers is that of the reference.

    It is so under the request's shapers, where temperature 0 means the law before the argmax.

    Args:
        make: Makes the decoder of a target.
        tries: How many texts it draws for an answer.
        picked: Which of them the reference takes.
        laws: Random laws, at least 1. Default 6.
        length: Tokens of an answer, at least 1. Default 2.

    Returns:
        How many laws there were.

    Raises:
        AssertionError: The law is another one.
    """
    for seed in range(laws):
        target = toy_law(seed, 3)
        shapers = SHAPERS[("plain", "shaped", "greedy")[seed % 3]]
        # An argmax would make all draws alike: texts are drawn from the law before it.
        before = tuple(s for s in shapers if s.reads is not RowDetail.ARGMAX)
        decoder, request = make(bend_target(target, shapers)), Request(PROMPT, length)
        got = law_of(lambda rng, d=decoder, r=request: answer_one(d, r, rng))
        off = text_law_distance(
            got,
            expected_pick_law(
                target, target_law(target, PROMPT, length, before), tries, length, picked
            ),
        )
        assert off < 1e-9, f"law {seed}: the law of the answers is off by {off:.2e}"
    return RolloutCounts(laws=laws)


def expected_pick_law(target: CausalLaw, law: Law, tries: int, length: int, picked: Picked) -> Law:
    """Compute the law of what is picked of independent draws.

    Args:
        target: The target, for references that read it.
        law: The law of each draw.
        tries: How many texts are drawn.
        length: The most tokens of a text.
        picked: Which of the texts is taken.

    Returns:
        The probability of each answer.
    """
    out: Law = defaultdict(float)
    # Every combination of draws, with the product of their probabilities.
    for drawn in product(law.items(), repeat=tries):
        texts = [(text, math.log(p) / len(text)) for text, p in drawn]
        out[texts[picked(target, texts, length)][0]] += math.prod(p for _, p in drawn)
    return dict(out)


def check_texts(make: Make) -> int:
    """Require that each answer ends where it must, and that its log-probabilities are those of its
    own tokens.

    Args:
        make: Makes the decoder of a target.

    Returns:
        How many answers differ from the first one to their request.

    Raises:
        AssertionError: An answer breaks one of these.
    """
    distinct = 0
    for seed in range(12):
        # Stop strings, stop ids and EOS in turns, each of which may end an answer.
        target = toy_law(seed, 5, sharp=2.0)
        stop = ("", "ab", "cc", "d")[seed % 4]
        ids = frozenset[int]({2} if seed % 5 == 4 else ())
        request = Request(
            PROMPT,
            4 + seed % 9,
            ids,
            seed % 3 == 1,
            seed,
            logprobs=2,
            n=2,
            writer=toy_writer_factory(target, stop),
        )
        found = run_coroutines([run_decoder(make(target), request)])[0]
        assert [r.choice for r in found] == list(request.choices), "not every choice has an answer"
        for r in found:
            ends_rightly(target, r, request, stop)
            noted_rightly(target, r)
        distinct += len({r.token_ids for r in found}) - 1
    return distinct


def picks_over_first(make: Make) -> int:
    """Count the answers that do not go on from the first text that was tried for them.

    Texts have room to come to an end of their own: which one is taken is left to the search, not to
    the limit.

    Args:
        make: Makes the decoder of a target.

    Returns:
        How many of 24 answers.
    """
    count = 0
    room = 64
    for seed in range(24):
        target = toy_law(seed, 4, sharp=0.7)
        events = list[TraceEvent]()
        request = Request(PROMPT, room, seed=seed)
        answer = run_coroutines([answer_one(make(target), request, on=events.append)])[0].token_ids
        first = first_tried(events)
        # A text that the limit cut says nothing: any answer may go another way there.
        count += len(first) < room and answer[: len(first)] != first
    return count


def first_tried(events: Sequence[TraceEvent]) -> tuple[int, ...]:
    """Find the tokens of the first branch that anything was written to.

    Args:
        events: The events of one answer.

    Returns:
        The tokens; none where nothing was tried.
    """
    texts = dict[int, tuple[int, ...]]()
    first = list[int]()
    for event in events:
        match event:
            case BranchedEvent():
                # A branch begins with what its parent had at the place where it leaves it.
                texts[event.branch] = texts.get(event.parent, ())[: event.at]
            case TriedEvent():
                texts[event.branch] += event.tokens
                first.append(event.branch)
            case _:
                pass
    if first:
        return texts[first[0]]
    return ()


def check_ledger(make: Make) -> None:
    """Require that what is counted is what was done.

    That is: positions fed beside those of the prompt, which is fed once; tokens written; passes.

    Args:
        make: Makes the decoder of a target.

    Raises:
        AssertionError: A count is wrong.
    """
    for seed in range(8):
        target = toy_law(seed, 5, sharp=0.5)
        found = run_coroutines([run_decoder(make(target), Request(PROMPT, 9, seed=seed, n=2))])[0]
        stats = [r.stats for r in found]
        total = SearchStats()
        for s in stats:
            assert isinstance(s, SearchStats), f"a ledger of another kind: {s}"
            total = total.plus_stats(s)
        table: Any = target.network
        # The toy counts layers times positions; the prompt but its last token is fed by the
        # prefill.
        fed = table.runs / table.layers - (len(PROMPT) - 1)
        assert total.scored == fed, (
            f"{total.scored} tokens were counted as scored, {fed:.0f} were fed"
        )
        for r, s in zip(found, stats, strict=True):
            assert s.written >= len(r.token_ids), (
                f"{s.written} tokens written, {len(r.token_ids)} are in the answer alone"
            )
            assert 1 <= s.passes <= s.scored and s.first <= len(r.token_ids), (
                f"passes and first do not fit: {s}"
            )


def check_clock(make: Make) -> None:
    """Require that the first edit of an answer comes before half of the work is done.

    The clock of decoding starts with it, also where nothing is certain before the end: tokens a
    second would mean nothing otherwise.

    Args:
        make: Makes the decoder of a target.

    Raises:
        AssertionError: The first edit comes later.
    """
    scheduler = Scheduler()
    edited = list[int]()
    steps = 0
    on: Observer = lambda e: edited.append(steps) if isinstance(e, EditedEvent) else None  # noqa: E731
    scheduler.submit_coroutine(run_decoder(make(toy_law(4, 6, eos=-1)), Request(PROMPT, 24), on))
    while scheduler.step():
        steps += 1
    assert 2 * edited[0] <= steps, f"the first edit came after {edited[0]} of {steps} steps"


def check_draws(make: Make) -> None:
    """Require that no name of a draw is used twice, and that choices and seeds draw independently.

    Args:
        make: Makes the decoder of a target.

    Raises:
        AssertionError: Requests that differ give one text, or one request gives two.
        RuntimeError: Two draws have one name.
    """
    decoder = make(toy_law(21, 6, sharp=0.5))
    alike = Request(PROMPT, 24, ignore_eos=True)
    for vary, requests in (
        ("choice", [replace(alike, choice=i) for i in range(8)]),
        ("seed", [replace(alike, seed=i) for i in range(8)]),
    ):
        texts = [run_coroutines([answer_one(decoder, r)])[0].token_ids for r in requests]
        assert len(set(texts)) == len(texts), f"requests that differ in {vary} gave the same text"
        assert texts == [run_coroutines([answer_one(decoder, r)])[0].token_ids for r in requests], (
            "the same request, another text"
        )
    # The strict stream gives the draws of the plain one, and refuses to give one twice.
    strict: Any = StrictRng.of_choice(3)
    text = run_coroutines([answer_one(decoder, Request(PROMPT, 12, seed=3), strict)])[0].token_ids
    assert (
        text
        == run_coroutines([answer_one(decoder, Request(PROMPT, 12, seed=3), Rng.of_choice(3))])[
            0
        ].token_ids
    )

"""The contract of decoders of the draft-and-verify family: recipes, and whatever is composed by
hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from polydec.core.decoder import Decoder, answer_one
from polydec.core.protocols import Target
from polydec.core.request import Request, Result
from polydec.core.scheduler import run_coroutines
from polydec.core.trace import EditedEvent, TraceEvent, from_json, replay, to_json
from polydec.core.types import Exactness
from polydec.lab.testing.check_neighbours import BatchCounts, check_neighbours
from polydec.lab.testing.enumerate import NoiseSize, TooManyWays, counted_law, text_law_distance
from polydec.lab.testing.examples import target_draft_pairs
from polydec.lab.testing.exercised_counts import (
    ExercisedCollector,
    ExercisedCounts,
    missing_kinds,
    require_exercised,
)
from polydec.lab.testing.strict import StrictRng
from polydec.lab.testing.toy import OrderTwoNetwork, toy_law
from polydec.lab.testing.toy_laws import FURTHER_LAWS, LATER_LENGTHS, ToyLaw, toy_laws
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.loop.stats import DraftStats
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.match import MatchVerifier

Make = Callable[[Target, Target], Decoder]
"""(target, draft) -> the decoder to check."""

PROMPT = (0, 1, 0)
MOST_WAYS = 300
"""Ways for draws to fall that are followed in an answer that is a token longer than the others:
half a second of a core.
"""


def check_decoder(
    make: Make,
    *,
    laws: int = 8,
    length: int = 3,
    longer: int = 0,
    tolerance: float = 1e-9,
    unexercised: Mapping[str, str] | None = None,
) -> ExercisedCounts:
    """Check everything that a decoder of the draft-and-verify family promises.

    That is: the output law (LAW) or the greedy text (ARGMAX), the ends of the answer, replay of its
    trace, randomness that is used once, independence of choices, and that a request's answer does
    not depend on its neighbours in a batch.

    Args:
        make: Makes the decoder of a target and a draft.
        laws: Random laws that are enumerated; see `check_law`. Default 8.
        length: Tokens of an answer in the enumeration, at least 1. Default 3.
        longer: How many of the laws have an answer that is a token longer. Default 0.
        tolerance: Total variation that rounding may leave.
        unexercised: By the name of a count, one sentence that says why it stays 0. None: nothing
            stays 0.

    Returns:
        What the enumeration exercised; where no law is promised, what the answers of `check_ends`
        did.

    Raises:
        AssertionError: A promise is broken, or something that is to be checked never happened.
    """
    # Any pair will do here: what a decoder promises does not depend on its models.
    kind = make(*target_draft_pairs(1)[0]).exactness
    # An approximate method has no law to compare with, but ends and batches must be right all the
    # same.
    if kind is not Exactness.APPROXIMATE:
        check_greedy(make)
    counts = check_ends(make)
    if kind is Exactness.LAW:
        counts = check_law(
            make,
            laws=laws,
            length=length,
            longer=longer,
            tolerance=tolerance,
            unexercised=unexercised,
        )
    else:
        require_exercised(counts, "a check of answers", reasons=unexercised)
    # These hold for every method, whatever it promises.
    check_replay(make)
    check_batch(make)
    check_choices(make)
    return counts


def check_law(
    make: Make,
    *,
    laws: int = 8,
    length: int = 3,
    longer: int = 0,
    tolerance: float = 1e-9,
    shapings: Iterable[str] = ("plain", "shaped", "greedy"),
    unexercised: Mapping[str, str] | None = None,
) -> ExercisedCounts:
    """Enumerate the output law, compare it with the target's, and require that tokens were drafted,
    accepted and rejected.

    Where the method drafts nothing in an answer, a longer one is enumerated; where it never drafts,
    hits or misses over the usual laws, further ones follow (`toy_laws.FURTHER_LAWS`). Laws of four
    tokens are left out where noise is asked for that can be enumerated over three only.

    Args:
        make: Makes the decoder of a target and a draft, both shaped.
        laws: Random laws, at least 1.
        length: Tokens of an answer, at least 1.
        longer: How many of the laws, from the first, have an answer that is a token longer, unless
            its draws fall in over MOST_WAYS ways: there a pass may accept one token more.
        tolerance: Total variation that rounding may leave.
        shapings: Names of `examples.SHAPERS`, each of which bends target and draft.
        unexercised: By the name of a count, one sentence that says why it stays 0 ("drafted": a
            method that never drafts). None: nothing stays 0.

    Returns:
        What was exercised over the whole enumeration.

    Raises:
        AssertionError: The law is another one, or nothing was drafted, accepted or rejected without
            a reason.
    """
    names = tuple(shapings)
    if unexercised is None:
        reasons = {}
    else:
        reasons = unexercised
    # Lengthening an answer is for methods that need rounds before they draft: one that never drafts
    # would only take longer.
    if "drafted" in reasons:
        later = 0
    else:
        later = LATER_LENGTHS
    # Each law comes once under each shaping, so the longer answers are the first `longer` times as
    # many.
    usual = list(toy_laws(laws, length, names, longer=longer, later=later))
    first = longer * len(names)
    # A token more multiplies the ways that draws can fall: only there is their number limited.
    counts = _laws(make, usual[:first], tolerance, MOST_WAYS)
    counts += _laws(make, usual[first:], tolerance, None)
    for further in FURTHER_LAWS:
        # Further laws cost time: they run only as long as something was never seen.
        if missing_kinds(counts, reasons=reasons):
            counts += _laws(make, further(names), tolerance, None)
    assert counts.laws, "no law could be enumerated"
    require_exercised(counts, "the enumeration", reasons=reasons)
    return counts


def _laws(
    make: Make, toys: Iterable[ToyLaw], tolerance: float, most: int | None
) -> ExercisedCounts:
    """What was exercised over these laws, each of which is the target's.

    `most` is the number of ways that are followed; None is all.
    """
    counts = ExercisedCounts()
    for one in toys:
        decoder = make(one.target, one.draft)
        try:
            counts += _law(decoder, one, tolerance, most)
        # Gumbel noise is enumerated over three tokens only: this law has four.
        except NoiseSize:
            continue
        except TooManyWays:
            counts += _law(decoder, one.shorter, tolerance, None)
    return counts


def _law(decoder: Decoder, one: ToyLaw, tolerance: float, most: int | None) -> ExercisedCounts:
    """What was exercised over a law, in answers that grow until something is drafted."""
    counts = ExercisedCounts()
    for length in one.lengths:
        collector, request = ExercisedCollector(), one.toy_request(length)
        # Every way that the discrete draws can fall, each with its probability: the law is exact.
        got, _ = counted_law(
            lambda rng, r=request, on=collector: answer_one(decoder, r, rng, on), most
        )
        off = text_law_distance(got, one.answer_law(length))
        assert off < tolerance, (
            f"{one.called}, of {one.bare.vocab.size} tokens: the output law is off by {off:.2e}"
        )
        counts += collector.counts + ExercisedCounts(laws=1)
        # A law in which nothing was drafted says nothing of verification: the answer grows by a
        # token.
        if collector.counts.drafted:
            break
    return counts


def _run(
    decoder: Decoder, *requests: Request, on: Callable[[TraceEvent], None] | None = None
) -> list[Result]:
    extra: dict[str, Any] = {} if on is None else {"on": on}
    return run_coroutines([answer_one(decoder, r, **extra) for r in requests])


def check_greedy(make: Make) -> None:
    """Require that greedy texts are those of plain decoding.

    Args:
        make: Makes the decoder of a target and a draft.

    Raises:
        AssertionError: A text is another one.
    """
    for seed in range(6):
        size = 3 + 5 * (seed % 3)
        # A draft of the same seed is the target itself: all is accepted. The other one misses
        # often.
        target, draft = (
            ShapedTarget(toy_law(seed + s, size, sharp=2.0), GreedyRule())
            for s in (1, 50 * (seed % 2) + 1)
        )
        request = Request(PROMPT, max_tokens=24, seed=seed, ignore_eos=True)
        got = _run(make(target, draft), request)[0].token_ids
        want = _run(
            SpeculativeDecoder(target, NothingDrafter(), MatchVerifier(), FixedPolicy(0)), request
        )[0].token_ids
        assert got == want, f"greedy text {got} is not that of plain decoding, {want}"


def check_ends(make: Make, ledger: bool = True) -> ExercisedCounts:
    """Require that an answer ends at its first EOS or stop id, which it holds, or at max_tokens.

    Nothing follows an end, inside an accepted run either. With ignore_eos an answer does not end at
    EOS.

    Args:
        make: Makes the decoder of a target and a draft.
        ledger: Whether the decoder's statistics are those of draft and verify; they are then
            checked as well. Default True.

    Returns:
        What was drafted, accepted and rejected on the way.

    Raises:
        AssertionError: An answer ends elsewhere, or its statistics do not add up.
    """
    collector = ExercisedCollector()
    for seed in range(24):
        size = 3 + seed % 3
        # Every fifth law has a stop id as well, which is no EOS.
        ids = frozenset[int]({0} if seed % 5 == 4 else ())
        target = toy_law(seed, size, sharp=2.0)
        # The same seed gives a draft equal to the target: its runs are accepted whole, so that ends
        # fall inside of them.
        draft = toy_law(seed if seed % 2 else seed + 50, size, sharp=2.0, cost=0.1)
        # With ends, and with EOS as a token like any other.
        for ignore in (False, True):
            request = Request((0, 1, 0, 1), 1 + seed % 12, ids, ignore, seed)
            out = _run(make(target, draft), request, on=collector)[0]
            ends = ids | (frozenset() if ignore else target.vocab.eos)
            assert not ends & set(out.token_ids[:-1]), f"{out.token_ids} goes on after an end"
            stopped = out.token_ids[-1] in ends
            assert out.finish_reason == ("stop" if stopped else "length"), (
                f"{out.token_ids} ended by {out.finish_reason}"
            )
            # Neither end nor full length would be an answer that was lost.
            assert stopped or len(out.token_ids) == request.max_tokens, (
                f"{len(out.token_ids)} tokens, no end among them"
            )
            assert len(out.token_ids) <= request.max_tokens, (
                f"{len(out.token_ids)} tokens are over max_tokens"
            )
            # The statistics of other families say other things.
            if not ledger:
                continue
            s = out.stats
            assert isinstance(s, DraftStats), f"the statistics are {type(s).__name__}"
            # A pass gives one token of its own, and those of the draft that it accepts.
            assert len(out.token_ids) <= s.passes + s.accepted, (
                "more tokens than passes and accepted drafts account for"
            )
    return collector.counts


def check_replay(make: Make) -> None:
    """Require that the edits of the trace, read back from JSON, add up to the answer, and that no
    draw shares its name.

    Args:
        make: Makes the decoder of a target and a draft.

    Raises:
        AssertionError: An event changes on its way through JSON, or the trace gives another text.
        RuntimeError: Two draws have one name.
    """
    for seed in range(8):
        target = toy_law(seed, 5)
        draft = toy_law(seed + 1, 5, cost=0.1)
        events = list[TraceEvent]()
        decoder = make(target, draft)
        coro = answer_one(
            decoder,
            Request(PROMPT, max_tokens=20, seed=seed),
            StrictRng.of_choice(seed),
            events.append,
        )
        out = run_coroutines([coro])[0]
        # A trace is stored as JSON, so what is replayed is what JSON gives back.
        read = [from_json(json.loads(json.dumps(to_json(e)))) for e in events]
        assert read == events, "an event is not what its JSON says"
        got = tuple(replay(PROMPT, [e.edit for e in read if isinstance(e, EditedEvent)]))
        assert got == out.token_ids, f"the trace replays to {got}, the answer is {out.token_ids}"
        plain = _run(decoder, Request(PROMPT, max_tokens=20, seed=seed))[0].token_ids
        assert plain == out.token_ids, "the answer changed when it was watched"


def check_batch(make: Make) -> BatchCounts:
    """Require of many requests at once that each one's answer is what it is alone.

    The requests have unequal lengths, seeds and choices, and run in two orders. Passes that
    requests shared and answers that differ must have been seen, unless a class attribute
    `unexercised` of the decoder says, by the name of a count (BatchCounts), why that is 0.

    Args:
        make: Makes the decoder of a target and a draft.

    Returns:
        The counts.

    Raises:
        AssertionError: An answer depends on its neighbours, or nothing was shared.
    """
    target = toy_law(11, 6)
    network = target.network
    assert isinstance(network, OrderTwoNetwork)
    draft = toy_law(12, 6, cost=0.1)
    decoder = make(target, draft)
    requests = [
        Request((0, 1, 2, 3, 4, 0, 1)[i % 3 :], 3 + 5 * (i % 4), seed=i // 2, choice=i % 2)
        for i in range(9)
    ]
    return check_neighbours(decoder, requests, network)


def check_choices(make: Make) -> None:
    """Require that choices of one request, and requests of other seeds, draw independently of each
    other.

    Args:
        make: Makes the decoder of a target and a draft.

    Raises:
        AssertionError: Two of them gave the same text.
    """
    # Flat laws and twelve tokens: independent texts are all but never equal.
    target = toy_law(21, 6, sharp=0.5)
    draft = toy_law(22, 6, sharp=0.5, cost=0.1)
    decoder = make(target, draft)
    for vary in ("choice", "seed"):
        requests = [replace(Request(PROMPT, 12, ignore_eos=True), **{vary: i}) for i in range(8)]
        texts = [r.token_ids for r in _run(decoder, *requests)]
        assert len(set(texts)) == len(texts), f"requests that differ in {vary} gave the same text"

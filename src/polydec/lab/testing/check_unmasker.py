"""The contract of unmaskers, of refresh rules and of decoders of the diffusion family."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import Any

import torch

from polydec.core.canvas_law import AllowedCanvases, Canvas, Denoiser
from polydec.core.decoder import Decoder, answer_one
from polydec.core.protocols import Shaper
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import Scheduler, run_coroutines
from polydec.core.trace import EditedEvent, TraceEvent, from_json, replay, to_json
from polydec.core.types import Exactness
from polydec.lab.testing.check_neighbours import BatchCounts, check_neighbours
from polydec.lab.testing.enumerate import law_of, text_law_distance
from polydec.lab.testing.exercised_counts import (
    ContractCounts,
    require_exercised,
    require_mechanism_exercised,
)
from polydec.lab.testing.strict import StrictRng
from polydec.lab.testing.toy_canvas import MarkovChainNetwork, ToyDenoiser, left_open
from polydec.laws.constraints.byte_automaton import ByteAutomaton, compile_expression
from polydec.laws.constraints.canvas_language import CanvasLanguage, CanvasSegment
from polydec.laws.constraints.expressions import parse_expression
from polydec.laws.constraints.token_automaton import compile_token_automaton
from polydec.laws.shapers.allowed import AllowedTokensRule
from polydec.laws.shapers.banned import BannedTokensRule
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.shapers.logit_bias import LogitBiasRule
from polydec.methods.diffusion.loop.denoising import DenoisingDecoder
from polydec.methods.diffusion.loop.events import RemaskedEvent, UnmaskedEvent
from polydec.methods.diffusion.loop.protocols import CanvasRefresh, Unmasker
from polydec.methods.diffusion.loop.types import UnmaskerView, canvas_with_edit, gap_positions
from polydec.methods.diffusion.refreshes.full import FullRefresh

PROMPT = (0, 1, 0)
Make = Callable[[Denoiser], Decoder]
"""denoiser -> the decoder to check."""


@dataclass(frozen=True)
class CanvasCounts(ContractCounts):
    """What a check saw on canvases.

    Attributes:
        passes: Passes over a canvas. 0 or more, like all of these.
        parallel: Passes that filled several gaps.
        masked_again: Gaps that a pass guessed and put back.
        laws: Joint laws that were enumerated.
    """

    passes: int = 0
    parallel: int = 0
    masked_again: int = 0
    laws: int = 0


CANVAS_KINDS = ("parallel", "masked_again")
"""What a check of a decoder or an unmasker must have seen."""


@dataclass
class CanvasCollector:
    """An observer that counts what happens to canvases; counts: so far."""

    counts: CanvasCounts = CanvasCounts()

    def __call__(self, event: TraceEvent) -> None:
        match event:
            case UnmaskedEvent():
                self.counts += CanvasCounts(1, int(len(event.position) > 1))
            case RemaskedEvent():
                self.counts += CanvasCounts(masked_again=len(event.position))
            case _:
                pass


def check_unmasker(unmasker: Unmasker[Any]) -> CanvasCounts:
    """Check everything that an unmasker promises.

    It fills gaps of the block and only those (all of the canvas, where it looks everywhere), at
    least one a pass, from the laws and its state alone, with draws of their own names; and, where
    it promises the law, it gives the joint law of a model whose conditionals agree. Passes that
    fill several gaps and gaps that are put back must have been seen, unless a class attribute
    `unexercised` says, by the name of a count (CanvasCounts), why that is 0.

    Args:
        unmasker: The unmasker.

    Returns:
        The counts.

    Raises:
        AssertionError: A promise is broken, or something that is to be checked never happened.
    """
    for seed in range(6):
        _fills(unmasker, seed)

    def block_count(denoiser: Denoiser) -> Decoder:
        return DenoisingDecoder(denoiser, unmasker, FullRefresh(), block=3)

    counts = _canvas_decoder(block_count, 0)
    if unmasker.exactness is Exactness.LAW:
        for block in (0, 1, 2):
            counts += check_joint(
                lambda d, b=block: DenoisingDecoder(d, unmasker, FullRefresh(), b)
            )
    require_mechanism_exercised(counts, unmasker, CANVAS_KINDS)
    return counts


def _fills(unmasker: Unmasker[Any], seed: int) -> None:
    chain = MarkovChainNetwork(seed, 5, sharp=2.5)
    length = 14
    size = 4
    greedy = (GreedyRule(),) if seed % 2 else ()
    # Fourteen positions: the prompt, three gaps, a token that is given, and gaps to the end.
    canvas: Canvas = (*PROMPT, *(None,) * 3, 2, *(None,) * (length - 7))
    state = unmasker.start_state(canvas)
    step = 0
    left = 0
    # Block by block from the prompt on; a block without gaps is passed over.
    while open_gaps := gap_positions(canvas):
        start = len(PROMPT) + (open_gaps[0] - len(PROMPT)) // size * size
        block = range(start, min(start + size, length))
        state = unmasker.enter_block(state, len(gap_positions(canvas, block.start, block.stop)))
        while rows := gap_positions(
            canvas, block.start, length if unmasker.everywhere else block.stop
        ):
            if not gap_positions(canvas, block.start, block.stop):
                break
            look = UnmaskerView(
                canvas,
                block,
                rows,
                torch.stack([chain.position_law(canvas, r) for r in rows]),
                greedy,
                step,
            )
            streams: tuple[Any, ...] = Rng.of_choice(seed), StrictRng.of_choice(seed)
            before = look.logw_RV.clone()
            # Once with a plain stream, once with one that refuses to draw twice under a name.
            twice = [unmasker.choose_edit(state, look, rng) for rng in streams]
            assert twice[0][0] == twice[1][0], (
                "the same laws, state and randomness gave another edit"
            )
            assert torch.equal(before, look.logw_RV), "the model's log-weights were written to"
            edit, state = twice[0]
            written = [p for p, _ in edit.write]
            assert written and not edit.erase and not edit.insert, (
                f"{edit} fills nothing, or does more than that"
            )
            assert len(set(written)) == len(written) and set(written) <= set(rows), (
                f"{written} are not all gaps shown"
            )
            # An unmasker that looks everywhere may finish the canvas; else it stays in its block.
            everywhere = unmasker.everywhere and len(written) == len(rows)
            assert everywhere or set(written) <= set(block), (
                f"{written} lie outside the block {block}"
            )
            assert all(0 <= x < chain.size for _, x in edit.write), (
                f"{edit} writes what has no weight"
            )
            if greedy:
                _likeliest(look, edit.write)
            canvas = canvas_with_edit(canvas, edit)
            step += 1
            left = left + len(written)
    assert left == length - 4 and canvas[6] == 2, "a known token was changed"


def _likeliest(look: UnmaskerView, write: tuple[tuple[int, int], ...]) -> None:
    """Without chance a token is its gap's likeliest, unless the unmasker moves logits: then the one
    it says.
    """
    at = {r: i for i, r in enumerate(look.rows)}
    for p, x in write:
        # The best two: an unmasker that moves logits may pass over the likeliest.
        order = look.logw_RV[at[p]].argsort(descending=True).tolist()
        assert order.index(x) < 2, (
            f"position {p} took token {x}, of rank {order.index(x)}, without chance"
        )


def check_joint(
    make: Make, *, laws: int = 3, length: int = 3, tolerance: float = 1e-9
) -> CanvasCounts:
    """Require that the enumerated output law is the joint law of a Markov chain, cut after EOS or
    not.

    Args:
        make: Makes the decoder of a denoiser.
        laws: Random chains, at least 1. Default 3.
        length: Tokens of an answer, at least 1. Default 3.
        tolerance: Total variation that rounding may leave.

    Returns:
        How many laws there were.

    Raises:
        AssertionError: The law is another one.
    """
    counts = CanvasCounts()
    for seed in range(laws):
        # Without an end, with one that cuts the answer, and with one that is ignored.
        for eos, ignore in ((-1, False), (2, False), (2, True)):
            chain = MarkovChainNetwork(seed)
            decoder, request = (
                make(ToyDenoiser(chain, eos)),
                Request(PROMPT, max_tokens=length, ignore_eos=ignore),
            )
            got = law_of(lambda rng, d=decoder, r=request: answer_one(d, r, rng))
            off = text_law_distance(
                got, chain.joint_law(PROMPT, length, frozenset() if ignore else decoder.vocab.eos)
            )
            assert off < tolerance, (
                f"the output law is off by {off:.2e} (seed {seed}, EOS {eos}, ignored: {ignore})"
            )
            counts += CanvasCounts(laws=1)
    require_exercised(counts, "the enumeration", ("laws",))
    return counts


def check_canvas_decoder(make: Make, again: int = 0) -> CanvasCounts:
    """Check everything that a decoder of the diffusion family promises, whatever its law.

    Answers end where they should, edits replay to the answer, draws have names of their own, a
    request says in a batch what it says alone, choices differ, and boards are closed however a run
    ends. Passes that fill several gaps and gaps that are put back must have been seen, unless an
    attribute `unexercised` of the decoder's class says, by the name of a count (CanvasCounts), why
    that is 0.

    Args:
        make: Makes the decoder of a denoiser.
        again: How many tokens may be written a second time, 0 or more. Default 0.

    Returns:
        The counts.

    Raises:
        AssertionError: A promise is broken, or something that is to be checked never happened.
    """
    counts = _canvas_decoder(make, again)
    require_mechanism_exercised(counts, make(ToyDenoiser(MarkovChainNetwork(0))), CANVAS_KINDS)
    return counts


def _canvas_decoder(make: Make, again: int) -> CanvasCounts:
    counts = check_ends(make, again) + check_replay(make)
    check_batch(make)
    check_closed(make)
    return counts


def check_ends(make: Make, again: int = 0) -> CanvasCounts:
    """Require that an answer ends at its first EOS or stop id, which it holds, or at max_tokens.

    With ignore_eos EOS is a token as any other. Laws are sharper and sharper, so that a threshold
    is passed.

    Args:
        make: Makes the decoder of a denoiser.
        again: How many tokens may be written a second time, 0 or more. Default 0.

    Returns:
        What was seen on the canvases.

    Raises:
        AssertionError: An answer ends elsewhere, or its statistics do not add up.
    """
    collector = CanvasCollector()
    for seed in range(20):
        ids = frozenset[int]({0} if seed % 5 == 4 else ())
        # Unmaskers that wait for a probability above a threshold fill several gaps only where laws
        # are sharp.
        chain = MarkovChainNetwork(seed, 4, sharp=2.0 + seed / 4)
        for ignore in (False, True):
            request = Request((0, 1, 0, 1), 1 + seed % 12, ids, ignore, seed)
            out = run_coroutines([answer_one(make(ToyDenoiser(chain, 3)), request, on=collector)])[
                0
            ]
            ends = ids | (frozenset[int]() if ignore else frozenset({3}))
            assert not ends & set(out.token_ids[:-1]), f"{out.token_ids} goes on after an end"
            stopped = out.token_ids[-1] in ends
            assert out.finish_reason == ("stop" if stopped else "length"), (
                f"{out.token_ids} ended by {out.finish_reason}"
            )
            assert stopped or len(out.token_ids) == request.max_tokens, (
                f"{len(out.token_ids)} tokens, no end among them"
            )
            s = out.stats
            assert len(out.token_ids) <= s.unmasked <= request.max_tokens + again, (
                "more tokens than were written, or more than gaps"
            )
            assert s.passes <= s.unmasked and 0 <= s.first <= len(out.token_ids), (
                f"{s} does not add up"
            )
    return collector.counts


def check_replay(make: Make) -> CanvasCounts:
    """Require that the edits of the trace, read back from JSON, add up to the answer, and that
    watching changes nothing.

    Args:
        make: Makes the decoder of a denoiser.

    Returns:
        What was seen on the canvases.

    Raises:
        AssertionError: The trace and the answer differ.
    """
    collector = CanvasCollector()
    for seed in range(6):
        decoder = make(ToyDenoiser(MarkovChainNetwork(seed, 5), 4))
        events = list[TraceEvent]()
        request = Request(PROMPT, max_tokens=16, seed=seed, logprobs=2)
        out = run_coroutines(
            [answer_one(decoder, request, StrictRng.of_choice(seed), events.append)]
        )[0]
        read = [from_json(json.loads(json.dumps(to_json(e)))) for e in events]
        assert read == events, "an event is not what its JSON says"
        got = tuple(replay(PROMPT, [e.edit for e in read if isinstance(e, EditedEvent)]))
        assert got == out.token_ids, f"the trace replays to {got}, the answer is {out.token_ids}"
        assert (
            run_coroutines([answer_one(decoder, Request(PROMPT, max_tokens=16, seed=seed))])[
                0
            ].token_ids
            == got
        ), "watching changed it"
        assert sum(isinstance(e, UnmaskedEvent) for e in events) == out.stats.passes, (
            "a pass went untold"
        )
        notes = out.logprobs or ()
        assert tuple(n.token for n in notes) == got and all(
            n.model_logp <= 0 and len(n.top) == 2 for n in notes
        ), "notes"
        for event in events:
            collector(event)
    return collector.counts


def check_batch(make: Make) -> BatchCounts:
    """Require of canvases of unequal length, seed and choice in one batch that each answer is what
    it is alone.

    Passes that canvases shared and answers that differ must have been seen, unless a class
    attribute `unexercised` says, by the name of a count (BatchCounts), why that is 0.

    Args:
        make: Makes the decoder of a denoiser.

    Returns:
        The counts.

    Raises:
        AssertionError: An answer depends on its neighbours, or nothing was shared.
    """
    chain = MarkovChainNetwork(7, 6, sharp=0.7)
    decoder = make(ToyDenoiser(chain, 5))
    requests = [
        Request((0, 1, 2, 3, 4, 0, 1)[i % 3 :], 2 + 5 * (i % 4), seed=i // 2, choice=i % 2)
        for i in range(9)
    ]
    return check_neighbours(decoder, requests, chain)


def check_closed(make: Make) -> None:
    """Several choices come in order, each drawn for itself; a run that is cancelled or fails leaves
    no board open.
    """
    from polydec.core.decoder import run_decoder

    decoder = make(ToyDenoiser(MarkovChainNetwork(21, 6, sharp=0.4)))
    left_open()
    several = run_coroutines([run_decoder(decoder, Request(PROMPT, 12, n=6))])[0]
    assert [r.choice for r in several] == list(range(6)) and len(
        {r.token_ids for r in several}
    ) > 4, "choices are alike"
    # Choices of one request in order, then each of them alone: they must agree.
    single = [
        run_coroutines([answer_one(decoder, Request(PROMPT, 12, choice=c))])[0].token_ids
        for c in range(6)
    ]
    assert [r.token_ids for r in several] == single, "a choice among others is not the choice alone"
    assert not left_open(), "a board stayed open after the answers"
    scheduler = Scheduler()
    task = scheduler.submit_coroutine(run_decoder(decoder, Request(PROMPT, 12, n=3)))
    scheduler.step()
    scheduler.cancel(task)
    assert not left_open(), "a board stayed open after a cancelled run"


@dataclass(frozen=True)
class RuleCounts(ContractCounts):
    """How often a request's rules kept something out of an answer.

    What is counted are answers that break the rule where it is left out.

    Attributes:
        banned: Of bans of tokens, the end among them. 0 or more, like all of these.
        allowed: Of tokens outside of which nothing may be said.
        biased: Of biases so large that they decide.
    """

    banned: int = 0
    allowed: int = 0
    biased: int = 0


def check_rules(make: Callable[[Denoiser, tuple[Shaper[Any], ...]], Decoder]) -> RuleCounts:
    """Check that a request's rules hold for the answers of a decoder of the diffusion family.

    No answer is empty, holds a banned token, the end among them, or one that is not allowed, and a
    large bias decides. Rules of each kind must have been seen to keep something out of an answer,
    unless a class attribute `unexercised` says, by the name of a count (RuleCounts), why that is 0.

    Args:
        make: From a denoiser and the shapers of a request to the decoder to check.

    Returns:
        The counts.

    Raises:
        AssertionError: A rule is broken, or kept nothing out.
    """
    size = 6
    eos = 5
    every = frozenset(range(size))
    rules: list[tuple[str, Shaper[Any], frozenset[int]]] = [
        *(("banned", BannedTokensRule((x,)), every - {x}) for x in (0, 3, eos)),
        ("banned", BannedTokensRule((0, 1, 2)), every - {0, 1, 2}),
        ("allowed", AllowedTokensRule((1, 4)), frozenset({1, 4})),
        ("allowed", AllowedTokensRule((2, eos)), frozenset({2, eos})),
        ("biased", LogitBiasRule({2: 100.0}), frozenset({2})),
        ("biased", LogitBiasRule({eos: -100.0}), every - {eos}),
    ]
    denoisers = [ToyDenoiser(MarkovChainNetwork(seed, size, sharp=2.5), eos) for seed in range(6)]

    def said_tokens(seed: int, shapers: tuple[Shaper[Any], ...]) -> frozenset[int]:
        """Find the tokens of an answer.

        Args:
            seed: Seed of the request, and number of the denoiser.
            shapers: Shapers of the request.

        Returns:
            The tokens that stand in the answer.
        """
        decoder = make(denoisers[seed], shapers)
        answer = run_coroutines([answer_one(decoder, Request(PROMPT, max_tokens=12, seed=seed))])[0]
        return frozenset(answer.token_ids)

    counts = RuleCounts()
    for seed in range(len(denoisers)):
        for chance in ((), (GreedyRule(),)):
            # The answer without the rule shows whether the rule had anything to do.
            unruled = said_tokens(seed, chance)
            for kind, rule, legal in rules:
                tokens = said_tokens(seed, (rule, *chance))
                assert tokens and tokens <= legal, f"{rule} and yet {sorted(tokens)}"
                counts += RuleCounts(**{kind: int(not unruled <= legal)})
    require_mechanism_exercised(counts, make(denoisers[0], ()))
    return counts


@dataclass(frozen=True)
class AllowedCounts(ContractCounts):
    """What a check of answers under a language saw.

    Attributes:
        ended: Answers that ended before their canvas did. 0 or more, like all of these.
        filled: Answers as long as their canvas.
        bent: Answers that are allowed, and are not where the language is left out.
        several: Passes under a language that filled several gaps.
        beside: Answers some of whose tokens were given.
    """

    ended: int = 0
    filled: int = 0
    bent: int = 0
    several: int = 0
    beside: int = 0


_TEXTS = ("(ab|cd)*e?", "a[bcde]*b|c{0,3}", "(a|bb|ccc|d.e)*d", "(abcde)*[abcd]{0,4}")
_GIVEN: tuple[tuple[int | None, ...], ...] = (
    (),
    (None, None, None, 1, None, None, None, 1, None, None, None, None),
)
"""Expressions over the tokens a to e, and what a request gives of an answer: each expression has
such answers of twelve tokens or fewer."""


def check_allowed(make: Callable[[Denoiser, AllowedCanvases | None], Decoder]) -> AllowedCounts:
    """Check that a decoder of the diffusion family keeps its answers to a language.

    Every finished answer belongs to it, drawn or greedy, whether tokens are given or none, and each
    is the same alone and among others. Answers that the language changed must have been seen, and
    passes under it that fill several gaps, unless a class attribute `unexercised` says why not.

    Args:
        make: From a denoiser and a language (None: all answers) to the decoder to check.

    Returns:
        The counts.

    Raises:
        AssertionError: An answer does not belong to the language, or nothing was bent.
    """
    size = 6
    eos = 5
    spelled = (*(bytes((97 + x,)) for x in range(eos)), None, None)
    counts = AllowedCounts()
    several = 0

    def count_several(event: TraceEvent) -> None:
        nonlocal several
        if isinstance(event, UnmaskedEvent):
            several += len(event.position) > 1

    for seed, (pattern, given) in enumerate(product(_TEXTS, _GIVEN)):
        texts = compile_expression(parse_expression(pattern), "regex")
        automaton = compile_token_automaton(texts, spelled, (eos,), "regex")
        language = CanvasLanguage((CanvasSegment(automaton),))
        # Some of the models are block-causal.
        own = 5 * (seed % 4 >= 2)
        denoiser = ToyDenoiser(MarkovChainNetwork(seed, size, sharp=2.5), eos, own)
        request = Request(PROMPT, max_tokens=12, seed=seed, given=given, choice=seed % 3)
        if not language.can_finish((*PROMPT, *(given or (None,) * 12)), len(PROMPT)):
            continue
        several = 0
        answer = run_coroutines([answer_one(make(denoiser, language), request, on=count_several)])[
            0
        ]
        free = run_coroutines([answer_one(make(denoiser, None), request)])[0]
        assert _said_by(texts, answer.token_ids, eos), (
            f"{answer.token_ids} is no answer of {pattern}"
        )
        beside = any(x is not None for x in given[: len(answer.token_ids)])
        counts += AllowedCounts(
            int(answer.finish_reason == "stop"),
            int(answer.finish_reason == "length"),
            int(not _said_by(texts, free.token_ids, eos)),
            several,
            int(beside),
        )
    require_exercised(counts, "the languages", ("ended", "filled", "bent", "beside"))
    require_mechanism_exercised(
        CanvasCounts(parallel=counts.several),
        make(ToyDenoiser(MarkovChainNetwork(0, size), eos), None),
        ("parallel",),
    )
    return counts


def _said_by(texts: ByteAutomaton, tokens: tuple[int, ...], eos: int) -> bool:
    """Whether the text of an answer is one of some, its end left out."""
    said = tokens[:-1] if tokens[-1:] == (eos,) else tokens
    return eos not in said and texts.matches_bytes(bytes(97 + x for x in said))


@dataclass(frozen=True)
class RefreshCounts(ContractCounts):
    """What a check saw a refresh rule do.

    Attributes:
        passes: Of all answers. 0 or more, like all of these.
        reused: Positions that an earlier pass fed and a later one read without feeding them.
        refreshed: Positions that were fed again.
    """

    passes: int = 0
    reused: int = 0
    refreshed: int = 0


def check_refresh(refresh: CanvasRefresh) -> RefreshCounts:
    """Check everything that a refresh rule promises.

    Every feed ascends, holds a gap of the block and stays inside the canvas, and an answer's first
    one feeds the prompt and the block. A position of a block that was a gap when the block began
    was fed since then: what is reused may be of a gap, but of none that had still to wait for its
    block. Blocks of several lengths are filled in any order, some gaps a pass, among tokens that
    are given. Positions that are reused and positions that are fed again must have been seen,
    unless a class attribute `unexercised` says, by the name of a count (RefreshCounts), why that is
    0.

    Args:
        refresh: The rule.

    Returns:
        The counts.

    Raises:
        AssertionError: A promise is broken, or something that is to be checked never happened.
    """
    counts = RefreshCounts()
    for seed in range(8):
        for length, begin, size in ((10, 4, 4), (10, 8, 2), (5, 4, 1), (40, 3, 37), (40, 3, 5)):
            counts += _feeds(refresh, Random(seed), length, begin, size)
    require_mechanism_exercised(counts, refresh)
    return counts


def _feeds(
    refresh: CanvasRefresh, dice: Random, length: int, begin: int, size: int
) -> RefreshCounts:
    """One answer, filled by chance."""
    tokens = [0 if i < begin or dice.random() < 0.1 else None for i in range(length)]
    before: Canvas | None = None
    # Which pass fed a position last, to find out what is read from an older one.
    fed, passes = [-1] * length, 0  # the pass that fed each position last
    counts = RefreshCounts()
    for start in range(begin, length, size):
        block = range(start, min(start + size, length))
        step = 0
        began = passes
        waiting = [i for i in block if tokens[i] is None]
        while open_gaps := [i for i in block if tokens[i] is None]:
            canvas = tuple(tokens)
            feed = list(refresh.fed_positions(canvas, before, block, step))
            assert feed == sorted(set(feed)) and feed[0] >= 0 and feed[-1] < length, (
                f"{feed} does not ascend in the canvas"
            )
            assert passes or feed[: block.stop] == list(range(block.stop)), (
                f"{feed}: the first pass feeds all that is seen"
            )
            # A pass that feeds no gap of the block could fill none, and the loop would not end.
            near = [i for i in open_gaps if i in set(feed)]
            assert near, f"{feed} has no gap of the block"
            known = {i for i in range(length) if fed[i] >= 0}
            counts += RefreshCounts(1, len(known - set(feed)), len(known & set(feed)))
            for i in feed:
                fed[i] = passes
            # Gaps of a block change from waiting to open when it begins: what an older pass left of
            # them is stale.
            kept = [i for i in waiting if fed[i] < began]
            assert not kept, f"{kept} keep what they were before their block {block} began"
            # As an unmasker might: any of the gaps that were fed, at least one.
            for i in dice.sample(near, dice.randint(1, len(near))):
                tokens[i] = 1
            before = canvas
            passes += 1
            step += 1
    return counts

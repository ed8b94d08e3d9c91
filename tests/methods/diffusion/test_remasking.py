"""Remasking (ReMDM as ParallelBench has it) against its card's loop, written out."""

import math

import pytest

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.trace import EditedEvent
from polydec.core.types import Exactness
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy_canvas import MarkovChainNetwork, ToyDenoiser
from polydec.laws.shapers.greedy import GreedyRule
from polydec.methods.diffusion.loop.events import UnmaskedEvent
from polydec.methods.diffusion.loop.types import pass_quota
from polydec.methods.registry import registry
from polydec.methods.registry.kit import Kit

PROMPT = (0, 1, 0)


def decoder(seed, eos=-1, **options):
    denoiser = ToyDenoiser(MarkovChainNetwork(seed, 5, 2.0), eos)
    return registry.build("remdm", Kit(denoiser, shapers=(GreedyRule(),)), options)[0]


def said(made, length):
    events = []
    out = run_coroutines([answer_one(made, Request(PROMPT, length), on=events.append)])[0]
    return out, events


def reference(seed, length, size, steps, again, count, late, eos=-1):
    """The published loop, greedy: after `late` of a block's passes, or where it is whole before, `again` passes that mask the
    `count` least sure tokens and fill as many gaps. What is written in each pass."""
    chain, canvas, passes = MarkovChainNetwork(seed, 5, 2.0), [*PROMPT, *(None,) * length], []

    def filled(low, high, number, sure):
        laws = {i: chain.position_law(tuple(canvas), i).softmax(-1) for i in range(low, high)}
        odds = {i: (float(p.max()), int(p.argmax())) for i, p in laws.items() if canvas[i] is None}
        for i in sorted(odds, key=lambda i: (-odds[i][0], i))[:number]:
            sure[i], canvas[i] = odds[i]
        passes.append([tuple(canvas[low:high])])

    def last(low, high):
        return next((i for i in range(low, high) if canvas[i] == eos), high)

    low = len(PROMPT)
    while low < len(canvas):
        high, sure, own, done = min(low + size, len(canvas)), {}, 0, 0
        given = steps or high - low
        while None in canvas[low : last(low, high)] or done < again:
            if (
                own
                and done < again
                and (own >= late * given or None not in canvas[low : last(low, high)])
            ):
                end = last(low, high)
                stand = [i for i in sure if canvas[i] is not None and i <= end]
                for i in sorted(stand, key=lambda i: (sure[i], i))[:count]:
                    canvas[i] = None
                done += 1
                filled(low, last(low, high), count, sure)
            else:
                end = last(low, high)
                left = sum(x is None for x in canvas[low:end])
                number = max(1, min(left, pass_quota(high - low, steps, own) if steps else 1))
                filled(low, end, number, sure)
                own += 1
        if eos in canvas[low:high]:
            return canvas[len(PROMPT) : last(low, high) + 1], len(passes)
        low = high
    return canvas[len(PROMPT) :], len(passes)


@pytest.mark.parametrize("eos", [-1, 3])
@pytest.mark.parametrize(
    "steps, again, count, late",
    [(0, 2, 1, 0.875), (2, 3, 2, 0.875), (3, 1, 4, 0.5), (4, 4, 1, 0.0), (0, 3, 2, 1.0)],
)
def test_it_is_the_published_loop(steps, again, count, late, eos):
    changed = 0
    for seed in range(24):
        made = decoder(seed, eos, block=6, steps=steps, again=again, count=count, late=late)
        out, events = said(made, 14)
        text, passes = reference(seed, 14, 6, steps, again, count, late, eos)
        assert out.token_ids == tuple(text) and out.stats.passes == passes
        written = [p for e in events if isinstance(e, UnmaskedEvent) for p in e.position]
        changed += len(written) - len(set(written)) > 0
        if eos < 0:  # three blocks, each with its further passes
            plain, _ = said(decoder(seed, block=6, steps=steps, again=0), 14)
            assert passes >= plain.stats.passes + again
    assert changed > 12


def test_without_further_passes_it_is_llada():
    for seed in range(8):
        denoiser = ToyDenoiser(MarkovChainNetwork(seed, 5, 2.0), 3)
        for options in ({"block": 4}, {"block": 5, "steps": 2}):
            plain = build("llada", denoiser, None, options)[0]
            made = build("remdm", denoiser, None, {**options, "again": 0})[0]
            assert made.exactness == plain.exactness
            (a, told), (b, shown) = said(plain, 12), said(made, 12)
            assert a.token_ids == b.token_ids and a.stats == b.stats
            assert [e for e in told if isinstance(e, EditedEvent)] == [
                e for e in shown if isinstance(e, EditedEvent)
            ]


def test_nothing_is_final_that_may_be_taken_back():
    """Of a block nothing streams before its last further pass; the blocks before it do."""
    for seed in range(8):
        _, events = said(decoder(seed, block=6, again=2, count=2), 12)
        new = [len(e.tokens) for e in events if isinstance(e, EditedEvent)]
        assert len(new) == 16 and not any(new[:7]) and new[7] == 6
        assert not any(new[8:15]) and new[15] == 6


def test_it_mends_what_was_written_at_once():
    """Of chains whose tokens hang together two passes are likelier texts with six further ones than without."""

    def worth(seed, text):
        chain, canvas = MarkovChainNetwork(seed, 5, 2.0), (*PROMPT, *text)
        return sum(
            float(
                chain.position_law((*canvas[:i], None, *canvas[i + 1 :]), i).log_softmax(-1)[
                    canvas[i]
                ]
            )
            for i in range(len(PROMPT), len(canvas))
        )

    better = [0, 0]
    for seed in range(40):
        one, two = (
            worth(
                seed, said(decoder(seed, block=0, steps=2, again=again, count=2), 12)[0].token_ids
            )
            for again in (0, 6)
        )
        better[0] += two > one + 1e-9
        better[1] += two < one - 1e-9
    assert better[0] > 2 * better[1] and better[0] >= 10


def test_what_is_refused():
    assert decoder(0).exactness is Exactness.APPROXIMATE
    for options in ({"count": 0}, {"late": 1.5}, {"again": -1}, {"late": math.nan}):
        with pytest.raises(ValueError, match=next(iter(options))):
            decoder(0, **options)

"""Trees that the compiled step grows in one call: those that the tree's own rule grows, level by level."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

from polydec import load
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run
from polydec.drafters._states import ONLY_ARGMAX, SEEN, StateGuess, reads_argmax
from polydec.drafters.eagle import FromEagle
from polydec.families.ar.speculative import Speculative
from polydec.families.ar.types import Budget
from polydec.learned.kinds import narrow
from polydec.native.growth import Growing
from polydec.native.library import available
from polydec.policies.fixed import Fixed
from polydec.shapers.greedy import Greedy
from polydec.shapers.repetition import Repetition
from polydec.shapers.temperature import Temperature
from polydec.targets.shaped import Shaped
from polydec.trees.best_first import BestFirst
from polydec.verifiers.match import Match

pytestmark = pytest.mark.skipif(not available()[0], reason=available()[1])
PROMPT = tuple(range(5, 40))


@cache
def bound():
    """zoo:tiny, and a random narrow drafter on its states."""
    target = load("zoo:tiny").checkpoint.lm
    width = target.network.config.width
    return target, narrow.examples(target.vocab, width, width)[0].bound(target)


def rounds(drafter, target, one_call: bool, forks: bool = False):
    """The drafts of a text, and the text; one_call: where the compiled step grows trees at all."""
    drafts = []

    class Seen:
        def open(self, prompt, session):
            guess = drafter.open(prompt, session)
            return Watched(guess if one_call else replace(guess, grower=None))

    class Watched:
        def __init__(self, guess: StateGuess):
            self.guess, self.want, self.price = guess, guess.want, 0.0
            self.learn, self.close = guess.learn, guess.close

        async def propose(self, root, position, budget, rng):
            drafts.append(await self.guess.propose(root, position, budget, rng))
            return drafts[-1]

        def fork(self, session, choice=None):
            return Watched(self.guess.fork(session, choice))

    decoder = Speculative(target, Seen(), Match(), Fixed(4, 12))
    return drafts, run([answer_one(decoder, Request(PROMPT, 24, n=2 if forks else 1))])[0]


@pytest.mark.parametrize("width", [1, 3])
def test_one_call_grows_what_the_rule_grows(width):
    target, eagle = bound()
    drafter, greedy = FromEagle(eagle, BestFirst(width)), Shaped(target, Greedy())
    (one, text), (by_level, other) = (rounds(drafter, greedy, at_once) for at_once in (True, False))
    assert eagle.grower is not None
    assert len(one) == len(by_level) and text.token_ids == other.token_ids
    assert sum(a.token == b.token for a, b in zip(one, by_level, strict=True)) >= len(one) - 2
    for a, b in zip(one, by_level, strict=True):  # near-ties of random weights may fall either way
        shared = next((i for i in range(len(a)) if a.token[i] != b.token[i]), len(a) - 1) + 1
        assert a.parent[:shared] == b.parent[:shared]
        assert (a.chance or ())[:shared] == pytest.approx((b.chance or ())[:shared], rel=1e-2)


def test_a_long_prompt_is_read_in_parts_and_a_known_tip_again():
    target, eagle = bound()
    drafter, session = FromEagle(eagle, BestFirst(2)), target.open((1, 2))
    guess = drafter.open((1, 2), session)
    guess.text, guess.true_H = (2, 3), torch.zeros(1)
    g = torch.Generator().manual_seed(1)
    width = target.network.config.width
    guess.pending = [((i,), torch.randn(2 * width, generator=g)) for i in range(1, 91)]
    budget = Budget(3, 6)
    first = run([guess.propose(3, 0, budget, None)])[0]  # 90 states: as a prompt
    again = run([guess.propose(3, 0, budget, None)])[0]  # no state: behind the same tip
    by_level = run(
        [
            replace(guess, grower=None, tip=eagle.grower.answer(guess.end)).propose(
                3, 0, budget, None
            )
        ]
    )[0]
    assert len(first) == 7 and guess.cache.length == 90
    for other in (again, by_level):
        assert (other.token, other.parent) == (first.token, first.parent)
    twin = guess.fork(session)
    assert run([twin.propose(3, 0, budget, None)])[0].token == first.token


def test_a_law_that_is_bent_is_grown_by_level():
    target, _ = bound()

    def one_call(*shapers):
        session = Shaped(target, *shapers).open(PROMPT)
        return reads_argmax(session, PROMPT[-1])

    assert one_call(Greedy()) and reads_argmax(target.open(PROMPT), 1)
    assert not one_call(Repetition(1.3), Greedy()) and not one_call(Temperature(0.7))
    assert ONLY_ARGMAX.argmax(0) == SEEN


@pytest.mark.parametrize("field", ["width", "tips", "depth", "nodes"])
def test_what_lies_outside_is_refused_by_the_library(field):
    target, eagle = bound()
    width = target.network.config.width
    good = {"depth": 2, "width": 2, "tips": 2, "nodes": 4}
    cache_ = eagle.grower._step.new_cache()
    for bad in (0, 5000):
        if field == "nodes" and not bad:
            continue  # an answer without room
        q = Growing(cache_, torch.randn(1, width), torch.randn(1, 2 * width), None, **good)
        with pytest.raises(Exception, match="outside"):
            eagle.grower.forward([replace(q, **{field: bad})])
        assert cache_.length == 0


def test_states_that_are_no_numbers_are_told():
    target, eagle = bound()
    width = target.network.config.width
    state = torch.full((1, 2 * width), float("nan"))
    with pytest.raises(Exception, match="NaN or infinite"):
        eagle.grower.forward(
            [Growing(eagle.grower._step.new_cache(), torch.ones(1, width), state, None, 2, 2, 2, 4)]
        )


def test_a_floor_and_few_tips_grow_what_the_rule_grows_whatever_shapes_the_target():
    target, eagle = bound()
    law = Shaped(target, Repetition(1.3), Temperature(0.7))
    one, by_level = [], []
    for drafts, one_call in ((one, True), (by_level, False)):
        session = law.open((1, 2))
        guess = FromEagle(eagle, BestFirst(4, 1), prompt=False, bent=False).open((1, 2), session)
        guess.text, guess.true_H = (2, 3), torch.zeros(1)
        g, width = torch.Generator().manual_seed(1), target.network.config.width
        guess.pending = [((3,), torch.randn(2 * width, generator=g))]
        guess = guess if one_call else replace(guess, grower=None)
        for floor in (0.0, 1e-3, 0.9999):
            drafts.append(run([guess.propose(3, 0, Budget(5, 16, floor=floor), None)])[0])
    assert [(d.token, d.parent) for d in one] == [(d.token, d.parent) for d in by_level]
    assert len(one[0]) == 17 > len(one[1]) and len(one[2]) == 1
    value = [1.0]
    for p, c in zip(one[1].parent[1:], one[1].chance[1:], strict=True):
        value.append(value[p] * c)
    assert min(value) >= 1e-3
    expanded = {}
    for p, depth in zip(one[0].parent[1:], one[0].depth[1:], strict=True):
        expanded.setdefault(depth, set()).add(p)
    assert all(len(parents) == 1 for parents in expanded.values())

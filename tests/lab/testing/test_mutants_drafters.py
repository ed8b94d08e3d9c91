"""Faults of drafters that a contract must catch: guesses that learn nothing, share what they hold with a fork, or begin
elsewhere than at the root."""

import copy
from dataclasses import dataclass, replace

import pytest

from polydec.core.types import DrawKind, TokenVocabulary
from polydec.lab.testing.check_drafter import check_drafter
from polydec.lab.testing.examples import example_mechanism
from polydec.lab.testing.toy import OrderTwoNetwork
from polydec.methods.registry import registry
from polydec.methods.speculative.drafters._states import StateGuess
from polydec.methods.speculative.drafters.block_filled import BlockFilledGuess
from polydec.methods.speculative.drafters.heads import HeadsDrafter
from polydec.methods.speculative.drafters.lookup import LookupDrafter
from polydec.methods.speculative.trees.best_first import BestFirstTree
from polydec.models.learned.kinds import heads

DRAFTERS = registry.mechanism_classes("drafters")
LEARNS = sorted(set(DRAFTERS) - {"nothing", "self_speculative", "forced"})


@dataclass
class Wrapped:
    """A guess of which one verb is another one."""

    inner: object

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def fork_guess(self, session, choice=None):
        return type(self)(self.inner.fork_guess(session, choice))


class Untaught(Wrapped):
    def learn_round(self, draft, scores, verdict):
        pass


class Shallow(Wrapped):
    def fork_guess(self, session, choice=None):
        twin = copy.copy(self.inner)
        if hasattr(twin, "session"):
            twin = replace(twin, session=session)
        return Shallow(twin)


class AnotherRoot(Wrapped):
    async def propose_draft(self, root, position, budget, rng):
        draft = await self.inner.propose_draft(root, position, budget, rng)
        return replace(draft, token=((root + 1) % 3, *draft.token[1:]))


class DrawnRoot(Wrapped):
    async def propose_draft(self, root, position, budget, rng):
        draft = await self.inner.propose_draft(root, position, budget, rng)
        law_V = OrderTwoNetwork(1).weight[0, 0].log_softmax(-1)
        return replace(
            draft, draw=(DrawKind.INDEPENDENT, *draft.draw[1:]), law=(law_V, *draft.law[1:])
        )


class ProbedRoot(Wrapped):
    async def propose_draft(self, root, position, budget, rng):
        draft = await self.inner.propose_draft(root, position, budget, rng)
        return replace(draft, probe=(True, *[False] * (len(draft) - 1)))


@dataclass(frozen=True)
class Faulty:
    """A drafter whose guesses are wrapped."""

    inner: object
    fault: type

    def open_guess(self, prompt, session):
        return self.fault(self.inner.open_guess(prompt, session))


@pytest.mark.parametrize("name", LEARNS)
def test_a_drafter_that_learns_nothing(name):
    with pytest.raises(AssertionError, match=r"0 (learned|distinct|proposing)|not the root"):
        check_drafter(Faulty(example_mechanism(DRAFTERS[name]), Untaught))


HOLDS_TEXT = (
    "block_filled",
    "filled_gaps",
    "copying",
    "suffix",
    "ngram_rows",
    "recycling",
    "lookahead",
    "lookup",
    "trigram",
)


@pytest.mark.parametrize("name", HOLDS_TEXT)
def test_a_fork_that_shares_what_its_guess_writes_to(name):
    with pytest.raises(AssertionError, match=r"another draft|changed its fork"):
        check_drafter(Faulty(example_mechanism(DRAFTERS[name]), Shallow))


def test_a_fork_that_shares_the_text_of_a_block_drafter(monkeypatch):
    def fork(self, session, choice=None):
        return BlockFilledGuess(self.config, self.source, self.text, self.beside)

    monkeypatch.setattr(BlockFilledGuess, "fork_guess", fork)
    with pytest.raises(AssertionError, match="another draft"):
        check_drafter(example_mechanism(DRAFTERS["block_filled"]))


@pytest.mark.parametrize("fault", [AnotherRoot, DrawnRoot, ProbedRoot])
def test_a_broken_root(fault):
    with pytest.raises(AssertionError, match="node 0 is"):
        check_drafter(Faulty(LookupDrafter(), fault))


class ByEnding(StateGuess):
    """Takes the state of an earlier text for that of one that ends in the same two tokens; a fork adds to the same notes."""

    def learn_round(self, draft, scores, verdict):
        super().learn_round(draft, scores, verdict)
        self.true_H = self.states.setdefault(self.text[-2:], self.true_H)

    def fork_guess(self, session, choice=None):
        twin = super().fork_guess(session, choice)
        twin.states = self.states
        return twin


@dataclass(frozen=True)
class HeadsByEnding(HeadsDrafter):
    def open_guess(self, prompt, session):
        guess = super().open_guess(prompt, session)
        twin = ByEnding(guess.drafter, guess.session, guess.cache, bent=guess.bent)
        twin.states = {}
        return twin


def test_states_of_another_text_with_the_same_ending():
    """Hidden states of a toy depend on all of the text."""
    medusa = heads.examples(TokenVocabulary(3, frozenset()), 4, 4)[0]
    assert not medusa.reads
    check_drafter(HeadsDrafter(medusa, BestFirstTree(2)))
    with pytest.raises(AssertionError, match="gave another draft"):
        check_drafter(HeadsByEnding(medusa, BestFirstTree(2)))

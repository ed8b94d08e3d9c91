"""Drafters that read hidden states: an oracle that is never wrong, and known bugs that make it so."""

from dataclasses import dataclass, replace

import pytest
import torch

from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.lab.testing.check_drafter import check_drafter
from polydec.lab.testing.check_informed import check_informed
from polydec.lab.testing.toy import toy_law
from polydec.methods.economics.tree_builder import TreeBuilder


@dataclass(frozen=True)
class Oracle:
    """Drafts behind the last token whose state is known, as Medusa and Hydra do. prompt: reads the prompt's states; width:
    children of a node, the likeliest ones; guess: one with a fault."""

    law: object
    prompt: bool = False
    width: int = 1
    guess: type = None

    def open_guess(self, prompt, session):
        return (self.guess or OracleGuess)(self)


class OracleGuess:
    price = 0.0

    def __init__(self, config, state_H=None):
        self.config, self.state_H = config, state_H

    @property
    def want(self):
        return ScoreRequest(law=RowDetail.NOTHING, hidden=True, prompt=self.config.prompt)

    def read(self, state_H, path):
        return self.config.law.network.oracle_state(state_H, path)

    async def propose_draft(self, root, position, budget, rng):
        tree, tips = TreeBuilder(root), {0: (root,)}
        for _ in range(budget.depth if self.state_H is not None else 0):
            below = {}
            for node, path in tips.items():
                for token in self.read(self.state_H, path).topk(self.config.width).indices.tolist():
                    if len(tree) <= budget.nodes:
                        below[tree.add_node(node, token)] = (*path, token)
            tips = dict(list(below.items())[:1])  # the likeliest path goes on
        return tree.built_draft()

    def learn_round(self, draft, scores, verdict):
        self.state_H = scores.hidden_NH[verdict.path[-1] if verdict.path else 0].clone()

    def fork_guess(self, session=None, choice=None):
        return type(self)(self.config, self.state_H)

    def close(self):
        pass


@dataclass(frozen=True)
class Feature:
    """Keeps a state of its own that every (state, token behind it) moves on, as EAGLE's draft cache is."""

    law: object
    guess: type = None

    def open_guess(self, prompt, session):
        return (self.guess or FeatureGuess)(self.law)


class FeatureGuess:
    price, want = 0.0, ScoreRequest(law=RowDetail.NOTHING, hidden=True, prompt=True)

    def __init__(self, law, fed=()):
        self.law, self.fed = law, list(fed)

    async def propose_draft(self, root, position, budget, rng):
        tokens = []
        for _ in range(min(budget.depth, budget.nodes) if self.fed else 0):
            state_H, behind = self.fed[-1]
            tokens.append(int(self.law.network.oracle_state(state_H, (behind, *tokens)).argmax()))
        return Draft.chain_draft(root, tokens)

    def pairs(self, draft, scores, verdict):
        return zip(scores.hidden_NH[[0, *verdict.path]], verdict.written_tokens(draft), strict=True)

    def learn_round(self, draft, scores, verdict):
        self.fed += [
            (state_H.clone(), token) for state_H, token in self.pairs(draft, scores, verdict)
        ]

    def fork_guess(self, session=None, choice=None):
        return type(self)(self.law, self.fed)

    def close(self):
        pass


GOOD = [
    lambda law: Oracle(law),
    lambda law: Oracle(law, True),
    lambda law: Oracle(law, True, 3),
    Feature,
]


@pytest.mark.parametrize("make", GOOD, ids=["chain", "prompt", "tree", "feature"])
def test_who_knows_the_model_is_never_wrong(record_counts, make):
    record_counts(check_informed(make))


@pytest.mark.parametrize("make", [GOOD[2], GOOD[3]], ids=["tree", "feature"])
def test_it_is_a_drafter(record_counts, make):
    record_counts(check_drafter(make(toy_law(9))))


class RootState(OracleGuess):
    """Reads the root's state in place of the last accepted node's."""

    def learn_round(self, draft, scores, verdict):
        self.state_H = scores.hidden_NH[0].clone()


class LastNode(OracleGuess):
    """Reads the state of the draft's last node, accepted or not."""

    def learn_round(self, draft, scores, verdict):
        self.state_H = scores.hidden_NH[-1].clone()


class ByCount(OracleGuess):
    """Reads the state of the node whose number is how many were accepted: right in chains."""

    def learn_round(self, draft, scores, verdict):
        self.state_H = scores.hidden_NH[len(verdict.path)].clone()


class Constant(OracleGuess):
    """Reads no state."""

    def learn_round(self, draft, scores, verdict):
        self.state_H = torch.zeros(4, dtype=torch.float64)


class Late(OracleGuess):
    """Reads the state of the round before."""

    before = None

    def learn_round(self, draft, scores, verdict):
        self.state_H, self.before = self.before, scores.hidden_NH[[0, *verdict.path][-1]].clone()


class First(OracleGuess):
    """Reads one state and keeps it."""

    def learn_round(self, draft, scores, verdict):
        if self.state_H is None:
            super().learn_round(draft, scores, verdict)


class RootFilled(OracleGuess):
    """Fills the path to a node with the root's token."""

    def read(self, state_H, path):
        return super().read(state_H, path[:1] * len(path))


class OneShort(OracleGuess):
    """Leaves the path's last token out."""

    def read(self, state_H, path):
        return super().read(state_H, path[:-1])


class Kin(OracleGuess):
    """A fork that learns what its twin is told."""

    def fork_guess(self, session=None, choice=None):
        return self


class RootPairs(FeatureGuess):
    """Pairs every state with the root's token."""

    def pairs(self, draft, scores, verdict):
        return ((state_H, draft.token[0]) for state_H, _ in super().pairs(draft, scores, verdict))


class Unshifted(FeatureGuess):
    """Pairs every state with its own token, not with the one behind it."""

    def pairs(self, draft, scores, verdict):
        return zip(
            scores.hidden_NH[[0, *verdict.path]], verdict.committed_tokens(draft), strict=True
        )


ORACLE = [RootState, LastNode, ByCount, Constant, Late, First, RootFilled, OneShort, Kin]


@pytest.mark.parametrize("guess", ORACLE)
@pytest.mark.parametrize("width", [1, 3])
def test_wrong_states_and_paths(guess, width):
    with pytest.raises(AssertionError, match="drafted"):
        check_informed(lambda law: Oracle(law, True, width, guess))


@pytest.mark.parametrize("guess", [RootPairs, Unshifted])
def test_wrong_pairs(guess):
    with pytest.raises(AssertionError, match="drafted"):
        check_informed(lambda law: replace(Feature(law), guess=guess))


def test_who_is_silent_is_not_right():
    class Silent(OracleGuess):
        async def propose_draft(self, root, position, budget, rng):
            return Draft.chain_draft(root)

    with pytest.raises(AssertionError, match="nothing was drafted"):
        check_informed(lambda law: Oracle(law, guess=Silent))

"""Acceptance where the best is known, and known bugs that cost nothing but acceptance."""

from dataclasses import dataclass
from math import exp

import pytest

from polydec.core.types import Draft, DrawKind, RowDetail, ScoreRequest
from polydec.lab.testing.check_acceptance import check_acceptance, check_best_tree
from polydec.lab.testing.examples import example_decoder, example_mechanism
from polydec.lab.testing.exercised_counts import declared_unexercised
from polydec.methods.registry import registry
from polydec.methods.speculative.drafters.model import ModelDrafter, ModelGuess
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.trees.best_first import BestFirstTree
from polydec.methods.speculative.trees.coupled_chain import CoupledChainTree
from polydec.methods.speculative.trees.coupled_static import CoupledStaticTree
from polydec.methods.speculative.trees.static import StaticTree
from polydec.methods.speculative.verifiers.coupled import CoupledVerifier
from polydec.methods.speculative.verifiers.exact import ExactVerifier

NEEDS_A_DRAFT = [n for n, m in registry.recipe_modules().items() if "draft" in m.CARD.needs]
SHALLOW = {"s2d"}
"""Draws from exits of its draft, whose laws are not the whole one's: only its greedy drafts could always be right."""
SWITCHES = {"entropy-adaptive"}
"""Writes what it is sure of with the small model itself: there is nothing to draft where that is all."""


@pytest.mark.parametrize("name", sorted(set(NEEDS_A_DRAFT) - SWITCHES))
def test_a_draft_that_equals_the_target_is_never_rejected(record_counts, name):
    record_counts(
        check_acceptance(
            lambda target, draft: example_decoder(name, target, draft), sampled=name not in SHALLOW
        )
    )


def exact(tree):
    return lambda target, draft: SpeculativeDecoder(
        target, ModelDrafter(draft, tree), ExactVerifier(), FixedPolicy(3, 8)
    )


def coupled(tree):
    return lambda target, draft: SpeculativeDecoder(
        target, ModelDrafter(draft, tree), CoupledVerifier(), FixedPolicy(3, 8)
    )


DRAWN = [n for n in registry.mechanism_classes("trees") if "coupled" not in n]


@pytest.mark.parametrize("name", DRAWN)
def test_trees_of_such_a_draft(record_counts, name):
    tree = example_mechanism(registry.mechanism_classes("trees")[name])
    certain = declared_unexercised(tree).get("drawn", "")
    record_counts(check_acceptance(exact(tree), unexercised={"sampled": certain}))


@pytest.mark.parametrize("tree", [CoupledChainTree(), CoupledStaticTree((2, 2))], ids=str)
def test_coupled_drafts_of_such_a_draft(record_counts, tree):
    record_counts(check_acceptance(coupled(tree)))


class FirstNodes(ModelGuess):
    """Commits the first nodes of a tree in place of the accepted ones."""

    def learn_round(self, draft, scores, verdict):
        self.session.commit_tokens(draft.token[: 1 + len(verdict.path)])


class Forgets(ModelGuess):
    """Commits the root alone."""

    def learn_round(self, draft, scores, verdict):
        self.session.commit_tokens(draft.token[:1])


@dataclass(frozen=True)
class Committing:
    guess: type
    draft: object
    tree: object

    def open_guess(self, prompt, session):
        return self.guess(self.tree, self.draft.open_session(prompt))


@pytest.mark.parametrize("guess", [FirstNodes, Forgets])
@pytest.mark.parametrize("tree", [StaticTree((2, 2)), BestFirstTree(3)], ids=["drawn", "certain"])
def test_a_draft_that_commits_other_tokens(guess, tree):
    with pytest.raises(AssertionError, match="draft and target equal"):
        check_acceptance(
            lambda t, d: SpeculativeDecoder(
                t, Committing(guess, d, tree), ExactVerifier(), FixedPolicy(3, 8)
            )
        )


@dataclass(frozen=True)
class OtherNoise:
    """A coupled tree that is drawn with another position's noise."""

    tree: object

    async def grow_tree(self, session, root, position, budget, rng):
        return await self.tree.grow_tree(session, root, position + 1, budget, rng)


@pytest.mark.parametrize(
    "tree", [CoupledChainTree(), CoupledStaticTree((2, 1)), CoupledStaticTree((1, 1))], ids=str
)
def test_noise_of_another_position(tree):
    with pytest.raises(AssertionError, match="draft and target equal"):
        check_acceptance(coupled(OtherNoise(tree)))


class SameNoise:
    """Randomness that gives one position's noise for all."""

    def __init__(self, rng, position):
        self.rng, self.position = rng, position

    def child_stream(self, *names):
        return self.rng.child_stream("token", self.position)


@dataclass(frozen=True)
class FirstNoise:
    """A coupled tree whose levels are all drawn with the first one's noise."""

    tree: object

    async def grow_tree(self, session, root, position, budget, rng):
        return await self.tree.grow_tree(session, root, position, budget, SameNoise(rng, position))


@pytest.mark.parametrize("tree", [CoupledChainTree(), CoupledStaticTree((2, 2))], ids=str)
def test_one_noise_for_all_positions(tree):
    with pytest.raises(AssertionError, match="draft and target equal"):
        check_acceptance(coupled(FirstNoise(tree)))


@pytest.mark.parametrize("width", [2, 4])
def test_the_likeliest_paths(record_counts, width):
    """A tree of no more nodes than a level is wide has the likeliest paths of all, a larger one those that it has seen."""
    for nodes in (1, width):
        record_counts(check_best_tree(BestFirstTree(width), nodes))
    record_counts(check_best_tree(BestFirstTree(width), 3 * width, beam=width))


@dataclass(frozen=True)
class Ordered:
    """Best-first, written again: expands, and then keeps, by `value` of a path's probability and its last step's."""

    width: int
    value: object
    keeps: object = None

    async def grow_tree(self, session, root, position, budget, rng):
        keeps = self.keeps or (lambda path, last: path)
        fed, tips, found = Draft.chain_draft(root), [((), 1.0, 0)], []
        for _ in range(budget.depth):
            if not tips:
                break
            scores, level = await session.score_draft(fed, ScoreRequest(base=RowDetail.ROW)), []
            for path, above, at in tips:
                for token, logp in zip(*scores.likeliest_tokens(at, self.width), strict=True):
                    level.append(((*path, token), above * exp(logp), exp(logp), at))
            level.sort(key=lambda one: -self.value(one[1], one[2]))
            found += level
            tips = []
            for path, p, _, at in level[: self.width]:
                tips.append((path, p, len(fed)))
                fed = fed.with_node(path[-1], at, DrawKind.CERTAIN, None)
        found.sort(key=lambda one: (-keeps(one[1], one[2]), len(one[0])))
        keep, place, out = {()}, {(): 0}, Draft.chain_draft(root)
        for path, *_ in found:  # a node whose parent was not kept is left out
            if path[:-1] in keep and len(keep) <= budget.nodes:
                keep.add(path)
        for path in sorted(keep - {()}, key=len):
            place[path] = len(out)
            out = out.with_node(path[-1], place[path[:-1]], DrawKind.CERTAIN, None)
        return out


BY_PATH, BY_LAST = lambda path, last: path, lambda path, last: last


def test_best_first_by_the_last_step():
    check_best_tree(Ordered(2, BY_PATH), 6, beam=2)
    for tree in (Ordered(2, BY_LAST), Ordered(2, BY_PATH, BY_LAST)):
        with pytest.raises(AssertionError, match="tokens are expected of"):
            check_best_tree(tree, 6, beam=2)

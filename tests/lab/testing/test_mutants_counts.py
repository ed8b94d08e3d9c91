"""Contracts in which what they are there for never happens: each fails with the sentence that says what."""

from dataclasses import dataclass, replace
from importlib import import_module
from typing import ClassVar

import pytest
import torch

from polydec.core.types import Draft
from polydec.lab.testing.check_acceptance import check_acceptance, check_best_tree
from polydec.lab.testing.check_contrast import check_contrast
from polydec.lab.testing.check_informed import check_informed
from polydec.lab.testing.check_target import TargetChecker, check_shaped, check_target
from polydec.lab.testing.check_tree import check_tree
from polydec.lab.testing.toy import OrderTwoNetwork, toy_law
from polydec.laws.contrasts.difference import DifferenceContrast
from polydec.laws.contrasts.gated import GatedContrast
from polydec.laws.shapers.temperature import TemperatureRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.speculative.drafters.model import ModelDrafter
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.trees.best_first import BestFirstTree
from polydec.methods.speculative.trees.chain import ChainTree
from polydec.methods.speculative.trees.static import StaticTree
from polydec.methods.speculative.verifiers.exact import ExactVerifier
from polydec.models.sessions.lm import CausalLaw
from reasoned import Reasoned

acceptance, informed = (  # the package has functions of these names
    import_module(f"polydec.lab.testing.{name}") for name in ("check_acceptance", "check_informed")
)


def never(counts):
    """The failure of a contract that saw none of these."""
    return pytest.raises(
        AssertionError, match=f"does not exercise what it is there for: 0 {counts} "
    )


def undeclared(tree):
    """A tree that does not say what its drafts never hold."""
    return Reasoned(tree, {})


@dataclass(frozen=True)
class OneLevel:
    """Leaves all out that stands below the first level."""

    tree: object

    async def grow_tree(self, session, root, position, budget, rng):
        some = replace(budget, depth=min(1, budget.depth))
        return await self.tree.grow_tree(session, root, position, some, rng)


@pytest.mark.parametrize(
    "tree, counts",
    [
        (undeclared(ChainTree()), "siblings"),
        (undeclared(BestFirstTree(3)), "drawn"),
        (OneLevel(StaticTree((2, 1))), "deeper"),
    ],
    ids=str,
)
def test_trees(tree, counts):
    with never(counts):
        check_tree(tree)


def of_tree(tree):
    return lambda target, draft: SpeculativeDecoder(
        target, ModelDrafter(draft, tree), ExactVerifier(), FixedPolicy(3, 8)
    )


def test_certain_candidates_under_a_law_that_is_drawn_from():
    with never("sampled"):
        check_acceptance(of_tree(BestFirstTree(3)))
    check_acceptance(
        of_tree(BestFirstTree(3)), unexercised={"sampled": "its candidates are certain"}
    )
    check_acceptance(of_tree(BestFirstTree(3)), sampled=False)


def test_drafts_that_are_never_accepted(monkeypatch):
    """An empty path below no children counts nothing: the decoder drafts what its verifier does not get to see."""

    class Unseen(acceptance.WitnessVerifier):
        def verify_draft(self, draft, scores, rng, position):
            self.seen["drafted"] += 1
            return self.inner.verify_draft(Draft.chain_draft(draft.token[0]), scores, rng, position)

    monkeypatch.setattr(acceptance, "WitnessVerifier", Unseen)
    with never("accepted and 0 greedy and 0 sampled"):
        check_acceptance(
            lambda target, draft: SpeculativeDecoder(
                target, NothingDrafter(), ExactVerifier(), FixedPolicy(3)
            )
        )


def test_a_best_tree_where_there_is_nothing_to_choose():
    with never("left out"):
        check_best_tree(BestFirstTree(1), 2, beam=1, depth=2, laws=4)


@dataclass(frozen=True)
class Ignoring:
    """A contrast that gives the first row back."""

    laws: ClassVar[int] = 1
    gated: ClassVar[bool] = False

    def opens_contrast(self, logp_V):
        return True

    def mix_laws(self, first_V, others):
        return first_V


class Sharpening(Ignoring):
    """Changes the law, whatever the others say."""

    def mix_laws(self, first_V, others):
        return 2 * first_V


@pytest.mark.parametrize(
    "rule, counts",
    [
        (Ignoring(), "changed and 0 followed"),
        (DifferenceContrast(1.0, 0.0), "changed and 0 followed"),
        (Sharpening(), "followed"),
        (GatedContrast(DifferenceContrast(2.0, 1.0), 2.0), "closed"),
    ],
    ids=str,
)
def test_contrasts(rule, counts):
    with never(counts):
        check_contrast(rule)


class Same(OrderTwoNetwork):
    """One law behind every text."""

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.weight[:] = self.weight[0, 0]


def last_token_toy(seed, size, **more):
    """The next token depends on the last one alone. Trees are drafted."""
    made = toy_law(seed, size, **{**more, "tree": True})
    made.network.weight[:] = made.network.weight[:1].clone()
    return made


def test_a_target_of_one_law():
    with never("distinct and 0 rewound and 0 forked"):
        check_target(CausalLaw(Same(3), toy_law(3).vocab, chunk=2), tolerance=1e-12)


@pytest.mark.parametrize("name, counts", [("check_states", "states"), ("check_memory", "keys")])
def test_a_target_of_which_something_is_not_checked(name, counts, monkeypatch):
    async def skipped(self):
        pass

    monkeypatch.setattr(TargetChecker, name, skipped)
    with never(counts):
        check_target(toy_law(3), tolerance=1e-12)


def test_a_target_without_hidden_states_says_so():
    """None without a refusal is no reason."""

    class Hidden(OrderTwoNetwork):
        def _answer(self, q):
            return replace(super()._answer(q), hidden_RH=None)

    with never("states"):
        check_target(CausalLaw(Hidden(3), toy_law(3).vocab, chunk=2), tolerance=1e-12)


def test_shapers_that_shape_nothing():
    shapers = (TemperatureRule(1.0),)
    with never("changed"):
        check_shaped(ShapedTarget(toy_law(3), *shapers), toy_law(3), shapers)


def test_states_that_tell_no_more_than_the_last_token(monkeypatch):
    """A law of the last token alone: who reads no states is right as well."""

    @dataclass(frozen=True)
    class ByToken:
        law: object

        def open_guess(self, prompt, session):
            return self

        price, want = 0.0, replace(NothingDrafter().open_guess((0,), None).want, hidden=True)

        async def propose_draft(self, root, position, budget, rng):
            tokens = [root]
            for _ in range(min(budget.depth, budget.nodes)):
                tokens.append(int(self.law.network.weight[0, tokens[-1]].argmax()))
            return Draft.chain_draft(root, tokens[1:])

        def learn_round(self, draft, scores, verdict): ...
        def close(self): ...
        def fork_guess(self, session=None, choice=None):
            return self

    monkeypatch.setattr(informed, "toy_law", last_token_toy)
    with never("informed"):
        check_informed(ByToken)


def test_the_laws_of_these_tables():
    assert torch.equal(Same(1).weight[1, 2], Same(1).weight[0, 1])
    weight = last_token_toy(1, 3).network.weight
    assert torch.equal(weight[1, 2], weight[3, 2])

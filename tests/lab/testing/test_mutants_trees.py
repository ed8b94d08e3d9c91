"""Known bugs of trees that draw without replacement or grow by decisions, each of which a contract must catch."""

from dataclasses import dataclass, replace

import pytest

from polydec.core.law import float64_probabilities, residual_law
from polydec.core.types import Draft, DrawKind, ScoreRequest
from polydec.lab.testing.check_decoder import check_law
from polydec.lab.testing.check_tree import check_tree
from polydec.lab.testing.check_verifier import check_verifier
from polydec.methods.speculative.drafters.model import ModelDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.trees.best_slot import BestSlotTree
from polydec.methods.speculative.trees.greedy_growth import GreedyGrowthTree
from polydec.methods.speculative.trees.sequences import SequencesTree
from polydec.methods.speculative.trees.stochastic_beam import StochasticBeamTree
from polydec.methods.speculative.verifiers import k_seq
from polydec.methods.speculative.verifiers.exact import ExactVerifier
from polydec.methods.speculative.verifiers.k_seq import KSeqVerifier


@dataclass(frozen=True)
class Likeliest:
    """A beam that draws one path too many a level and keeps the likeliest."""

    width: int = 2

    async def grow_tree(self, session, root, position, budget, rng):
        draft = await StochasticBeamTree(self.width + 1).grow_tree(
            session, root, position, replace(budget, nodes=64), rng
        )
        keep, kept = [0], {0}
        for depth in range(1, max(draft.depth) + 1):
            level = [i for i, d in enumerate(draft.depth) if d == depth and draft.parent[i] in kept]
            level = sorted(sorted(level, key=lambda i: -draft.chance[i])[: self.width])
            kept |= set(level[: max(0, budget.nodes + 1 - len(keep))])
            keep += level[: max(0, budget.nodes + 1 - len(keep))]
        return draft.only_nodes(keep)


@dataclass(frozen=True)
class BySize:
    """Siblings in the order of their probabilities, not in the order drawn."""

    tree: object

    async def grow_tree(self, session, root, position, budget, rng):
        draft = await self.tree.grow_tree(session, root, position, budget, rng)
        chance = draft.chance or (1.0,)
        order = sorted(
            range(len(draft)), key=lambda i: (draft.depth[i], draft.parent[i], -chance[i])
        )
        new = {i: n for n, i in enumerate(order)} | {-1: -1}
        return Draft(
            tuple(draft.token[i] for i in order),
            tuple(new[draft.parent[i]] for i in order),
            tuple(draft.draw[i] for i in order),
            tuple(draft.law[i] for i in order),
        )


@dataclass(frozen=True)
class DropsLate:
    """Growth that looks at what it drew and leaves out what is worth too little."""

    threshold: float = 0.3

    async def grow_tree(self, session, root, position, budget, rng):
        draft = await GreedyGrowthTree(0.05).grow_tree(session, root, position, budget, rng)
        value, keep = [1.0], [0]
        for i in range(1, len(draft)):
            value.append(value[draft.parent[i]] * draft.chance[i])
            if value[i] >= self.threshold and draft.parent[i] in keep:
                keep.append(i)
        return draft.only_nodes(keep if len(keep) > 1 or not budget.nodes else [0, 1])


@dataclass(frozen=True)
class Conditional:
    """Children that carry what their siblings left of the row as their law: the verifier takes that out once more."""

    async def grow_tree(self, session, root, position, budget, rng):
        draft = Draft.chain_draft(root)
        if budget.depth and budget.nodes > 1:
            law_V = (await session.score_draft(draft, ScoreRequest())).logprob_row(0)
            left_V = float64_probabilities(law_V)
            for j in range(2):
                token = rng.child_stream("draft", position, j).draw_categorical(left_V)
                draft = draft.with_node(token, 0, DrawKind.WITHOUT, (left_V / left_V.sum()).log())
                left_V = left_V.clone()
                left_V[token] = 0.0
        return draft


FAULTS = [
    Likeliest(),
    BySize(StochasticBeamTree(2)),
    BySize(BestSlotTree()),
    DropsLate(),
    Conditional(),
]


def name(tree):
    return (
        f"{type(tree).__name__} {type(tree.tree).__name__}"
        if hasattr(tree, "tree")
        else type(tree).__name__
    )


@pytest.mark.parametrize("tree", FAULTS, ids=name)
def test_faulty_tree(tree):
    with pytest.raises(AssertionError):
        check_tree(tree)


@pytest.mark.parametrize("tree", FAULTS[:4], ids=name)
def test_it_shows_in_the_output_law(tree):
    with pytest.raises(AssertionError, match="output law"):
        check_law(
            lambda t, d: SpeculativeDecoder(
                t, ModelDrafter(d, tree), ExactVerifier(), FixedPolicy(2, 4)
            ),
            laws=8,
            length=2,
        )


@pytest.mark.parametrize(
    "name, wrong",
    [
        ("smallest_rho", lambda p, q, k: 1.0),  # k trials at full strength give too much
        ("smallest_rho", lambda p, q, k: 1.0 + (k - 1) / 8),  # below the root
        (
            "k_trial_residual",
            lambda p, q, k, rho: residual_law(p, q),
        ),  # what one rejected draw leaves
        ("k_trial_residual", lambda p, q, k, rho: p),
        ("any_success_chance", lambda beta, k: beta),  # one trial's chance in place of k trials'
    ],
)
def test_faulty_k_seq(monkeypatch, name, wrong):
    """The rule itself passes: tests/lab/testing/test_contracts.py."""
    monkeypatch.setattr(k_seq, name, wrong)
    with pytest.raises(AssertionError, match="output law"):
        check_verifier(KSeqVerifier())


@dataclass(frozen=True)
class Deduplicated:
    """Sequences that agree are counted once: what is tried again and again looks as if it had been drawn once."""

    async def grow_tree(self, session, root, position, budget, rng):
        draft = await SequencesTree(2).grow_tree(session, root, position, budget, rng)
        return draft.only_nodes(
            [
                i
                for i in range(len(draft))
                if not i or draft.child_of(draft.parent[i], draft.token[i]) == i
            ]
        )


def test_sequences_counted_once():
    with pytest.raises(AssertionError, match="output law"):
        check_law(
            lambda t, d: SpeculativeDecoder(
                t, ModelDrafter(d, Deduplicated()), KSeqVerifier(), FixedPolicy(2, 4)
            ),
            laws=8,
            length=2,
        )

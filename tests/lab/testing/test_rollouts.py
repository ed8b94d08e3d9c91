"""Every method that draws several texts for an answer keeps the contract of such methods."""

import pytest

from polydec.lab.testing.check_rollouts import check_law, check_rollouts
from polydec.lab.testing.examples import example_artefacts
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy import toy_law
from polydec.methods.registry import registry
from polydec.methods.search.loop.best_of import BestOfPicker
from polydec.methods.search.loop.rollouts import RolloutSearch
from polydec.methods.speculative.drafters.lookup import LookupDrafter
from polydec.methods.speculative.drafters.model import ModelDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.trees.chain import ChainTree
from polydec.methods.speculative.verifiers.exact import ExactVerifier

ROLLOUTS = [name for name, m in registry.recipe_modules().items() if m.CARD.kind == "rollouts"]


def ended(target, drawn, length):
    """Those that came to an end of their own; all where none did."""
    return [i for i, (text, _) in enumerate(drawn) if text[-1] in target.vocab.eos] or range(
        len(drawn)
    )


def likeliest(target, drawn, length):
    best = max(drawn[i][1] for i in ended(target, drawn, length))
    return next(i for i in ended(target, drawn, length) if drawn[i][1] == best)


def shortest(target, drawn, length):
    least = min(len(drawn[i][0]) for i in ended(target, drawn, length))
    some = [i for i in ended(target, drawn, length) if len(drawn[i][0]) == least]
    best = max(drawn[i][1] for i in some)
    return next(i for i in some if drawn[i][1] == best)


def majority(target, drawn, length):
    """A toy's text is one line, its answer: of two texts that say different things the first one that says anything wins; of
    equal ones the likelier (they may end in different ways)."""
    some = ended(target, drawn, length)
    said = {i: target.vocab.words.decode(drawn[i][0]) for i in some}
    speaking = [i for i in some if said[i]] or list(some)
    same = [i for i in speaking if said[i] == said[speaking[0]] or not said[i]]
    best = max(drawn[i][1] for i in same)
    return next(i for i in same if drawn[i][1] == best)


PICKED = {
    "best-of-n": likeliest,
    "self-consistency": majority,
    "complexity-voting": majority,
    "first-finish-search": shortest,
}


@pytest.mark.parametrize("name", ROLLOUTS)
def test_rollouts(record_counts, name):
    known = {o.name for o in registry.method_options(name)}
    small = {
        "tries": 2,
        "width": 2,
        "keep": 2,
        "steps": 2,
        "depth": 4,
        "longest": 2,
        "most": 4,
        "budget": 30,
        "candidates": 3,
        "length": 2,
        "rounds": 3,
        "interval": 2,
        "heat": 1.0,
        "answers": "a|b|c",
    }
    options = {k: v for k, v in small.items() if k in known}
    trained = (
        example_artefacts
        if registry.get_recipe_module(name).CARD.needs_training
        else lambda vocab: ()
    )

    def make(target):
        return build(name, target, None, options, artefacts=trained(target.vocab))[0]

    record_counts(check_rollouts(make, picked=PICKED.get(name)))


DRAFTERS = {
    "model": (ModelDrafter(toy_law(9, 3, cost=0.1), ChainTree()), FixedPolicy(2)),
    "copied": (LookupDrafter(2, 2, True, False), FixedPolicy(2)),
}


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_rollouts_with_a_drafter_inside_have_the_same_law(record_counts, drafter):
    guess, policy = DRAFTERS[drafter]
    counts = check_law(
        lambda target: RolloutSearch(
            SpeculativeDecoder(target, guess, ExactVerifier(), policy), BestOfPicker(), 2, 2
        ),
        2,
        likeliest,
        laws=1,
    )
    record_counts(counts)

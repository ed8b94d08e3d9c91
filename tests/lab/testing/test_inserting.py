"""Every recipe of the insertion family that the registry finds keeps its contract."""

import pytest

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.lab.testing.check_inserting import check_inserting, last_slot_inserter
from polydec.lab.testing.kits import build
from polydec.laws.shapers.allowed import AllowedTokensRule
from polydec.laws.shapers.banned import BannedTokensRule
from polydec.methods.registry import registry
from polydec.methods.registry.kit import Kit


@pytest.mark.parametrize(
    "options", [{}, {"draw": True}, {"count": 3}, {"draw": True, "count": 2, "share": 0}], ids=str
)
@pytest.mark.parametrize("name", registry.of_family("insertion"))
def test_recipe(record_counts, name, options):
    if options.keys() - {o.name for o in registry.method_options(name)}:
        pytest.skip("it has other options")
    record_counts(check_inserting(lambda inserter: build(name, inserter, options=options)[0]))


@pytest.mark.parametrize("name", registry.of_family("insertion"))
def test_recipe_under_the_rules_of_a_request(name):
    """No banned token, the end among them, and none but those that are allowed."""
    every = frozenset(range(4))
    for seed in range(6):
        model = last_slot_inserter(seed, 4)
        (end,) = model.vocab.eos
        rules = [
            *((BannedTokensRule((x,)), (every | {end}) - {x}) for x in (0, 2, end)),
            (AllowedTokensRule((1, 3)), frozenset({1, 3})),
            (AllowedTokensRule((1, end)), frozenset({1, end})),
        ]
        for rule, legal in rules:
            decoder = registry.build(name, Kit(model, shapers=(rule,)), {})[0]
            out = run_coroutines([answer_one(decoder, Request((1,), 8, seed=seed))])[0]
            assert set(out.token_ids) <= legal, (rule, out.token_ids)

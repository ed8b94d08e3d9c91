"""Every method in which two models share out the steps of a text ends, draws and batches as all methods do."""

import pytest

from polydec.lab.testing.check_decoder import check_batch, check_choices, check_ends, check_replay
from polydec.lab.testing.examples import example_artefacts
from polydec.lab.testing.kits import build
from polydec.methods.registry import registry

ROUTING = [name for name, m in registry.recipe_modules().items() if m.CARD.kind == "routing"]


@pytest.mark.parametrize("longest", [1, 3])
@pytest.mark.parametrize("name", ROUTING)
def test_routing(name, longest):
    def make(target, draft):
        return build(
            name, target, draft, {"longest": longest}, artefacts=example_artefacts(target.vocab)
        )[0]

    check_ends(make, ledger=False)
    check_replay(make)
    check_batch(make)
    check_choices(make)

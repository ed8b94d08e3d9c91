"""Every recipe of the insertion family that the registry finds keeps its contract."""

import pytest

from polydec import registry
from polydec.testing.check_inserting import check_inserting
from polydec.testing.kits import build


@pytest.mark.parametrize(
    "options", [{}, {"draw": True}, {"count": 3}, {"draw": True, "count": 2, "share": 0}], ids=str
)
@pytest.mark.parametrize("name", registry.of_family("insertion"))
def test_recipe(name, options):
    check_inserting(lambda inserter: build(name, inserter, options=options)[0])

"""Every search that the registry finds keeps the contract of searches."""

import pytest

from polydec.lab.testing.check_search import check_search, mean_logp
from polydec.lab.testing.kits import build
from polydec.methods.registry import registry

DRAWN = {
    "stochastic-beam-search"
}  # its answers are drawn, not ranked: no width finds the best texts
MIXED = {"superposed-decoding"}  # its score is of a mixture, and no width finds the best texts
SEARCHES = [
    name
    for name, m in registry.recipe_modules().items()
    if m.CARD.kind == "search"
    and name
    not in {
        *("conditional-beam", "exact-extract", "exact-mode"),
        *("generative-fusion-decoding", "merged-answers", "plan-guided"),
    }
]
"""conditional-beam gives texts of its head's condition alone, exact-extract answers with spans of its prompt, exact-mode
ranks by whole log-probabilities, generative-fusion-decoding reads a second model, merged-answers a hypernetwork, plan-guided
what plans: tests/methods/search checks them, in test_conditional_beam.py, test_likeliest.py, test_exact_mode.py,
test_fused_beam.py, test_merged_answers.py and test_plan_guided.py."""


@pytest.mark.parametrize("name", SEARCHES)
def test_search(record_counts, name):
    known = {o.name for o in registry.method_options(name)}
    plain = {k: v for k, v in {"width": 6, "groups": 3}.items() if k in known}
    charged = "strength" in known or name in MIXED  # a search that charges says so by this option

    def wide(target, width):
        return build(
            name,
            target,
            None,
            {k: v for k, v in {"width": width, "groups": 1}.items() if k in known},
        )[0]

    several = "width" in known  # a search without a width follows one text
    drawn = name in DRAWN
    counts = check_search(
        lambda target: build(name, target, None, plain)[0],
        6 if several or drawn else 1,
        wide=wide if several and not drawn and name not in MIXED else None,
        ranked=not drawn,
        score=None if charged or drawn else mean_logp,
    )
    record_counts(counts)

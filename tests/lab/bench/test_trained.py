"""benchmarks/trained.py measures every method that an artefact was made for, names the others, and hides no refusal."""

from types import SimpleNamespace

import pytest
import trained

from polydec.lab.testing.examples import example_artefacts
from polydec.lab.testing.toy import toy_law

MADE = [one for one in example_artefacts(toy_law(1).vocab) if one.kind in trained.METHODS]
BENCH = trained.Bench(SimpleNamespace(lm=toy_law(1)), toy_law(2, cost=0.1), (), 4)


def served(one, **given):
    return {
        (name, law, nodes) for name, law, nodes, _ in trained.decoders(BENCH, one, (2, 4), given)
    }


def test_every_artefact_serves_the_methods_that_it_was_made_for(capsys):
    assert {one.kind for one in MADE} == set(trained.METHODS), (
        "a kind without an example, or a kind that it does not know"
    )
    for one in MADE:
        names, said = {name for name, _, _ in served(one)}, capsys.readouterr().err
        assert names and names | {line.split()[0] for line in said.splitlines()} == set(
            trained.METHODS[one.kind]
        )
    medusa = next(one for one in MADE if one.kind == "heads")
    assert served(medusa) == {("medusa", law, nodes) for law in trained.LAWS for nodes in (2, 4)}
    assert "hydra is passed over: it needs draft heads that read tokens" in capsys.readouterr().err


def test_a_refusal_is_not_passed_over():
    medusa = next(one for one in MADE if one.kind == "heads")
    with pytest.raises(ValueError, match="cost_aware"):
        served(medusa, cost_aware="perhaps")


def test_claims_are_compared_on_the_same_prompts():
    rows = [
        {"method": name, "law": "greedy", "nodes": 4}
        for name in ("medusa", "hydra", "clover", "hydra")
    ]
    medusa, hydra = [(10, 5), (30, 20), (8, 8)], [(10, 4), (30, 16), (8, 6)]
    found = list(trained.compared(rows, (medusa, hydra, medusa, medusa)))
    assert [row["over"] for row in found] == ["", "medusa", "medusa", "medusa"]
    assert (
        found[1]["times"] == round((48 / 26) / (48 / 33), 3)
        and 1.0 < found[1]["times low"] <= found[1]["times high"]
    )
    assert [(row["times"], row["times low"], row["times high"]) for row in found[2:]] == [
        (1.0, 1.0, 1.0)
    ] * 2
    assert [row["times"] for row in trained.compared(rows[1:2], (hydra,))] == [""]

"""Faults put into the running package: `verify` catches each one, and the place that it names is the right one."""

import pytest
from patched import put
from verify_mutants import KNOWN

from polydec import load
from polydec.lab.bench.enumerated_laws import enumerate_output_laws
from polydec.lab.bench.law_distances import measure_law_distances
from polydec.lab.bench.schedule_laws import sample_canvas_law
from polydec.lab.bench.search_claims import audit_search, on_toys
from polydec.lab.bench.trials import MethodTrial
from polydec.methods.registry import registry

PROMPTS = [("Once upon a time", True)]
DEFAULT = {
    "acceptance turned round",
    "a path draws under one name",
    "rules hear of the token before",
    "two gaps are filled at once",
    "rules of a search hear one token too few where its texts part",
}
"""Those that run by default: one of each part, the cheapest."""


@pytest.fixture(scope="module")
def models():
    """By name, each loaded once and only where it is asked for."""
    held = {}

    def get(name):
        if name not in held:
            held[name] = load(name, dtype="float32")
        return held[name]

    return get


def by_enumeration(models, method):
    return enumerate_output_laws(method, {}, registry.get_recipe_module(method).CARD.family)


def by_canvas(models, method):
    lm = models("zoo:diffusion")
    request = {"max_tokens": 12, "sampling": lm.sampling_with(temperature=0.9)}
    return sample_canvas_law(MethodTrial(lm, [("copy: 1234", False)], method, {}, request, 24))


def by_search(models, method):
    lm = models("zoo:tiny")
    request = {"max_tokens": 12, "sampling": lm.sampling_with(repetition_penalty=1.5)}
    return audit_search(MethodTrial(lm, PROMPTS, method, {}, request))


def by_toys(models, method):
    return on_toys(method, {})


def by_distance(models, method):
    lm = models("zoo:tiny")
    request = {"max_tokens": 12, "sampling": lm.sampling_with(temperature=1.0)}
    return measure_law_distances(MethodTrial(lm, PROMPTS, method, {}, request, 32))


EVIDENCE = {
    "enumeration": by_enumeration,
    "canvas": by_canvas,
    "search": by_search,
    "toys": by_toys,
    "distance": by_distance,
}
CLEAN = ("keeps it", "measured")


@pytest.mark.parametrize(
    "known",
    [pytest.param(k, marks=() if k.name in DEFAULT else pytest.mark.slow) for k in KNOWN],
    ids=lambda k: k.name,
)
def test_a_known_fault_is_found_where_it_is(models, monkeypatch, known):
    put(monkeypatch, known.file, known.old, known.new)
    found = EVIDENCE[known.by](models, known.method)
    monkeypatch.undo()
    assert found.verdict == "fault" and known.where in found.place, found


@pytest.mark.slow
@pytest.mark.parametrize("by, method", sorted({(k.by, k.method) for k in KNOWN}), ids=str)
def test_without_them_there_is_no_alarm(models, by, method):
    found = EVIDENCE[by](models, method)
    assert found.verdict in CLEAN and not found.place, found


@pytest.mark.parametrize("known", KNOWN, ids=lambda k: k.name)
def test_the_table_fits_the_code(known):
    """Whoever changes such a line changes it here as well."""
    from patched import ROOT

    assert (ROOT / known.file).read_text("utf-8").count(known.old) == 1

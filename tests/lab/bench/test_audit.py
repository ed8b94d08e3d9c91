"""What `verify` says of searches whose texts are of two models, or read further prompts: no alarm where nothing is wrong, and
one where a ledger or a log-probability is."""

from dataclasses import replace

import pytest
from small_artefacts import ALL, SETTINGS

from polydec import load
from polydec.lab.bench.search_claims import audit_search
from polydec.lab.bench.trials import MethodTrial
from polydec.lab.train.reasoner import train_reasoner
from polydec.lab.train.specs.reasoner import ReasonerSpec
from polydec.methods.registry import registry
from polydec.methods.search.loop.stats import SearchStats

LONG = "Once upon a time there was a mill by the old river, and nobody knew whose mill it was."


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A reasoner that knows nothing, beside the shipped one."""
    out = tmp_path_factory.mktemp("small")
    train_reasoner(ReasonerSpec(str(out), width=32, layers=1, steps=2, rows=2))
    return str(out)


def audited(lm, method, options=None, **request):
    asked = {"sampling": lm.sampling_with(temperature=0.9), "max_tokens": 8, **request}
    return audit_search(MethodTrial(lm, [(LONG, True)], method, options or {}, asked, seed=1))


def test_a_step_of_the_draft_model_has_its_law(small):
    lm = load("zoo:reasoner", draft=small, trained=("zoo:reasoner-prm",))
    told = audited(lm, "reward-guided", {"tau": 0.0})
    assert told.logprobs == 8 and told.place == "" and told.apart < 1e-3


def test_a_further_prompt_that_shares_the_first_one_is_no_alarm(monkeypatch):
    lm = load("zoo:reasoner", trained=("zoo:reasoner-prm",))
    before = lm.checkpoint.lm.shared
    assert audited(lm, "iterative-agent-decoding").place == ""
    assert lm.checkpoint.lm.shared > before
    counted = SearchStats.metrics
    monkeypatch.setattr(
        SearchStats, "metrics", lambda self: counted(replace(self, scored=self.scored + 9999))
    )
    assert "are booked as scored" in audited(lm, "iterative-agent-decoding").place


def test_small_artefacts_are_named_as_they_are_made():
    made = {one.name for one in ALL}
    used = {x for s in SETTINGS for x in (s.model, s.draft, *s.trained) if x and ":" not in x}
    assert used == made and {s.family for s in SETTINGS} <= {"ar", "diffusion", "insertion"}
    for setting in SETTINGS:
        assert registry.of_family(setting.family) and setting.flags[:2] == [
            "--model",
            setting.model,
        ]

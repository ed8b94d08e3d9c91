"""Every draw of a method on toys: which part of it is off, and what cannot be enumerated."""

import pytest
import torch

from polydec.core.types import Draft
from polydec.lab.bench import enumerated_laws as room
from polydec.lab.bench.enumerated_laws import enumerate_output_laws
from polydec.lab.testing.enumerate import EnumeratingRng
from polydec.methods.diffusion.loop.types import UnmaskerView
from polydec.methods.insertion.loop.inserting import InsertionDecoder


@pytest.mark.parametrize(
    "method, family",
    [("prompt-lookup", "ar"), ("draft-model-coupled", "ar"), ("mdlm", "diffusion")],
)
def test_a_method_that_keeps_its_law(method, family):
    found = enumerate_output_laws(method, {}, family)
    assert found.verdict == "keeps it" and found.laws >= 8 and found.apart < 1e-12, found


def test_a_verdict_that_accepts_too_much(monkeypatch):
    monkeypatch.setattr(EnumeratingRng, "draw_bernoulli", lambda self, a: True)
    found = enumerate_output_laws("draft-model", {})
    assert found.verdict == "fault" and found.place.startswith("verdict: toy law 1"), found
    assert "token 0 of the answer: off by" in found.place


def test_a_draft_that_says_another_law(monkeypatch):
    grown = Draft.with_node

    def lie(self, token, parent, draw, law_V=None, *more, **named):
        cold_V = None if law_V is None else (law_V * 3.0).log_softmax(-1)
        return grown(self, token, parent, draw, cold_V, *more, **named)

    monkeypatch.setattr(Draft, "with_node", lie)
    assert enumerate_output_laws("draft-model", {}).place.startswith("draft: toy law")


def test_a_canvas_that_is_not_drawn(monkeypatch):
    monkeypatch.setattr(UnmaskerView, "draw_token", lambda self, i, rng: self.likeliest[i])
    found = enumerate_output_laws("mdlm", {}, "diffusion")
    assert found.place.startswith("unmasking: toy law 1"), found


def test_an_insertion_model_keeps_its_law_where_all_is_drawn(monkeypatch):
    found = enumerate_output_laws("insertion-language-models", {"draw": True}, "insertion")
    assert found.verdict == "keeps it" and found.laws == 8 and found.apart < 1e-12, found
    # An end that is not drawn, and a slot's token at half the temperature.
    for fault, name in (
        (lambda self, offer, rng, step: offer.whole >= self.least, "is_complete"),
        (lambda self, logw_V: 2 * logw_V - torch.logsumexp(2 * logw_V, -1), "slot_law"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(InsertionDecoder, name, fault)
            found = enumerate_output_laws("insertion-language-models", {"draw": True}, "insertion")
        assert found.place.startswith("insertion: toy law 1"), (name, found)


def test_what_cannot_be_enumerated_says_why(monkeypatch):
    assert "layers" in enumerate_output_laws("layerskip", {"layers": 40}).unknown
    monkeypatch.setattr(room, "MOST", 3)
    found = enumerate_output_laws("draft-model", {})
    assert "over 3 ways" in found.unknown
    assert enumerate_output_laws("layerskip", {"layers": 40}).verdict == "not shown"
    assert "vectors" in enumerate_output_laws("continuous-speculative-exact", {}).why


@pytest.mark.parametrize(
    "method", ["copyspec", "jump-forward", "lookahead", "mtp", "prompt-lookup", "token-recycling"]
)
def test_methods_draft_and_hit_and_miss_where_they_are_enumerated(monkeypatch, method):
    monkeypatch.setattr(room, "LAWS", 2)
    found = enumerate_output_laws(method, {})
    counts = found.exercised
    assert found.verdict == "keeps it" and not found.missing and not found.why
    assert counts.drafted >= counts.accepted + counts.rejected > counts.accepted > 0
    assert found.to_json()["exercised"]["accepted"] == counts.accepted


def test_where_nothing_is_drafted_nothing_is_shown(monkeypatch):
    monkeypatch.setattr(room, "LAWS", 2)
    found = enumerate_output_laws("draft-model", {"depth": 0})
    assert found.laws and found.verdict == "not shown" and not found.place
    assert found.missing == ("drafted", "accepted", "rejected")
    assert "enumerated laws nothing was drafted" in found.why
    plain = enumerate_output_laws("plain", {})
    assert plain.verdict == "keeps it" and not plain.exercised.drafted


def test_where_no_law_is_enumerated_nothing_is_shown():
    found = enumerate_output_laws("layerskip", {"layers": 40})
    assert not found.laws and found.why.startswith("no law was enumerated: ")

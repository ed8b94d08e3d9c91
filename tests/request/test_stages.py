"""The stages of a request: each does its work once, and refuses what is its own before the next one begins."""

from collections import Counter

import pytest

from polydec import Ask, Engine, RequestError, load
from polydec.base.errors import PolydecError
from polydec.base.options import Option
from polydec.methods.economics.costs import PassCosts
from polydec.methods.registry import registry
from polydec.request import ask as road
from polydec.request.families import request_family

PROMPT = "The grey fox and the river"


@pytest.fixture(scope="module")
def lm():
    lm = load("zoo:tiny")
    vars(lm)["costs"] = PassCosts()  # instead of measuring
    return lm


def test_a_decoder_is_built_once_and_costs_are_asked_for_on_the_way(lm, monkeypatch):
    built, measured = [], []
    assert registry.method_options("auto")  # they are read off the signature of `build`, once
    recipe = registry.get_recipe_module("auto")
    build = recipe.build
    monkeypatch.setattr(recipe, "build", lambda kit, **o: built.append(o) or build(kit, **o))
    plan = road.plan_request(
        lm, Ask(PROMPT, method="auto"), measure=lambda: measured.append(1) or PassCosts((3.0, 4.0))
    )
    assert len(built) == 1 and measured
    assert plan.decoder.drafter.costs == PassCosts((3.0, 4.0))


@pytest.mark.parametrize(
    "options, says",
    [({"states": True}, "trained"), ({"ask": True}, "there is no draft model")],
    ids=["states", "ask"],
)
def test_what_is_missing_is_said_before_costs_are_measured(options, says):
    bare = load("zoo:tiny", draft=None, ngrams=None)
    with pytest.raises(PolydecError, match=says):
        road.plan_request(bare, Ask(PROMPT, method="auto", options=options), measure=None)
    assert "costs" not in vars(bare)


def test_every_value_is_converted_once(lm, monkeypatch):
    road.plan_request(lm, Ask(PROMPT, method="draft-model"))  # what is read once for all requests
    seen = Counter()
    convert = Option.convert_value
    monkeypatch.setattr(
        Option,
        "convert_value",
        lambda self, value: seen.update([self.name]) or convert(self, value),
    )
    given = {"depth": "3"}
    plan = road.plan_request(
        lm, Ask(PROMPT, method="draft-model", options=given, n="2", stop="fox", seed=7)
    )
    assert plan.options["depth"] == 3 and plan.request.n == 2
    assert plan.encoded.ask.stop == ("fox",)
    assert {name: count for name, count in seen.items() if count > 1} == {}
    assert seen["depth"] == seen["n"] == seen["method"] == 1


def test_a_prompt_is_encoded_once(lm, monkeypatch):
    encoded = []
    text = type(lm.checkpoint.text)
    encode = text.encode
    monkeypatch.setattr(
        text, "encode", lambda self, x, special=True: encoded.append(x) or encode(self, x, special)
    )
    engine = Engine(lm)
    request = engine.encode_request(Ask(PROMPT, raw=True, max_tokens=2))
    engine.submit_encoded(request.with_max_tokens(1))
    assert encoded == [PROMPT]


def test_what_needs_no_tokens_is_refused_before_the_prompt_is_encoded(lm, monkeypatch):
    monkeypatch.setattr(type(lm.checkpoint.text), "encode", None)
    for fields, says in (
        ({"method": "llada"}, "method llada decodes masked-diffusion models"),
        ({"options": {"dept": 1}}, "option 'dept' of method auto is unknown"),
        ({"cache_options": {"kept": 1}}, "cache_options is given without cache"),
        ({"steer": "nowhere"}, "steer is 'nowhere'"),
        ({"reuse_key": "a"}, "reuse_key is 'a', and reuse is none"),
        ({"infill": "a [[2]]"}, "infill is given"),
        ({"source": "a"}, "source is given"),
        ({"finish": True}, "finish is true: it brings constrained answers to an end"),
        ({"stop_token_ids": (10**6,)}, "stop_token_ids has token 1000000"),
    ):
        with pytest.raises(RequestError, match=says):
            road.validate_request(lm, Ask(PROMPT, **fields))


@pytest.mark.parametrize("name", ["zoo:tiny", "zoo:diffusion"])
def test_a_family_says_what_decodes_its_models(name):
    family = request_family(load(name, draft=None, ngrams=None).checkpoint.lm)
    recipe = registry.recipe_for_model("auto", family.kind)
    assert recipe.CARD.family in ("any", family.kind.name)
    assert recipe.CARD.name == family.kind.default_method


def test_an_encoded_request_keeps_what_it_is_given(lm):
    checked = road.validate_request(lm, Ask("x", ignore_eos=True, max_tokens="5"))
    encoded = road.encode_prompts(checked)
    assert checked.eos == frozenset() and checked.vocab.eos
    assert encoded.ask.max_tokens == 5 and encoded.with_max_tokens(2).ask.max_tokens == 2
    assert encoded.ask.max_tokens == 5, "the first one stays as it is"
    assert road.bend_laws(encoded).request.max_tokens == 5

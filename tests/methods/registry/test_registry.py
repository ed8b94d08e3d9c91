"""Finding methods, and what is said when one is not there."""

import pytest

import micro
from polydec import Engine, load
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Exactness
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy import toy_law
from polydec.methods.economics.costs import PassCosts
from polydec.methods.registry import registry
from polydec.methods.registry.card import Card


def test_every_file_is_a_recipe():
    assert {"plain", "prompt-lookup", "token-recycling", "draft-model"} <= set(
        registry.recipe_modules()
    )
    assert all(isinstance(m.CARD, Card) for m in registry.recipe_modules().values())


def test_mechanisms_are_found_by_file():
    assert {"match", "coupled", "exact", "k_seq"} <= set(registry.mechanism_classes("verifiers"))
    assert registry.mechanism_classes("trees")["chain"].__name__ == "ChainTree"


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda: registry.get_recipe_module("plian"),
            "method 'plian' is unknown: did you mean plain?",
        ),
        (
            lambda: registry.get_recipe_module("zzz"),
            "method 'zzz' is unknown: `polydec methods` lists all of them",
        ),
        (
            lambda: build("prompt-lookup", toy_law(1), None, {"dept": 3}),
            "option 'dept' of method prompt-lookup is unknown: did you mean depth?",
        ),
        (lambda: build("plain", toy_law(1), None, {"depth": 3}), "it has no options"),
        (
            lambda: build("prompt-lookup", toy_law(1), None, {"zzz": 3}),
            "the options are max_ngram, ",
        ),
        (
            lambda: build("prompt-lookup", toy_law(1), None, {"depth": "four"}),
            "depth is 'four': it must be a whole number",
        ),
        (
            lambda: build("prompt-lookup", toy_law(1), None, {"depth": 2.5}),
            "depth is 2.5: it must be a whole number",
        ),
        (
            lambda: build("prompt-lookup", toy_law(1), None, {"depth": True}),
            "depth is True: it must be a whole number",
        ),
        (
            lambda: build("prompt-lookup", toy_law(1), None, {"depth": 65}),
            "depth is 65: it must lie in 0 to 64",
        ),
        (
            lambda: build("prompt-lookup", toy_law(1), None, {"loop": "maybe"}),
            "loop is 'maybe': it must be true or false",
        ),
        (
            lambda: build("prompt-lookup", toy_law(1), None, {"min_ngram": 9}),
            "it must lie in 1 to max_ngram, which is 8",
        ),
        (
            lambda: build("prompt-lookup", toy_law(1), None, {"max_ngram": 17}),
            "max_ngram is 17: it must lie in 1 to 16",
        ),
        (
            lambda: build("token-recycling", toy_law(1), None, {"k": 0}),
            "k is 0: it must lie in 1 to 64",
        ),
        (
            lambda: build("token-recycling", toy_law(1), None, {"nodes": 300}),
            "nodes is 300: it must lie in 1 to 256",
        ),
        (
            lambda: build("rsd-c", toy_law(1), toy_law(2), {"levels": "2,0"}),
            "levels is 2,0: it must be whole numbers such as 2,1,1, each",
        ),
        (
            lambda: build("draft-model-coupled-tree", toy_law(1), toy_law(2), {"levels": [99]}),
            "levels is 99: it must be",
        ),
        (
            lambda: build("rsd-c", toy_law(1), toy_law(2), {"levels": "2;1"}),
            "levels is '2;1': it must be whole",
        ),
        (
            lambda: build("rsd-c", toy_law(1), toy_law(2), {"nodes": -1}),
            "nodes is -1: it must lie in 0 to 1024",
        ),
        (
            lambda: build("token-recycling", toy_law(1), None, {"nodes": 3, "shape": "2,1"}),
            "shape is 2,1: it says how many",
        ),
        (
            lambda: build("copyspec", toy_law(1), None, {"gamma": 3, "adapt": True}),
            "so gamma (3) must be left out",
        ),
        (
            lambda: build("copyspec", toy_law(1), None, {"cost": 0.1}),
            "adapt is false: cost (0.1) belongs to it",
        ),
        (
            lambda: build("aded", toy_law(1), None, {"rate": 0, "decay": 0.5}),
            "rate is 0: nothing adapts then",
        ),
        (
            lambda: build("auto", toy_law(1), None, {"ask": True}),
            "there is no draft model: name one (--draft)",
        ),
        (
            lambda: build("entropy-adaptive", toy_law(1), toy_law(2), {"tau": None, "tau_down": 1}),
            "so tau_down (1.0) must be left",
        ),
        (
            lambda: build("draft-model", toy_law(1)),
            "method draft-model needs a draft model: name one",
        ),
        (
            lambda: build("draft-model", toy_law(1), toy_law(2, 4)),
            "the draft has a vocabulary of 4 tokens, the target one of 3",
        ),
    ],
)
def test_one_clear_sentence(call, message):
    with pytest.raises(ValueError) as error:
        call()
    assert message in str(error.value) and "\n" not in str(error.value)


def test_options_come_from_the_signature():
    options = {o.name: o for o in registry.method_options("rsd-c")}
    assert (
        options["levels"].default == (2, 1, 1)
        and options["nodes"].type is int
        and options["nodes"].help
    )
    decoder, values = build("rsd-c", toy_law(1), toy_law(2), {"levels": "3,2", "nodes": 7})
    assert values == {"levels": (3, 2), "nodes": 7}
    assert decoder.drafter.tree.levels == (3, 2) and decoder.policy.nodes == 7
    assert decoder.exactness is Exactness.LAW


def test_an_option_is_known_by_its_earlier_name():
    target, draft = toy_law(1), toy_law(2)
    assert build("prompt-lookup", target, draft, {"thrift": "false"}) == build(
        "prompt-lookup", target, draft, {"cost_aware": False}
    )
    assert "thrift" not in build("prompt-lookup", target, draft)[1]
    with pytest.raises(
        ValueError,
        match="cost_aware of method prompt-lookup is given twice: thrift is its earlier name",
    ):
        registry.method_option_values("prompt-lookup", {"thrift": True, "cost_aware": False})
    taken = [
        o
        for r in registry.recipe_modules().values()
        for o in registry.method_options(r.CARD.name)
        if o.formerly
    ]
    assert taken and not any(
        o.formerly in {other.name for other in registry.method_options(name)}
        for name in registry.recipe_modules()
        for o in registry.method_options(name)
        if o.formerly
    )


@pytest.mark.parametrize(
    "name, wanted",
    [
        ("LayerSkip", "layerskip"),
        ("early-exit", "layerskip"),
        ("EAGLE-2's tree", "eagle-2-tree"),
        ("CALM", "calm"),
        ("Draft & Verify", "draft-and-verify"),
        ("layer_skip", "draft-and-verify"),
        ("2404.16710", "layerskip"),
        ("SpecDec++", "specdec-plus-plus"),
        ("dynamic exit layer", "del"),
        ("hierarchical", "specmquant"),
        ("draft-model-tree", "rsd-c"),
        ("SAM decoding", "suffix-automaton"),
    ],
)
def test_a_method_is_found_by_its_paper(name, wanted):
    assert (
        registry.find_method(name) == wanted
        and registry.get_recipe_module(name).CARD.name == wanted
    )


def test_names_belong_to_one_method():
    said = [
        n
        for m in registry.recipe_modules().values()
        for n in (m.CARD.name, *m.CARD.aliases, *filter(None, [m.CARD.arxiv]))
    ]
    assert len(registry.method_names()) == len(said), "two methods answer to one name"


@pytest.mark.parametrize(
    "words, first",
    [("eagle-2", "eagle-2"), ("layer skip", "draft-and-verify"), ("recycling", "token-recycling")],
)
def test_words_find_methods(words, first):
    assert first in registry.search_methods(words)[:3]


def test_description():
    d = registry.describe_method("prompt-lookup")
    assert {
        "name",
        "title",
        "kind",
        "family",
        "guarantee",
        "needs",
        "needs_training",
        "options",
        "source",
    } <= set(d)
    assert (
        d["guarantee"] == "law"
        and d["needs"] == []
        and d["options"]["depth"]["type"] == "a whole number, in 0 to 64"
    )


@pytest.mark.parametrize("name", ["token-recycling", "suffix-automaton", "stand"])
def test_what_is_kept_is_kept_where_asked_for(name):
    target, request = toy_law(4, 5, eos=-1, sharp=2.0), Request((0, 1), max_tokens=40)
    kept: dict = {}
    cold, hot = (
        [
            run_coroutines(
                [answer_one(build(name, target, None, {"hot": h}, memory=kept)[0], request)]
            )[0]
            for _ in range(3)
        ]
        for h in (False, True)
    )
    assert (
        cold[0] == cold[2] == hot[0]
        and hot[2].stats.passes < cold[0].stats.passes
        and len(kept) == 1
    )


def test_an_engine_keeps_and_another_one_does_not(tmp_path):
    lm = load(str(micro.write(tmp_path)), draft=None)
    vars(lm)["costs"] = PassCosts()  # instead of measuring

    def passes(engine):
        ticket = engine.submit(
            "the fox",
            method="token-recycling",
            options={"hot": True},
            max_tokens=30,
            ignore_eos=True,
            raw=True,
            sampling=lm.sampling_with(temperature=0.0),
        )
        return engine.run([ticket])[0].metrics["target_passes"]

    engine = Engine(lm)
    first, again, elsewhere = passes(engine), passes(engine), passes(Engine(lm))
    assert again < first == elsewhere

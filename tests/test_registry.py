"""Finding methods, and what is said when one is not there."""
import pytest

import micro
from polydec import Engine, load, registry
from polydec.core.card import Card
from polydec.core.request import Request
from polydec.core.scheduler import run
from polydec.core.types import Exactness
from polydec.registry import Option
from polydec.testing.toy import toy


def test_every_file_is_a_recipe():
    assert {"plain", "prompt-lookup", "token-recycling", "draft-model"} <= set(registry.recipes())
    assert all(isinstance(m.CARD, Card) for m in registry.recipes().values())


def test_mechanisms_are_found_by_file():
    assert {"match", "coupled", "exact", "k_seq"} <= set(registry.mechanisms("verifiers"))
    assert registry.mechanisms("trees")["chain"].__name__ == "Chain"


@pytest.mark.parametrize("call, message", [
    (lambda: registry.get("plian"), "method 'plian' is unknown: did you mean plain?"),
    (lambda: registry.get("zzz"), "method 'zzz' is unknown: the methods are "),
    (lambda: registry.build("prompt-lookup", toy(1), None, {"dept": 3}),
     "option 'dept' of method prompt-lookup is unknown: did you mean depth?"),
    (lambda: registry.build("plain", toy(1), None, {"depth": 3}), "it has no options"),
    (lambda: registry.build("prompt-lookup", toy(1), None, {"zzz": 3}), "the options are max_ngram, "),
    (lambda: registry.build("prompt-lookup", toy(1), None, {"depth": "four"}), "depth is 'four': it must be a whole number"),
    (lambda: registry.build("prompt-lookup", toy(1), None, {"depth": 2.5}), "depth is 2.5: it must be a whole number"),
    (lambda: registry.build("prompt-lookup", toy(1), None, {"depth": True}), "depth is True: it must be a whole number"),
    (lambda: registry.build("prompt-lookup", toy(1), None, {"depth": 65}), "depth is 65: it must lie in 0 to 64"),
    (lambda: registry.build("prompt-lookup", toy(1), None, {"loop": "maybe"}), "loop is 'maybe': it must be true or false"),
    (lambda: registry.build("prompt-lookup", toy(1), None, {"min_ngram": 9}), "it must lie in 1 to max_ngram, which is 8"),
    (lambda: registry.build("prompt-lookup", toy(1), None, {"max_ngram": 17}), "max_ngram is 17: it must lie in 1 to 16"),
    (lambda: registry.build("token-recycling", toy(1), None, {"k": 0}), "k is 0: it must lie in 1 to 64"),
    (lambda: registry.build("token-recycling", toy(1), None, {"nodes": 300}), "nodes is 300: it must lie in 1 to 256"),
    (lambda: registry.build("draft-model-tree", toy(1), toy(2), {"levels": "2,0"}), "levels is 2,0: it must be 1 to 16"),
    (lambda: registry.build("draft-model-coupled-tree", toy(1), toy(2), {"levels": [99]}), "levels is 99: it must be"),
    (lambda: registry.build("draft-model-tree", toy(1), toy(2), {"levels": "2;1"}), "levels is '2;1': it must be whole"),
    (lambda: registry.build("draft-model-tree", toy(1), toy(2), {"nodes": -1}), "nodes is -1: it must lie in 0 to 1024"),
    (lambda: registry.build("token-recycling", toy(1), None, {"nodes": 3, "shape": "2,1"}), "shape is 2,1: it says how many"),
    (lambda: registry.build("copyspec", toy(1), None, {"gamma": 3, "adapt": True}), "so gamma (3) must be left out"),
    (lambda: registry.build("copyspec", toy(1), None, {"cost": 0.1}), "adapt is false: cost (0.1) belongs to it"),
    (lambda: registry.build("aded", toy(1), None, {"rate": 0, "decay": 0.5}), "rate is 0: nothing adapts then"),
    (lambda: registry.build("auto", toy(1), None, {"ask": True}), "ask is true: there is no draft model, so name one"),
    (lambda: registry.build("entropy-adaptive", toy(1), toy(2), {"tau": None, "tau_down": 1}), "so tau_down (1) must be left"),
    (lambda: registry.build("draft-model", toy(1)), "method draft-model needs a draft model: name one"),
    (lambda: registry.build("draft-model", toy(1), toy(2, 4)), "the draft has a vocabulary of 4 tokens, the target one of 3"),
])
def test_one_clear_sentence(call, message):
    with pytest.raises(ValueError) as error:
        call()
    assert message in str(error.value) and "\n" not in str(error.value)


def test_options_come_from_the_signature():
    options = {o.name: o for o in registry.options("draft-model-tree")}
    assert options["levels"].default == (2, 1, 1) and options["nodes"].type is int and options["replace"].help
    decoder, values = registry.build("draft-model-tree", toy(1), toy(2), {"levels": "3,2", "replace": "yes", "nodes": 7})
    assert values == {"levels": (3, 2), "nodes": 7, "replace": True}
    assert decoder.drafter.tree.levels == (3, 2) and decoder.drafter.tree.replace and decoder.policy.nodes == 7
    assert decoder.exactness is Exactness.LAW


@pytest.mark.parametrize("option, value, want", [
    (Option("x", float, 1.0, ""), "0.5", 0.5), (Option("x", float, 1.0, ""), 2, 2), (Option("x", str, "a", ""), "b", "b"),
    (Option("x", int | None, None, ""), "none", None), (Option("x", int | None, 3, ""), "7", 7),
    (Option("x", tuple[int, ...], (), ""), [1, 2], (1, 2)), (Option("x", tuple[int, ...] | None, (), ""), "1,2", (1, 2)),
])
def test_values_become_what_the_option_is(option, value, want):
    assert option.convert(value) == want


def test_description():
    d = registry.describe("prompt-lookup")
    assert {"name", "title", "kind", "family", "guarantee", "needs", "needs_training", "options", "source"} <= set(d)
    assert d["guarantee"] == "law" and d["needs"] == [] and d["options"]["depth"]["type"] == "a whole number"


@pytest.mark.parametrize("name", ["token-recycling", "suffix-automaton", "stand"])
def test_what_is_kept_is_kept_where_asked_for(name):
    target, request = toy(4, 5, eos=-1, sharp=2.0), Request((0, 1), max_tokens=40)
    kept: dict = {}
    cold, hot = ([run([registry.build(name, target, None, {"hot": h}, kept=kept)[0].run(request)])[0] for _ in range(3)]
                 for h in (False, True))
    assert cold[0] == cold[2] == hot[0] and hot[2].stats.passes < cold[0].stats.passes and len(kept) == 1


def test_an_engine_keeps_and_another_one_does_not(tmp_path):
    lm = load(str(micro.write(tmp_path)), draft=None)

    def passes(engine):
        ticket = engine.submit("the fox", method="token-recycling", options={"hot": True}, max_tokens=30,
                               ignore_eos=True, raw=True, sampling=lm.sampling(temperature=0.0))
        return engine.run([ticket])[0].metrics["target_passes"]

    engine = Engine(lm)
    first, again, elsewhere = passes(engine), passes(engine), passes(Engine(lm))
    assert again < first == elsewhere

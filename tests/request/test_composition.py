"""Methods, presses, steerings, constraints and sampling rules: every pair decodes and keeps its promise, or is refused by name
before anything runs. The pairs come from what is registered: no list names them."""

import hashlib
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import pytest
import torch

import micro
from polydec import AnyOf, Ask, Engine, JsonSchema, LarkGrammar, Regex, Sampling, SpanOf, load
from polydec.core.types import Exactness
from polydec.lab.testing.examples import example_artefacts
from polydec.laws.shapers.sampling import all_sampling_fields, all_sampling_rules
from polydec.methods.economics.costs import PassCosts
from polydec.methods.registry import press, registry, steer
from polydec.methods.registry.kit import PATCHES, SECOND_PROMPT, Kit
from polydec.request.ask import plan_request
from polydec.request.explain import explain_request, request_alternatives
from polydec.request.loaded import LoadedModel
from polydec.request.steering import steered_law

PROMPT, SECOND = "The grey fox and the river and the grey fox and the", "nobody asked the river"
LENGTH = 12
CONSTRAINTS = {
    "regex": Regex("(the|grey|fox| )+"),
    "schema": JsonSchema.of_schema({"type": "array", "items": {"type": "integer"}}),
    "grammar": LarkGrammar('start: "the" (" fox" | " river")+'),
    "choice": AnyOf(("the fox", "a river", "the grey boat")),
    "span": SpanOf("the quiet baker followed the train"),
}
"""One of each kind."""


@dataclass(frozen=True, eq=False)
class Thing:
    """Something that a request may ask for beside its method. kind: at most one of "press", "steering" and "constraint" may be
    asked; fields: of the request; sampling: fields of its sampling."""

    kind: str
    name: str
    fields: dict[str, Any] = field(default_factory=dict)
    sampling: dict[str, Any] = field(default_factory=dict)


FORBIDDEN = (5, 70, 80)


def bend_logits(token_ids, logits_V):
    logits_V[list(FORBIDDEN)] = float("-inf")
    logits_V[token_ids[-3]] += 4.0
    return logits_V


def stop_when_long(token_ids, text):
    return sum(token_ids) % 5 == 0


def things():
    """Every way to keep a cache and to steer, a constraint of each kind, every sampling rule with each of its fields away from
    neutral, a function of each kind."""
    yield Thing("function", "logits_processor", {"logits_processor": bend_logits})
    yield Thing("function", "stop_when", {"stop_when": stop_when_long})
    for name in press.block_press_names():
        options = {"block": 16}  # texts are short here
        yield Thing("press", name, {"cache": name, "cache_options": options})
    for name, module in sorted(steer.steering_modules().items()):
        second = {"negative_prompt": SECOND} if SECOND_PROMPT in module.CARD.needs else {}
        yield Thing("steering", name, {"steer": name, **second})
    for name, constraint in CONSTRAINTS.items():
        yield Thing("constraint", name, {"constraint": constraint})
    for name, rule in all_sampling_rules().items():
        if rule.fields:
            yield Thing(
                "rule",
                name,
                {},
                ON.get(name) or {rule.fields[0].name: moved(rule.fields[0].default)},
            )


ON = {
    "temperature": {"temperature": 0.7},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.6},
    "top_w": {"top_w": 2.8},
    "typical_p": {"typical_p": 0.5},
    "allowed_token_ids": {"allowed_token_ids": tuple(range(1, 300))},
    "bad_token_ids": {"bad_token_ids": (5, 70, 80)},
    "logit_bias": {"logit_bias": {70: 3.0, 80: -3.0}},
    "min_tokens": {"min_tokens": 4},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "repetition_penalty": {"repetition_penalty": 1.4},
    "reflex": {"reflex_amplitude": 3.0, "reflex_token_ids": (70, 80)},
    "anneal": {"anneal_start": 1.4},
    "watermark": {"watermark_bias": 2.0},
    "momentum": {"momentum_alpha": 0.3},
    "xtc": {"xtc_probability": 0.5},
    "eta_cutoff": {"eta_cutoff": 0.01},
    "epsilon_cutoff": {"epsilon_cutoff": 0.01},
}
"""Rules whose first field is not a number that is 0 where the rule is off."""


def moved(neutral: float) -> float:
    return neutral + 0.5


THINGS = {f"{t.kind}: {t.name}": t for t in things()}
# Models of patches have no tokens to bend, and refuse all of this: tests/lab/train/test_train_patches.py.
METHODS = sorted(
    n for n in registry.of_family("ar") if PATCHES not in registry.get_recipe_module(n).CARD.needs
)


def some(names, of: int, by: str):
    """A share of the names, another one for each `by`."""
    return [n for n in names if hashlib.sha1(f"{n} {by}".encode()).digest()[0] % of == 0]


@pytest.fixture(scope="module")
def lm(tmp_path_factory) -> LoadedModel:
    torch.set_num_threads(1)
    at = tmp_path_factory.mktemp("composition")
    lm = load(
        str(micro.write(at / "a", hidden=64)),
        draft=str(micro.write(at / "b", seed=1, hidden=64)),
        dtype="float32",
    )
    lm = LoadedModel(
        lm.checkpoint,
        lm.draft,
        example_artefacts(lm.checkpoint.lm.vocab, lm.draft.lm.network.config.width),
    )
    vars(lm)["costs"] = PassCosts()  # instead of measuring
    return lm


def ask(method: str, *parts: Thing) -> Ask:
    asked = {k: v for t in parts for k, v in t.fields.items()}
    sampling = {"temperature": 0.0, **{k: v for t in parts for k, v in t.sampling.items()}}
    return Ask(
        PROMPT,
        method=method,
        raw=True,
        max_tokens=LENGTH,
        sampling=Sampling(**sampling),
        seed=3,
        **asked,
    )


def planned(lm: LoadedModel, ask: Ask):
    try:
        return plan_request(lm, ask, measure=PassCosts)
    except ValueError as error:
        return str(error)


def called(thing: Thing) -> dict[str, Any]:
    return {"name": thing.fields["cache"], "given": thing.fields["cache_options"]}


def legal(lm: LoadedModel, method: str, *parts: Thing) -> bool:
    """By what the parts say of themselves: a method must find what it needs in what is made of the model; a finite constraint
    ends where it ends, so no least length goes with it."""
    kinds = {t.kind: t for t in parts}
    law = lm.checkpoint.lm
    if "press" in kinds:
        law = law.pressed_law(press.build(**called(kinds["press"]))[0])
    if "steering" in kinds:
        made = plan_request(lm, ask("plain", kinds["steering"]), measure=PassCosts)
        law = steered_law(made.encoded, law)
    if any("min_tokens" in t.sampling for t in parts) and getattr(
        kinds.get("constraint"), "name", ""
    ) in ("choice", "span"):
        return False
    try:
        for need in registry.get_recipe_module(method).CARD.needs:
            need.check_kit(Kit(law, lm.draft.lm, lm.artefacts), method)
    except ValueError:
        return False
    return True


def check(lm: LoadedModel, requests: list[tuple[str, tuple[Thing, ...]]]) -> None:
    """Of all at once, in one engine with plain decoding of the same: promises are kept, refusals name what they refuse."""
    engine, running, plain = Engine(lm), [], {}
    for method, parts in requests:
        made = planned(lm, ask(method, *parts))
        assert isinstance(made, str) is not legal(lm, method, *parts), (method, parts, made)
        if isinstance(made, str):
            assert len(made) <= 300 and (method in made or "min_tokens" in made), made
            assert request_alternatives(lm, ask(method, *parts)), (
                "something that would run is named"
            )
            continue
        if parts not in plain:
            plain[parts] = engine.submit(ask("plain", *parts))
        running.append((method, parts, made, engine.submit(ask(method, *parts))))
    while engine.step():
        pass
    for method, parts, made, ticket in running:
        text, wanted = outcome(ticket), outcome(plain[parts])
        greedy = all(t.sampling.get("temperature", 0.0) == 0.0 for t in parts)
        if greedy and made.decoder.exactness is not Exactness.APPROXIMATE:
            assert text == wanted, (method, [t.name for t in parts])
        if text is not None:
            assert 1 <= len(text) <= LENGTH
            obeyed(lm, text, parts)


def outcome(ticket):
    """What was written; None where rules, a steering's head and a constraint left nothing, which only the law itself shows."""
    try:
        return ticket.completion().choices[0].token_ids
    except ValueError as error:
        assert "no token is left" in str(error) or "has probability 0 here" in str(error)
        return None


def obeyed(lm: LoadedModel, text, parts) -> None:
    """What a constraint or a mask forbids is not written, by any method."""
    eos = lm.checkpoint.lm.vocab.eos
    for t in parts:
        if "constraint" in t.fields:
            language = t.fields["constraint"].token_language(lm.checkpoint.lm.vocab, eos)
            state = language.start_state()
            for x in text:
                assert language.allows_token(state, x), (t.name, text)
                state = language.next_state(state, x)
        if "logits_processor" in t.fields:
            assert not set(text) & {*FORBIDDEN}
        if "stop_when" in t.fields:
            least = max(1, *(other.sampling.get("min_tokens", 1) for other in parts))
            assert not any(stop_when_long(text[:n], "") for n in range(least, len(text)))
        allowed = t.sampling.get("allowed_token_ids")
        assert allowed is None or set(text) <= {*allowed}
        assert not set(text) & set(t.sampling.get("bad_token_ids", ()))
        assert not ("min_tokens" in t.sampling and eos & set(text[: t.sampling["min_tokens"] - 1]))


@pytest.mark.parametrize("thing", THINGS)
def test_methods_with(lm, thing):
    """Some of the methods, other ones for each thing."""
    check(lm, [(m, (THINGS[thing],)) for m in some(METHODS, 8, thing)])


@pytest.mark.slow
@pytest.mark.parametrize("thing", THINGS)
def test_all_methods_with(lm, thing):
    check(lm, [(m, (THINGS[thing],)) for m in METHODS])


def reads_kept_keys(first: Thing, second: Thing) -> bool:
    """Whether one reads keys and values of which the other keeps another form."""
    kinds = {first.kind: first, second.kind: second}
    return "press" in kinds and kinds.get("steering") == THINGS["steering: cache-augmentation"]


def pairs():
    """Pairs of things that a request can hold both of."""
    return [
        (a, b)
        for a, b in combinations(THINGS, 2)
        if (THINGS[a].kind != THINGS[b].kind or THINGS[a].kind == "rule")
        and not reads_kept_keys(THINGS[a], THINGS[b])
    ]


def with_drafts(names):
    return [(m, (THINGS[a], THINGS[b])) for a, b in names for m in ("prompt-lookup", "draft-model")]


def test_pairs_with_drafts(lm):
    """Some pairs of things, decoded with two kinds of drafts."""
    names = some([f"{a} + {b}" for a, b in pairs()], 16, "pairs")
    check(lm, with_drafts([tuple(n.split(" + ")) for n in names]))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_all_pairs_with_drafts(lm, part):
    check(lm, with_drafts(pairs()[part::8]))


def test_every_rule_is_on_in_these_tests(lm):
    neutral = Sampling(temperature=0.0)
    for t in THINGS.values():
        for name in t.sampling:
            assert getattr(Sampling(**t.sampling), name) != (
                getattr(neutral, name)
                if name == "temperature"
                else all_sampling_fields()[name].default
            ), name


def test_an_explanation_names_every_part(lm):
    asked = ask(
        "draft-model",
        THINGS["steering: cad"],
        THINGS["constraint: regex"],
        THINGS["rule: repetition_penalty"],
        THINGS["rule: top_p"],
    )
    said = [(p.role, p.name) for p in explain_request(lm, asked)]
    assert said == [
        ("model", lm.name),
        ("draft", lm.draft.name),
        ("steering", "cad"),
        ("constraint", "Regex"),
        ("sampling rule", "repetition_penalty"),
        ("sampling rule", "temperature"),
        ("idle rule", "top_p"),
        ("method", "draft-model"),
        ("length", f"{LENGTH} tokens"),
    ]


def test_what_would_run_instead(lm):
    assert request_alternatives(lm, ask("layerskip", THINGS["steering: cfg"])) == [
        "with method auto",
        "with method plain",
        "without steering",
    ]
    assert request_alternatives(
        lm, ask("plain", THINGS["constraint: choice"], THINGS["rule: min_tokens"])
    ) == [
        "without min_tokens",
        "without the constraint",
    ]


@pytest.mark.parametrize(
    "method, way",
    [
        ("hidden-transfer", "dola"),
        ("contrastive-search", "switch"),
        ("superposed-decoding", "switch"),
    ],
)
def test_pairs_that_failed_in_the_middle_once(lm, method, way):
    check(lm, [(method, (THINGS[f"steering: {way}"],))])

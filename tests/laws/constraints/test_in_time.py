"""Answers that end in time: within their tokens, with the law untouched while there is time, whoever drafts."""

import json
import random
import re

import jsonschema
import pytest
import torch

from polydec import AnyOf, JsonSchema, LarkGrammar, Regex, generate, load
from polydec.base.errors import RequestError
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.lab.testing.enumerate import law_of, target_law, text_law_distance
from polydec.lab.testing.examples import bend_target, target_draft_pairs
from polydec.lab.testing.toy import toy_law
from polydec.laws.constraints import in_time as module
from polydec.laws.constraints import pieces
from polydec.laws.constraints.in_time import DeadlineLanguage, DeadlineState, in_time
from polydec.laws.shapers.constrained import ConstraintRule
from polydec.laws.shapers.temperature import TemperatureRule
from polydec.methods.speculative.drafters.forced import JumpForwardDrafter
from polydec.methods.speculative.drafters.model import ModelDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.trees.static import StaticTree
from polydec.methods.speculative.verifiers.exact import ExactVerifier
from polydec.methods.speculative.verifiers.match import MatchVerifier

PROMPT = (0, 1, 0)


def ended(constraint, vocab, most) -> DeadlineLanguage:
    ends = vocab.eos
    return in_time(
        constraint.token_language(vocab, ends),
        most,
        pieces.token_byte_pieces(vocab, ends),
        sorted(ends),
    )


def walked(language, most, rng) -> list[int]:
    """A text of tokens drawn from those that are allowed, up to its end or the last token."""
    state, out = language.start_state(), list[int]()
    while len(out) < most:
        token = int(rng.choice(language.token_mask(state).nonzero().flatten().tolist()))
        assert language.allows_token(state, token)
        out.append(token)
        if token in language.ends:
            break
        state = language.next_state(state, token)
    return out


@pytest.fixture(scope="module")
def lm():
    return load("zoo:tiny")


@pytest.fixture(scope="module")
def vocab(lm):
    return lm.checkpoint.lm.vocab


PATTERNS = (
    "[0-9]+",
    "a*b",
    "(ab|cd)*(e|fg)",
    "[a-z ]{3,}!",
    "-?[0-9]+([.][0-9]+)?",
    "(Yes|No), (because|but) .*[.]",
)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_texts_end_within_any_number_of_tokens(pattern, vocab):
    rng = random.Random(pattern)
    for most in (12, 13, 20, 33, 60):
        language = ended(Regex(pattern), vocab, most)
        for _ in range(4):
            text = walked(language, most, rng)
            assert text[-1] in vocab.eos
            said = b"".join(language.ways.pieces[x] for x in text[:-1]).decode(errors="replace")
            assert re.fullmatch(pattern, said)


SCHEMAS = (
    {
        "type": "object",
        "properties": {
            "a": {"type": "string"},
            "b": {"type": "array", "items": {"type": "integer"}},
        },
        "required": ["a", "b"],
    },
    {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 2},
    {
        "type": "object",
        "properties": {
            "n": {"type": "number"},
            "when": {"type": "string", "format": "date"},
            "s": {"type": "string", "minLength": 12},
        },
        "required": ["when", "s"],
    },
)
LISTED = {
    "type": "array",
    "items": {
        "type": "object",
        "required": list("abcd"),
        "additionalProperties": False,
        "properties": {name: {"type": "string"} for name in "abcd"},
    },
}
"""One token more, and there are as many more as a whole item needs."""


@pytest.mark.parametrize(
    "schema, least",
    [
        (
            {
                "type": "object",
                "required": list("abcdefghij"),
                "additionalProperties": False,
                "properties": {
                    name: {"type": "string" if name < "f" else "number"} for name in "abcdefghij"
                },
            },
            95,
        ),
        ({"type": "string", "format": "uri"}, 6),
        ({"type": "string", "pattern": "^[a-z]+[.](js|css)$"}, 8),
        ({"type": "array", "minItems": 3, "items": {"enum": [True, [[0]]]}}, 18),
        (LISTED, 3),
    ],
    ids=["many strings", "uri", "pattern", "brackets", "list"],
)
def test_ways_out_are_short(schema, least, vocab):
    """No filler in strings and numbers, no white space; `least`: characters that a value needs, roughly."""
    inner = JsonSchema.of_schema(schema).token_language(vocab, vocab.eos)
    language = ended(JsonSchema.of_schema(schema), vocab, 400)
    text = b"".join(language.ways.pieces[x] or b"" for x in language.whole[:-1]).decode()
    jsonschema.validate(json.loads(text), schema)
    assert len(text) <= least and inner.allows_token(
        language.inner.start_state(), language.whole[0]
    )


def test_a_list_that_grows_by_whole_items_ends_in_time(vocab):
    rng = random.Random(2)
    for _ in range(6):
        text = walked(ended(JsonSchema.of_schema(LISTED), vocab, 150), 150, rng)
        assert text[-1] in vocab.eos


@pytest.mark.parametrize("schema", SCHEMAS, ids=["object", "array", "formats"])
def test_json_ends_in_time_and_is_valid(schema, vocab):
    rng = random.Random(5)
    for most in (48, 70, 110):
        language = ended(JsonSchema.of_schema(schema), vocab, most)
        for _ in range(3):
            text = walked(language, most, rng)
            assert text[-1] in vocab.eos and len(text) <= most
            jsonschema.validate(
                json.loads(b"".join(language.ways.pieces[x] for x in text[:-1])), schema
            )


def test_with_time_enough_nothing_is_different(vocab):
    """Every mask on the way is the language's own, and so is what is forced."""
    inner = JsonSchema.of_schema(SCHEMAS[0]).token_language(vocab, vocab.eos)
    language, rng = ended(JsonSchema.of_schema(SCHEMAS[0]), vocab, 10_000), random.Random(1)
    state, plain = language.start_state(), inner.start_state()
    for _ in range(60):
        assert torch.equal(
            language.token_mask(state), inner.token_mask(plain)
        ) and language.forced_bytes(state) == inner.forced_bytes(plain)
        allowed = inner.token_mask(plain)
        allowed[list(vocab.eos)] = False
        if not allowed.any():
            break
        token = rng.choice(allowed.nonzero().flatten().tolist())
        state, plain = language.next_state(state, token), inner.next_state(plain, token)
    assert state.out is None


@pytest.mark.parametrize(
    "constraint",
    [
        Regex("[a-z]{5}[0-9]+"),
        AnyOf(("some words", "some other words here")),
        LarkGrammar('start: "(" start ")" | "x"'),
        JsonSchema.of_schema(SCHEMAS[2]),
    ],
)
def test_as_many_tokens_as_the_way_out_takes_leave_no_choice(constraint, vocab):
    inner = constraint.token_language(vocab, vocab.eos)
    way = ended(constraint, vocab, 200).ways.way_out(
        inner, inner.start_state(), sorted(vocab.eos), 200
    )
    language, state = ended(constraint, vocab, len(way)), None
    for i, token in enumerate(way):
        state = language.start_state() if state is None else language.next_state(state, way[i - 1])
        assert language.token_mask(state).nonzero().flatten().tolist() == [token]
        assert not language.allows_token(state, (token + 1) % vocab.size)
        assert not language.token_mask(language.next_state(state, (token + 1) % vocab.size)).any()
    assert language.count_steered(way) == len(way)
    assert language.forced_bytes(language.start_state()) == b"".join(
        inner.pieces[x] or b"" for x in way
    )
    with pytest.raises(
        ValueError, match=f"max_tokens is {len(way) - 1}: no text of the constraint was found"
    ):
        ended(constraint, vocab, len(way) - 1)


@pytest.mark.parametrize("bug", ["the end is not counted", "the way of another place"])
def test_known_bugs_are_caught(bug, vocab, monkeypatch):
    """The end takes a token, and a way out leads from where it was found."""
    if bug == "the end is not counted":
        out = module.LegalEndings.way_out
        monkeypatch.setattr(
            module.LegalEndings,
            "way_out",
            lambda *given: None if (way := out(*given)) is None else way[:-1],
        )
    else:
        step = DeadlineLanguage.next_state
        monkeypatch.setattr(
            DeadlineLanguage,
            "next_state",
            lambda self, state, token: DeadlineState(
                step(self, state, token).inner, state.used + 1, state.look, state.out
            ),
        )
    with pytest.raises((AssertionError, ValueError, IndexError, TypeError)):
        test_as_many_tokens_as_the_way_out_takes_leave_no_choice(Regex("[a-z]{5}[0-9]+"), vocab)


@pytest.mark.parametrize(
    "drafter",
    [
        lambda draft, language: (
            ModelDrafter(draft, StaticTree((2, 1))),
            ExactVerifier(),
            FixedPolicy(2, 4),
        ),
        lambda draft, language: (
            JumpForwardDrafter(draft.vocab, language),
            MatchVerifier(),
            FixedPolicy(3),
        ),
    ],
    ids=["tree", "forced"],
)
def test_the_output_law_is_that_of_the_masks(drafter):
    steered = 0
    for seed, (target, draft) in enumerate(target_draft_pairs(9)):
        most = 3 if seed % 3 else 4
        language = ended(Regex("(ab|ba)*b?"), target.vocab, most)
        shapers = (ConstraintRule(language, tuple(target.vocab.eos)), TemperatureRule(0.8))
        decoder = SpeculativeDecoder(
            bend_target(target, shapers), *drafter(bend_target(draft, shapers), language)
        )
        got = law_of(lambda rng, d=decoder, k=most: answer_one(d, Request(PROMPT, k), rng))
        assert text_law_distance(got, target_law(target, PROMPT, most, shapers)) < 1e-9
        assert all(text[-1] in target.vocab.eos for text, p in got.items() if p > 0.0)
        steered += any(language.count_steered(text) for text in got)
    assert steered


SCHEMA = JsonSchema.of_schema(SCHEMAS[0])


@pytest.mark.parametrize(
    "method", ["auto", "prompt-lookup", "jump-forward", "draft-model", "eagle-2-tree", "lookahead"]
)
def test_methods_end_as_plain_decoding_does(lm, method):
    ask = {"constraint": SCHEMA, "max_tokens": 30, "finish": True}
    got, want = (generate(lm, "Tom is a boy. He is", method=m, **ask) for m in (method, "plain"))
    assert got.token_ids == want.token_ids and got.finish_reason == "stop"
    jsonschema.validate(json.loads(got.text), SCHEMAS[0])
    assert got.metrics["steered_tokens"] == want.metrics["steered_tokens"] > 0


def test_without_it_the_same_answer_is_cut(lm):
    assert (
        generate(lm, "Tom is a boy. He is", constraint=SCHEMA, max_tokens=30).finish_reason
        == "length"
    )


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            {"finish": True},
            "finish is true: it brings constrained answers to an end, so give a constraint",
        ),
        (
            {"finish": True, "constraint": Regex("[a-z]{90}"), "max_tokens": 6},
            "max_tokens is 6: no text of the constraint was found",
        ),
        ({"finish": "soon", "constraint": SCHEMA}, "finish"),
        ({"finish": True, "constraint": SCHEMA, "min": 3}, "finish is true and min_tokens is 3"),
    ],
)
def test_refused_before_any_pass(lm, fields, says):
    given = {k: v for k, v in fields.items() if k != "min"}
    if "min" in fields:
        given["sampling"] = lm.sampling_with(min_tokens=fields["min"])
    with pytest.raises(ValueError, match=says):
        generate(lm, "Tom", **given)


def test_where_a_way_out_is_too_complex_to_follow_nothing_is_forced(vocab, monkeypatch):
    language = ended(Regex("[a-z]+[.]"), vocab, 30)

    def too_complex(*given):
        raise RequestError("constraint became too complex to follow")

    monkeypatch.setattr(module.LegalEndings, "way_out", too_complex)
    text = walked(language, 30, random.Random(3))
    assert len(text) == 30 or text[-1] in vocab.eos
    with pytest.raises(ValueError, match="max_tokens is 30: no text of the constraint was found"):
        ended(Regex("[a-z]+[.]"), vocab, 30)


def test_a_toy_without_a_way_out_is_left_alone():
    """Behind what cannot end in the tokens that are left, the language's own masks stand."""
    vocab = toy_law(1, 4).vocab
    language = ended(Regex("b|a{9}"), vocab, 5)
    state = language.start_state()
    for _ in range(4):
        state = language.next_state(state, 0)
        assert language.token_mask(state)[0] and state.out is None

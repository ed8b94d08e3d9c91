"""Constraints under draft and verify: the law is the masked law, whoever drafts."""

import math

import pytest

from polydec import AnyOf, JsonSchema, Regex, SpanOf, generate, load
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.lab.testing.enumerate import law_of, target_law, text_law_distance
from polydec.lab.testing.examples import bend_target, target_draft_pairs
from polydec.lab.testing.toy import toy_law
from polydec.laws.contrasts.difference import DifferenceContrast
from polydec.laws.contrasts.gated import GatedContrast
from polydec.laws.shapers.constrained import ConstraintRule
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.shapers.repetition import RepetitionPenaltyRule
from polydec.laws.shapers.sampling import Sampling, build_guard, build_shapers
from polydec.laws.shapers.temperature import TemperatureRule
from polydec.laws.targets.contrast import ContrastTarget
from polydec.methods.speculative.drafters.first_of import FirstOfDrafter
from polydec.methods.speculative.drafters.forced import JumpForwardDrafter
from polydec.methods.speculative.drafters.lookup import LookupDrafter
from polydec.methods.speculative.drafters.model import ModelDrafter
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.trees.chain import ChainTree
from polydec.methods.speculative.trees.static import StaticTree
from polydec.methods.speculative.verifiers.exact import ExactVerifier
from polydec.methods.speculative.verifiers.match import MatchVerifier

PROMPT = (0, 1, 0)
DRAFTERS = {
    "chain": lambda draft, language: (
        ModelDrafter(draft, ChainTree()),
        ExactVerifier(),
        FixedPolicy(2),
    ),
    "tree": lambda draft, language: (
        ModelDrafter(draft, StaticTree((2, 1))),
        ExactVerifier(),
        FixedPolicy(2, 4),
    ),
    "lookup": lambda draft, language: (LookupDrafter(), MatchVerifier(), FixedPolicy(3)),
    "forced": lambda draft, language: (
        FirstOfDrafter((JumpForwardDrafter(draft.vocab, language), LookupDrafter())),
        MatchVerifier(),
        FixedPolicy(3),
    ),
}
CONSTRAINTS = {
    "choice": AnyOf(("ab", "ba", "aab", "b")),
    "grammar": Regex("(ab|ba)*b?"),
    "span": SpanOf("abba"),
}


@pytest.mark.parametrize("constraint", CONSTRAINTS)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_output_law_is_the_masked_law(constraint, drafter):
    for seed, (target, draft) in enumerate(target_draft_pairs(9)):
        length = 2 if seed else 3
        language = CONSTRAINTS[constraint].token_language(target.vocab, target.vocab.eos)
        shapers = (
            ConstraintRule(language, tuple(target.vocab.eos)),
            RepetitionPenaltyRule(1.3),
            TemperatureRule(0.8),
        )
        decoder = SpeculativeDecoder(
            bend_target(target, shapers), *DRAFTERS[drafter](bend_target(draft, shapers), language)
        )
        got = law_of(lambda rng, d=decoder, k=length: answer_one(d, Request(PROMPT, k), rng))
        assert text_law_distance(got, target_law(target, PROMPT, length, shapers)) < 1e-9


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_contrast_under_a_grammar_and_rules_has_the_law_of_its_definition(drafter):
    for seed, (target, draft) in enumerate(target_draft_pairs(6)):
        steered = ContrastTarget(
            target,
            (toy_law(seed + 50, target.vocab.size),),
            GatedContrast(DifferenceContrast(1.7, 0.7, 0.05), 0.9),
        )
        language = CONSTRAINTS["grammar"].token_language(target.vocab, target.vocab.eos)
        shapers = (
            ConstraintRule(language, tuple(target.vocab.eos)),
            RepetitionPenaltyRule(1.3),
            TemperatureRule(0.8),
        )
        decoder = SpeculativeDecoder(
            bend_target(steered, shapers), *DRAFTERS[drafter](bend_target(draft, shapers), language)
        )
        got = law_of(lambda rng, d=decoder: answer_one(d, Request(PROMPT, 2), rng))
        assert text_law_distance(got, target_law(steered, PROMPT, 2, shapers)) < 1e-9


def test_everything_that_is_written_is_in_the_language():
    import re

    target, _ = target_draft_pairs(4)[3]
    language = Regex("(ab|ca)+b").token_language(target.vocab, target.vocab.eos)
    got = target_law(target, PROMPT, 6, (ConstraintRule(language, tuple(target.vocab.eos)),))
    said = {
        target.vocab.words.decode(x for x in text if x not in target.vocab.eos): text
        for text in got
    }
    assert all(
        re.fullmatch("(ab|ca)+b", x) for x, text in said.items() if text[-1] in target.vocab.eos
    )
    assert abs(sum(got.values()) - 1.0) < 1e-12 and len(got) > 3


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_greedy_texts_are_those_of_plain_decoding(drafter):
    for seed in range(6):
        target, draft = toy_law(seed, 7, sharp=2.0), toy_law(seed + seed % 2, 7, sharp=2.0)
        language = Regex("(ab[cd]|e(a|b){2,3})+f?").token_language(target.vocab, target.vocab.eos)
        shapers = (ConstraintRule(language, tuple(target.vocab.eos)), GreedyRule())
        some = SpeculativeDecoder(
            bend_target(target, shapers), *DRAFTERS[drafter](bend_target(draft, shapers), language)
        )
        plain = SpeculativeDecoder(
            bend_target(target, shapers), NothingDrafter(), MatchVerifier(), FixedPolicy(0)
        )
        got, want = (
            run_coroutines([answer_one(d, Request(PROMPT, 24))])[0].token_ids for d in (some, plain)
        )
        assert got == want


@pytest.fixture(scope="module")
def lm():
    return load("zoo:tiny")


SCHEMA = JsonSchema.of_schema(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)


METHODS = [
    "draft-model",
    "token-recycling",
    "prompt-lookup",
    "lookahead",
    "jump-forward",
    "eagle-2-tree",
]


@pytest.mark.parametrize("method", METHODS)
def test_methods_write_the_json_of_plain_decoding(lm, method):
    ask = {"constraint": SCHEMA, "max_tokens": 40, "options": {}}
    got, want = (generate(lm, "Tom is a boy. He is", method=m, **ask) for m in (method, "plain"))
    assert got.token_ids == want.token_ids


def test_how_far_the_mask_bends_the_law_is_reported(lm):
    free, bent = (
        generate(lm, "Tom was"),
        generate(lm, "Tom was", constraint=AnyOf((" happy", " sad")), logprobs=0),
    )
    assert "log_mass_kept" not in free.metrics
    notes = bent.choices[0].logprobs
    sampled = generate(
        lm,
        "Tom was",
        constraint=AnyOf((" happy", " sad")),
        logprobs=0,
        sampling=lm.sampling_with(temperature=1.0),
    )
    off = sum(
        n.model_logp - n.logp for n in sampled.choices[0].logprobs
    )  # at temperature 1 it is the mass
    assert notes is not None and sampled.metrics["log_mass_kept"] == pytest.approx(off, abs=1e-4)
    assert sampled.metrics["least_log_mass_kept"] <= 0 and sampled.metrics["log_mass_kept"] <= 0


def test_guard_counts_what_all_rules_leave():
    vocab = toy_law(1, 4).vocab
    language = AnyOf(("ab",)).token_language(vocab, vocab.eos)
    guard = build_guard(Sampling(bad_token_ids=(1,)), eos=vocab.eos, language=language)
    import torch

    row = torch.tensor([0.5, 0.2, 0.2, 0.1]).log()
    state = guard.start_state(PROMPT)
    assert guard.kept_probability(state, row) == pytest.approx(math.log(0.5))
    with pytest.raises(
        ValueError, match="no token is left that constraint and bad_token_ids allow together"
    ):
        guard.next_states(guard.next_states(state, 0), 1)


def test_the_mask_stands_first_in_vllms_order_and_before_the_temperature_in_all():
    vocab = toy_law(1, 4).vocab
    language = AnyOf(("ab",)).token_language(vocab, vocab.eos)
    for order in ("vllm", "llamacpp", "transformers"):
        sampling = Sampling(repetition_penalty=1.2, top_p=0.9, temperature=0.5)
        made = [
            type(s).__name__
            for s in build_shapers(sampling, order=order, eos=vocab.eos, language=language)
        ]
        assert made.index("ConstraintRule") < made.index("TemperatureRule") and made.index(
            "ConstraintRule"
        ) < made.index("TopPRule")


@pytest.mark.parametrize(
    "fields, says",
    [
        ({"constraint": AnyOf(("a",)), "ignore_eos": True}, "no token to end an answer with"),
        ({"constraint": AnyOf(("a",)), "sampling": Sampling(min_tokens=3)}, "min_tokens is 3"),
        ({"constraint": Regex("(")}, "regex is '('"),
    ],
)
def test_refused_in_the_plan(lm, fields, says):
    with pytest.raises(ValueError) as error:
        generate(lm, "x", **fields)
    assert says in str(error.value)


def test_where_rules_and_constraint_leave_nothing_the_answer_ends_with_an_error(lm):
    with pytest.raises(ValueError, match="constraint and min_tokens"):
        generate(
            lm, "Tom", constraint=Regex("a{1,3}"), sampling=Sampling(min_tokens=9, temperature=0)
        )

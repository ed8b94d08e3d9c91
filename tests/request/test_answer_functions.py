"""A function that bends the law of each next token, and one that ends an answer: with drafts, in
company, on hold, and where they fail."""

import asyncio
import re
from collections import defaultdict
from dataclasses import replace

import pytest
import torch

import micro
from polydec import Ask, Engine, RequestError, agenerate, generate, load, stream
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.lab.testing.enumerate import law_of, target_law, text_law_distance
from polydec.lab.testing.examples import bend_target, target_draft_pairs
from polydec.laws.shapers.logits_processor import FAILURES, LogitsProcessorRule
from polydec.laws.shapers.repetition import RepetitionPenaltyRule
from polydec.laws.shapers.temperature import TemperatureRule
from polydec.methods.economics.costs import PassCosts
from polydec.methods.speculative.drafters.lookup import LookupDrafter
from polydec.methods.speculative.drafters.model import ModelDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.trees.chain import ChainTree
from polydec.methods.speculative.trees.static import StaticTree
from polydec.methods.speculative.verifiers.exact import ExactVerifier
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.request.answer_functions import AnswerFunctions

PROMPT = (0, 1, 0)
DRAFTERS = {
    "chain": lambda draft: (ModelDrafter(draft, ChainTree()), ExactVerifier(), FixedPolicy(2)),
    "tree": lambda draft: (
        ModelDrafter(draft, StaticTree((2, 1))),
        ExactVerifier(),
        FixedPolicy(2, 4),
    ),
    "lookup": lambda draft: (LookupDrafter(), MatchVerifier(), FixedPolicy(3)),
}
NEG_INF = float("-inf")


def bend_by_text(token_ids, logits_V):
    """Behind a 0 token 2 is banned; the sum of the text moves token 1."""
    logits_V[1] += 0.4 * (sum(token_ids) % 3)
    if token_ids[-1] == 0:
        logits_V[2] = NEG_INF
    return logits_V


def stop_behind_pairs(token_ids, text):
    return token_ids[-2:] in ((1, 0), (0, 0))


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_output_law_is_that_of_the_function(drafter):
    accepted = 0
    moved = 0.0
    for seed, (target, draft) in enumerate(target_draft_pairs(6)):
        length = 2 if seed else 3
        rest = (RepetitionPenaltyRule(1.3), TemperatureRule(0.8))
        shapers = (LogitsProcessorRule(bend_by_text), *rest)
        decoder = SpeculativeDecoder(
            bend_target(target, shapers), *DRAFTERS[drafter](bend_target(draft, shapers))
        )

        async def run(rng, decoder=decoder, length=length):
            nonlocal accepted
            answer = await answer_one(decoder, Request(PROMPT, length), rng)
            accepted += answer.stats.accepted
            return answer

        got = law_of(run)
        want = target_law(target, PROMPT, length, shapers)
        assert text_law_distance(got, want) < 1e-9
        moved = max(moved, text_law_distance(want, target_law(target, PROMPT, length, rest)))
    assert accepted > 10 and moved > 0.1


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_text_ends_where_the_function_says_so_whatever_was_drafted(drafter):
    inside = 0
    length = 3 if drafter == "lookup" else 2  # draws of a model fall in very many ways
    for target, draft in target_draft_pairs(4):
        shapers = (TemperatureRule(0.9),)
        decoder = SpeculativeDecoder(
            bend_target(target, shapers), *DRAFTERS[drafter](bend_target(draft, shapers))
        )
        rules = AnswerFunctions(stop_when=stop_behind_pairs)
        request = Request(PROMPT, length, rules=rules)

        async def run(rng, decoder=decoder, request=request):
            nonlocal inside
            answer = await answer_one(decoder, request, rng)
            ended = answer.finish_reason == "stop_when"
            inside += ended and answer.stats.passes < len(answer.token_ids)
            return answer

        # The law of texts without a function, cut where it says so for the first time.
        want = defaultdict(float)
        for tokens, p in target_law(target, PROMPT, length, shapers).items():
            ends = (n for n in range(1, len(tokens)) if stop_behind_pairs(tokens[:n], ""))
            want[tokens[: next(ends, len(tokens))]] += p
        assert text_law_distance(law_of(run), dict(want)) < 1e-9
    assert inside > 0, "no text ended inside of what one pass gave"


# ---- through the front door ----

PROMPTS = ("The grey fox and the river and the grey fox and the", "nobody asked")
METHODS = ("plain", "prompt-lookup", "draft-model", "pearl", "token-recycling", "auto")


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    torch.set_num_threads(1)
    at = tmp_path_factory.mktemp("functions")
    loaded = load(
        str(micro.write(at / "a", hidden=64)), draft=str(micro.write(at / "b", seed=1, hidden=64))
    )
    vars(loaded)["costs"] = PassCosts()  # instead of measuring
    return loaded


def no_letter_e(lm):
    """A function that lets no token with an e be written, and has the text repeat itself."""
    words = [lm.decode([i]) for i in range(lm.checkpoint.lm.vocab.size)]
    banned = torch.tensor(["e" in word for word in words])

    def bend(token_ids, logits_V):
        logits_V[token_ids[-3]] += 9.0
        return logits_V.masked_fill(banned, NEG_INF)

    return bend


def test_every_method_writes_the_law_of_the_function_alone_in_company_and_on_hold(lm):
    bend = no_letter_e(lm)
    fields = {"raw": True, "max_tokens": 14, "ignore_eos": True, "seed": 2, "logprobs": 0}
    asks = [
        Ask(p, method=m, logits_processor=bend, sampling={"temperature": t}, **fields)
        for m in METHODS
        for p in PROMPTS
        for t in (0.0, 0.9)
    ]
    alone = [generate(lm, ask) for ask in asks]
    for ask, answer in zip(asks, alone, strict=True):
        assert "e" not in answer.text
        if not ask.sampling["temperature"]:
            plain = alone[asks.index(replace(ask, method="plain"))]
            assert answer.token_ids == plain.token_ids, ask.method
    bare = generate(lm, PROMPTS[0], method="plain", temperature=0.0, **fields)
    assert "e" in bare.text and bare.token_ids != alone[0].token_ids
    drafted = sum(piece.drafted for answer in alone for piece in answer.pieces)
    assert drafted > 10, "nothing that was drafted was accepted"
    for limits in ({}, {"max_cache_bytes": 1}):
        engine = Engine(lm, **limits)
        done = engine.run([engine.submit(ask) for ask in asks])
        assert [a.token_ids for a in done] == [a.token_ids for a in alone]
        assert not limits or engine.preempted > 3


@pytest.mark.parametrize("method", [*METHODS, "beam", "best-of-n"])
def test_an_answer_ends_behind_the_token_at_which_the_function_says_so(lm, method):
    fields = {"raw": True, "max_tokens": 24, "ignore_eos": True, "method": method, "seed": 4}
    whole = generate(lm, PROMPTS[0], n=2, **fields)
    # The end is put inside of the answer; a search may choose another text then.
    end = whole.token_ids[9]

    def stop_when(token_ids, text):
        return re.search("[a-z]", text) and end in token_ids

    answer = generate(lm, PROMPTS[0], n=2, stop_when=stop_when, **fields)
    for choice, uncut in zip(answer.choices, whole.choices, strict=True):
        assert choice.finish_reason == "stop_when" or end not in choice.token_ids
        assert end not in choice.token_ids[:-1] or method == "beam"
        if method not in ("beam", "best-of-n"):
            assert uncut.token_ids[: len(choice.token_ids)] == choice.token_ids
            assert uncut.text.startswith(choice.text)
    assert "stop_when" in {c.finish_reason for c in answer.choices}
    assert answer.usage["completion_tokens"] == sum(len(c.token_ids) for c in answer.choices)
    pieces = list(stream(lm, PROMPTS[0], n=2, stop_when=stop_when, **fields))
    for at, choice in enumerate(answer.choices):
        assert "".join(p.text for p in pieces if p.choice == at) == choice.text
        assert tuple(p.token for p in pieces if p.choice == at) == choice.token_ids


def test_least_lengths_and_other_ends_come_first(lm):
    fields = {"raw": True, "method": "plain", "ignore_eos": True, "max_tokens": 8}
    always = generate(lm, PROMPTS[1], stop_when=lambda ids, text: True, min_tokens=3, **fields)
    assert len(always.token_ids) == 3 and always.finish_reason == "stop_when"
    never = generate(lm, PROMPTS[1], stop_when=lambda ids, text: None, **fields)
    assert never.finish_reason == "length" and len(never.token_ids) == 8
    first = generate(lm, PROMPTS[1], stop_token_ids=never.token_ids[:1], **fields)
    asked = []
    both = generate(
        lm,
        PROMPTS[1],
        stop_token_ids=never.token_ids[:1],
        stop_when=lambda ids, text: asked.append(ids),
        **fields,
    )
    assert both.token_ids == first.token_ids and both.finish_reason == "stop" and not asked


def test_bytes_and_canvases(lm):
    seen = set()
    fields = {"raw": True, "max_tokens": 6, "ignore_eos": True, "units": "bytes"}

    def bend(token_ids, logits_V):
        seen.add(tuple(logits_V.shape))
        return logits_V.index_fill(0, torch.tensor([ord("e")]), NEG_INF)

    told = generate(lm, "The fox", logits_processor=bend, **fields)
    assert b"e"[0] not in told.token_ids and all(size < 300 for (size,) in seen) and seen


WRONG = {
    "raises": (lambda ids, row: {}["x"], "raised KeyError behind 4 tokens: 'x'"),
    "nothing": (lambda ids, row: None, "returned None behind 4 tokens: it must return the row"),
    "short": (lambda ids, row: row[:7], r"returned shape \[7\] behind 4 tokens: it must be \[3"),
    "nan": (lambda ids, row: row * float("nan"), "returned NaN or [+]inf"),
    "inf": (lambda ids, row: row + float("inf"), "returned NaN or [+]inf"),
    "none left": (lambda ids, row: row + NEG_INF, "left no token behind 4 tokens"),
    "text": (lambda ids, row: "x", "returned a str behind 4 tokens: it must return a tensor of"),
    "complex": (lambda ids, row: row + 1j, "complex"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_function_that_fails_ends_its_request_alone(lm, wrong):
    function, why = WRONG[wrong]

    def bend(token_ids, logits_V):
        return function(token_ids, logits_V) if len(token_ids) == size + 3 else logits_V

    fields = {"raw": True, "max_tokens": 9, "ignore_eos": True, "method": "prompt-lookup"}
    prompt = "abab" * 8
    size = len(lm.encode_prompt(prompt, raw=True))
    engine = Engine(lm)
    broken, other = (engine.submit(prompt, **fields, **x) for x in ({"logits_processor": bend}, {}))
    while engine.step():
        pass
    assert other.completion().token_ids == generate(lm, prompt, **fields).token_ids
    assert broken.current_status == "failed" and broken.written == 3
    with pytest.raises(RequestError, match=why.replace("4 tokens", f"{size + 3} tokens")) as told:
        broken.completion()
    assert len(str(told.value)) <= 300
    if wrong == "raises":
        assert isinstance(told.value.__cause__, KeyError)


def test_a_function_may_fail_at_what_is_never_written(lm):
    """It knows only texts that it lets be written: drafts that it refuses are no fault of its own."""
    prompt = "The grey fox and the grey fox and the grey"
    fields = {"raw": True, "max_tokens": 12, "ignore_eos": True, "temperature": 0.0}
    size = len(lm.encode_prompt(prompt, raw=True))
    allowed = generate(lm, "nobody asked why", method="plain", **fields).token_ids
    failed = []

    def bend(token_ids, logits_V):
        at = len(token_ids) - size
        if token_ids[size:] != allowed[:at]:
            failed.append(at)
            raise ValueError("never heard of this text")
        return torch.full_like(logits_V, NEG_INF).index_fill(0, torch.tensor(allowed[at]), 0.0)

    for method in METHODS:
        told = generate(lm, prompt, method=method, logits_processor=bend, **fields)
        assert told.token_ids == allowed, method
    rule = LogitsProcessorRule(lambda ids, row: None)
    for at in range(FAILURES + 5):
        rule.shape_law((at,), torch.zeros(3))
    assert len(rule.failures) == FAILURES and (0,) not in rule.failures


def test_a_stop_function_that_fails_and_wrong_types(lm):
    fields = {"raw": True, "max_tokens": 4, "ignore_eos": True, "method": "plain"}
    with pytest.raises(RequestError, match=r"^stop_when raised ZeroDivisionError behind 1 tokens"):
        generate(lm, "The fox", stop_when=lambda ids, text: 1 / 0, **fields)
    for name in ("logits_processor", "stop_when"):
        with pytest.raises(RequestError, match=f"^{name} is 'x': it must be a function of token"):
            generate(lm, "The fox", **{name: "x"}, **fields)
    for theirs, ours in (
        ("stopping_criteria", "stop_when"),
        ("logits_processors", "logits_processor"),
        ("prefix_allowed_tokens_fn", "logits_processor"),
    ):
        with pytest.raises(TypeError, match=f"did you mean {ours}"):
            generate(lm, "The fox", **{theirs: []}, **fields)


def test_awaited_and_with_a_processor_of_transformers(lm):
    """A processor of transformers takes batches; a line makes it one of ours."""
    from transformers import NoRepeatNGramLogitsProcessor

    theirs = NoRepeatNGramLogitsProcessor(2)

    def bend(token_ids, logits_V):
        return theirs(torch.tensor([token_ids]), logits_V[None])[0]

    fields = {"raw": True, "max_tokens": 12, "method": "plain", "ignore_eos": True}
    fields["logit_bias"] = {70: 50.0}
    want = generate(lm, PROMPTS[0], no_repeat_ngram_size=2, **fields)
    assert want.token_ids != generate(lm, PROMPTS[0], **fields).token_ids
    told = asyncio.run(agenerate(lm, PROMPTS[0], logits_processor=bend, **fields))
    assert told.token_ids == want.token_ids
    broken = agenerate(lm, PROMPTS[0], stop_when=lambda ids, text: text.nothing, **fields)
    with pytest.raises(RequestError, match="stop_when raised AttributeError"):
        asyncio.run(broken)

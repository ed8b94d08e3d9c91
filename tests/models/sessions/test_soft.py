"""Vectors in a prompt: those that are embeddings give the tokens' text under any method; who knows words sees what they stand
for."""

import base64
import math

import pytest
import torch
from safetensors.torch import save

import micro
from polydec import Ask, Engine, Sampling, Soft, generate
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.testing.check_target import TargetChecker, check_target
from polydec.laws.targets.soft_prompt import SoftPromptTarget
from polydec.models.sessions.soft import make_soft_tokens, soft_prompt_surplus
from polydec.request.ask import plan_request

TEXT = "The grey fox watched the boat by the old river and the grey fox watched the boat"
METHODS = (
    "plain", "auto", "prompt-lookup", "draft-model", "token-recycling", "lookahead", "layerskip",
    "suffix-automaton", "draft-and-verify", "merged-drafts", "pearl", "eagle-2",
)  # fmt: skip


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    return micro.trained(tmp_path_factory.mktemp("soft"))


def embedded(lm, first=2, stop=9, words=True):
    """The text's ids, of which some are given as their embeddings."""
    ids = lm.encode_prompt(TEXT, raw=True)
    some = ids[first:stop]
    return [*ids[:first], Soft(lm.network.embed_tokens(some), some if words else None), *ids[stop:]]


def ask(prompt, **more):
    return Ask(prompt, **{"max_tokens": 24, "ignore_eos": True, "raw": True, **more})


def texts(lm, asks):
    engine = Engine(lm)
    tickets = [engine.submit(a) for a in asks]
    while engine.step():
        pass
    return [t.completion().choices[0].token_ids for t in tickets]


def test_embeddings_of_tokens_give_the_text_of_the_tokens(lm):
    ids = lm.encode_prompt(TEXT, raw=True)
    (want,) = texts(lm, [ask(ids)])
    for words in (True, False):
        soft = embedded(lm, words=words)
        assert texts(lm, [ask(soft, method=m) for m in METHODS]) == [want] * len(METHODS)
    assert not lm.checkpoint.lm.live


def test_constraints_steering_sampling_choices_and_presses_go_with_vectors(lm):
    ids, soft = lm.encode_prompt(TEXT, raw=True), embedded(lm)
    for more in (
        {"sampling": Sampling(temperature=1.0), "seed": 5},
        {"sampling": Sampling(temperature=0.0, repetition_penalty=1.4)},
        {"steer": "cfg", "negative_prompt": "nobody asked"},
        {"cache": "quantised", "cache_options": {"block": 16}},
        {"n": 2, "sampling": Sampling(temperature=0.9)},
    ):
        tokens, vectors = (generate(lm, ask(p, **more)) for p in (ids, soft))
        assert [c.token_ids for c in tokens.choices] == [c.token_ids for c in vectors.choices]


def test_random_vectors_are_one_law_for_all_methods(lm):
    dice = torch.Generator().manual_seed(3)
    ids = lm.encode_prompt(TEXT, raw=True)
    soft = Soft(torch.randn(5, 64, generator=dice), ids[:3])
    other = Soft(torch.randn(5, 64, generator=dice), ids[:3])
    some = texts(lm, [ask([soft, *ids[3:]], method=m) for m in METHODS])
    assert some == some[:1] * len(METHODS)
    assert texts(lm, [ask([other, *ids[3:]])]) != some[:1]


def test_who_knows_words_sees_what_vectors_stand_for(lm):
    ids = lm.encode_prompt(TEXT, raw=True)
    assert plan_request(lm, ask(embedded(lm))).request.prompt == ids
    assert plan_request(lm, ask(embedded(lm, words=False))).request.prompt == (*ids[:2], *ids[9:])
    prompt = [1, Soft(torch.zeros(2, 64), [5, 6, 7, 8]), Soft(torch.ones(3, 64), [9]), 4, 3]
    vectors = lm.encoder.encode_vectors(prompt, lm.encode_prompt(prompt), 64)
    law = vectors.prompted_law(lm.checkpoint.lm)
    assert law.prompt == (1, 5, 6, 7, 8, 9, 4, 3) and len(law.instead) == 8
    assert law.rows == (0, 1, 1, 2, 2, 5, 6)[: len(law.rows)]


async def no_rows(checker):
    """A beginning of the prompt has no vectors: it is another text."""


def test_a_softened_law_is_a_target_and_shares_what_was_computed(lm, monkeypatch):
    monkeypatch.setattr(TargetChecker, "prompt_rows", no_rows)
    law = lm.checkpoint.lm
    vectors = make_soft_tokens(
        torch.randn(4, 64, generator=torch.Generator().manual_seed(1)), 320, 64, "x"
    )
    prompt, instead = (7, 8, 9), (7, *vectors, 8, 9)
    soft = SoftPromptTarget(law, prompt, instead, (0, 5))
    check_target(soft, prompt=prompt, tolerance=1e-4)
    rows, inner = ScoreRequest(prompt=True, hidden=True), law.open_session(instead)
    got = run_coroutines([soft.open_session((*prompt, 4)).prefill_prompt(rows)])[0]
    want = run_coroutines([inner.prefill_prompt(rows)])[0]
    for here, there in ((0, 0), (1, 5)):
        torch.testing.assert_close(
            got.logprob_row(here), want.logprob_row(there), atol=1e-4, rtol=0.0
        )
    assert got.hidden_NH.shape == (3, 64) and got.topk_rows([1], 2) == want.topk_rows([5], 2)
    inner.close()
    long = (*vectors, *range(20, 60))
    a, b = law.open_session(long), law.open_session(long[:-1])
    run_coroutines([a.score_draft(Draft.chain_draft(long[-1]), ScoreRequest())])
    twin = law.open_session((*long, 5))
    assert twin.ledger.cache.length >= 40
    want = run_coroutines([twin.score_draft(Draft.chain_draft(5), ScoreRequest())])[0].logprob_row(
        0
    )
    twin.evict_cache()
    got = run_coroutines([twin.score_draft(Draft.chain_draft(5), ScoreRequest())])[0].logprob_row(0)
    torch.testing.assert_close(got, want, atol=1e-4, rtol=0.0)
    for session in (a, b, twin):
        session.close()


def test_vectors_may_take_more_places_than_what_stands_for_them_and_never_fewer():
    more, fewer = Soft(torch.zeros(5, 4), [1, 2]), Soft(torch.zeros(1, 4), [1, 2, 3])
    assert (
        soft_prompt_surplus([7, more, 8]) == 3
        and soft_prompt_surplus([more, Soft(torch.zeros(2, 4))]) == 5
    )
    assert (
        soft_prompt_surplus([fewer])
        == soft_prompt_surplus("text")
        == soft_prompt_surplus(None)
        == 0
        and soft_prompt_surplus([more, fewer]) == 1
    )


def test_ids_of_vectors_are_equal_where_the_vectors_are_and_nowhere_else():
    """What was computed is kept by ids: two vectors of one id would read each other's. Every bit of seven bytes counts."""
    rows = torch.randn(6_000, 3, generator=torch.Generator().manual_seed(5))
    rows[1], rows[2] = rows[0], rows[0]
    rows[2, 1] = torch.nextafter(rows[0, 1], torch.tensor(9.0))
    ids = make_soft_tokens(rows, 320, 3, "x")
    assert ids[0] == ids[1] != ids[2] and len(set(ids)) == len(rows) - 1
    assert min(ids) >= 320 and max(ids) < 320 + 2**56
    for byte in range(7):
        assert len({(x - 320) >> 8 * byte & 255 for x in ids}) == 256, byte
    assert (
        make_soft_tokens(rows.double(), 320, 3, "x")
        == ids
        == make_soft_tokens(rows[:, :], 320, 3, "y")
    )
    rows[0] += 1.0  # whoever asked may write into its tensor again
    assert not torch.equal(ids[0].state_H, rows[0]) and torch.equal(ids[0].state_H, rows[1])


@pytest.mark.parametrize(
    "prompt, sentence",
    [
        ([1, Soft(torch.zeros(2, 64))], "ends with vectors"),
        ([Soft(torch.zeros(2, 63)), 1], "shape (2, 63)"),
        ([Soft(torch.zeros(0, 64)), 1], "shape (0, 64)"),
        ([Soft(torch.zeros(64)), 1], "shape (64,)"),
        ([Soft(torch.zeros(2, 64, dtype=torch.long)), 1], "no tensor of floating-point"),
        ([Soft([[0.0] * 64]), 1], "no tensor of floating-point"),
        ([Soft(torch.full((2, 64), math.nan)), 1], "NaN or infinite"),
        ([Soft(torch.zeros(2, 64), [10**6]), 1], "prompt[0].stands_for has token 1000000"),
        ([Soft(torch.zeros(300, 64)), 1], "prompt has 301 tokens"),
        ([Soft(torch.zeros(240, 64)), 1], "max_tokens is 24"),
    ],
)
def test_what_cannot_be_is_refused(lm, prompt, sentence):
    with pytest.raises(ValueError, match=r".") as error:
        plan_request(lm, ask(prompt))
    assert sentence in str(error.value) and len(str(error.value)) <= 300


def test_vectors_have_no_law(lm):
    with pytest.raises(ValueError, match="prompt holds vectors"):
        plan_request(lm, ask(embedded(lm), prompt_logprobs=1))


def packed(tensor, **more):
    return base64.b64encode(save({"x": tensor, **more})).decode()


def over_http(lm, prompt):
    pytest.importorskip("fastapi", reason="polydec[serve] is not installed")
    from polydec.serve.body import RequestBody
    from polydec.serve.endpoints import ENDPOINTS
    from polydec.serve.limits import RequestLimits, apply_request_limits

    body = RequestBody({"prompt": prompt, "ignore_eos": True, "max_tokens": 24}, RequestLimits())
    asks = ENDPOINTS["/v1/completions"].reads().read_request(body, lm, "plain", 0).asks
    return [fit.ask for fit in apply_request_limits(lm, asks, RequestLimits())]


def test_over_http_they_come_as_safetensors(lm):
    ids, soft = lm.encode_prompt(TEXT, raw=True), embedded(lm)
    sent = [
        {"vectors": packed(x.vectors_KD), "stands_for": list(x.stands_for)}
        if isinstance(x, Soft)
        else x
        for x in soft
    ]
    for prompt in (sent, [sent, sent]):
        for one in over_http(lm, prompt):
            assert texts(lm, [one]) == texts(lm, [ask(ids)])


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"vectors": 3},
        {"vectors": "no base64!"},
        {"vectors": base64.b64encode(b"x" * 100).decode()},
        {"vectors": base64.b64encode(b"\xff" * 8).decode()},
        {"vectors": packed(torch.zeros(2, 64))[:-40]},
        {"vectors": packed(torch.zeros(2, 64), y=torch.zeros(1))},
        {"vectors": packed(torch.zeros(2, 64, dtype=torch.int64))},
        {"vectors": packed(torch.zeros(2, 63))},
        {"vectors": packed(torch.zeros(0, 64))},
        {"vectors": packed(torch.zeros(2, 64)), "stands_for": 3},
        {"vectors": packed(torch.zeros(2, 64)), "stands_for": [True]},
        {"vectors": packed(torch.zeros(2, 64)), "stands_for": [10**9]},
        {"vectors": packed(torch.zeros(2, 64)), "more": 1},
        {"vectors": packed(torch.full((2, 64), math.inf))},
    ],
)
def test_hostile_vectors_are_refused_with_a_sentence(lm, entry):
    with pytest.raises(Exception, match=r".") as error:
        plan_request(lm, over_http(lm, [1, entry, 5])[0])
    assert (
        type(error.value).__name__ in ("RefusalError", "RequestError")
        and len(str(error.value)) <= 300
    )

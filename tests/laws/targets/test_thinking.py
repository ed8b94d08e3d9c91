"""Thoughts in the place of words: vectors that are computed from a prompt stand in a text like any
others, under every method."""

from dataclasses import replace

import pytest
import torch

import micro
from polydec import Ask, Engine, Sampling, Soft
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.lab.testing.check_target import TargetChecker, check_target
from polydec.laws.targets.continuous_thoughts import ContinuousThoughtMaker
from polydec.laws.targets.hidden_thought import HiddenThoughtMaker
from polydec.laws.targets.thinking import LatentPrefixTarget
from polydec.methods.registry import steer
from polydec.models.learned.kinds import thought as thoughts_file
from polydec.models.learned.kinds.thought import ThoughtProjection, examples
from polydec.models.sessions.soft import make_soft_tokens
from polydec.request.ask import plan_request
from polydec.request.loaded import LoadedModel

PROMPT = "The grey fox and the river and the grey fox and the"
METHODS = (
    "plain",
    "auto",
    "prompt-lookup",
    "draft-model",
    "token-recycling",
    "lookahead",
    "suffix-automaton",
    "pearl",
)
HIDDEN = ScoreRequest(law=RowDetail.NOTHING, hidden=True)


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    return micro.trained(tmp_path_factory.mktemp("thinking"), examples=examples)


def ask(**fields):
    asked = {"steer": "continuous-cot", "steer_options": {"thoughts": 3}, "max_tokens": 12}
    return Ask(PROMPT, **{"raw": True, "ignore_eos": True, **asked, **fields})


def texts(lm, asks, **limits):
    engine = Engine(lm, **limits)
    return micro.completed_ids(engine, asks), engine


def by_hand(law, prompt, count):
    """What the model reads: the prompt with its thoughts, made by a fresh session for each."""
    text = list(prompt[:-1])
    for _ in range(count):
        session = law.open_session(
            (*text, prompt[-1])
        )  # rows of all before the last token are asked for
        hidden = run_coroutines([session.prefill_prompt(replace(HIDDEN, prompt=True))])[
            0
        ].hidden_NH[-1:]
        text += make_soft_tokens(session.normed_states(hidden), law.vocab.size, 64, "x")
        session.close()
    return (*text, prompt[-1])


async def no_rows(checker):
    """A beginning of the prompt has no thoughts: it is another text."""


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_law_behind_thoughts_is_a_target(lm, monkeypatch, count):
    monkeypatch.setattr(TargetChecker, "prompt_rows", no_rows)
    law = lm.checkpoint.lm
    thinking = LatentPrefixTarget(law, (7, 8, 9), ContinuousThoughtMaker(count, 320))
    check_target(thinking, prompt=(7, 8, 9), tolerance=1e-4)
    inner = law.open_session(by_hand(law, (7, 8, 9), count))
    outer, rows = thinking.open_session((7, 8, 9, 4)), ScoreRequest(prompt=True)
    inner.commit_tokens((9,))
    want, got = (
        run_coroutines([inner.prefill_prompt(rows)])[0],
        run_coroutines([outer.prefill_prompt(rows)])[0],
    )
    for here, there in ((0, 0), (1, 1 + count), (2, 2 + count)):
        torch.testing.assert_close(
            got.logprob_row(here), want.logprob_row(there), atol=1e-4, rtol=0.0
        )


def test_no_thoughts_are_the_plain_text_and_some_are_another(lm):
    (plain, none, three), _ = texts(
        lm, [ask(steer=None, steer_options={}), ask(steer_options={"thoughts": 0}), ask()]
    )
    assert plain == none != three


@pytest.mark.parametrize("way", ["continuous-cot", "hidden-cot"])
def test_every_method_writes_the_same_behind_thoughts(lm, way):
    more = {"steer": way, "steer_options": {}}
    got, _ = texts(lm, [ask(method=m, **more) for m in METHODS])
    assert got == got[:1] * len(METHODS)
    for sampled in (
        {"sampling": Sampling(temperature=0.8), "n": 2, "seed": 4},
        {"sampling": Sampling(temperature=0.0, repetition_penalty=1.4)},
        {"cache": "quantised", "cache_options": {"block": 16}},
    ):
        (alone, copied), _ = texts(
            lm, [ask(method=m, **more, **sampled) for m in ("plain", "prompt-lookup")]
        )
        assert alone == copied


def test_thoughts_outlive_preemption_and_share_passes(lm):
    asks = [ask(seed=i, steer_options={"thoughts": i}, n=1 + i % 2) for i in range(5)]
    alone = [texts(lm, [a])[0][0] for a in asks]
    for limits in ({"max_cache_bytes": 1}, {"max_positions": 7}):
        together, engine = texts(lm, asks, **limits)
        assert together == alone
        assert engine.preempted or "max_cache_bytes" not in limits


def test_a_thought_takes_a_pass(lm, monkeypatch):
    """Passes: one a thought, the last of which rides with the first token of the answer; no token
    is sampled for it."""
    law, passes = lm.checkpoint.lm, []
    forward = type(law.network).forward
    monkeypatch.setattr(
        type(law.network), "forward", lambda s, q: passes.append(1) or forward(s, q)
    )
    counts = []
    for thoughts in (0, 1, 4):
        passes.clear()
        text, _ = texts(lm, [ask(method="plain", steer_options={"thoughts": thoughts})])
        assert len(text[0][0]) == 12
        counts.append(len(passes))
    assert counts[1] - counts[0] in (0, 1) and counts[2] - counts[1] == 3


def test_a_pass_that_fails_leaves_no_half_thought(lm, monkeypatch):
    law = lm.checkpoint.lm
    session = LatentPrefixTarget(law, (7, 8, 9), ContinuousThoughtMaker(3, 320)).open_session(
        (7, 8, 9)
    )
    forward, left = type(law.network).forward, [2]

    def failing(network, queries):
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("no memory")
        return forward(network, queries)

    with monkeypatch.context() as broken:
        broken.setattr(type(law.network), "forward", failing)
        with pytest.raises(RuntimeError, match="no memory"):
            run_coroutines([session.score_draft(Draft.chain_draft(9), ScoreRequest())])
    got = run_coroutines([session.score_draft(Draft.chain_draft(9), ScoreRequest())])[
        0
    ].logprob_row(0)
    whole = LatentPrefixTarget(law, (7, 8, 9), ContinuousThoughtMaker(3, 320)).open_session(
        (7, 8, 9)
    )
    torch.testing.assert_close(
        got,
        run_coroutines([whole.score_draft(Draft.chain_draft(9), ScoreRequest())])[0].logprob_row(0),
        atol=1e-4,
        rtol=0.0,
    )


def test_a_hidden_thought_is_what_the_second_model_makes_of_the_prompt(lm):
    law, small, (made,) = lm.checkpoint.lm, lm.draft.lm, lm.artefacts
    session = small.open_session((7, 8, made.mark))
    run_coroutines([session.prefill_prompt(ScoreRequest(law=RowDetail.NOTHING))])
    hidden = run_coroutines([session.score_draft(Draft.chain_draft(made.mark), HIDDEN)])[
        0
    ].hidden_NH
    vector = made.thought_vector(session.normed_states(hidden)[0])
    soft = law.open_session((7, 8, *make_soft_tokens(vector[None], 320, 64, "x"), 9))
    thinking = LatentPrefixTarget(
        law, (7, 8, 9), HiddenThoughtMaker(small, made, 320)
    ).open_session((7, 8, 9))
    want, got = (
        run_coroutines([s.score_draft(Draft.chain_draft(9), ScoreRequest())])[0].logprob_row(0)
        for s in (soft, thinking)
    )
    torch.testing.assert_close(got, want, atol=1e-5, rtol=0.0)
    left_out = LatentPrefixTarget(
        law, (7, 8, 9), HiddenThoughtMaker(small, made, 320, 0)
    ).open_session((7, 8, 9))
    plain = law.open_session((7, 8, 9))
    want, got = (
        run_coroutines([s.score_draft(Draft.chain_draft(9), ScoreRequest())])[0].logprob_row(0)
        for s in (plain, left_out)
    )
    assert bool((want == got).all())


@pytest.mark.parametrize(
    "fields, sentence",
    [
        ({"steer_options": {"thoughts": 257}}, "thoughts is 257"),
        ({"steer_options": {"thoughts": 240}, "max_tokens": None}, "and 240 vectors stand in it"),
        ({"steer_options": {"thoughts": 200}, "max_tokens": 60}, "200 vectors included"),
        (
            {"method": "layerskip"},
            "method layerskip and steering continuous-cot do not go together",
        ),
        ({"negative_prompt": "x"}, "reads no second prompt"),
    ],
)
def test_what_cannot_be_is_refused(lm, fields, sentence):
    with pytest.raises(ValueError, match=r".") as error:
        plan_request(lm, ask(**fields))
    assert sentence in str(error.value) and len(str(error.value)) <= 300


def test_prompts_that_have_no_room_for_thoughts_are_refused(lm):
    fields = {"raw": True, "steer": "continuous-cot", "max_tokens": 4}
    for prompt in ([5], [5, Soft(torch.zeros(2, 64)), 6]):
        with pytest.raises(ValueError, match="the prompt needs two tokens, and no vectors"):
            plan_request(lm, Ask(prompt, **fields))
    with pytest.raises(ValueError, match="steering hidden-cot needs what makes thoughts of states"):
        plan_request(
            LoadedModel(lm.checkpoint, lm.draft), ask(steer="hidden-cot", steer_options={})
        )
    with pytest.raises(ValueError, match="needs a draft model"):
        plan_request(replace(lm, draft=None), ask(steer="hidden-cot", steer_options={}))


def test_thoughts_are_kept_and_damage_is_one_sentence(tmp_path, lm):
    (made,) = lm.artefacts
    thoughts_file.save(tmp_path, made, {"target": "x"})
    read = thoughts_file.load(tmp_path)
    x = torch.randn(64)
    assert torch.equal(read.thought_vector(x), made.thought_vector(x)) and read.mark == made.mark
    wide = ThoughtProjection(torch.zeros(32, 64), torch.zeros(32), torch.zeros(32), 0)
    with pytest.raises(ValueError, match="thoughts were trained for states of width 32"):
        wide.check_fit(lm.checkpoint.lm, lm.draft.lm)
    with pytest.raises(ValueError, match="are read at token 999: this draft has 320 tokens"):
        replace(made, mark=999).check_fit(lm.checkpoint.lm, lm.draft.lm)
    (tmp_path / "thought.safetensors").write_bytes(b"x" * 40)
    with pytest.raises(ValueError, match="it is damaged"):
        thoughts_file.load(tmp_path)


def test_cards_name_their_papers():
    for name in ("coconut", "2412.06769", "hcot", "2409.08561"):
        assert steer.find_steering(name) in ("continuous-cot", "hidden-cot")

"""Likelihoods of texts: under toy canvases against the joint law, under real models against passes of one token."""

import math
from types import SimpleNamespace

import pytest
import torch

import polydec
from polydec.base.errors import RequestError
from polydec.core.law import normalise_log_weights
from polydec.core.scheduler import run_coroutines
from polydec.lab.bench.likelihood import text_likelihoods
from polydec.lab.testing.toy_canvas import MarkovChainNetwork, ToyDenoiser


def toy(seed: int, block: int = 0):
    law = ToyDenoiser(MarkovChainNetwork(seed, 4), block=block)
    return SimpleNamespace(name="a toy", checkpoint=SimpleNamespace(lm=law))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("block", [0, 3])
def test_all_sets_of_gaps_give_the_joint_law(seed, block):
    lm, text = toy(seed, block), (1, 3, 0, 2)
    (found,) = text_likelihoods(lm, [((2, 0), text)])
    joint = lm.checkpoint.lm.network.joint_law((2, 0), len(text))[text]
    assert found.logp == pytest.approx(math.log(joint), abs=1e-9) and found.error == 0.0


@pytest.mark.parametrize("seed", range(4))
def test_draws_come_within_their_error(seed):
    lm, text = toy(seed), (1, 3, 0, 2, 2, 1)
    sure = text_likelihoods(lm, [((2, 0), text)])[0].logp
    drawn = [text_likelihoods(lm, [((2, 0), text)], draws=40, seed=s)[0] for s in range(6)]
    assert all(d.error > 0.0 and d.passes >= 40 for d in drawn)
    mean = math.fsum(d.logp for d in drawn) / 6
    error = math.sqrt(math.fsum(d.error**2 for d in drawn)) / 6
    assert abs(mean - sure) < 4 * error
    # the error says how far draws of other seeds lie apart
    assert max(abs(d.logp - sure) / d.error for d in drawn) < 4.5


def test_what_the_surest_gap_writes_is_greedy():
    lm, context = toy(3), (2, 0)
    law = lm.checkpoint.lm
    canvas = [*context, None, None, None]
    while None in canvas:
        gaps = [i for i, x in enumerate(canvas) if x is None]
        board = law.open_canvas(len(canvas), 2)
        logp_RV = normalise_log_weights(
            run_coroutines([board.score_canvas(tuple(canvas), gaps, range(len(canvas)))])[0]
        )
        board.close()
        at = int(logp_RV.max(-1).values.argmax())
        canvas[gaps[at]] = int(logp_RV[at].argmax())
    text = tuple(canvas[2:])
    other = (*text[:2], (text[2] + 1) % 4)
    greedy, not_greedy = text_likelihoods(lm, [(context, text), (context, other)])
    assert greedy.greedy and not not_greedy.greedy


def test_of_a_model_that_continues_texts():
    lm = polydec.load("zoo:tiny", draft=None, ngrams=None)
    text = lm.checkpoint.text
    pairs = [
        (text.encode("The old river"), text.encode(" ran to the sea", special=False)),
        (text.encode("Once upon a"), text.encode(" time", special=False)),
    ]
    for (context, rest), found in zip(pairs, text_likelihoods(lm, pairs), strict=True):
        logp, greedy = 0.0, True
        for at, token in enumerate(rest):
            one = polydec.generate(
                lm,
                (*context, *rest[:at]),
                max_tokens=1,
                logprobs=1,
                sampling=lm.sampling_with(temperature=0.0, allowed_token_ids=[token]),
            )
            chosen = one.choices[0].logprobs[0]
            logp, greedy = logp + chosen.model_logp, greedy and chosen.top[0][0] == token
        assert found.logp == pytest.approx(logp, abs=1e-3) and found.greedy == greedy
        assert found.error == 0.0


def test_of_a_model_that_fills_canvases():
    lm = polydec.load("zoo:diffusion")
    text = lm.checkpoint.text
    context = text.encode("copy: 123456", special=False)
    right, wrong = (text.encode(t, special=False) for t in ("123456", "123457"))
    good, bad = text_likelihoods(lm, [(context, right), (context, wrong)], draws=16)
    assert good.logp > bad.logp and torch.isfinite(torch.tensor([good.logp, bad.logp])).all()


@pytest.mark.parametrize(
    ("pairs", "given", "sentence"),
    [
        ([((1,), (2,))], {"draws": 1}, "draws is 1"),
        ([((1,), (2,))], {"at_once": 0}, "at_once is 0"),
        ([((1,), ())], {}, "is empty"),
        ([((1,), (2,) * 64)], {}, "there is room for 63"),
    ],
)
def test_refusals(pairs, given, sentence):
    with pytest.raises(RequestError, match=sentence):
        text_likelihoods(toy(1), pairs, **given)

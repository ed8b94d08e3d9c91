"""Edits that a judge chooses among: limiting cases, laws by enumeration, and that what it likes becomes more."""

from collections import defaultdict
from itertools import product
from math import exp

import pytest
import torch

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.testing.check_unmasker import PROMPT, check_canvas_decoder
from polydec.lab.testing.enumerate import law_of, text_law_distance
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy import toy_law
from polydec.lab.testing.toy_canvas import MarkovChainNetwork, ToyDenoiser
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.shapers.temperature import TemperatureRule
from polydec.methods.diffusion.loop.canvas_rewards import (
    AnswerTextReward,
    LearnedCanvasValue,
    LikelihoodReward,
    PosteriorMeanValue,
    TargetLengthReward,
)
from polydec.methods.diffusion.loop.denoising import DenoisingDecoder
from polydec.methods.diffusion.loop.soft_value import SoftValueDenoising
from polydec.methods.diffusion.refreshes import exact_refresh
from polydec.methods.diffusion.unmaskers.at_random import AtRandomUnmasker
from polydec.methods.diffusion.unmaskers.left_to_right import LeftToRightUnmasker
from polydec.methods.diffusion.unmaskers.threshold import ThresholdUnmasker
from polydec.models.learned.kinds import value as values
from polydec.models.learned.kinds.reward import TextReward


def by(judge):
    return PosteriorMeanValue(LikelihoodReward(judge))


def said(decoder, seed, length=8):
    return run_coroutines([answer_one(decoder, Request(PROMPT, length, seed=seed))])[0]


def law(decoder):
    return law_of(lambda rng: answer_one(decoder, Request(PROMPT, 2), rng))


def worth(judge, tokens):
    """The mean log-probability of an answer, read token by token."""

    async def read():
        total = 0.0
        for i, x in enumerate(tokens):
            session = judge.open_session((*PROMPT, *tokens[:i]))
            total += (
                await session.score_draft(
                    Draft.chain_draft((*PROMPT, *tokens[:i])[-1]), ScoreRequest()
                )
            ).token_logprobs(0, (x,))[0]
            session.close()
        return total / len(tokens)

    return run_coroutines([read()])[0]


def test_its_contract(record_counts):
    counts = check_canvas_decoder(
        lambda d: SoftValueDenoising(
            DenoisingDecoder(d, AtRandomUnmasker(2), exact_refresh(d.block), 3),
            by(toy_law(1, d.vocab.size)),
            3,
            0.5,
        )
    )
    record_counts(counts)


def test_a_block_causal_model_is_tried_up_to_its_own_block():
    for seed in range(3):
        base = DenoisingDecoder(
            ToyDenoiser(MarkovChainNetwork(seed, 4, 2.0), -1, 4),
            AtRandomUnmasker(),
            exact_refresh(4),
            3,
        )
        assert (
            len(said(SoftValueDenoising(base, by(toy_law(seed, 4, eos=9)), 3), seed, 14).token_ids)
            == 14
        )


@pytest.mark.parametrize(
    "unmasker", [AtRandomUnmasker(), AtRandomUnmasker(2), ThresholdUnmasker(0.6)], ids=str
)
def test_one_edit_is_the_base_token_for_token(unmasker):
    for seed in range(8):
        for shapers in ((), (TemperatureRule(0.7),)):
            base = DenoisingDecoder(
                ToyDenoiser(MarkovChainNetwork(seed, 5, 2.0), 4),
                unmasker,
                exact_refresh(0),
                4,
                shapers,
            )
            one, want = (
                said(SoftValueDenoising(base, by(toy_law(seed, 5)), 1), seed),
                said(base, seed),
            )
            assert (one.token_ids, one.stats) == (want.token_ids, want.stats)


def test_edits_that_are_the_same_are_not_tried():
    base = DenoisingDecoder(
        ToyDenoiser(MarkovChainNetwork(2, 5, 2.0), 4),
        LeftToRightUnmasker(),
        exact_refresh(0),
        0,
        (GreedyRule(),),
    )
    assert said(SoftValueDenoising(base, by(toy_law(2, 5)), 4), 0).stats == said(base, 0).stats


@pytest.mark.parametrize("eos", [-1, 1])
@pytest.mark.parametrize("heat", [0.0, 0.4])
def test_the_law_of_two_tries(heat, eos):
    """Both tokens are written in one pass, so a try is finished: the law is that of taking one of two draws. An end is judged
    with the rest, and what was written behind it is not."""
    for seed in range(3):
        base = DenoisingDecoder(
            ToyDenoiser(MarkovChainNetwork(seed, 2), eos),
            LeftToRightUnmasker(1),
            exact_refresh(0),
            0,
        )
        judge = toy_law(seed, 2, eos=9)
        first, want = law(base), defaultdict(float)
        value = {text: worth(judge, text) for text in first}
        for a, b in product(first, repeat=2):
            p, best = first[a] * first[b], a if value[a] >= value[b] else b
            share = 1 / (1 + exp((value[b] - value[a]) / heat)) if heat else float(best == a)
            want[a] += p * share
            want[b] += p * (1 - share)
        got = law(SoftValueDenoising(base, by(judge), 2, heat))
        assert text_law_distance(got, want) < 1e-9 and text_law_distance(got, first) > 1e-3


def test_a_judge_that_hardly_counts_leaves_the_law():
    base = DenoisingDecoder(
        ToyDenoiser(MarkovChainNetwork(1, 2), -1), AtRandomUnmasker(), exact_refresh(0), 0
    )
    assert (
        text_law_distance(
            law(base), law(SoftValueDenoising(base, by(toy_law(1, 2, eos=9)), 2, 1e9))
        )
        < 1e-6
    )


def test_more_tries_give_what_the_judge_likes():
    judge, means = toy_law(5, 4, eos=9), []
    for tries in (1, 2, 8):
        some = [
            SoftValueDenoising(
                DenoisingDecoder(
                    ToyDenoiser(MarkovChainNetwork(seed, 4), -1),
                    AtRandomUnmasker(),
                    exact_refresh(0),
                    0,
                ),
                by(judge),
                tries,
            )
            for seed in range(12)
        ]
        means.append(
            sum(worth(judge, said(v, i).token_ids) for i, v in enumerate(some)) / len(some)
        )
    assert means[0] < means[1] < means[2]


def test_the_best_is_taken_at_no_heat():
    assert (
        SoftValueDenoising(None, None, 3).chosen_edit(torch.tensor([-2.0, -1.0, -1.0]), None) == 1
    )  # type: ignore


def test_a_length_pulls():
    """What the reward says, less the pull for each token too many or too few; the end is none."""
    for eos in (-1, 0):
        model = ToyDenoiser(MarkovChainNetwork(2, 4), eos)

        async def worths(wanted, model=model):
            judge = TargetLengthReward(AnswerTextReward(len), wanted, 0.5).open_judge(
                PROMPT, model.vocab
            )
            await judge.prepare_judgement()
            return [await judge.answer_worth(x) for x in ((1,), (1, 2, 3), (1, 2, 0))]

        plain, near = (run_coroutines([worths(n)])[0] for n in (0, 2))
        assert plain == [1.0, 5.0, 3.0 if eos == 0 else 5.0]  # "1", "1 2 3" and "1 2 0"
        assert near == [0.5, 4.5, 3.0 if eos == 0 else 4.5]


def test_a_function_of_texts_is_what_decides():
    """Of all that could be drawn the edits that it likes become more, the more tries there are."""

    def liked(text):
        return text.split().count("1")

    means = []
    for tries in (1, 4, 16):
        texts = [
            said(
                build(
                    "svdd-reward",
                    ToyDenoiser(MarkovChainNetwork(s, 4), -1),
                    None,
                    {"tries": tries},
                    artefacts=(TextReward(liked),),
                )[0],
                s,
            ).token_ids
            for s in range(12)
        ]
        means.append(sum(t.count(1) for t in texts))
    assert means[0] < means[1] < means[2]


def test_a_value_network_sees_the_canvas_alone():
    """The law of two tries at the last gap by enumeration: the network's value of the filled canvas, which asks no model."""
    for seed in range(3):
        model = ToyDenoiser(MarkovChainNetwork(seed, 2), -1)
        base = DenoisingDecoder(model, LeftToRightUnmasker(1), exact_refresh(0), 0)
        value = values.examples(model.vocab, 4, 4)[0]
        first, want = law(base), defaultdict(float)
        for a, b in product(first, repeat=2):
            p, (u, v) = first[a] * first[b], (value((*PROMPT, *x)) for x in (a, b))
            share = 1 / (1 + exp((v - u) / 0.3))
            want[a] += p * share
            want[b] += p * (1 - share)
        decoder = SoftValueDenoising(base, LearnedCanvasValue(value), 2, 0.3)
        assert (
            text_law_distance(law(decoder), want) < 1e-6
            and text_law_distance(law(decoder), first) > 1e-3
        )
        assert said(decoder, 0).stats.fed == said(base, 0).stats.fed


def test_a_value_is_of_gaps_as_of_nothing_and_of_its_own_canvas():
    """Its batches say what single canvases say, and no gap is a token."""
    net = values.examples(ToyDenoiser(MarkovChainNetwork(0, 5)).vocab, 4, 4)[0]
    canvases = [(0, 1, None, 3), (0, 1, None), (2, None, None, None, 4)]
    token_BT = torch.full((3, 5), -1)
    for i, c in enumerate(canvases):
        token_BT[i, : len(c)] = torch.tensor([-1 if x is None else x for x in c])
    said_B = net.canvas_values(token_BT, torch.tensor([4, 3, 5]))
    assert said_B.tolist() == pytest.approx([net(c) for c in canvases], rel=1e-3)
    assert len({round(net(c), 6) for c in (*canvases, (0, 1, 0, 3))}) == 4

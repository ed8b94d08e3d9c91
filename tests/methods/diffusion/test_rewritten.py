"""RUM-SUNDAE: whole texts that are rewritten from noise until nothing changes."""

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.transcript import EditedEvent
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy_canvas import MarkovChainNetwork, ToyDenoiser
from polydec.lab.train.diffusion import unrolled_loss
from polydec.lab.train.network import LlamaShape, TrainableLlama, make_bidirectional
from polydec.laws.shapers.greedy import GreedyRule
from polydec.methods.diffusion.loop.denoising import DenoisingDecoder
from polydec.methods.diffusion.loop.refining import RefiningDecoder
from polydec.methods.diffusion.refreshes.full import FullRefresh
from polydec.methods.diffusion.unmaskers.confidence import ConfidenceUnmasker

PROMPT = (1, 2, 0)
LENGTH = 12


def written(decoder, seed=0, length=LENGTH, **fields):
    """The answer and what each pass wrote."""
    events = []
    request = Request(PROMPT, length, seed=seed, ignore_eos=True, **fields)
    result = run_coroutines([answer_one(decoder, request, on=events.append)])[0]
    return result, [dict(e.edit.write) for e in events if isinstance(e, EditedEvent)]


def refining(seed, sharp=2.0, **fields):
    return RefiningDecoder(
        ToyDenoiser(MarkovChainNetwork(seed, 5, sharp)), shapers=(GreedyRule(),), **fields
    )


@pytest.mark.parametrize("seed", range(4))
def test_one_round_from_gaps_is_one_pass_of_llada(seed):
    model = ToyDenoiser(MarkovChainNetwork(seed, 5, 2.0))
    want = DenoisingDecoder(model, ConfidenceUnmasker(1), FullRefresh(), 0, (GreedyRule(),))
    got, passes = written(refining(seed, rounds=1, noise=False))
    assert got.token_ids == written(want)[0].token_ids and len(passes) == got.stats.passes == 1


def test_it_ends_where_nothing_changes_and_not_before():
    """The answer is a fixed point: every token is the likeliest one given the others. It takes fewer rounds than it may."""
    settled = 0
    for seed in range(12):
        decoder = refining(seed, rounds=90, share=0.05)
        result = written(decoder, seed)[0]
        if result.stats.passes == 90:
            continue
        settled += 1
        canvas = (*PROMPT, *result.token_ids)
        chain = decoder.denoiser.network
        for at in range(len(PROMPT), len(canvas)):
            law_V = chain.position_law(canvas, at)[:-1]
            assert float(law_V[canvas[at]]) == pytest.approx(float(law_V.max()), abs=1e-9)
    assert settled > 8


def test_a_round_writes_its_share_of_the_least_likely_tokens():
    for share in (0.1, 0.4, 1.0):
        decoder = refining(3, rounds=8, share=share)
        _, passes = written(decoder, 3)
        most = math.ceil(share * LENGTH)
        # The last pass writes all that becomes final.
        assert len(passes[0]) == LENGTH or len(passes) == 1
        assert all(0 < len(edit) <= most for edit in passes[1:-1]) and len(passes[-1]) == LENGTH


def test_texts_begin_as_noise_that_has_no_gaps(monkeypatch):
    read = []
    decoder = refining(1, rounds=3, starts=3)
    board = type(decoder.denoiser.open_canvas(4))
    whole = board.score_canvas

    async def seen(self, canvas, rows, feed):
        read.append(canvas)
        return await whole(self, canvas, rows, feed)

    monkeypatch.setattr(board, "score_canvas", seen)
    written(decoder)
    first = read[:3]
    assert all(canvas[: len(PROMPT)] == PROMPT for canvas in first)
    noise = {canvas[len(PROMPT) :] for canvas in first}
    assert len(noise) == 3 and all(x is not None and x < 5 for text in noise for x in text)
    read.clear()
    written(refining(1, rounds=3, noise=False))
    assert read[0][len(PROMPT) :] == (None,) * LENGTH


def test_of_several_starts_the_likeliest_is_answered():
    def worth(decoder, tokens):
        canvas = (*PROMPT, *tokens)
        chain = decoder.denoiser.network
        laws = [chain.position_law(canvas, at)[:-1].log_softmax(-1) for at in range(3, len(canvas))]
        return sum(float(law[x]) for law, x in zip(laws, tokens, strict=True))

    better = 0
    for seed in range(10):
        one, many = (
            written(refining(seed, rounds=90, share=0.05, starts=k), seed)[0] for k in (1, 6)
        )
        few, most = (worth(refining(seed), r.token_ids) for r in (one, many))
        assert most >= few - 1e-6
        better += most > few + 1e-6
    assert better > 2


def test_what_is_given_of_an_answer_stays():
    given = (None, 3, None, None, 1, None)
    result, passes = written(refining(2, rounds=9), length=6, given=given)
    assert (result.token_ids[1], result.token_ids[4]) == (3, 1) and len(result.token_ids) == 6
    assert all(4 not in edit and 7 not in edit for edit in passes[1:])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rounds": 0}, "rounds is 0"),
        ({"share": 0.0}, "share is 0"),
        ({"starts": 65}, "starts is 65"),
    ],
)
def test_bad_options_are_one_sentence(options, said):
    with pytest.raises(ValueError, match=said):
        build("rum-sundae", ToyDenoiser(MarkovChainNetwork(0, 5, 2.0)), None, options)


# training


@dataclass
class Reads:
    """A network that notes what it reads, and is sure of one token everywhere."""

    token: int
    read: list[Any]
    s: Any = None

    def __post_init__(self):
        self.s = SimpleNamespace(vocab=8)

    def __call__(self, token_BT):
        self.read.append(token_BT)
        logits = torch.zeros(*token_BT.shape, 8)
        logits[..., self.token] = 60.0
        return logits.requires_grad_()


def test_later_steps_read_what_the_network_wrote():
    g = torch.Generator().manual_seed(0)
    token = torch.randint(0, 7, (32, 10), generator=g)
    answer = torch.arange(10).expand(32, 10) >= 4
    network = Reads(5, [])
    unrolled_loss(network, token, answer, 7, g, 3)
    first, second, third = network.read
    assert all(torch.equal(read[:, :4], token[:, :4]) for read in network.read)
    assert (second[:, 4:] == 5).all() and torch.equal(second, third)
    # Shares of noise lie evenly in 0 to 1, and no noise is the mask.
    share = (first != token)[:, 4:].float().mean(1) * 7 / 6
    assert 0.35 < float(share.mean()) < 0.65 and float(share.std()) > 0.15
    assert (first != 7).all()
    network = Reads(5, [])
    unrolled_loss(network, token, answer, 7, g, 1)
    assert len(network.read) == 1


def test_all_of_the_answer_is_learned_and_nothing_else():
    network = make_bidirectional(TrainableLlama(LlamaShape(12, 32, 1, 2, 2, 32, 16)))
    token = torch.randint(0, 11, (4, 8), generator=torch.Generator().manual_seed(1))
    answer = torch.arange(8).expand(4, 8) >= 3
    losses = []
    for moved in (token, token.clone()):
        moved[:, 3:] = token[:, 3:]
        losses.append(
            float(unrolled_loss(network, moved, answer, 11, torch.Generator().manual_seed(2), 2))
        )
    assert losses[0] == losses[1] > 0
    loss = unrolled_loss(network, token, answer, 11, torch.Generator().manual_seed(2), 2)
    loss.backward()
    assert network.model.embed_tokens.weight.grad.any()

"""Canvases under a model that encodes each token once: what runs in a pass, and what is kept of earlier ones."""

import math

import pytest
import torch

from polydec.base.errors import RequestError
from polydec.core.decoder import run_decoder
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.types import TokenVocabulary
from polydec.lab.testing.kits import build
from polydec.methods.diffusion.loop.prompted import PromptGuidedDenoiser
from polydec.models.formats.enat_config import EnatShape
from polydec.models.nets.enat import EnatModules, EnatNetwork
from polydec.models.sessions.enat import EnatDenoiser

SHAPE = EnatShape(10, 6, 8, 2, 16, 2, 1, 20)
N = 16


def made_model(seed=0):
    torch.manual_seed(seed)
    modules = EnatModules(SHAPE)
    for p in modules.parameters():
        torch.nn.init.normal_(p, std=0.5)
    network = EnatNetwork(SHAPE, modules.state_dict(), 9)
    return EnatDenoiser(network, TokenVocabulary(10, frozenset()))


MODEL = made_model()


def look(board, canvas, feed=None):
    feed = range(len(canvas)) if feed is None else feed
    rows = [p for p in feed if canvas[p] is None]
    return run_coroutines([board.score_canvas(canvas, rows, feed)])[0]


def canvas_of(**tokens):
    return tuple(tokens.get(f"p{p}") for p in range(6))


FIRST = canvas_of(p0=7, p2=1)
SECOND = canvas_of(p0=7, p2=1, p4=3)


def test_a_later_pass_encodes_what_is_new_and_decodes_gaps():
    model = made_model()
    board = model.open_canvas(6, 1)
    look(board, FIRST)
    assert model.network.encoded == 2
    reused = look(board, SECOND, [1, 3, 4, 5])
    assert model.network.encoded == 3
    whole = look(model.open_canvas(6, 1), SECOND)
    # The older tokens did not see the new one.
    assert reused.shape == whole.shape and not torch.allclose(reused, whole)


def test_a_pass_that_feeds_everything_is_a_whole_one():
    board = MODEL.open_canvas(6, 1)
    look(board, FIRST)
    assert torch.allclose(look(board, SECOND), look(MODEL.open_canvas(6, 1), SECOND))


def test_a_token_that_was_never_fed_is_refused():
    board = MODEL.open_canvas(6, 1)
    look(board, FIRST)
    with pytest.raises(RequestError, match="feed lacks position 4"):
        look(board, SECOND, [1, 3, 5])
    changed = canvas_of(p0=7, p2=5)
    with pytest.raises(RequestError, match="feed lacks position 2"):
        look(board, changed, [1, 3, 4, 5])


def test_what_became_a_gap_again_is_forgotten():
    board = MODEL.open_canvas(6, 1)
    look(board, SECOND)
    back = look(board, FIRST, [1, 3, 4, 5])
    assert set(board.known) == {0, 2} and len(board.shown_SW) == 2
    again = MODEL.open_canvas(6, 1)
    look(again, SECOND)
    assert torch.allclose(back, look(again, FIRST, [1, 3, 4, 5]))


def test_a_prompt_that_is_left_out_is_seen_by_nobody():
    board = MODEL.open_canvas(6, 1)
    out = (None, *FIRST[1:])
    rows = [1, 3, 4, 5]
    whole, without = (
        run_coroutines([board.score_canvas(out, rows, feed)])[0] for feed in (range(6), range(1, 6))
    )
    assert torch.allclose(whole, without)


def test_a_fork_goes_its_own_way():
    board = MODEL.open_canvas(6, 1)
    look(board, FIRST)
    twin = board.fork()
    look(twin, SECOND, [1, 3, 4, 5])
    assert set(board.known) == {0, 2} and MODEL.nbytes > 0
    assert torch.allclose(
        look(board, SECOND, [1, 3, 4, 5]), look(seen_once(), SECOND, [1, 3, 4, 5])
    )


def seen_once():
    board = MODEL.open_canvas(6, 1)
    look(board, FIRST)
    return board


def answers(name, seed=0, n=1, **options):
    model = made_model()
    decoder = build(name, model, None, options)[0]
    request = Request((7,), N, ignore_eos=True, seed=seed, n=n)
    return run_coroutines([run_decoder(decoder, request)])[0], model.network


def left_behind(steps):
    """How many gaps each pass leaves, by MaskGIT's cosine."""
    left, out = N, []
    for step in range(steps):
        done = (step + 1) / steps
        now = (
            0 if done >= 1 else min(max(1, math.floor(N * math.cos(math.pi * done / 2))), left - 1)
        )
        out.append(now)
        left = now
    return out


@pytest.mark.parametrize("steps", [1, 3, 8])
def test_each_token_is_encoded_once(steps):
    """Over a run: the prompt, and every token but those of the last pass; without reuse all of them in each pass."""
    (made,), network = answers("enat", steps=steps)
    left = [N, *left_behind(steps)]
    assert len(made.token_ids) == N and network.encoded == 1 + N - left[-2]
    (_,), whole = answers("enat", steps=steps, reuse=False)
    assert whole.encoded == sum(1 + N - gaps for gaps in left[:-1])


def test_without_reuse_it_is_maskgit():
    for seed in range(3):
        fields = {"steps": 5, "noise": 2.0}
        (one,), _ = answers("enat", seed, reuse=False, **fields)
        (other,), _ = answers("maskgit", seed, **fields)
        assert one.token_ids == other.token_ids


def test_guided_canvases_keep_both_halves():
    (made,), network = answers("enat", steps=4, guidance=1.5)
    assert len(made.token_ids) == N and network.encoded < 2 * N


def test_guidance_grows_from_nothing_to_its_strength():
    """The first pass is not guided, and the one behind the last step of growth as much as is asked for."""
    guided = PromptGuidedDenoiser(MODEL, 3.0, 2)
    assert [guided.strength_at(n) for n in range(4)] == [0.0, 1.5, 3.0, 3.0]
    board, steady = guided.open_canvas(6, 1), PromptGuidedDenoiser(MODEL, 3.0).open_canvas(6, 1)
    plain = look(MODEL.open_canvas(6, 1), FIRST).log_softmax(-1)
    assert torch.allclose(look(board, FIRST).log_softmax(-1)[:, :6], plain[:, :6])
    fork = board.fork()
    for twin in (board, fork):
        half = PromptGuidedDenoiser(MODEL, 1.5).open_canvas(6, 1)
        assert torch.allclose(look(twin, FIRST)[:, :6], look(half, FIRST)[:, :6])
    assert torch.allclose(look(board, FIRST)[:, :6], look(steady, FIRST)[:, :6])


def test_answers_of_one_request_share_passes():
    together, network = answers("enat", steps=4, n=2)
    assert together[0].token_ids != together[1].token_ids
    alone, single = answers("enat", steps=4)
    assert alone[0].token_ids == together[0].token_ids
    assert network.encoded == 2 * single.encoded


def test_a_canvas_longer_than_the_context_is_refused():
    with pytest.raises(RequestError, match="the model's context holds 20"):
        MODEL.open_canvas(21)

"""FLASH's drafter: what becomes of an image, how many tokens a pass guesses, and that nothing of the law is lost."""

import itertools
from dataclasses import replace

import pytest
import torch
from test_msd import (  # noqa: F401
    IMAGE,
    PROMPT,
    TOY_PROMPT,
    TREE,
    behind_image,
    check_law_behind_images,
    image,
    lm,
    proposed_drafts,
    read_prompt,
    tip_of,
    toy_behind_image,
)

from polydec.base.errors import FileError, RequestError
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, DrawKind, RowDetail, ScoreRequest
from polydec.lab.testing.examples import SHAPERS
from polydec.lab.testing.toy import toy_law
from polydec.methods.registry import registry
from polydec.methods.registry.kit import Kit
from polydec.methods.speculative.drafters._states import LAYER
from polydec.methods.speculative.drafters.flash import FlashDrafter
from polydec.methods.speculative.drafters.msd import MsdDrafter
from polydec.methods.speculative.trees.best_first import BestFirstTree
from polydec.methods.speculative.trees.ranked import RankedTree
from polydec.models.learned.artefacts import load_artefact
from polydec.models.learned.block_layer import BlockLayer
from polydec.models.learned.kinds import flash
from polydec.models.learned.kinds.flash import FlashModel
from polydec.models.learned.kinds.msd import MsdModel
from polydec.models.learned.state_layer import random_state_layer, rms_normalised
from polydec.models.nets.query import NetworkQuery

WORDS = [0, 1, 5]
"""Places of the words of the prompt, but for its root."""


def flash_of(law, width=32, **changes):
    return replace(flash.examples(law.vocab, width, width)[0], **changes)


def block_of(law, block, width=32):
    """A FLASH drafter of blocks of so many states."""
    layer = BlockLayer(random_state_layer(width, 5, states=block), block)
    return flash_of(law, width, layer=layer)


def test_an_image_becomes_as_many_rows_as_are_asked_for_and_words_stay(lm):  # noqa: F811
    vectors = image(1)
    own = flash_of(lm)
    # The very rows of MSD, of which those of the image are replaced.
    plain, _ = read_prompt(behind_image(lm, vectors), MsdDrafter(MsdModel(own.eagle_model), TREE))
    guess, _ = read_prompt(behind_image(lm, vectors), FlashDrafter(own, TREE))
    rows = guess.ready_NS
    assert len(rows) == len(WORDS) + 2 and not guess.pending
    even_VH = rms_normalised(vectors)
    asked_CV = (own.query_CH @ even_VH.T / 32**0.5).softmax(-1)
    torch.testing.assert_close(rows[2:4], rms_normalised(asked_CV @ even_VH))
    torch.testing.assert_close(rows[[0, 1, 4]], plain.ready_NS[WORDS])
    # The draft counts places of its own: behind two words and two mixtures.
    tip_of(guess, rows)
    assert guess.cache.length == 5


def test_what_asks_sees_what_vectors_say_and_not_where_they_stand(lm):  # noqa: F811
    own, vectors = flash_of(lm), rms_normalised(image(1))
    rows = own.latent_rows(vectors)
    torch.testing.assert_close(own.latent_rows(vectors[[2, 0, 1]]), rows)
    other = torch.cat([vectors[:2], rms_normalised(image(4))[:1]])
    assert not own.latent_rows(other).allclose(rows, atol=1e-3)
    # Unscaled products choose more sharply.
    sharp = replace(own, scaled=False).latent_rows(vectors)
    torch.testing.assert_close(
        sharp, rms_normalised((own.query_CH @ vectors.T).softmax(-1) @ vectors)
    )
    assert not sharp.allclose(rows, atol=1e-3)


def test_queries_that_each_find_one_vector_compress_nothing(lm):  # noqa: F811
    entry_MH = torch.randn(7, 32, generator=torch.Generator().manual_seed(3))
    state_NH = torch.randn(6, 32, generator=torch.Generator().manual_seed(4))
    visual_M = torch.tensor([place in IMAGE for place in range(7)])
    seeing = flash_of(lm, query_CH=100 * rms_normalised(entry_MH[list(IMAGE)]))
    whole = replace(seeing, query_CH=None)
    got, want = (x.prompt_inputs(entry_MH, visual_M, state_NH) for x in (seeing, whole))
    torch.testing.assert_close(got, want)
    assert whole.row_places(visual_M[:-1]).tolist() == list(range(6))


def test_each_image_is_compressed_by_itself(lm):  # noqa: F811
    own = flash_of(lm)
    entry_MH = torch.randn(8, 32, generator=torch.Generator().manual_seed(3))
    state_NH = torch.randn(7, 32, generator=torch.Generator().manual_seed(4))
    visual_M = torch.tensor([False, True, True, False, True, True, False, False])
    rows = own.prompt_inputs(entry_MH, visual_M, state_NH)
    assert own.row_places(visual_M[:-1]).tolist() == [0, -1, -1, 3, -1, -1, 6]
    for first, at in ((1, 1), (4, 4)):
        want = own.latent_rows(rms_normalised(entry_MH[first : first + 2]))
        torch.testing.assert_close(rows[at : at + 2], want)


def test_what_an_image_shows_reaches_the_draft(lm):  # noqa: F811
    tips = []
    for seed in (1, 2):
        guess, _ = read_prompt(behind_image(lm, image(1)), FlashDrafter(flash_of(lm), TREE))
        rows = guess.ready_NS.clone()
        rows[2:4] = flash_of(lm).latent_rows(rms_normalised(image(seed)))
        tips.append(tip_of(guess, rows))
    assert not tips[0].allclose(tips[1], atol=1e-3)


@pytest.mark.parametrize("width", [32, 64])
def test_a_layer_of_one_state_is_the_layer_itself(width):
    """The MLP that runs apart from attention is the skeleton's."""
    layer = random_state_layer(width, 5)
    x_NS = torch.randn(6, width, generator=torch.Generator().manual_seed(6))
    outs = []
    for network in (layer.layer_network(), BlockLayer(layer, 1).layer_network()):
        cache = network.new_cache()
        first = cache.stage_slots(range(-1, 5))
        asked = NetworkQuery(cache, first, (), (3, 5), LAYER, x_NS)
        outs.append(network.forward([asked])[0].hidden_RH.float())
    # The compiled step keeps matrices in 8 bits.
    assert (outs[0] - outs[1]).abs().mean() < 0.03 * outs[0].abs().mean()


def test_with_one_state_a_pass_and_nothing_compressed_it_is_msd():
    """Token by token the same drafts, on a law whose arithmetic is torch's throughout."""
    law = toy_law(3)
    target = toy_behind_image(law)
    own = replace(block_of(law, 1, 4), query_CH=None)
    same = MsdModel(replace(own.eagle_model, layer=own.layer.layer))
    drafters = (MsdDrafter(same, TREE), FlashDrafter(own, TREE))
    drafts = [proposed_drafts(drafter, target, TOY_PROMPT, 6) for drafter in drafters]
    assert drafts[0] == drafts[1] and max(len(tokens) for tokens, _ in drafts[0]) > 3


@pytest.mark.parametrize("block, passes", [(1, 4), (2, 2), (4, 1)])
def test_a_pass_guesses_the_tokens_of_a_block(lm, block, passes):  # noqa: F811
    own = block_of(lm, block)
    guess, session = read_prompt(behind_image(lm, image(1)), FlashDrafter(own, TREE))
    run_coroutines([guess._catch_up()])
    asked = []
    network = own.network
    forward = network.forward

    def counted(queries):
        asked.append(len(queries))
        return forward(queries)

    object.__setattr__(network, "forward", counted)
    # Levels are asked for one by one, as trees do; the first block is known from the prompt.
    laws = guess.drafter.draft_laws(guess)
    draft = Draft.chain_draft(PROMPT[-1])
    states = []
    for _ in range(4):
        scores = run_coroutines([laws.score_draft(draft, ScoreRequest(base=RowDetail.ROW))])[0]
        states.append(scores.log_weights(len(draft) - 1))
        draft = draft.with_node(7, len(draft) - 1, DrawKind.CERTAIN, None)
    assert len(asked) == passes - 1
    # The states of a pass are those that the layer writes, one after another.
    first_KH = guess.tip.hidden_RH.unflatten(1, (block, -1))[0]
    want = session.score_states(first_KH)
    for level in range(block):
        torch.testing.assert_close(states[level], want.log_weights(level))
    assert not any(a.equal(b) for a, b in itertools.pairwise(states))


@pytest.mark.parametrize("shaping", sorted(SHAPERS))
@pytest.mark.parametrize("ranked", ["true", "false"], ids=["ranked", "grown"])
def test_the_law_behind_images_is_the_models(shaping, ranked):
    # Three levels are more than a block.
    check_law_behind_images(
        "flash", lambda law: flash_of(law, 4), shaping, depth="3", ranked=ranked
    )


def test_a_ranked_tree_has_the_measured_paths(lm):  # noqa: F811
    kit = Kit(lm, None, (flash_of(lm),))
    options = {"cost_aware": "false", "nodes": "5", "depth": "3"}
    ranked, grown = (
        registry.build("flash", kit, {**options, "ranked": ranked})[0].drafter.tree
        for ranked in ("true", "false")
    )
    assert ranked == RankedTree.of_rates(flash_of(lm).rates, 5, 3) and grown == BestFirstTree(4)


def test_a_guess_that_is_forked_goes_its_own_way(lm):  # noqa: F811
    guess, session = read_prompt(behind_image(lm, image(1)), FlashDrafter(flash_of(lm), TREE))
    twin = guess.fork_guess(session.fork())
    first = tip_of(guess, guess.ready_NS)
    assert guess.ready_NS is None and twin.ready_NS is not None
    torch.testing.assert_close(tip_of(twin, twin.ready_NS), first)


@pytest.mark.parametrize("latents", [True, False], ids=["compressed", "whole"])
def test_a_file_brings_it_back(tmp_path, lm, latents):  # noqa: F811
    own = flash_of(lm, scaled=latents)
    own = own if latents else replace(own, query_CH=None)
    flash.save(tmp_path / "x", own, {})
    again = load_artefact(str(tmp_path / "x"))
    assert isinstance(again, FlashModel) and again.block == 2 and again.scaled == latents
    assert again.rates == [[0.5, 0.2], [0.4, 0.2]]
    assert again.query_CH.equal(own.query_CH) if latents else again.query_CH is None
    assert again.fuse_H2.equal(own.fuse_H2)
    for name, t in own.layer.layer.tensors.items():
        assert again.layer.layer.tensors[name].equal(t)


def test_what_it_does_not_serve_is_refused(lm):  # noqa: F811
    with pytest.raises(FileError, match="FLASH's weights were trained for states of width 16"):
        flash.examples(lm.vocab, 16, 16)[0].check_fit(lm, None)
    kit = Kit(lm, None, flash.examples(lm.vocab, 32, 32), whole_prompt=False)
    with pytest.raises(RequestError, match="method flash reads rows of the whole prompt"):
        registry.build("flash", kit, {})

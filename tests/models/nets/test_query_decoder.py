"""X-Decoder's network: which query sees which, what each reads of the image, and that what is held changes no caption."""

from dataclasses import replace

import pytest
import torch

from polydec.models.learned.kinds.query_decoder import (
    find_named_objects,
    find_phrase,
    padded_tokens,
    random_tensors,
)
from polydec.models.nets.query_decoder import QueryDecoderNetwork, QueryRows, QuerySizes
from polydec.models.nets.query_masks import latent_query_mask

SIZES = QuerySizes(20, 6, 3, 4, 16, 2, 4, 3, 10, 1)
CAPTION = (0, 7, 3, 9, 4)
LATENTS = SIZES.objects + 1


def network_of(sizes=SIZES, seed=1):
    network = QueryDecoderNetwork(sizes)
    network.load_state_dict(random_tensors(sizes, seed, 2.0))
    return network.requires_grad_(False).eval()


@pytest.fixture(scope="module")
def network():
    torch.set_num_threads(1)
    return network_of()


def image(seed=1, count=1):
    return torch.randn(count, 12, 6, generator=torch.Generator().manual_seed(seed))


def region(*cells):
    region_1F = torch.zeros(1, 48, dtype=torch.bool)
    region_1F[0, list(cells)] = True
    return region_1F


def joint_states(network, caption=CAPTION, region_BF=None, picture=None):
    """Behind the last layer: those of objects, of the image query, and of the caption."""
    features = network.image_features(image() if picture is None else picture)
    rows = network.joint_rows(torch.tensor([caption]), region_BF)
    last = network.run_layers(rows, features)[0][-1][0]
    return last[: SIZES.objects], last[SIZES.objects], last[LATENTS:]


def test_the_mask_of_latent_queries_and_captions():
    want = [
        # Two objects see one another, the image query itself, captions all before them.
        [1, 1, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [1, 1, 1, 1, 1],
    ]
    assert latent_query_mask(2, 2).int().tolist() == want


def test_latent_queries_do_not_see_captions(network):
    some = joint_states(network)
    other = joint_states(network, (0, 1, 1, 2, 2))
    torch.testing.assert_close(other[0], some[0])
    torch.testing.assert_close(other[1], some[1])
    assert not torch.allclose(other[2][1:], some[2][1:], atol=1e-2)


def test_a_caption_sees_what_stands_before_it_alone(network):
    some = joint_states(network)[2]
    other = joint_states(network, (*CAPTION[:3], 11, 12))[2]
    torch.testing.assert_close(other[:3], some[:3])
    assert not torch.allclose(other[3:], some[3:], atol=1e-2)


def test_objects_see_one_another_and_the_image_query_itself(network):
    some = joint_states(network)
    moved = network_of()
    moved.latents[0] += 3.0
    objects, whole, caption = joint_states(moved)
    assert not torch.allclose(objects[1:], some[0][1:], atol=1e-2)
    torch.testing.assert_close(whole, some[1])
    assert not torch.allclose(caption, some[2], atol=1e-2)
    moved = network_of()
    moved.latents[-1] += 3.0
    objects, whole, caption = joint_states(moved)
    torch.testing.assert_close(objects, some[0])
    assert not torch.allclose(whole, some[1], atol=1e-2)
    assert not torch.allclose(caption, some[2], atol=1e-2)


@pytest.mark.parametrize("cells", [(), (0, 1, 9)])
def test_what_is_held_of_a_caption_gives_the_logits_of_the_whole_decoder(network, cells):
    vector_PH = image()[0]
    region_1F = region(*cells) if cells else None
    memory = network.read_image(vector_PH, region_1F)
    caption = (*CAPTION, 2, 19, 19, 1, 8)
    for at, token in enumerate(caption, 1):
        logit_V, memory = network.read_token(memory, token)
        want_V = network.recompute_token(vector_PH, caption[:at], region_1F)
        torch.testing.assert_close(logit_V, want_V, atol=1e-4, rtol=1e-4)


def test_the_latent_queries_are_read_once_for_a_caption(network, monkeypatch):
    memory = network.read_image(image()[0], None)
    ran = []
    run = QueryDecoderNetwork.run_layers
    monkeypatch.setattr(
        QueryDecoderNetwork,
        "run_layers",
        lambda self, rows, *more: ran.append(rows.x_BNW.shape[1]) or run(self, rows, *more),
    )
    for token in CAPTION:
        _, memory = network.read_token(memory, token)
    assert ran == [1] * len(CAPTION) and memory.length == len(CAPTION)
    # Held: three objects, the image query, and the caption.
    assert memory.memories[0].shape[3] == LATENTS + len(CAPTION)


def test_layers_read_the_scales_in_turn(network):
    features = network.image_features(image())
    assert [cells.shape[1] for cells in features.scales] == [4, 12, 48]
    assert [memory.shape[3] for memory in features.memories] == [4, 12, 48, 4]
    # Every scale is made of the image.
    other = network.image_features(image(2))
    for one, another in zip(features.scales, other.scales, strict=True):
        assert not torch.allclose(one, another, atol=1e-2)


def masked_rows(network, monkeypatch, inside, region_BF=None):
    """Which cells of the finest scale each query reads, where the masks of objects are these cells."""
    logit_BQF = torch.full((1, SIZES.objects, 48), -1.0)
    for query, cells in enumerate(inside):
        logit_BQF[0, query, list(cells)] = 1.0
    monkeypatch.setattr(QueryDecoderNetwork, "mask_logits", lambda *_: logit_BQF)
    features = network.image_features(image())
    rows = network.joint_rows(torch.tensor([CAPTION]), region_BF)
    sees = network._visible_cells(rows, features, 2)
    return [set(row.nonzero().flatten().tolist()) for row in sees[0, 0]]


def test_an_object_reads_the_cells_of_its_mask_and_all_where_it_is_empty(network, monkeypatch):
    every = set(range(48))
    read = masked_rows(network, monkeypatch, ({3, 4}, set(), {40}))
    assert read[:3] == [{3, 4}, every, {40}]
    # Masks say nothing to the image query, nor to captions.
    assert read[3:] == [every] * (1 + len(CAPTION))
    assert (
        network_of(replace(SIZES, masked=False))._visible_cells(
            network.joint_rows(torch.tensor([CAPTION]), None), network.image_features(image()), 2
        )
        is None
    )


def test_a_caption_reads_its_region_alone(network, monkeypatch):
    read = masked_rows(network, monkeypatch, ({3}, {4}, {5}), region(0, 1))
    assert read[:4] == [{3}, {4}, {5}, set(range(48))]
    assert read[4:] == [{0, 1}] * len(CAPTION)
    monkeypatch.undo()
    some = joint_states(network)
    other = joint_states(network, region_BF=region(0, 1))
    torch.testing.assert_close(other[0], some[0])
    torch.testing.assert_close(other[1], some[1])
    assert not torch.allclose(other[2], some[2], atol=1e-2)


def test_a_mask_limits_what_an_object_becomes(network):
    """What lies outside of all masks of an object moves it not, but by the masks themselves."""
    features = network.image_features(image())
    rows = QueryRows(network.latents[None, :1], network.latent_places[:1], 1, 1)
    scale = 2
    inside_F = network._visible_cells(rows, features, scale)[0, 0, 0]
    assert 0 < int(inside_F.sum()) < 48
    layer = network.layers[scale]
    moved = features.memories[scale].clone()
    moved[..., ~inside_F, :] *= -3.0
    sees = network._visible_cells(rows, features, scale)
    some = layer(rows, features.memories[scale], sees, None)[0]
    torch.testing.assert_close(layer(rows, moved, sees, None)[0], some)
    assert not torch.allclose(layer(rows, moved, None, None)[0], some, atol=1e-2)


def test_words_names_and_logits_share_one_table(network):
    moved = network_of()
    moved.words[5] += 2.0
    state_W = torch.randn(16, generator=torch.Generator().manual_seed(1))
    apart_V = moved.word_logits(state_W) - network.word_logits(state_W)
    assert apart_V.nonzero().flatten().tolist() == [5]
    for text, changes in (((5,), True), ((6,), False)):
        one, other = (n.text_vectors(*padded_tokens([text])) for n in (network, moved))
        assert torch.allclose(one, other, atol=1e-3) is not changes


def test_names_are_any_texts_and_nothing_is_one_of_them(network):
    vector_PH = image()[0]
    states = network.read_image(vector_PH, None).object_1QW
    names = ((4,), (5, 6), (7, 8, 9))
    vectors = network.text_vectors(*padded_tokens(names))
    # A text is what it is beside longer ones.
    alone = network.text_vectors(*padded_tokens(names[:1]))
    torch.testing.assert_close(vectors[:1], alone)
    logit_QC = network.name_logits(states, vectors)[0]
    like_QC = network.meaning_vectors(states)[0] @ vectors.T
    torch.testing.assert_close(logit_QC[:, :3], like_QC * network.sharpness.exp())
    assert logit_QC.shape == (3, 4)
    found = find_named_objects(network, vector_PH, names)
    best = logit_QC.argmax(1).tolist()
    assert sorted(one.name for one in found) == sorted(name for name in best if name < 3) != []
    assert [one.logp for one in found] == sorted((one.logp for one in found), reverse=True)
    assert all((one.logit_HW > 0).any() and one.logit_HW.shape == (6, 8) for one in found)
    # Where every query is nothing, nothing is found.
    blind = network_of()
    blind.nothing[:] = blind.meaning_vectors(states)[0].sum(0)
    blind.sharpness += 3.0
    assert len(find_named_objects(blind, vector_PH, names)) < len(found)


def test_a_phrase_is_read_by_a_copy_of_the_objects(network):
    features = network.image_features(image())
    one, other = (
        network.read_phrase(features, *padded_tokens([text])) for text in ((4, 5), (9, 8))
    )
    assert not torch.allclose(one, other, atol=1e-2)
    # Words that only fill up a batch are not read.
    both = network.image_features(image().expand(2, -1, -1))
    beside = network.read_phrase(both, *padded_tokens([(4, 5), (4, 5, 6, 7)]))
    torch.testing.assert_close(beside[:1], one, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(beside[1:], one, atol=1e-2)
    # The query that is most like the phrase gives the mask.
    found = find_phrase(network, image()[0], (4, 5))
    like_Q = network.meaning_vectors(one)[0] @ network.text_vectors(*padded_tokens([(4, 5)]))[0]
    mask_QF = network.mask_logits(one, features)[0]
    torch.testing.assert_close(found.logit_HW.flatten(), mask_QF[int(like_Q.argmax())])

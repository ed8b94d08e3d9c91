"""A query decoder is trained: which query learns which thing, what each loss is of, and what was trained is what decodes."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from polydec import Image, generate, load
from polydec.base.errors import RequestError
from polydec.lab.train.scenes import ScenePart, caption_of, part_pixels
from polydec.lab.train.specs.vision import VisionSpec
from polydec.lab.train.specs.x_decoder import XDecoderSpec, x_decoder_training_summary
from polydec.lab.train.stamp import scene_model_sizes, scene_model_words
from polydec.lab.train.vision import TrainableLlava, train_vision
from polydec.lab.train.x_decoder import (
    CELL,
    assign_objects,
    cells_of_part,
    draw_query_example,
    measure_queries,
    objects_of_things,
    pack_queries,
    query_decoder_loss,
    thing_names,
    token_ids,
    train_x_decoder,
)
from polydec.models.learned.kinds import query_decoder
from polydec.models.learned.kinds.query_decoder import random_tensors
from polydec.models.nets.query_decoder import QueryDecoderNetwork, QuerySizes
from polydec.models.sessions import sources
from polydec.models.text.picture_view import DrawnPicture

TINY = {"steps": 2, "rows": 4, "width": 32, "layers": 1, "tower_width": 32, "tower_layers": 1}
SMALL = {"steps": 2, "rows": 3, "width": 16, "layers": 3, "objects": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.set_num_threads(1)
    return tmp_path_factory.mktemp("x-decoder")


@pytest.fixture(scope="module")
def seer(folder):
    train_vision(VisionSpec(str(folder / "seer"), **TINY))
    return str(folder / "seer")


@pytest.fixture(scope="module")
def llava(seer):
    source = sources.open_source(seer)
    words = scene_model_words(source, seer)
    network = TrainableLlava(*scene_model_sizes(source.config, "x", 0, len(words)))
    network.read_published(source.weights)
    return network, {word: at for at, word in enumerate(words)}


def batch_of(llava, count=4, seed=3, unseen=False):
    rng = np.random.default_rng(seed)
    return pack_queries([draw_query_example(rng, unseen=unseen) for _ in range(count)], *llava)


def network_of(llava, spread=2.0):
    sizes = QuerySizes(len(llava[1]), 32, 6, 6, 16, 4, 3, 4, 50, 1)
    network = QueryDecoderNetwork(sizes)
    network.load_state_dict(random_tensors(sizes, 1, spread))
    return network


def test_things_are_given_to_queries_at_the_least_cost():
    g = torch.Generator().manual_seed(1)
    for things in (1, 2, 4):
        cost_QN = torch.rand(5, things, generator=g)
        total = {
            way: sum(float(cost_QN[q, n]) for n, q in enumerate(way))
            for way in itertools.permutations(range(5), things)
        }
        assert tuple(assign_objects(cost_QN)) == min(total, key=total.get)


def test_things_go_to_the_queries_whose_names_and_masks_fit(llava):
    batch = batch_of(llava, 6)
    spec = XDecoderSpec("x")
    count = len(thing_names())
    logit_BQC = torch.zeros(6, 4, count + 1)
    logit_BQF = torch.full((6, 4, 144), -9.0)
    for b, (names, mask_NF) in enumerate(zip(batch.names, batch.masks, strict=True)):
        for n, name in enumerate(names):
            logit_BQC[b, 3 - n, name] = 9.0
            logit_BQF[b, 3 - n] = 18 * mask_NF[n] - 9
    empty = torch.full_like(logit_BQF, -9.0)
    blank = torch.zeros_like(logit_BQC)
    for logits, masks in ((logit_BQC, empty), (blank, logit_BQF)):
        given = objects_of_things(logits.log_softmax(-1), masks, batch, spec)
        assert given == [[3 - n for n in range(len(names))] for names in batch.names]


def test_an_example_in_numbers(llava):
    _, ids = llava
    rng = np.random.default_rng(5)
    examples = [draw_query_example(rng, unseen=False) for _ in range(40)]
    batch = pack_queries(examples, *llava)
    whole = sum(x.about is None for x in examples)
    assert 10 < whole < 30
    for b, x in enumerate(examples):
        said = caption_of(x.scene) if x.about is None else x.about.full_description
        right = [token for token in batch.right_BT[b].tolist() if token >= 0]
        assert right == [*token_ids(said, ids), ids["<end>"]]
        # Each token tells the next one, behind the mark before a caption.
        assert batch.caption_BT[b, : len(right)].tolist() == [ids["<answer>"], *right[:-1]]
        assert bool(batch.region_BF[b].all()) is (x.about is None)
        assert batch.names[b] == tuple(
            thing_names().index(f"{part.colour} {part.thing}") for part in x.scene
        )
        part = x.scene[batch.referred[b]]
        assert {part.thing, part.place_words.split()[-1]} & set(x.phrase.split())
    assert len({len(x.phrase.split()) for x in examples}) > 2


def test_a_mask_has_cells_of_half_a_patch():
    part = ScenePart("square", "blue", 0, 1, 12, 2, 2)
    share = part_pixels(part).reshape(12, CELL, 12, CELL).mean((1, 3))
    assert cells_of_part(part).tolist() == (share >= 0.1).flatten().tolist()


def loss_of(network, llava, **more):
    spec = XDecoderSpec("x", **more)
    return query_decoder_loss(network, batch_of(llava), llava[1], spec)


def test_the_weighted_parts_of_the_loss(llava):
    """Captions, contrast and phrases by their own formulas; masks and names behind every layer."""
    network, batch = network_of(llava, 1.0), batch_of(llava)
    ids = llava[1]
    none = {"caption": 0.0, "contrast": 0.0, "refer": 0.0}
    with torch.no_grad():
        base = loss_of(network, llava, **none)
        features = network.image_features(batch.vector_BPH)
        rows = network.joint_rows(batch.caption_BT, batch.region_BF)
        states, _ = network.run_layers(rows, features)
        words = network.word_logits(states[-1][:, 5:]).flatten(0, 1)
        want = F.cross_entropy(words, batch.right_BT.flatten(), ignore_index=-1)
        got = loss_of(network, llava, **{**none, "caption": 2.0}) - base
        torch.testing.assert_close(got, 2 * want, atol=1e-4, rtol=1e-4)
        texts = network.text_vectors(*query_decoder.padded_tokens(batch.whole))
        alike_BB = network.meaning_vectors(states[-1][:, 4]) @ texts.T * network.sharpness.exp()
        both = [F.cross_entropy(x, torch.arange(4)) for x in (alike_BB, alike_BB.T)]
        got = loss_of(network, llava, **{**none, "contrast": 1.0}) - base
        torch.testing.assert_close(got, sum(both) / 2, atol=1e-4, rtol=1e-4)
        assert loss_of(network, llava, **{**none, "refer": 1.0}) > base + 0.1
        for name in ("cross_entropy", "dice", "naming"):
            assert loss_of(network, llava, **{**none, name: 3.0}) != base
        names = [token_ids(name, ids) for name in thing_names()]
        vectors = network.text_vectors(*query_decoder.padded_tokens(names))
        last = [state[:, :4] for state in states[1:]]
        logits = [network.name_logits(state, vectors) for state in last]
        masks = [network.mask_logits(state, features) for state in last]
        spec = XDecoderSpec("x", **none, cross_entropy=0.0, dice=0.0)
        given = objects_of_things(logits[-1].log_softmax(-1), masks[-1], batch, spec)
        nats = []
        for logit_BQC in logits:
            weights, sums = 0.0, 0.0
            for b, (queries, name) in enumerate(zip(given, batch.names, strict=True)):
                right = dict(zip(queries, name, strict=True))
                for q in range(4):
                    weight = 1.0 if q in right else 0.1
                    weights += weight
                    sums -= weight * logit_BQC[b, q].log_softmax(-1)[right.get(q, 84)]
            nats.append(sums / weights)
        got = loss_of(network, llava, **none, cross_entropy=0.0, dice=0.0)
        torch.testing.assert_close(got, sum(nats) / 3, atol=1e-4, rtol=1e-4)


def test_a_phrase_teaches_the_copys_query_of_its_thing(llava):
    network = network_of(llava, 1.0)
    none = {"caption": 0.0, "contrast": 0.0, "naming": 0.0, "cross_entropy": 0.0, "dice": 0.0}
    loss_of(network, llava, **none, refer=1.0).backward()
    # With masks left out, what remains are the phrase's words and how like them the queries are.
    assert float(network.text_map.weight.grad.abs().sum()) > 0
    assert float(network.name_map.weight.grad.abs().sum()) > 0
    assert network.mask_map[0].weight.grad is None or not network.mask_map[0].weight.grad.any()


def test_a_few_steps_lower_the_loss_of_a_batch(llava):
    network, batch = network_of(llava, 1.0), batch_of(llava)
    rule = torch.optim.AdamW(network.parameters(), 3e-3)
    losses = []
    for _ in range(12):
        loss = query_decoder_loss(network, batch, llava[1], XDecoderSpec("x"))
        rule.zero_grad()
        loss.backward()
        rule.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_what_was_trained_is_what_decodes(folder, seer, llava):
    spec = XDecoderSpec(str(folder / "m"), target=seer, **SMALL)
    result = train_x_decoder(spec)
    assert "captions right" in x_decoder_training_summary(result)
    assert 0 <= result["referred_overlap"] <= 1 and result["parameters"] > 0
    again = train_x_decoder(replace(spec, out=str(folder / "again")))
    assert again["loss"] == result["loss"]
    lm = load(seer, draft=None, dtype="float32", trained=[spec.out])
    decoder = lm.artefacts[0]
    assert len(decoder.names) == len(thing_names()) == 84 and decoder.sizes.objects == 4
    assert lm.encode("red circle", special=False) == decoder.names[0]
    example = draw_query_example(np.random.default_rng(9), unseen=True)
    batch = pack_queries([example], *llava)
    with torch.no_grad():
        want = query_decoder.find_phrase(
            decoder.query_network, batch.vector_BPH[0], batch.phrases[0]
        )
    source = Image(DrawnPicture(example.pixels).png_file)
    answer = generate(lm, "x", source=source, method="x-decoder", options={"refer": example.phrase})
    (mask,) = answer.image_masks
    torch.testing.assert_close(mask.logit_HW, want.logit_HW, atol=2e-3, rtol=2e-3)
    assert mask.logit_HW.shape == (12, 12) and mask.patch == CELL
    caption = generate(lm, "describe it", source=source, method="x-decoder", max_tokens=60)
    assert caption.token_ids and caption.finish_reason == "stop"


def test_figures_are_of_what_is_right(llava):
    """Where the right words, names and masks are put in the network's mouth, all of it is right."""
    network, batch = network_of(llava), batch_of(llava, 6, unseen=True)
    figures = measure_queries(network, batch, llava[1])
    assert set(figures) == {
        *("captions_right", "regions_right", "names_right", "named_overlap", "referred_overlap")
    }
    right_BTV = F.one_hot(batch.right_BT.clamp_min(0), len(llava[1])).float()
    logit_BQF = torch.full((6, 4, 144), -1.0)
    name_BQC = torch.zeros(6, 4, 85)
    name_BQC[..., 84] = 1.0
    for b, (names, mask_NF) in enumerate(zip(batch.names, batch.masks, strict=True)):
        logit_BQF[b, : len(names)] = 2 * mask_NF - 1
        name_BQC[b, range(len(names)), list(names)] = 2.0
    network.word_logits = lambda _: right_BTV
    network.mask_logits = lambda *_: logit_BQF
    network.name_logits = lambda *_: name_BQC
    figures = measure_queries(network, batch, llava[1])
    assert figures["captions_right"] == figures["regions_right"] == 1.0
    assert figures["names_right"] == figures["named_overlap"] == 1.0


def test_what_is_no_such_model_is_refused(folder):
    with pytest.raises(RequestError, match="which read images of 48 pixels in patches of 8"):
        train_x_decoder(XDecoderSpec(str(folder / "x"), target="zoo:tiny", steps=1))
    assert not (folder / "x").exists()
    with pytest.raises(RequestError, match="width is 18: it must be a multiple of 4"):
        XDecoderSpec("x", width=18)

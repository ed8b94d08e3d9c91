"""A model that answers in triplets is trained, saved and read back: what decodes is what was learned, boxes and masks too."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from polydec import AnyOf, Image, Sampling, generate, load
from polydec.base.errors import FileError, RequestError
from polydec.core.types import TokenVocabulary
from polydec.lab.train.ref_vlm import (
    ReferringLlava,
    box_overlaps,
    draw_triplet_example,
    generalised_box_loss,
    measure_triplets,
    reference_rows,
    train_ref_vlm,
    triplet_tokenizer,
    triplet_training_loss,
)
from polydec.lab.train.scene_masks import patch_mask
from polydec.lab.train.scene_triplets import (
    MARKS,
    WORDS,
    draw_triplet_questions,
    part_box,
    shown_answer,
)
from polydec.lab.train.scenes import ScenePart
from polydec.lab.train.specs.ref_vlm import RefVlmSpec
from polydec.lab.train.specs.vision import VisionSpec
from polydec.lab.train.stamp import (
    dice_loss,
    grown_tensors,
    scene_model_sizes,
    scene_model_words,
)
from polydec.lab.train.vision import (
    PATCH,
    TrainableLlava,
    example_pixels,
    pack_questions,
    train_vision,
)
from polydec.laws.constraints.triplets import read_triplets
from polydec.models.learned.kinds import unit_decoders
from polydec.models.learned.kinds.unit_decoders import UnitDecoders, UnitNetwork
from polydec.models.sessions import sources
from polydec.models.text.picture_view import DrawnPicture

TINY = {"steps": 2, "rows": 4, "width": 32, "layers": 1, "tower_width": 32, "tower_layers": 1}
GREEDY = Sampling(temperature=0.0)


@pytest.fixture(scope="module")
def seer(tmp_path_factory):
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("referring")
    train_vision(VisionSpec(str(folder / "seer"), **TINY))
    return str(folder / "seer")


@pytest.fixture(scope="module")
def trained(seer):
    spec = RefVlmSpec(f"{seer}-m", target=seer, steps=3, rows=2, inner=8)
    return spec, train_ref_vlm(spec)


@pytest.fixture(scope="module")
def lm(trained):
    out = trained[0].out
    return load(out, draft=None, dtype="float32", trained=[f"{out}/units"])


def made_network(spec):
    """The network before its first step, and ids by word."""
    source = sources.open_source(spec.target)
    words = (*scene_model_words(source, spec.target), *MARKS, *WORDS)
    sizes, shape = scene_model_sizes(source.config, spec.out, spec.seed, len(words))
    network = ReferringLlava(TrainableLlava(sizes, shape), shape.width, spec)
    network.llava.read_published(grown_tensors(source, len(words), spec.seed))
    return network, {word: at for at, word in enumerate(words)}


def examples(count, seed=3):
    rng = np.random.default_rng(seed)
    return [draw_triplet_example(rng, unseen=False) for _ in range(count)]


def image_of(one):
    return Image(DrawnPicture(one.example.pixels).png_file)


def answered(lm, asked, said, image=None, **more):
    """The answer that reads so, by method ref-vlm."""
    given = {} if image is None else {"source": image}
    fields = {"method": "ref-vlm", "options": {"depth": 64}, "sampling": GREEDY, **more}
    return generate(lm, asked, constraint=AnyOf((said,)), max_tokens=200, **given, **fields)


def test_questions_have_the_triplets_of_their_scene():
    red = ScenePart("7", "red", 0, 2, 14, 1, 1)
    also = ScenePart("square", "red", 2, 0, 12, 2, 2)
    rng = np.random.default_rng(2)
    asked = {
        one.question.asked: one
        for _ in range(60)
        for one in draw_triplet_questions((red, also), rng)
    }
    seven = "- Name: red 7 Unit: <Unit>box</Unit> Num: 1\n"
    head = "<Task>\nUnit decode (True). Class name, target unit and number:\n"
    group = "<Phrase> red 7</Phrase>(<Unit>box</Unit>[0]<REF>)"
    for asks, said, targets in (
        ("box the 7", f"{head}{seven}</Task>{group} at top right", [("box", red)]),
        ("box what is at top right", f"{head}{seven}</Task>{group} at top right", [("box", red)]),
        (
            "mask the red things",
            f"{head}- Name: red things Unit: <Unit>mask</Unit> Num: 2\n</Task> two"
            "<Phrase> red things</Phrase>(<Unit>mask</Unit>[0]<REF>[1]<REF>)",
            [("mask", red), ("mask", also)],
        ),
        (
            "box all things",
            f"{head}{seven}- Name: red square Unit: <Unit>box</Unit> Num: 1\n</Task>{group} at top right and"
            "<Phrase> red square</Phrase>(<Unit>box</Unit>[0]<REF>) at bottom left",
            [("box", red), ("box", also)],
        ),
        ("what colour is the 7", "<Task>\nUnit decode (False).\n</Task> red", []),
        ("how many things are green", "<Task>\nUnit decode (False).\n</Task> no", []),
    ):
        assert shown_answer(asked[asks].question.answer) == said
        assert list(asked[asks].reference_targets) == targets
        assert sum(one.count for one in read_triplets(said)) == len(targets)
    assert part_box(red) == (33 / 48, 1 / 48, 47 / 48, 15 / 48)


def test_each_word_is_a_token_and_its_bytes_are_those_of_the_format(trained, lm):
    _, ids = made_network(trained[0])
    text = lm.checkpoint.text
    for question in (q for one in examples(4) for q in one.questions):
        words = question.question.answer.split()
        written = b"".join(text.pieces[ids[word]] for word in words)
        assert written.decode() == shown_answer(question.question.answer)
        # A question reads as it was learned.
        asked = question.question.asked
        assert lm.encode(asked) == tuple(ids[word] for word in asked.split())
    assert triplet_tokenizer(tuple(ids)).encode("Box, the 7!").ids == [
        ids[x] for x in ("box", "the", "7")
    ]


def test_what_was_trained_is_what_decodes(trained, lm):
    """Of each reference of an answer, behind the right words: boxes and masks are those of training's rows."""
    network, ids = made_network(trained[0])
    network.llava.read_published(sources.open_source(trained[0].out).weights)
    network.units = lm.artefacts[0].network
    chosen = examples(1, seed=5)
    pictures = [one.example for one in chosen]
    rows = pack_questions(pictures, ids)
    with torch.no_grad():
        state_BTH, image_BPH = network(example_pixels(pictures), rows)
        state_RH = state_BTH[rows.token_BT == ids["<REF>"]]
        wanted = reference_rows(chosen)
        image_RPH = image_BPH[wanted.picture_R]
        box_R4 = network.units.decode_boxes(state_RH, image_RPH) * 48
        logit_RN = network.units.decode_masks(state_RH, image_RPH)
    at = 0
    for one in chosen:
        for question in one.questions:
            said = shown_answer(question.question.answer)
            answer = answered(lm, question.question.asked, said, image_of(one))
            assert answer.text == said
            masks = {mask.place: mask for mask in answer.image_masks}
            assert len(answer.reference_states) == len(question.reference_targets)
            for reference in answer.reference_states:
                torch.testing.assert_close(reference.state_H, state_RH[at], atol=2e-3, rtol=2e-3)
                if reference.unit == "box":
                    torch.testing.assert_close(
                        torch.tensor(reference.box), box_R4[at], atol=0.05, rtol=1e-3
                    )
                    assert reference.place not in masks
                else:
                    got_N = masks[reference.place].logit_HW.flatten()
                    torch.testing.assert_close(got_N, logit_RN[at], atol=2e-3, rtol=2e-3)
                    assert reference.box is None and masks[reference.place].patch == PATCH
                at += 1
    assert at == len(state_RH) and bool(wanted.boxed_R.any()) and not bool(wanted.boxed_R.all())


@pytest.fixture(scope="module")
def several():
    """A question for boxes of several things, its answer and its picture."""
    return next(
        (question.question.asked, shown_answer(question.question.answer), image_of(one))
        for one in examples(40)
        for question in one.questions
        if [unit for unit, _ in question.reference_targets].count("box") > 1
    )


def test_all_boxes_of_an_answer_are_decoded_at_once(lm, several, monkeypatch):
    asked, said, image = several
    batches = []
    decode = UnitNetwork.decode_boxes
    monkeypatch.setattr(
        UnitNetwork, "decode_boxes", lambda *given: batches.append(given) or decode(*given)
    )
    answer = answered(lm, asked, said, image)
    assert len(batches) == 1 and len(batches[0][1]) == len(answer.reference_states) > 1
    told = answer.to_json()["references"]
    assert [one["box"] for one in told] == [list(one.box) for one in answer.reference_states]


def test_without_an_image_or_decoders_there_are_states_alone(trained, lm, several):
    asked, said, image = several
    alone = answered(lm, asked, said)
    bare = answered(type(lm)(lm.checkpoint, None, ()), asked, said, image)
    for answer in (alone, bare):
        assert len(answer.reference_states) > 1 and answer.picture is None
        assert all(one.box is None for one in answer.reference_states)
        assert "box" not in answer.to_json()["references"][0]


def test_an_image_of_other_patches_is_refused_before_any_pass(lm, several, monkeypatch):
    asked, said, image = several
    one = lm.artefacts[0]
    other = UnitDecoders(one.vocab, 5, 5, PATCH, UnitNetwork(32, 25, 8))
    odd = type(lm)(lm.checkpoint, None, (other,))
    monkeypatch.setattr(lm.network, "forward", lambda _: pytest.fail("a pass ran"))
    with pytest.raises(RequestError, match=r"the last image has 36 vectors: .* was trained for 25"):
        answered(odd, asked, said, image)


def test_each_unit_asks_the_image_by_a_projector_of_its_own():
    network = UnitNetwork(6, 4, 3, seed=1)
    rng = torch.Generator().manual_seed(1)
    state_RH = torch.randn(2, 6, generator=rng)
    image_RNH = torch.randn(2, 4, 6, generator=rng)
    for decode, unit in ((network.decode_boxes, "box"), (network.decode_masks, "mask")):
        network.zero_grad()
        got = decode(state_RH, image_RNH)
        got.square().sum().backward()
        # Its own weights, all of them, and no others.
        for name, weight in network.named_parameters():
            assert (weight.grad is not None) == name.startswith(unit), name
        # Both the state and the image tell.
        assert not torch.allclose(got, decode(state_RH + 1, image_RNH), atol=1e-3)
        assert not torch.allclose(got, decode(state_RH, image_RNH.flip(1) * 2), atol=1e-3)
    query_RI, key_RNI = network.mask_query(state_RH), network.mask_key(image_RNH)
    want_RN = torch.einsum("ri,rni->rn", query_RI, key_RNI) * 3**-0.5 - 1
    torch.testing.assert_close(network.decode_masks(state_RH, image_RNH), want_RN)
    box_R4 = network.decode_boxes(state_RH * 30, image_RNH * 30)
    assert (box_R4[:, :2] <= box_R4[:, 2:]).all() and ((box_R4 >= 0) & (box_R4 <= 1)).all()


def test_overlaps_of_boxes():
    made = torch.tensor([[0.0, 0.0, 0.5, 0.5], [0.0, 0.0, 0.2, 0.2], [0.1, 0.1, 0.9, 0.3]])
    right = torch.tensor([[0.25, 0.0, 0.75, 0.5], [0.8, 0.8, 1.0, 1.0], [0.1, 0.1, 0.9, 0.3]])
    share, general = box_overlaps(made, right)
    torch.testing.assert_close(share, torch.tensor([1 / 3, 0.0, 1.0]))
    # The common frame of the first two has nothing that neither covers; that of the second is the whole.
    torch.testing.assert_close(general, torch.tensor([1 / 3, -0.92, 1.0]))
    assert float(generalised_box_loss(made, right)) == pytest.approx((2 / 3 + 1.92 + 0) / 3)


def test_the_loss_is_that_of_texts_boxes_and_masks(trained):
    spec = trained[0]
    network, ids = made_network(spec)
    chosen = examples(2)
    none = {"distance": 1e-9, "overlap": 0.0, "cross_entropy": 1e-9, "dice": 0.0}
    with torch.no_grad():

        def loss(**weights):
            weighted = replace(spec, **{**none, **weights})
            return float(triplet_training_loss(network, chosen, ids, weighted))

        pictures = [one.example for one in chosen]
        rows = pack_questions(pictures, ids)
        state_BTH, image_BPH = network(example_pixels(pictures), rows)
        state_RH = state_BTH[rows.token_BT == ids["<REF>"]]
        right = reference_rows(chosen)
        boxed_R, image_RPH = right.boxed_R, image_BPH[right.picture_R]
        box_R4 = network.units.decode_boxes(state_RH, image_RPH)[boxed_R]
        logit_RN = network.units.decode_masks(state_RH, image_RPH)[~boxed_R]
        mask_RN = right.mask_RN[~boxed_R]
        sure_RN = torch.where(mask_RN > 0, logit_RN, -logit_RN).sigmoid()
        for name, want in (
            ("distance", float((box_R4 - right.box_R4[boxed_R]).abs().mean())),
            ("overlap", float(generalised_box_loss(box_R4, right.box_R4[boxed_R]))),
            ("cross_entropy", -float(sure_RN.log().mean())),
            ("dice", float(dice_loss(logit_RN, mask_RN))),
        ):
            assert loss(**{name: 2.0}) - loss() == pytest.approx(2 * want, rel=1e-3), name
    # What is right of a reference is its own thing's.
    parts = [part for one in chosen for q in one.questions for _, part in q.reference_targets]
    for box_4, mask_N, part in zip(right.box_R4, right.mask_RN, parts, strict=True):
        assert box_4.tolist() == pytest.approx(part_box(part))
        assert mask_N.tolist() == patch_mask((part,), PATCH).flatten().tolist()


def test_triplets_are_learned_and_measured(trained, seer):
    """Some steps on one picture: texts, boxes and masks come out, and the measure says so."""
    network, ids = made_network(trained[0])
    chosen = examples(1, seed=5)
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-2)
    before = measure_triplets(network, chosen, ids)[1]
    for _ in range(90):
        optimiser.zero_grad()
        triplet_training_loss(network, chosen, ids, trained[0]).backward()
        optimiser.step()
    right, overlap = measure_triplets(network, chosen, ids)
    assert set(right) == {"thing", "place", "colour", "all", "nothing"}
    assert np.mean(list(right.values())) >= 0.6
    assert set(overlap) == set(before) == {"box", "mask"}
    assert all(overlap[unit] > before[unit] + 0.2 for unit in overlap)


def test_decoders_are_saved_and_read_again(tmp_path, lm):
    made = UnitDecoders(TokenVocabulary(320, frozenset(), "x"), 2, 7, 4, UnitNetwork(6, 14, 3))
    unit_decoders.save(tmp_path, made, {"held_out_overlap": {}})
    again = unit_decoders.load(tmp_path)
    assert (again.vocab, again.rows, again.columns, again.patch) == (made.vocab, 2, 7, 4)
    for name, tensor in made.network.state_dict().items():
        assert torch.equal(again.network.state_dict()[name], tensor), name
    law = lm.checkpoint.lm
    with pytest.raises(RequestError, match="vocabular"):
        made.check_fit(law, None)
    with pytest.raises(FileError, match="states of width 6"):
        replace(made, vocab=law.vocab).check_fit(law, None)


def test_what_is_no_such_model_or_teaches_nothing_is_refused(trained, seer):
    with pytest.raises(RequestError, match="which read images of 48 pixels in patches of 8"):
        train_ref_vlm(RefVlmSpec(f"{seer}-x", target="zoo:tiny", steps=1))
    with pytest.raises(RequestError, match="it answers in triplets already"):
        train_ref_vlm(RefVlmSpec(f"{seer}-x", target=trained[0].out, steps=1))
    with pytest.raises(RequestError, match="distance and overlap are both 0"):
        RefVlmSpec("x", distance=0, overlap=0)
    with pytest.raises(RequestError, match="cross_entropy and dice are both 0"):
        RefVlmSpec("x", cross_entropy=0, dice=0)

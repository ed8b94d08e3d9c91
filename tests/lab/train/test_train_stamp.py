"""A model that asks for masks is trained, saved and read back: what decodes is what was learned; what tokens of masks see."""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image as Pictures

from polydec import Ask, Image, Sampling, generate, load
from polydec.base.errors import RequestError
from polydec.core.scheduler import run_coroutines
from polydec.lab.train import stamp
from polydec.lab.train.scene_masks import (
    ASKS,
    MARK,
    draw_mask_questions,
    mask_words,
    patch_mask,
)
from polydec.lab.train.scenes import ScenePart, draw_scene, part_pixels
from polydec.lab.train.specs.stamp import StampSpec
from polydec.lab.train.specs.vision import VisionSpec
from polydec.lab.train.stamp import (
    MaskingLlava,
    dice_loss,
    draw_mask_example,
    grown_tensors,
    mask_overlaps,
    mask_training_loss,
    measure_masks,
    pack_masks,
    scene_model_sizes,
    scene_model_words,
    train_stamp,
)
from polydec.lab.train.vision import PATCH, PATCHES, TrainableLlava, normalised_pixels, train_vision
from polydec.models.learned.kinds import mask_head
from polydec.models.sessions import sources
from polydec.request.ask import plan_request

TINY = {"steps": 2, "rows": 4, "width": 32, "layers": 1, "tower_width": 32, "tower_layers": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.set_num_threads(1)
    return tmp_path_factory.mktemp("stamp")


@pytest.fixture(scope="module")
def seer(folder):
    train_vision(VisionSpec(str(folder / "seer"), **TINY))
    return str(folder / "seer")


def spec_of(folder, seer, name="m", **more):
    return StampSpec(str(folder / name), **{"target": seer, "steps": 3, "rows": 2, **more})


@pytest.fixture(scope="module")
def trained(folder, seer):
    spec = spec_of(folder, seer)
    return spec, train_stamp(spec)


def file_of(pixels):
    to = io.BytesIO()
    Pictures.fromarray(pixels).save(to, "PNG")
    return to.getvalue()


def made_network(spec):
    """The network before its first step, and ids by word."""
    source = sources.open_source(spec.target)
    words = (*scene_model_words(source, spec.target), *mask_words())
    sizes, shape = scene_model_sizes(source.config, spec.out, spec.seed, len(words))
    network = MaskingLlava(TrainableLlava(sizes, shape), shape.width, spec.seed)
    network.llava.read_published(grown_tensors(source, len(words), spec.seed))
    return network, {word: at for at, word in enumerate(words)}


def examples(count, seed=3):
    rng = np.random.default_rng(seed)
    return [draw_mask_example(rng, unseen=False) for _ in range(count)]


def test_questions_have_the_masks_of_their_scene():
    red = ScenePart("7", "red", 0, 2, 14, 1, 1)
    green = ScenePart("circle", "green", 1, 1, 11, 2, 2)
    also = ScenePart("square", "red", 2, 0, 12, 2, 2)
    scene = (red, green, also)
    rng = np.random.default_rng(2)
    asked = {q.asked: q for _ in range(60) for q in draw_mask_questions(scene, rng)}
    want = {
        "segment the 7": ("a red 7 <seg>", ((red,),)),
        "segment the circle": ("a green circle <seg>", ((green,),)),
        "segment what is at bottom left": ("a red square <seg>", ((also,),)),
        "segment the red things": ("two red things <seg>", ((red, also),)),
        "segment the green things": ("one green things <seg>", ((green,),)),
        "segment all things": (
            "a red 7 at top right <seg> and a green circle at middle centre <seg> and a red square at bottom left <seg>",
            ((red,), (green,), (also,)),
        ),
    }
    got = {name: (asked[name].answer, asked[name].masks) for name in want}
    assert got == want
    assert all(q.answer.count(ASKS) == len(q.masks) for q in asked.values())


def test_a_patch_belongs_to_what_covers_a_tenth_of_it():
    square = ScenePart("square", "blue", 0, 0, 14, 1, 1)
    mask = patch_mask((square,), PATCH)
    share = part_pixels(square).reshape(6, 8, 6, 8).mean((1, 3))
    assert mask.tolist() == (share >= 0.1).tolist() and mask.sum() == 4
    # Even strokes of one pixel or two have patches.
    rng = np.random.default_rng(1)
    for _ in range(200):
        assert all(patch_mask((part,), PATCH).any() for part in draw_scene(rng, unseen=False))
    both = (square, ScenePart("1", "red", 2, 2, 12, 2, 2))
    assert (
        patch_mask(both, PATCH) == patch_mask(both[:1], PATCH) | patch_mask(both[1:], PATCH)
    ).all()


def test_a_written_answer_has_a_word_a_patch():
    question = next(q for x in examples(9) for q in x.questions if len(q.masks) == 2)
    words = question.written_answer(PATCH).split()
    first = words.index(ASKS)
    cells = patch_mask(question.masks[0], PATCH).flatten()
    assert words[first + 1 : first + 37] == ["yes" if cell else "no" for cell in cells]
    assert words[first + 37] == "and"
    assert len(words) == len(question.answer.split()) + 2 * PATCHES
    assert [w for w in words if w not in ("yes", "no")] == question.answer.split()


@pytest.mark.parametrize("causal", [False, True])
def test_what_was_trained_is_what_decodes(folder, seer, causal):
    """Of each mask of an answer, behind the right words: the session's slots have the logits of training's rows."""
    spec = spec_of(folder, seer, f"m{causal}", causal=causal, steps=2)
    train_stamp(spec)
    lm = load(spec.out, draft=None, dtype="float32", trained=[f"{spec.out}/head"])
    network, ids = made_network(spec)
    network.llava.read_published(sources.open_source(spec.out).weights)
    head = lm.artefacts[0]
    with torch.no_grad():
        network.head.weight[0] = head.weight_H
        network.head.bias.fill_(head.bias)
        chosen = examples(3)
        rows = pack_masks(chosen, ids, causal=causal, written=False)
        state_BTH = network(normalised_pixels([x.pixels for x in chosen]), rows)
        want = network.mask_logits(state_BTH, rows)
    assert (head.asks, head.mark) == (ids[ASKS], ids[MARK])
    at = 0
    for example in chosen:
        for question in example.questions:
            image = Image(file_of(example.pixels))
            plan = plan_request(lm, Ask(question.asked, source=image, method="plain"))
            target = plan.encoded.vectors.prompted_law(lm.checkpoint.lm)
            prompt = plan.request.prompt
            words = question.answer.split()
            for place in (k for k, word in enumerate(words) if word == ASKS):
                said = [ids[word] for word in words[: place + 1]]
                session = target.open_session(prompt)
                session.commit_tokens((prompt[-1], *said))
                image_NH = head.last_image(session.text_vectors())
                vectors = head.slot_vectors(session.embed_tokens((head.mark,))[0], image_NH)
                states = run_coroutines([session.read_slots(vectors, (6, 6), causal)])[0]
                got = head.patch_logits(session.normed_states(states)).flatten()
                torch.testing.assert_close(got, want[at], atol=2e-3, rtol=2e-3)
                session.close()
                at += 1
    assert at == len(want)


def test_it_answers_with_masks_of_the_image(trained):
    spec, result = trained
    assert set(result["held_out_right"]) == {"thing", "place", "colour", "all"}
    assert set(result["held_out_overlap"]) == set(result["held_out_right"])
    lm = load(spec.out, draft=None, trained=[f"{spec.out}/head"])
    pixels = examples(1)[0].pixels
    answer = generate(
        lm,
        "segment the 7",
        source=Image(file_of(pixels)),
        method="stamp",
        max_tokens=12,
        sampling=Sampling(temperature=0.0),
    )
    # The image's 36 vectors, three words, and the mark before the answer.
    assert answer.usage["prompt_tokens"] == 36 + 3 + 1
    assert [mask.place for mask in answer.image_masks] == [
        at for at, token in enumerate(answer.token_ids) if token == lm.artefacts[0].asks
    ]
    assert lm.encode("a red 7 <seg>", special=False)[-1] == lm.artefacts[0].asks
    # What asks is shown in a text, other marks are not.
    assert lm.checkpoint.text.decode(lm.encode("a 7 <seg> <end>", special=False)) == "a 7 <seg>"


def network_rows(trained, **more):
    network, ids = made_network(trained[0])
    chosen = examples(2)
    return network, chosen, pack_masks(chosen, ids, **{"causal": False, "written": False, **more})


def test_tokens_of_a_mask_see_the_text_up_to_the_one_that_asks_and_one_another(trained):
    _, chosen, rows = network_rows(trained)
    for b in range(2):
        seen_TT = rows.seen_BTT[b, PATCHES:, PATCHES:]
        assert rows.seen_BTT[b, PATCHES:, :PATCHES].all()
        assert not rows.seen_BTT[b, :PATCHES, PATCHES:].any()
        for at in range(len(rows.token_BT[b])):
            if rows.question_BT[b, at] < 0:
                continue
            mine = rows.question_BT[b] == rows.question_BT[b, at]
            places_T = torch.arange(len(mine))
            text = mine & (rows.mask_BT[b] < 0)
            mask = int(rows.mask_BT[b, at])
            if mask < 0:
                want = text & (places_T <= at)
            else:
                # Which one asks: as many before it as masks of the question.
                first = int(rows.mask_BT[b][mine & (rows.mask_BT[b] >= 0)].min())
                asks = text & (rows.token_BT[b] == rows.token_BT[b, rows.until_BT[b, at]])
                asking = places_T[asks][mask - first]
                assert rows.until_BT[b, at] == asking
                want = (text & (places_T <= asking)) | (rows.mask_BT[b] == mask)
                cell = rows.cell_BT[b, at]
                assert rows.position_BT[b, at] == rows.position_BT[b, asking] + 1 + cell
            assert seen_TT[at].equal(want), at
    assert len(rows.right_MN) == sum(len(q.masks) for x in chosen for q in x.questions)


def test_causal_tokens_of_a_mask_see_none_behind_them(trained):
    _, _, both = network_rows(trained)
    _, _, rows = network_rows(trained, causal=True)
    of_masks_BTT = (rows.mask_BT[:, :, None] == rows.mask_BT[:, None]) & (rows.mask_BT >= 0)[
        :, None
    ]
    inner = rows.seen_BTT[:, PATCHES:, PATCHES:]
    assert inner.equal(both.seen_BTT[:, PATCHES:, PATCHES:] & (inner | ~of_masks_BTT))
    assert not inner.triu(1)[of_masks_BTT].any() and both.seen_BTT[:, 36:, 36:].triu(1).any()


def test_text_is_not_moved_by_masks(trained):
    network, chosen, rows = network_rows(trained)
    pixels = normalised_pixels([x.pixels for x in chosen])
    moved = replace(rows, token_BT=rows.token_BT.where(rows.mask_BT < 0, torch.tensor(7)))
    with torch.no_grad():
        one, other = (network(pixels, r) for r in (rows, moved))
    text_BT = rows.mask_BT < 0
    torch.testing.assert_close(one[text_BT], other[text_BT])
    assert not torch.allclose(one[~text_BT], other[~text_BT], atol=1e-3)


def test_the_loss_is_the_texts_and_both_of_the_masks(trained):
    network, chosen, rows = network_rows(trained)
    spec = trained[0]
    with torch.no_grad():
        network.head.weight.normal_(generator=torch.Generator().manual_seed(1))

        def loss(**weights):
            return float(mask_training_loss(network, chosen, rows, replace(spec, **weights)))

        state_BTH = network(normalised_pixels([x.pixels for x in chosen]), rows)
        logit_MN = network.mask_logits(state_BTH, rows)
        chance_MN = logit_MN.sigmoid()
        text = loss(cross_entropy=1e-9, dice=0.0)
        p_MN = torch.where(rows.right_MN > 0, chance_MN, 1 - chance_MN)
        assert loss(cross_entropy=2.0, dice=0.0) == pytest.approx(
            text - 2 * float(p_MN.log().mean()), rel=1e-4
        )
        assert loss(cross_entropy=0.0, dice=1.0) == pytest.approx(
            text + float(dice_loss(logit_MN, rows.right_MN)), rel=1e-4
        )
    # Twice what both cover and 1, over what each covers and 1.
    halves = torch.tensor([[0.0, 0.0, 30.0, -30.0]])
    right = torch.tensor([[1.0, 0.0, 1.0, 0.0]])
    assert float(dice_loss(halves, right)) == pytest.approx(1 - (2 * 1.5 + 1) / (2 + 2 + 1))


def test_masks_are_learned_and_measured(trained):
    """A few steps on one question: its mask comes out, and the measure says so."""
    network, ids = made_network(trained[0])
    spec = trained[0]
    chosen = [replace(x, questions=x.questions[:1]) for x in examples(1)]
    rows = pack_masks(chosen, ids, causal=False, written=False)
    optimiser = torch.optim.Adam(network.parameters(), lr=3e-3)
    before = measure_masks(network, chosen, ids, spec)[1]["thing"]
    for _ in range(150):
        optimiser.zero_grad()
        mask_training_loss(network, chosen, rows, spec).backward()
        optimiser.step()
    right, overlap = measure_masks(network, chosen, ids, spec)
    assert overlap["thing"] > before + 0.4 and right == {"thing": 1.0}


def test_the_overlap_is_intersection_over_union():
    made = torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]]).bool()
    right = torch.tensor([[1, 0, 1, 0], [0, 1, 0, 0], [1, 1, 1, 1]]).bool()
    assert mask_overlaps(made, right) == pytest.approx([1 / 3, 0.0, 1.0])


def test_written_masks_are_words_of_the_answer(folder, seer):
    spec = spec_of(folder, seer, "written", written=True, steps=2)
    result = train_stamp(spec)
    assert result["held_out_overlap"] == {} and not (folder / "written" / "head").exists()
    _, chosen, rows = network_rows((spec, result), written=True)
    assert not (rows.mask_BT >= 0).any() and len(rows.right_MN) == 0
    words = sum(len(q.written_answer(PATCH).split()) + 1 for x in chosen for q in x.questions)
    assert int((rows.right_BT >= 0).sum()) == words


def test_new_words_stand_behind_the_others_and_begin_as_their_mean(trained, seer):
    source = sources.open_source(seer)
    words = (*scene_model_words(source, seer), *mask_words())
    grown = grown_tensors(source, len(words), 0)[stamp.EMBEDDINGS]
    own = source.weights[stamp.EMBEDDINGS].float()
    assert grown[: len(own)].equal(own) and len(grown) == len(words)
    new = grown[len(own) :]
    assert float((new - own.mean(0)).abs().max()) < own.std() and len(new.unique(dim=0)) == len(new)


def test_the_same_seed_is_the_same_run(trained, folder, seer):
    again = train_stamp(spec_of(folder, seer, "again"))
    assert again["held_out_overlap"] == trained[1]["held_out_overlap"]
    kept = [mask_head.load(folder / name / "head").weight_H for name in ("m", "again")]
    assert kept[0].equal(kept[1])


def test_what_is_no_such_model_is_refused(trained, folder):
    with pytest.raises(RequestError, match="which read images of 48 pixels in patches of 8"):
        train_stamp(StampSpec(str(folder / "x"), target="zoo:tiny", steps=1))
    with pytest.raises(RequestError, match="it asks for masks already"):
        train_stamp(StampSpec(str(folder / "x"), target=trained[0].out, steps=1))
    assert not (folder / "x").exists()
    with pytest.raises(RequestError, match="causal and written are both set"):
        StampSpec("x", causal=True, written=True)
    with pytest.raises(RequestError, match="cross_entropy and dice are both 0"):
        StampSpec("x", cross_entropy=0, dice=0)
    StampSpec("x", cross_entropy=0, dice=0, written=True)

"""A small vision-language model is trained, saved and read back: what was learned is what decodes, here and in transformers."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image as Pictures
from safetensors.torch import load_file, save_file

import micro
from polydec import Ask, Image, Sampling, generate, load
from polydec.base.errors import RequestError
from polydec.lab.train.data import held_out
from polydec.lab.train.network import LlamaShape
from polydec.lab.train.scenes import (
    CAPTION,
    CELL,
    COLOURS,
    SIDE,
    THINGS,
    VIEWS,
    ScenePart,
    SceneQuestion,
    behind_captions,
    caption_of,
    draw_questions,
    draw_scene,
    draw_scene_pixels,
    scene_words,
    thing_mask,
    top_down_caption,
)
from polydec.lab.train.specs.vision import VisionSpec
from polydec.lab.train.vision import (
    MARKS,
    PATCHES,
    SceneExample,
    TrainableLlava,
    answer_logits,
    answer_loss,
    draw_example,
    example_pixels,
    published_files,
    question_ids,
    take_published_tensors,
    train_vision,
    vary_example,
)
from polydec.models.formats.image_tiles import read_image_tiles
from polydec.models.nets.vit import scaled_pixels
from polydec.request.ask import plan_request

SMALL = {"steps": 3, "rows": 4, "width": 32, "layers": 1, "tower_width": 32, "tower_layers": 2}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    torch.set_num_threads(1)
    at = tmp_path_factory.mktemp("vision") / "m"
    return at, train_vision(VisionSpec(str(at), **SMALL))


def scenes(count, *, unseen, seed=1):
    rng = np.random.default_rng(seed)
    return [draw_scene(rng, unseen=unseen) for _ in range(count)]


def file_of(pixels):
    to = io.BytesIO()
    Pictures.fromarray(pixels).save(to, "PNG")
    return to.getvalue()


def test_scenes_are_held_out_by_their_caption():
    for unseen in (False, True):
        drawn = scenes(60, unseen=unseen)
        assert all(held_out(caption_of(scene)) == unseen for scene in drawn)
        assert {len(scene) for scene in drawn} == {1, 2, 3, 4}
        for scene in drawn:
            assert len({part.thing for part in scene}) == len(scene)
            assert len({(part.row, part.column) for part in scene}) == len(scene)


def test_a_thing_is_drawn_in_its_place_and_colour():
    for thing in THINGS:
        part = ScenePart(thing, "blue", 2, 0, 13, 1, 2)
        pixels = draw_scene_pixels((part,), np.random.default_rng(4))
        inked = (pixels == COLOURS["blue"]).all(-1)
        rows, columns = inked.nonzero()
        assert 2 * CELL < rows.min() <= 2 * CELL + 2 and columns.max() < CELL and inked.sum() > 30
        assert pixels.shape == (SIDE, SIDE, 3) and len(np.unique(pixels[~inked])) == 1
    assert len({thing_mask(thing, 15).tobytes() for thing in THINGS}) == len(THINGS)


def test_questions_have_the_answers_of_their_scene():
    scene = (ScenePart("7", "red", 0, 2, 14, 1, 1), ScenePart("circle", "green", 1, 1, 11, 2, 2))
    rng = np.random.default_rng(2)
    asked = {q.asked: q for _ in range(200) for q in draw_questions(scene, rng)}
    want = {
        CAPTION: "a red 7 at top right and a green circle at middle centre",
        "what colour is the circle": "green",
        "where is the 7": "top right",
        "what is at middle centre": "a green circle",
        "what box has the 7": "5 0 7 2",
        "what is in box 3 3 4 4": "a green circle",
        "how many things are there": "two",
        "how many things are red": "one",
        "how many things are blue": "no",
        "is there a 7": "yes",
        "is there a cross": "no",
    }
    assert {question: asked[question].answer for question in want} == want
    ids = {word: at for at, word in enumerate((*MARKS, *scene_words()))}
    assert len(ids) == len(MARKS) + len(scene_words())
    for question in asked.values():
        assert question_ids(question, ids)[1][-1] == ids["<end>"]


def test_what_was_trained_is_what_decodes(trained):
    at, result = trained
    kinds = {"caption", "colour", "place", "thing", "box", "region", "count", "presence"}
    assert set(result["held_out_right"]) == set(result["right_with_another_picture"]) == kinds
    lm = load(str(at), draft=None, dtype="float32")
    vision = lm.checkpoint.vision
    pixels = draw_scene_pixels(scenes(1, unseen=True)[0], np.random.default_rng(0))
    tiles = read_image_tiles(Image(file_of(pixels)), vision.tower.tile_plan)
    assert tiles.pixels == pixels.tobytes()
    got = scaled_pixels(tiles, vision.tower.shape.scale, torch.device("cpu"))
    want = example_pixels([SceneExample((), pixels, ())])
    torch.testing.assert_close(got, want, atol=1e-6, rtol=0.0)
    done = generate(
        lm,
        "Where is the 7?",
        source=Image(file_of(pixels)),
        max_tokens=6,
        sampling=Sampling(temperature=0.0),
    )
    # The image's 36 vectors, four words, the mark before the answer; punctuation is no token.
    assert done.usage["prompt_tokens"] == PATCHES + 4 + 1 == 36 + 4 + 1


def test_transformers_reads_it_as_we_do(trained):
    from transformers import LlavaForConditionalGeneration

    at, _ = trained
    lm = load(str(at), draft=None, dtype="float32")
    model = LlavaForConditionalGeneration.from_pretrained(at, dtype=torch.float32).eval()
    pixels = draw_scene_pixels(scenes(1, unseen=True)[0], np.random.default_rng(0))
    ids = [*[lm.checkpoint.vision.token] * PATCHES, *lm.encode("is there a cross <answer>")]
    with torch.no_grad():
        made = model.generate(
            input_ids=torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            pixel_values=example_pixels([SceneExample((), pixels, ())]),
            max_new_tokens=8,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )[0, len(ids) :]
    got = generate(
        lm,
        "is there a cross",
        source=Image(file_of(pixels)),
        max_tokens=8,
        ignore_eos=True,
        sampling=Sampling(temperature=0.0),
    )
    assert list(got.choices[0].token_ids) == made.tolist()


def test_the_saved_model_computes_what_was_trained(tmp_path):
    """And the loss reaches the tower: what a lone thing's colour is stands in the picture alone."""
    words = (*MARKS, *scene_words())
    ids = {word: at for at, word in enumerate(words)}
    spec = VisionSpec(str(tmp_path), **SMALL)
    shape = LlamaShape(len(words), 32, 1, 1, 1, 96, 512)
    network = TrainableLlava(spec, shape)
    rng = np.random.default_rng(7)
    asked = SceneQuestion("what colour is the square", "red", "colour")
    lone = [(ScenePart("square", colour, 1, 1),) for colour in COLOURS]
    examples = [SceneExample(scene, draw_scene_pixels(scene, rng), (asked,)) for scene in lone]
    answer_loss(network, examples, ids).backward()
    first = network.tower.patch_embedding.weight.grad
    assert first is not None and float(first.abs().max()) > 0
    tensors = {name: t.detach().contiguous() for name, t in network.published_tensors().items()}
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    for name, content in published_files(spec, shape, words).items():
        (tmp_path / name).write_text(json.dumps(content))
    lm = load(str(tmp_path), draft=None, dtype="float32")
    with torch.no_grad():
        logits_BTV, rows = answer_logits(network, examples, ids)
    for x, row_TV, right_T in zip(examples, logits_BTV, rows.right_BT, strict=True):
        plan = plan_request(lm, Ask(asked.asked, source=Image(file_of(x.pixels))))
        law = plan.encoded.vectors.prompted_law(lm.checkpoint.lm)
        got = micro.law_at_end(law, plan.request.prompt)
        want = row_TV[right_T >= 0][0].log_softmax(-1)
        torch.testing.assert_close(got.float(), want, atol=1e-4, rtol=0.0)


def small_network(tmp_path):
    words = (*MARKS, *scene_words())
    shape = LlamaShape(len(words), 32, 1, 1, 1, 96, 512)
    ids = {word: at for at, word in enumerate(words)}
    return TrainableLlava(VisionSpec(str(tmp_path), **SMALL), shape), ids


def test_questions_that_stand_side_by_side_do_not_see_each_other(tmp_path):
    """Each has the logits that it has alone, right behind the image."""
    network, ids = small_network(tmp_path)
    rng = np.random.default_rng(3)
    examples = [draw_example(rng, unseen=False) for _ in range(3)]
    with torch.no_grad():
        logits_BTV, rows = answer_logits(network, examples, ids)
        for b, x in enumerate(examples):
            # Alone there is nothing beside it that it could see.
            for k, question in enumerate(x.questions):
                alone_BTV, one = answer_logits(network, [replace(x, questions=(question,))], ids)
                at = rows.question_BT[b] == k
                assert rows.right_BT[b][at].equal(one.right_BT[0])
                torch.testing.assert_close(logits_BTV[b][at], alone_BTV[0], atol=1e-4, rtol=0.0)


def test_the_tower_is_taught_what_stands_at_each_place(tmp_path):
    """Its own loss has no other way to the tower than the patches of the place."""
    network, ids = small_network(tmp_path)
    scene = (ScenePart("7", "red", 0, 2), ScenePart("circle", "green", 1, 1))
    patches = torch.zeros(1, PATCHES, 32, requires_grad=True)
    with torch.no_grad():
        network.cells.weight.normal_(std=0.1)
    network.cell_loss(patches, [scene]).backward()
    # The mean pull on the four patches of each place.
    pulls = patches.grad[0].reshape(3, 2, 3, 2, 32).mean((1, 3))
    # Nothing stands there, so it is pulled as any other empty place.
    empty = pulls[2, 0]
    torch.testing.assert_close(pulls[2, 2], empty)
    for row, column in ((0, 2), (1, 1)):
        assert not pulls[row, column].allclose(empty)
    examples = [draw_example(np.random.default_rng(1), unseen=False)]
    plain, taught = (answer_loss(network, examples, ids, w).item() for w in (0.0, 1.0))
    assert taught > plain + 1.0


def test_a_run_that_is_told_to_go_on_is_the_same_run(tmp_path):
    first = train_vision(VisionSpec(str(tmp_path / "a"), **SMALL))
    again = train_vision(VisionSpec(str(tmp_path / "b"), **SMALL))
    assert first["held_out_right"] == again["held_out_right"]


def test_an_image_that_is_left_out_is_not_seen(tmp_path):
    """Its questions begin the text: they have the logits of other pixels, and of a request without an image."""
    network, ids = small_network(tmp_path)
    rng = np.random.default_rng(5)
    examples = [draw_example(rng, unseen=False) for _ in range(2)]
    gone = [replace(x, dropped=True) for x in examples]
    other = [replace(x, pixels=examples[1 - i].pixels) for i, x in enumerate(gone)]
    with torch.no_grad():
        seen_BTV, rows = answer_logits(network, examples, ids)
        gone_BTV, unseen = answer_logits(network, gone, ids)
        mixed_BTV, _ = answer_logits(network, [examples[0], gone[1]], ids)
        torch.testing.assert_close(answer_logits(network, other, ids)[0], gone_BTV)
    asked = rows.right_BT >= 0
    assert not seen_BTV[asked].allclose(gone_BTV[asked], atol=1e-3)
    torch.testing.assert_close(mixed_BTV[0], seen_BTV[0], atol=1e-4, rtol=0.0)
    torch.testing.assert_close(mixed_BTV[1], gone_BTV[1], atol=1e-4, rtol=0.0)
    assert int(unseen.position_BT[0, 0]) == 0 and int(rows.position_BT[0, 0]) == PATCHES
    # As the language model reads the question alone.
    text = [ids[word] for word in (*CAPTION.split(), "<answer>")]
    alone_1TV = network.language(torch.tensor([text]))
    torch.testing.assert_close(alone_1TV[0], gone_BTV[0, : len(text)], atol=1e-4, rtol=0.0)


def test_shares_of_images_left_out_and_of_questions_behind_captions(tmp_path):
    rng = np.random.default_rng(5)
    example = draw_example(rng, unseen=False)
    for drop, told in ((0.0, 0.0), (0.3, 0.0), (0.0, 0.6), (1.0, 1.0)):
        spec = VisionSpec(str(tmp_path), **SMALL, drop=drop, told=told)
        varied = [vary_example(example, spec, rng) for _ in range(400)]
        assert abs(np.mean([x.dropped for x in varied]) - drop) < 0.08
        behind = [x for x in varied if len(x.questions) == len(example.questions) - 1]
        assert abs(len(behind) / len(varied) - told) < 0.08
        for x in varied:
            views = 0 if x in behind else 3 if told else 1
            assert sum(q.asked in VIEWS for q in x.questions) == views


def test_captions_tell_a_scene_in_three_ways():
    scene = (ScenePart("7", "red", 0, 2), ScenePart("circle", "green", 1, 1))
    assert [tell(scene) for tell in VIEWS.values()] == [
        "a red 7 and a green circle",
        "there are two things a 7 at top right and a circle at middle centre",
        "a red 7 at top right and a green circle at middle centre",
    ]
    assert top_down_caption(scene[:1]) == "there is a 7 at top right"
    rng = np.random.default_rng(1)
    asked = [SceneQuestion("how many things are there", "two", "count")]
    (one,) = behind_captions(scene, [SceneQuestion(CAPTION, "x", "caption"), *asked], rng)
    assert one.asked.endswith(" how many things are there") and one.answer == "two"
    told = [behind_captions(scene, asked, rng)[0].asked for _ in range(300)]
    # Each way is told, mostly rightly, and one thing in ten is another one.
    right = [sum(text.startswith(f"{tell(scene)} how") for text in told) for tell in VIEWS.values()]
    assert min(right) > 50
    assert 0.74 < sum(right) / len(told) < 0.9


def test_a_training_begins_with_a_model(trained, tmp_path):
    at, _ = trained
    words = (*MARKS, *scene_words())
    ids = {word: i for i, word in enumerate(words)}
    network, _ = small_network(tmp_path)
    take_published_tensors(network, str(at), ids)
    held = load_file(at / "model.safetensors")
    for name, tensor in network.published_tensors().items():
        torch.testing.assert_close(tensor, held[name].float())
    result = train_vision(VisionSpec(str(tmp_path / "on"), **{**SMALL, "steps": 1}, start=str(at)))
    assert result["steps"] == 1
    wide = TrainableLlava(
        VisionSpec(str(tmp_path), **{**SMALL, "width": 64}),
        LlamaShape(len(words), 64, 1, 2, 2, 192, 512),
    )
    with pytest.raises(RequestError, match=r"^start is .* has the shape"):
        take_published_tensors(wide, str(at), ids)
    with pytest.raises(RequestError, match=r"^start is 'zoo:tiny': its words are not those"):
        take_published_tensors(network, "zoo:tiny", ids)


@pytest.mark.parametrize("field", ["width", "tower_width"])
def test_widths_that_heads_do_not_divide_are_refused(field):
    with pytest.raises(RequestError, match=f"^{field} is 40: it must be a multiple of 32"):
        VisionSpec("x", **{**SMALL, field: 40})

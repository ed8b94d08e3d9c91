"""The layout of Idefics3 and SmolVLM against transformers: tiles, places, vectors, logits and greedy texts."""

import io

import pytest
import torch
from PIL import Image as Pictures

import micro
from polydec import Ask, Engine, Image, Sampling, generate, load
from polydec.base.errors import FileError, RequestError
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.testing.examples import example_artefacts
from polydec.methods.economics.costs import PassCosts
from polydec.models.formats.image_tiles import read_image_tiles
from polydec.models.nets.idefics3 import position_buckets, shuffle_patches
from polydec.models.nets.vit import scaled_pixels
from polydec.request.ask import plan_request
from vision_checkpoints import changed_copy, file_of, picture, write_idefics3

GREEDY = Sampling(temperature=0.0)
QUESTION = "Who followed the boat?"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("idefics3")


@pytest.fixture(scope="module")
def theirs(folder):
    return write_idefics3(folder / "m")


@pytest.fixture(scope="module")
def lm(folder, theirs):
    torch.set_num_threads(1)
    lm = load(str(folder / "m"), draft=None, dtype="float32")
    lm = type(lm)(lm.checkpoint, None, example_artefacts(lm.checkpoint.lm.vocab, 32, 32))
    vars(lm)["costs"] = PassCosts()
    return lm


def asked(prompt, image, **more):
    fields = {"sampling": GREEDY, "max_tokens": 16, "method": "plain", "ignore_eos": True, **more}
    return Ask(prompt, source=Image(file_of(image)), **fields)


PICTURES = {
    "wide": picture(70, 30),
    "tall": picture(9, 60, 2),
    "square": picture(20, 20, 3),
    "very wide": picture(300, 2, 4),
    "grey": picture(31, 22, 5, "L"),
    "transparent": picture(31, 22, 6, "RGBA"),
}
PROCESSORS = {
    "as published": {},
    "a side that is no whole number of tiles": {"size": {"longest_edge": 31}},
    "not cut": {"do_image_splitting": False},
    "one tile": {"size": {"longest_edge": 16}},
}


@pytest.mark.parametrize("settings", PROCESSORS)
def test_tiles_are_those_of_the_processor(folder, settings):
    path = folder / settings.replace(" ", "-")
    _, processor = write_idefics3(path, processor=PROCESSORS[settings])
    tower = load(str(path), draft=None, dtype="float32").checkpoint.vision.tower
    for name, image in PICTURES.items():
        tiles = read_image_tiles(Image(file_of(image)), tower.tile_plan)
        got = scaled_pixels(tiles, tower.shape.scale, torch.device("cpu"))
        want = processor.image_processor(
            image, return_tensors="pt", return_row_col_info=True, do_pad=True
        )
        assert torch.equal(got, want["pixel_values"][0]), name
        assert (tiles.rows, tiles.columns) == (want["rows"][0][0], want["cols"][0][0])


@pytest.mark.parametrize("name", PICTURES)
def test_vectors_are_those_of_transformers(lm, theirs, name):
    model, processor = theirs
    vision = lm.checkpoint.vision
    pixels = processor.image_processor(PICTURES[name], return_tensors="pt").pixel_values
    with torch.no_grad():
        want = torch.cat(model.model.get_image_features(pixels, return_dict=True).pooler_output)
    got = vision.tower.image_vectors(vision.decode_image(Image(file_of(PICTURES[name]))))
    torch.testing.assert_close(got, want.flatten(0, -2), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", PICTURES)
def test_logits_and_greedy_texts_are_those_of_transformers(lm, theirs, name):
    model, processor = theirs
    shown = processor.apply_chat_template(
        [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": QUESTION}]}],
        add_generation_prompt=True,
    )
    inputs = processor(text=shown, images=[PICTURES[name]], return_tensors="pt")
    with torch.no_grad():
        logits = model(**inputs).logits[0]
        made = model.generate(
            **inputs, max_new_tokens=16, do_sample=False, eos_token_id=None, pad_token_id=0
        )
    ids = inputs["input_ids"][0].tolist()
    ask = asked(QUESTION, PICTURES[name])
    plan = plan_request(lm, ask)
    assert list(plan.request.prompt) == ids
    session = lm.checkpoint.lm.open_session(plan.encoded.vectors.instead)
    (scores,) = run_coroutines([session.prefill_prompt(ScoreRequest(prompt=True))])
    (last,) = run_coroutines([session.score_draft(Draft.chain_draft(ids[-1]), ScoreRequest())])
    got = [scores.logprob_row(at) for at in range(len(ids) - 1)] + [last.logprob_row(0)]
    want = logits.double().log_softmax(-1)
    torch.testing.assert_close(torch.stack(got).double(), want, atol=1e-5, rtol=1e-5)
    session.close()
    assert list(generate(lm, ask).choices[0].token_ids) == made[0, len(ids) :].tolist()


METHODS = (
    "auto",
    "prompt-lookup",
    "suffix-automaton",
    "token-recycling",
    "lookahead",
    "jacobi",
    "layerskip",
    "eagle-2",
)


def test_lossless_methods_write_the_plain_text_behind_images_in_company(lm):
    images = [PICTURES["wide"], PICTURES["tall"], PICTURES["square"]]
    want = [generate(lm, asked(QUESTION, image)).choices[0].token_ids for image in images]
    assert len(set(want)) == len(images)
    asks = [asked(QUESTION, image, method=m) for m in METHODS for image in images]
    assert [choices[0] for choices in micro.completed_ids(Engine(lm), asks)] == want * len(METHODS)


def test_a_second_request_with_the_image_shares_its_entries(folder, theirs):
    lm = load(str(folder / "m"), draft=None, dtype="float32")
    lm.keep_texts(2)
    generate(lm, asked(QUESTION, PICTURES["wide"]))
    before = lm.checkpoint.lm.shared
    again = Pictures.open(io.BytesIO(file_of(PICTURES["wide"], "BMP")))
    plan = plan_request(lm, asked("Who painted the bridge?", again))
    generate(lm, asked("Who painted the bridge?", again))
    seen = plan.request.prompt.count(lm.checkpoint.vision.token)
    assert lm.checkpoint.vision.passes == 1
    assert (
        lm.checkpoint.lm.shared - before > seen >= 3 * lm.checkpoint.vision.tower.shape.tile_vectors
    )


def test_patches_are_joined_in_squares():
    x = torch.arange(16.0).view(1, 16, 1)
    want = [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]
    assert shuffle_patches(x, 4, 2)[0].tolist() == want


def test_positions_are_found_as_the_tower_was_trained():
    """Not each patch has its own place: fractions are rounded."""
    for side in (1, 2, 8, 24, 26, 27, 32, 49, 64):
        got = position_buckets(side)
        assert len(got) == side and int(got.min()) == 0 and int(got.max()) < side
        assert int((got - torch.arange(side)).abs().max()) <= 1
    assert position_buckets(32).tolist() == list(range(32))


DAMAGED = {
    "another tower": (
        {"config": lambda c: c["vision_config"].update(model_type="clip_vision_model")},
        "vision_config: model_type is 'clip_vision_model'",
    ),
    "squares that do not fit": (
        {"config": lambda c: c.update(scale_factor=3)},
        "scale_factor is 3: it must divide the 4",
    ),
    "larger squares": (
        {"config": lambda c: c.update(scale_factor=4)},
        "connector.modality_projection.proj.weight has shape",
    ),
    "other tiles": (
        {"processor": {"max_image_size": {"longest_edge": 20}}},
        "preprocessor_config.json: max_image_size is 20: the vision tower reads tiles of 16",
    ),
    "no connector": (
        {"tensors": lambda t: t.pop("model.connector.modality_projection.proj.weight")},
        "weights lack connector.modality_projection.proj.weight",
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_what_is_wrong_with_a_checkpoint_is_one_sentence(folder, theirs, case):
    change, wanted = DAMAGED[case]
    path = changed_copy(folder, **change)
    with pytest.raises(FileError) as refused:
        load(path, draft=None)
    told = str(refused.value)
    assert wanted in told and "\n" not in told and len(told) <= 300, told


def test_an_image_that_would_become_too_many_pixels_is_refused(folder, theirs):
    """4096 pixels a side are the most, and more tiles than a context holds are refused before the tower runs."""
    path = changed_copy(
        folder,
        processor={"size": {"longest_edge": 1 << 20}, "max_image_size": {"longest_edge": 16}},
    )
    lm = load(path, draft=None)
    with pytest.raises(RequestError, match="there is room for 512"):
        generate(lm, asked(QUESTION, picture(64, 64)))
    assert lm.checkpoint.vision.passes == 0


def test_the_place_of_an_image_is_tokenised_once(folder, theirs, monkeypatch):
    lm = load(str(folder / "m"), draft=None, dtype="float32")
    tower = lm.checkpoint.vision.tower
    placed = list[int]()
    place_of = tower.place_of
    monkeypatch.setattr(tower, "place_of", lambda tiles: placed.append(1) or place_of(tiles))
    generate(lm, asked(QUESTION, PICTURES["wide"]))
    assert len(placed) == 1


def test_a_tokenizer_of_another_checkpoint_is_refused(folder, theirs, monkeypatch):
    lm = load(str(folder / "m"), draft=None, dtype="float32")
    vision = lm.checkpoint.vision
    monkeypatch.setattr(vision.tower, "place_of", lambda tiles: ("<global-img>", 3))
    with pytest.raises(FileError, match="they belong to different checkpoints"):
        generate(lm, asked(QUESTION, PICTURES["square"]))

"""The layout of Qwen2-VL against transformers: pixels, vectors, positions, logits and greedy texts."""

import pytest
import torch

import micro
from polydec import Ask, Engine, Image, Sampling, Soft, generate, load
from polydec.base.errors import FileError, RequestError
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.testing.examples import example_artefacts
from polydec.methods.economics.costs import PassCosts
from polydec.models.formats.image_tiles import read_image_tiles
from polydec.models.nets.grid_positions import grid_positions
from polydec.models.nets.vit import scaled_pixels
from polydec.models.sessions.soft import image_grids, make_soft_tokens
from polydec.request.ask import plan_request
from vision_checkpoints import changed_copy, file_of, picture, write_qwen2_vl

GREEDY = Sampling(temperature=0.0)
QUESTION = "Who followed the boat?"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("qwen2_vl")


@pytest.fixture(scope="module")
def theirs(folder):
    return write_qwen2_vl(folder / "m")


@pytest.fixture(scope="module")
def lm(folder, theirs):
    torch.set_num_threads(1)
    lm = load(str(folder / "m"), draft=None, dtype="float32")
    lm = type(lm)(lm.checkpoint, None, example_artefacts(lm.checkpoint.lm.vocab, 32, 32))
    vars(lm)["costs"] = PassCosts()
    return lm


def asked(prompt, image=None, **more):
    given = {} if image is None else {"source": Image(file_of(image))}
    fields = {"sampling": GREEDY, "max_tokens": 16, "method": "plain", "ignore_eos": True}
    return Ask(prompt, **{**fields, **given, **more})


PICTURES = {
    "wide": picture(70, 30),
    "tall": picture(9, 60, 2),
    "square": picture(32, 32, 3),
    "small": picture(3, 4, 4),
    "large": picture(150, 90, 5),
    "transparent": picture(31, 22, 6, "RGBA"),
}


@pytest.mark.parametrize("name", PICTURES)
def test_pixels_and_vectors_are_those_of_transformers(lm, theirs, name):
    model, processor = theirs
    vision = lm.checkpoint.vision
    want = processor(PICTURES[name], return_tensors="pt")
    tiles = read_image_tiles(Image(file_of(PICTURES[name])), vision.tower.tile_plan)
    _, rows, columns = want["image_grid_thw"][0].tolist()
    assert (tiles.height, tiles.width) == (rows * 4, columns * 4)
    assert vision.tower.grid_of(tiles) == (rows // 2, columns // 2)
    got = scaled_pixels(tiles, vision.tower.shape.scale, torch.device("cpu"))[0]
    patches = got.unfold(1, 4, 4).unfold(2, 4, 4).permute(1, 2, 0, 3, 4)
    squares = patches.view(rows // 2, 2, columns // 2, 2, 3, 4, 4).transpose(1, 2)
    shown = squares.reshape(rows * columns, 3, 1, 4, 4).expand(-1, 3, 2, 4, 4).flatten(1)
    assert torch.equal(shown, want["pixel_values"])
    with torch.no_grad():
        made = model.model.get_image_features(
            want["pixel_values"], want["image_grid_thw"], return_dict=True
        ).pooler_output[0]
    torch.testing.assert_close(vision.tower.image_vectors(tiles), made, atol=1e-5, rtol=1e-5)


def read_by_transformers(theirs, ids, images):
    """The logits behind each id of a prompt, and the greedy answer."""
    model, processor = theirs
    given = processor(images, return_tensors="pt")
    input_ids = torch.tensor([ids])
    inputs = {
        "input_ids": input_ids,
        "attention_mask": torch.ones_like(input_ids),
        "mm_token_type_ids": (input_ids == model.config.image_token_id).int(),
        **given,
    }
    with torch.no_grad():
        logits = model(**inputs).logits[0]
        made = model.generate(
            **inputs, max_new_tokens=16, do_sample=False, eos_token_id=None, pad_token_id=0
        )
    return logits, made[0, len(ids) :].tolist()


def places(*images):
    return [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded(x)}"}}
        for x in images
    ]


def encoded(image):
    import base64

    return base64.b64encode(file_of(image)).decode()


PROMPTS = {
    "wide": ["wide"],
    "tall": ["tall"],
    "square": ["square"],
    "one cell": ["small"],
    "two": ["wide", "tall"],
    "three, of which two are alike": ["square", "tall", "square"],
}


@pytest.mark.parametrize("case", PROMPTS)
def test_logits_and_greedy_texts_are_those_of_transformers(lm, theirs, case):
    images = [PICTURES[name] for name in PROMPTS[case]]
    said = {"type": "text", "text": QUESTION}
    ask = asked([{"role": "user", "content": [*places(*images), said]}])
    plan = plan_request(lm, ask)
    ids = list(plan.request.prompt)
    logits, text_ids = read_by_transformers(theirs, ids, images)
    session = lm.checkpoint.lm.open_session(plan.encoded.vectors.instead)
    (scores,) = run_coroutines([session.prefill_prompt(ScoreRequest(prompt=True))])
    (last,) = run_coroutines([session.score_draft(Draft.chain_draft(ids[-1]), ScoreRequest())])
    got = [scores.logprob_row(at) for at in range(len(ids) - 1)] + [last.logprob_row(0)]
    want = logits.double().log_softmax(-1)
    torch.testing.assert_close(torch.stack(got).double(), want, atol=1e-5, rtol=1e-5)
    session.close()
    assert list(generate(lm, ask).choices[0].token_ids) == text_ids


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
    images = [PICTURES["wide"], PICTURES["tall"], PICTURES["square"], None]
    want = [generate(lm, asked(QUESTION, image)).choices[0].token_ids for image in images]
    assert len(set(want)) == len(images)
    asks = [asked(QUESTION, image, method=m) for m in METHODS for image in images]
    assert [choices[0] for choices in micro.completed_ids(Engine(lm), asks)] == want * len(METHODS)


def test_what_was_computed_is_shared_forked_and_fed_anew_with_its_positions(folder, theirs):
    lm = load(str(folder / "m"), draft=None, dtype="float32")
    lm.keep_texts(4)
    asks = [asked(QUESTION, PICTURES[name]) for name in ("wide", "tall")]
    other = asked("Who painted the bridge?", PICTURES["wide"])
    want = [generate(lm, ask).choices[0].token_ids for ask in (*asks, other)]
    assert lm.checkpoint.lm.shared >= 40
    fresh = load(str(folder / "m"), draft=None, dtype="float32")
    assert [generate(fresh, ask).choices[0].token_ids for ask in (other, *asks)] == [
        want[2],
        *want[:2],
    ]
    # An entry that was given back is fed at the position that it had.
    plan = plan_request(lm, asks[0])
    law = lm.checkpoint.lm
    session = law.open_session(plan.encoded.vectors.instead)
    root = Draft.chain_draft(plan.request.prompt[-1])
    (before,) = run_coroutines([session.score_draft(root, ScoreRequest())])
    row = before.logprob_row(0).clone()
    session.evict_cache()
    fork = session.fork()
    for each in (session, fork):
        (after,) = run_coroutines([each.score_draft(root, ScoreRequest())])
        torch.testing.assert_close(after.logprob_row(0), row, atol=1e-5, rtol=0.0)
        each.close()


def test_a_taken_cache_has_the_images_of_the_new_text(folder, theirs):
    """Both prompts begin alike, and only the second one goes on with another image."""
    said = {"type": "text", "text": QUESTION}
    one, two = (
        asked([{"role": "user", "content": [*places(*images), said]}])
        for images in ((PICTURES["wide"],), (PICTURES["wide"], PICTURES["tall"]))
    )
    want = generate(load(str(folder / "m"), draft=None, dtype="float32"), two).choices[0].token_ids
    lm = load(str(folder / "m"), draft=None, dtype="float32")
    lm.keep_texts(4)
    generate(lm, one)
    before = lm.checkpoint.lm.shared
    assert generate(lm, two).choices[0].token_ids == want
    assert lm.checkpoint.lm.shared > before


def test_the_compiled_step_leaves_it_to_torch(folder):
    """Its heads are wide enough for that step, which would turn cells as words."""
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
    sizes = {"num_attention_heads": 2, "num_key_value_heads": 1, "rope_parameters": rope}
    write_qwen2_vl(folder / "wide", text=sizes)
    why = load(str(folder / "wide"), draft=None).checkpoint.why
    assert why
    if "rows and columns" not in why:
        pytest.skip(why)


def test_cells_of_another_grid_are_other_tokens():
    """Their keys turn otherwise, so entries must not be shared."""
    vectors = torch.zeros(6, 4)
    wide, tall, words = (make_soft_tokens(vectors, 9, 4, "x", g) for g in ((2, 3), (3, 2), None))
    assert len({*wide, *tall, *words}) == 13
    with pytest.raises(RequestError, match="x holds 6 vectors in a grid of 2 x 2"):
        make_soft_tokens(vectors, 9, 4, "x", (2, 2))


def test_positions_go_on_behind_the_longer_side():
    cells = make_soft_tokens(torch.zeros(6, 4), 9, 4, "x", (2, 3))
    text = (1, 2, *cells, 3, *cells, 4, 5)
    times, rows, columns = grid_positions(image_grids(text), range(len(text)))
    assert times == [0, 1, *[2] * 6, 5, *[6] * 6, 9, 10]
    assert rows == [0, 1, 2, 2, 2, 3, 3, 3, 5, 6, 6, 6, 7, 7, 7, 9, 10]
    assert columns == [0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 7, 8, 6, 7, 8, 9, 10]


def test_keys_are_not_moved_to_other_positions(lm):
    with pytest.raises(RequestError, match="images stand at rows and columns"):
        generate(lm, asked(QUESTION, PICTURES["wide"], reuse="edited", reuse_key="a"))


def test_vectors_of_the_users_own_stand_as_words_do(lm):
    ids = lm.encode(QUESTION)
    soft = Soft(lm.network.embed_tokens(ids[:3]), ids[:3])
    want = generate(lm, asked(ids)).choices[0].token_ids
    assert generate(lm, asked([soft, *ids[3:]])).choices[0].token_ids == want


def test_older_files_are_the_same_model(folder, theirs):
    want = generate(
        load(str(folder / "m"), draft=None, dtype="float32"), asked(QUESTION, PICTURES["wide"])
    )

    def older(c):
        inner = c.pop("text_config")
        rope = inner.pop("rope_parameters")
        inner["rope_theta"] = rope["rope_theta"]
        inner["rope_scaling"] = {"type": "mrope", "mrope_section": rope["mrope_section"]}
        inner.pop("model_type")
        c.update(inner)

    def newer(tensors):
        for name in list(tensors):
            if name.startswith("visual."):
                tensors[f"model.{name}"] = tensors.pop(name)
            elif name.startswith("model."):
                tensors[f"model.language_model.{name.removeprefix('model.')}"] = tensors.pop(name)

    for change in ({"config": older}, {"tensors": newer}):
        got = generate(
            load(changed_copy(folder, **change), draft=None, dtype="float32"),
            asked(QUESTION, PICTURES["wide"]),
        )
        assert got.choices[0].token_ids == want.choices[0].token_ids


DAMAGED = {
    "sections that do not fit": (
        {"config": lambda c: c["text_config"]["rope_parameters"].update(mrope_section=[1, 1, 1])},
        "mrope_section is [1, 1, 1]: their sum must be half of the 8",
    ),
    "heads that cannot turn": (
        {"config": lambda c: c["vision_config"].update(num_heads=4)},
        "num_heads is 4",
    ),
    "a larger tower": (
        {"config": lambda c: c["vision_config"].update(embed_dim=48)},
        "visual.patch_embed.proj.weight has shape",
    ),
    "more layers": (
        {"config": lambda c: c["vision_config"].update(depth=9)},
        "weights lack visual.blocks.2.",
    ),
    "a token outside": (
        {"config": lambda c: c.update(image_token_id=5000)},
        "image_token_id is 5000",
    ),
    "other patches": (
        {"processor": {"patch_size": 14}},
        "preprocessor_config.json: patch_size is 14: the vision tower has 4",
    ),
    "more than the most": (
        {"processor": {"min_pixels": 4096, "max_pixels": 1024}},
        "preprocessor_config.json: an image becomes at least 4096 and at most 1024 pixels",
    ),
    "any number of pixels": ({"processor": {"max_pixels": 1 << 40}}, "preprocessor_config.json"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_what_is_wrong_with_a_checkpoint_is_one_sentence(folder, theirs, case):
    change, wanted = DAMAGED[case]
    with pytest.raises(FileError) as refused:
        load(changed_copy(folder, **change), draft=None)
    told = str(refused.value)
    assert wanted in told and "\n" not in told and len(told) <= 300, told


def test_a_line_of_pixels_is_refused(lm):
    with pytest.raises(
        RequestError, match="a side must not be more than 200 times as long as the other"
    ):
        generate(lm, asked(QUESTION, picture(3000, 3)))

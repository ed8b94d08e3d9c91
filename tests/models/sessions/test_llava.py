"""The LLaVA layout against transformers: pixels, vectors, logits and greedy texts; what is shared, what is refused."""

import base64
import io
import json

import pytest
import torch
from PIL import Image as Pictures

import micro
from polydec import Engine, Image, Sampling, Soft, generate, load
from polydec.base.errors import FileError, PolydecError, RequestError
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.testing.examples import example_artefacts
from polydec.methods.economics.costs import PassCosts
from polydec.models.formats.image_tiles import read_image_tiles
from polydec.models.nets.vit import scaled_pixels
from polydec.request.ask import plan_request
from polydec.request.fields import Ask
from vision_checkpoints import changed_copy, file_of, picture, write_llava

GREEDY = Sampling(temperature=0.0)
QUESTION = "Who followed the boat?"
PATCHES = 25


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("llava")


@pytest.fixture(scope="module")
def theirs(folder):
    return write_llava(folder / "m")


@pytest.fixture(scope="module")
def lm(folder, theirs):
    torch.set_num_threads(1)
    lm = load(
        str(folder / "m"), draft=str(micro.write(folder / "draft", vocab=330, more=("<image>",))),
        dtype="float32",
    )  # fmt: skip
    small = example_artefacts(lm.checkpoint.lm.vocab, 32, 32)
    lm = type(lm)(lm.checkpoint, lm.draft, small)
    vars(lm)["costs"] = PassCosts()
    return lm


def asked(prompt, image=None, **more):
    given = {} if image is None else {"source": Image(file_of(image))}
    return Ask(
        prompt,
        **{
            "sampling": GREEDY,
            "max_tokens": 16,
            "method": "plain",
            "ignore_eos": True,
            **given,
            **more,
        },
    )


def data_url(image):
    return f"data:image/png;base64,{base64.b64encode(file_of(image)).decode()}"


def part(image):
    return {"type": "image_url", "image_url": {"url": data_url(image)}}


def said(text):
    return {"type": "text", "text": text}


def messages(*parts):
    return [{"role": "user", "content": list(parts)}]


PICTURES = {
    "wide": picture(),
    "tall": picture(9, 60, 2),
    "square": picture(20, 20, 3),
    "small": picture(3, 4, 4),
    "grey": picture(31, 22, 5, "L"),
    "transparent": picture(31, 22, 6, "RGBA"),
    "palette": picture(24, 30, 7).convert("P"),
}
PROCESSORS = {
    "as published": {},
    "a smaller image is filled up": {"size": {"shortest_edge": 13}},
    "both sides": {"size": {"height": 20, "width": 20}, "do_center_crop": False},
    "another filter": {"resample": 2, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4]},
    "not normalised": {"do_normalize": False},
}


@pytest.mark.parametrize("settings", PROCESSORS)
def test_pixels_are_those_of_the_processor(folder, settings):
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    own = {"size": {"shortest_edge": 20}, "crop_size": {"height": 20, "width": 20}}
    own |= PROCESSORS[settings]
    path = folder / settings.replace(" ", "-")
    write_llava(path, processor=PROCESSORS[settings])
    tower = load(str(path), draft=None, dtype="float32").checkpoint.vision.tower
    for name, image in PICTURES.items():
        tiles = read_image_tiles(Image(file_of(image)), tower.tile_plan)
        got = scaled_pixels(tiles, tower.shape.scale, torch.device("cpu"))
        want = CLIPImageProcessorPil(**own)(image, return_tensors="pt").pixel_values
        assert torch.equal(got, want), name


LAYOUTS = {
    "as published": {},
    "the last layer, class token and all": {
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
    },
    "two layers side by side": {"vision_feature_layer": [-2, 1]},
    "behind the first layer, without biases": {
        "vision_feature_layer": 1,
        "multimodal_projector_bias": False,
        "projector_hidden_act": "gelu_pytorch_tanh",
    },
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_vectors_are_those_of_transformers(folder, layout):
    path = folder / layout.replace(" ", "-").replace(",", "")
    model, processor = write_llava(path, seed=4, **LAYOUTS[layout])
    vision = load(str(path), draft=None, dtype="float32").checkpoint.vision
    for image in (PICTURES["wide"], PICTURES["tall"]):
        pixels = processor.image_processor(image, return_tensors="pt").pixel_values
        with torch.no_grad():
            want = model.get_image_features(pixels, return_dict=True).pooler_output[0]
        got = vision.tower.image_vectors(vision.decode_image(Image(file_of(image))))
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


def read_by_transformers(theirs, prompt, images):
    """The ids of a prompt, the logits behind each of them, and the greedy answer."""
    model, processor = theirs
    inputs = processor(text=prompt, images=images, return_tensors="pt")
    with torch.no_grad():
        logits = model(**inputs).logits[0]
        made = model.generate(
            **inputs, max_new_tokens=16, do_sample=False, eos_token_id=None, pad_token_id=0
        )
    ids = inputs["input_ids"][0]
    return ids.tolist(), logits, made[0, len(ids) :].tolist()


def chat_text(theirs, *parts):
    return theirs[1].apply_chat_template(
        [{"role": "user", "content": list(parts)}], add_generation_prompt=True
    )


PROMPTS = {
    "an image before the text": (QUESTION, [PICTURES["wide"]]),
    "an image among ids of a text": ("The <image> by the old river", [PICTURES["tall"]]),
    "two images": ("<image> and <image>, which is the boat?", [PICTURES["wide"], PICTURES["grey"]]),
    "no image": (QUESTION, []),
}


@pytest.mark.parametrize("case", PROMPTS)
def test_logits_and_greedy_texts_are_those_of_transformers(lm, theirs, case):
    text, images = PROMPTS[case]
    places = [{"type": "image"}] * len(images)
    if "<image>" in text:
        shown = text
        if len(images) == 1:
            ask = asked(text, images[0], raw=True)
        else:
            pieces = text.split("<image>")
            shown = chat_text(theirs, *places, said("".join(pieces)))
            ask = asked(messages(*map(part, images), said("".join(pieces))))
    else:
        shown = chat_text(theirs, *places, said(text))
        ask = asked(text, images[0] if images else None)
    ids, logits, text_ids = read_by_transformers(theirs, shown, images or None)
    plan = plan_request(lm, ask)
    assert list(plan.request.prompt) == ids
    law = plan.encoded.vectors
    instead = plan.request.prompt if law is None else law.instead
    session = lm.checkpoint.lm.open_session(instead)
    rows = ScoreRequest(prompt=True)
    (scores,) = run_coroutines([session.prefill_prompt(rows)])
    (last,) = run_coroutines([session.score_draft(Draft.chain_draft(ids[-1]), ScoreRequest())])
    got = [scores.logprob_row(at) for at in range(len(ids) - 1)] + [last.logprob_row(0)]
    want = logits.double().log_softmax(-1)
    torch.testing.assert_close(torch.stack(got).double(), want, atol=1e-5, rtol=1e-5)
    session.close()
    assert list(generate(lm, ask).choices[0].token_ids) == text_ids


def test_the_compiled_step_reads_images_too(folder):
    path = folder / "compiled"
    theirs = write_llava(path, text={"num_attention_heads": 2, "num_key_value_heads": 1})
    lm = load(str(path), draft=None)
    if lm.checkpoint.why:
        pytest.skip(f"the native step does not serve it: {lm.checkpoint.why}")
    for image in (PICTURES["wide"], PICTURES["tall"]):
        shown = chat_text(theirs, {"type": "image"}, said(QUESTION))
        _, _, want = read_by_transformers(theirs, shown, [image])
        assert list(generate(lm, asked(QUESTION, image)).choices[0].token_ids) == want


METHODS = (
    "auto", "prompt-lookup", "suffix-automaton", "draft-model", "token-recycling", "lookahead", "jacobi", "layerskip",
    "draft-and-verify", "merged-drafts", "pearl", "eagle-2", "msd", "flash", "copyspec",
)  # fmt: skip


def test_lossless_methods_write_the_plain_text_behind_images_in_company(lm):
    images = [PICTURES["wide"], PICTURES["tall"], PICTURES["grey"]]
    want = [generate(lm, asked(QUESTION, image)).choices[0].token_ids for image in images]
    # An image decides what is written.
    assert len(set(want)) == len(images)
    asks = [asked(QUESTION, image, method=m) for m in METHODS for image in images]
    got = micro.completed_ids(Engine(lm), asks)
    assert [choices[0] for choices in got] == want * len(METHODS)
    assert not lm.checkpoint.lm.live


def test_a_draft_model_that_reads_images_sees_them(folder, theirs):
    """A draft that is the model itself is right about every token, where it sees what the model sees."""
    write_llava(
        folder / "other",
        vision={"image_size": 12},
        processor={"size": {"shortest_edge": 12}, "crop_size": {"height": 12, "width": 12}},
    )
    name = str(folder / "m")
    write = {"method": "draft-model", "options": {"depth": 3}}
    plain = generate(load(name, draft=None, dtype="float32"), asked(QUESTION, PICTURES["wide"]))
    passes = dict[str, float]()
    for draft in ("m", "draft", "other"):
        lm = load(name, draft=str(folder / draft), dtype="float32")
        got = generate(lm, asked(QUESTION, PICTURES["wide"], **write))
        assert got.choices[0].token_ids == plain.choices[0].token_ids
        passes[draft] = got.metrics["tokens_per_pass"]
    # Four tokens a pass are the most; one that reads other places is as blind as one without a tower.
    assert passes["m"] > 2.5 > max(passes["draft"], passes["other"])


def test_a_law_over_images_goes_with_what_laws_go_with(lm):
    for more in (
        {"sampling": Sampling(temperature=0.0, repetition_penalty=1.3)},
        {"sampling": Sampling(temperature=0.9), "n": 2},
        {"cache": "quantised", "cache_options": {"block": 16}},
        {"steer": "cfg", "negative_prompt": "nobody asked"},
        {"constraint": ["boat", "bridge"]},
        {"logprobs": 2},
    ):
        more = {"ignore_eos": "constraint" not in more, **more}
        asks = [
            asked(QUESTION, PICTURES["wide"], method=m, **more) for m in ("plain", "prompt-lookup")
        ]
        plain, drafted = (generate(lm, ask) for ask in asks)
        assert [c.token_ids for c in plain.choices] == [c.token_ids for c in drafted.choices]


def test_messages_with_images_are_the_same_request(lm):
    image = PICTURES["wide"]
    want = generate(lm, asked(QUESTION, image))
    for prompt, given in (
        (messages(part(image), said(QUESTION)), None),
        (messages({"type": "image"}, said(QUESTION)), image),
        (messages(said(QUESTION)), image),
        ([{"role": "user", "content": QUESTION}], image),
    ):
        got = generate(lm, asked(prompt, given))
        assert got.choices[0].token_ids == want.choices[0].token_ids
        assert got.usage["prompt_tokens"] == want.usage["prompt_tokens"] > PATCHES
    system = {"role": "system", "content": "Be brief."}
    turns = [system, {"role": "user", "content": QUESTION}]
    ids = plan_request(lm, asked(turns, image)).request.prompt
    assert ids.count(lm.checkpoint.vision.token) == PATCHES
    assert ids.index(lm.checkpoint.vision.token) > len(lm.encode("<|im_start|>system\nBe brief."))


def test_a_second_request_with_the_image_shares_its_entries(folder, theirs):
    lm = load(str(folder / "m"), draft=None, dtype="float32")
    lm.keep_texts(2)
    law = lm.checkpoint.lm
    vision = lm.checkpoint.vision
    generate(lm, asked(QUESTION, PICTURES["wide"]))
    before = law.shared
    again = Pictures.open(io.BytesIO(file_of(PICTURES["wide"], "BMP")))
    generate(lm, asked("Who painted the bridge?", again))
    assert vision.passes == 1 and law.shared - before >= PATCHES
    before = law.shared
    generate(lm, asked(QUESTION, PICTURES["tall"]))
    assert vision.passes == 2 and law.shared - before < PATCHES
    # No client learns what another one showed.
    before = law.shared
    generate(lm, asked(QUESTION, PICTURES["wide"], cache_salt="another:"))
    assert vision.passes == 3 and law.shared == before


def test_the_tower_keeps_the_last_images_only(lm, monkeypatch):
    from polydec.models.sessions import vision as rooms

    monkeypatch.setattr(rooms, "KEPT", 1)
    vision = lm.checkpoint.vision
    before = vision.passes
    for name in ("wide", "wide", "tall", "wide"):
        plan_request(lm, asked(QUESTION, PICTURES[name], cache_salt="kept:"))
    assert vision.passes == before + 3 and len(vision._made) == 1


def test_images_stand_among_vectors_of_the_users_own(lm):
    token = lm.checkpoint.vision.token
    ids = lm.encode(QUESTION)
    soft = Soft(lm.network.embed_tokens(ids[:3]), ids[:3])
    want = generate(lm, asked([*ids[:3], token, *ids[3:]], PICTURES["wide"]))
    got = generate(lm, asked([soft, token, *ids[3:]], PICTURES["wide"]))
    assert got.choices[0].token_ids == want.choices[0].token_ids


REFUSED = {
    "a text for a source": ({"prompt": "x", "source": "a text"}, "source is no image: "),
    "more places than images": (
        {"prompt": "<image> <image>", "raw": True, "image": "wide"},
        "prompt has 2 places for images (<image>)",
    ),
    "a place and no image": (
        {"prompt": "<image>", "raw": True},
        "prompt has 1 place for images (<image>) and the request holds 0 images",
    ),
    "an image and no place": (
        {"prompt": [5, 6, 7], "image": "wide"},
        "prompt has 0 places for images",
    ),
    "too many": (
        {"prompt": messages(*[part(PICTURES["small"])] * 65)},
        "the request holds 65 images: at most 64",
    ),
    "too long": ({"prompt": messages(*[part(PICTURES["small"])] * 12, said("x"))}, "prompt has "),
    "an address": (
        {
            "prompt": messages(
                {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
            )
        },
        "messages[0].content[0].image_url has the url 'https://example.org/a.png': addresses are not fetched",
    ),
    "bytes": ({"prompt": "x", "image": "wide", "units": "bytes"}, "units is given beside an image"),
    "gaps": (
        {"prompt": "x", "image": "wide", "infill": "[[2]]"},
        "infill is given beside an image",
    ),
    "laws of the prompt": (
        {"prompt": "x", "image": "wide", "prompt_logprobs": 1},
        "prompt_logprobs is given beside an image",
    ),
    "no image at all": ({"prompt": "x", "source": Image(b"hello")}, "image is none of PNG"),
    "an empty image": ({"prompt": "x", "source": Image(b"")}, "image is empty"),
    "a line of pixels": (
        {"prompt": "x", "source": Image(file_of(Pictures.new("1", (1_000_000, 1))))},
        "image has 1000000 x 1 pixels, which are 20000000 x 20 as the model reads them",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_with_a_request_is_one_sentence(lm, case):
    given, wanted = REFUSED[case]
    given = dict(given)
    image = given.pop("image", None)
    with pytest.raises(PolydecError) as refused:
        generate(
            lm, asked(given.pop("prompt"), None if image is None else PICTURES[image], **given)
        )
    assert str(refused.value).startswith(wanted), str(refused.value)
    assert "\n" not in str(refused.value) and len(str(refused.value)) <= 300


def test_images_are_decoded_one_by_one_until_there_is_no_room(lm, monkeypatch):
    vision = lm.checkpoint.vision
    decoded = list[int]()
    read = vision.decode_image
    monkeypatch.setattr(vision, "decode_image", lambda image: decoded.append(1) or read(image))
    passes = vision.passes
    with pytest.raises(RequestError, match="there is room for 256"):
        generate(lm, asked(messages(*[part(picture(seed=90))] * 60)))
    assert len(decoded) < 12 and vision.passes == passes


def vision_field(**fields):
    return lambda c: c["vision_config"].update(fields)


def whole_field(**fields):
    return lambda c: c.update(fields)


def without(name):
    return lambda tensors: tensors.pop(name)


DAMAGED = {
    "another tower": (
        {"config": vision_field(model_type="siglip_vision_model")},
        "vision_config: model_type is 'siglip_vision_model'",
    ),
    "a larger tower": (
        {"config": vision_field(hidden_size=3 << 21)},
        "vision_tower.embeddings.class_embedding has shape (24,)",
    ),
    "more layers": (
        {"config": vision_field(num_hidden_layers=900)},
        "weights lack vision_tower.encoder.layers.3.",
    ),
    "too many layers": ({"config": vision_field(num_hidden_layers=1 << 30)}, "vision_config"),
    "heads that do not divide": (
        {"config": vision_field(num_attention_heads=5)},
        "vision_config: num_attention_heads is 5",
    ),
    "a larger image": (
        {"config": vision_field(image_size=4000)},
        "preprocessor_config.json: images become (20, 20)",
    ),
    "a patch larger than the image": (
        {"config": vision_field(patch_size=24)},
        "vision_config: patch_size is 24",
    ),
    "an unknown activation": (
        {"config": vision_field(hidden_act="tan")},
        "vision_config: hidden_act is 'tan'",
    ),
    "a layer that is not there": (
        {"config": whole_field(vision_feature_layer=-5)},
        "vision_feature_layer is -5: it must lie in -4 to 3",
    ),
    "an unknown projector": (
        {"config": whole_field(projector_hidden_act="tan")},
        "projector_hidden_act is 'tan'",
    ),
    "a token outside": ({"config": whole_field(image_token_index=5000)}, "image_token_id is 5000"),
    "no token": ({"config": lambda c: c.pop("image_token_index")}, "config lacks image_token_id"),
    "another language model": (
        {"config": lambda c: c["text_config"].update(model_type="gpt2")},
        "text_config: model_type is 'gpt2'",
    ),
    "no tower": ({"config": lambda c: c.pop("vision_config")}, "config"),
    "no projector": (
        {"tensors": without("multi_modal_projector.linear_2.weight")},
        "weights lack projector.linear_2.weight",
    ),
    "no settings": ({"processor": {"do_pad": True}}, "preprocessor_config.json: do_pad is true"),
    "images of any size": (
        {"processor": {"do_center_crop": False}},
        "preprocessor_config.json: images become of any size",
    ),
    "a scale of nothing": ({"processor": {"image_std": [0, 1, 1]}}, "preprocessor_config.json"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_what_is_wrong_with_a_checkpoint_is_one_sentence(folder, theirs, case):
    change, wanted = DAMAGED[case]
    path = changed_copy(folder, **change)
    with pytest.raises(FileError) as refused:
        load(path, draft=None)
    told = str(refused.value)
    assert wanted in told and "\n" not in told and len(told) <= 300, told


def test_older_and_newer_names_of_tensors_are_one_model(folder, theirs):
    want = generate(
        load(str(folder / "m"), draft=None, dtype="float32"), asked(QUESTION, PICTURES["wide"])
    )

    def newer(tensors):
        for name in list(tensors):
            new = name.replace("language_model.lm_head", "lm_head")
            new = new.replace("language_model.model", "model.language_model")
            if new == name and not name.startswith("lm_head"):
                new = f"model.{name}"
            tensors[new] = tensors.pop(name)

    def older(tensors):
        for name in list(tensors):
            tensors[name.replace("vision_tower.", "vision_tower.vision_model.")] = tensors.pop(name)

    for rename in (newer, older):
        lm = load(changed_copy(folder, tensors=rename), draft=None, dtype="float32")
        got = generate(lm, asked(QUESTION, PICTURES["wide"]))
        assert got.choices[0].token_ids == want.choices[0].token_ids


def test_settings_of_all_processors_in_one_file_are_read(folder, theirs):
    path = changed_copy(folder)
    from pathlib import Path

    own = Path(path) / "preprocessor_config.json"
    inner = json.loads(own.read_text())
    own.unlink()
    (Path(path) / "processor_config.json").write_text(
        json.dumps({"image_processor": {**inner, "resample": 0}})
    )
    assert load(path, draft=None).checkpoint.vision.tower.tile_plan.resample == 0

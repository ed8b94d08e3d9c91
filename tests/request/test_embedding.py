"""Vectors read out of a model: those of transformers, whatever the company, by every way that they are asked for."""

import json
import sys

import pytest
import torch
from torch.nn.functional import normalize
from transformers import AutoConfig, AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

import micro
from polydec import load
from polydec.cli.main import main
from polydec.request.embedding import _placeholder, embed_texts
from polydec.request.reading import EmbeddingSettings

TEXTS = ("The grey fox watched the boat.", "nobody asked why", "a tall baker by the old river " * 3)


def qwen(path):
    """The same tokenizer in front of another family, with norms of its queries and keys."""
    config = AutoConfig.from_pretrained(micro.write(path))
    torch.manual_seed(5)
    Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=config.vocab_size, hidden_size=64, intermediate_size=96, num_hidden_layers=4,
            num_attention_heads=4, num_key_value_heads=2, head_dim=16, tie_word_embeddings=True,
        )
    ).save_pretrained(path)  # fmt: skip
    return path


@pytest.fixture(scope="module", params=["llama", "qwen"])
def model(request, tmp_path_factory):
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("embedding") / request.param
    made = qwen(path) if request.param == "qwen" else micro.write(path, hidden=64, layers=3)
    theirs = AutoModelForCausalLM.from_pretrained(made, dtype=torch.float32).eval()
    return load(str(made), draft="none", dtype="float32"), theirs


@torch.no_grad()
def states(theirs, ids, layer=None):
    out = theirs(torch.tensor([ids]), output_hidden_states=True).hidden_states
    return out[-1 if layer is None else layer][0]


def near(a, b):
    assert a.shape == b.shape
    assert float((a - b).abs().max()) <= 1e-5 * max(1.0, float(b.abs().max()))


@pytest.mark.parametrize("pool", ["last", "mean"])
@pytest.mark.parametrize("layer", [None, 1, 2])
def test_vectors_are_those_of_transformers(model, pool, layer, monkeypatch):
    lm, theirs = model
    monkeypatch.setattr(lm.checkpoint.lm, "chunk", 7)
    got = lm.embed(TEXTS, pool=pool, layer=layer, normalised=False)
    for row, text in zip(got, TEXTS, strict=True):
        h = states(theirs, lm.encode_prompt(text, raw=True), layer)
        near(row, h[-1] if pool == "last" else h.mean(0))


def test_the_last_layer_by_its_number_is_the_normed_one(model):
    lm, _ = model
    last = lm.network.layers
    assert torch.equal(lm.embed(TEXTS), lm.embed(TEXTS, layer=last))
    near(lm.embed(TEXTS).norm(dim=1), torch.ones(3))


def test_company_and_ids_change_nothing(model):
    lm, _ = model
    some = lm.embed(TEXTS, pool="mean")
    for row, text in zip(some, TEXTS, strict=True):
        near(row, lm.embed(text, pool="mean")[0])
        near(row, lm.embed([lm.encode_prompt(text, raw=True)], pool="mean")[0])
    assert not lm.checkpoint.lm.live


@torch.no_grad()
def prepended(lm, theirs, text, first, stop):
    """Token Prepending over transformers, by hooks: the vector of the last token, not scaled."""
    encode = lm.checkpoint.text.encode
    before, behind = encode("This sentence : "), encode(f' "{text}" means in one word:"', False)
    entering = theirs.get_input_embeddings()(torch.tensor([[*before, 0, *behind]]))
    entering[0, len(before)] = _placeholder(lm.network)
    hooks = []
    for layer in range(first, stop):

        def overwrite(_, args, kwargs):
            h = (args[0] if args else kwargs["hidden_states"]).clone()
            h[0, len(before)] = h[0, -1]
            return (h, *args[1:]), kwargs

        hooks.append(
            theirs.model.layers[layer].register_forward_pre_hook(overwrite, with_kwargs=True)
        )
    try:
        out = theirs(inputs_embeds=entering, output_hidden_states=True).hidden_states
    finally:
        for hook in hooks:
            hook.remove()
    return [h[0, -1] for h in out]


@pytest.mark.parametrize("first, stop", [(1, 2), (0, 2), (2, 2)])
def test_token_prepending_is_the_published_rule(model, first, stop):
    lm, theirs = model
    for layer in (2, None):
        got = lm.embed(TEXTS, layer=layer, prepend_from=first, prepend_to=stop, normalised=False)
        for row, text in zip(got, TEXTS, strict=True):
            near(row, prepended(lm, theirs, text, first, stop)[-1 if layer is None else layer])
    same = prepended(lm, theirs, TEXTS[0], 1, 1)[-1]
    off = (prepended(lm, theirs, TEXTS[0], 0, 2)[-1] - same).abs().max()
    assert off > 1e-3, "what is written over matters"


def test_the_compiled_step_reads_the_same(model):
    lm, theirs = model
    fast = load(lm.name, draft="none", ngrams=None)
    if fast.checkpoint.why:
        pytest.skip(fast.checkpoint.why)
    for layer in (None, 2):
        got = fast.embed(TEXTS, layer=layer, normalised=False)
        for row, text in zip(got, TEXTS, strict=True):
            near(row, states(theirs, lm.encode_prompt(text, raw=True), layer)[-1])
    near(
        fast.embed(TEXTS, prepend_to=2, prepend_from=1),
        lm.embed(TEXTS, prepend_to=2, prepend_from=1),
    )


@pytest.mark.parametrize(
    "fields, texts, sentence",
    [
        ({"pool": "max"}, TEXTS, "pool is 'max'"),
        ({"layer": 99}, TEXTS, "layer is 99"),
        ({"layer": 0}, TEXTS, "layer is 0"),
        ({"prepend_to": 99}, TEXTS, "prepend_to is 99"),
        ({"prepend_to": 2, "layer": 1}, TEXTS, "prepend_to is 2"),
        ({"prepend_from": 2, "prepend_to": 1}, TEXTS, "prepend_from is 2"),
        ({"template": "no place"}, TEXTS, "it must hold {text} once"),
        ({"template": "{placeholder}{text}"}, TEXTS, "only with prepending"),
        ({"template": "{text}", "prepend_to": 1}, TEXTS, "{placeholder} once"),
        ({"template": "{text}{placeholder}", "prepend_to": 1}, TEXTS, "must stand before"),
        ({"template": "x{text}"}, [[1, 2]], "text 1 is token ids"),
        ({}, [], "texts is empty"),
        ({}, ["x", " "], "text 2 is empty"),
        ({}, ["x " * 100_000], "text 1 has more than"),
        ({}, [[1, 100_000]], "text 1 has token 100000"),
    ],
)
def test_what_cannot_be_is_refused(model, fields, texts, sentence):
    with pytest.raises(ValueError, match=r".") as error:
        model[0].embed(texts, **fields)
    assert sentence in str(error.value) and len(str(error.value)) <= 300


def test_models_that_fill_gaps_are_refused():
    with pytest.raises(ValueError, match="a masked-diffusion model"):
        embed_texts(load("zoo:diffusion"), TEXTS, EmbeddingSettings())


def test_the_command_line(model, polydec_command, tmp_path):
    lm, _ = model

    def command(*words):
        flags = ["--model", lm.name, "--dtype", "float32", *words]
        return polydec_command("embed", *flags)

    code, out, _ = command(*TEXTS, "--pool", "mean")
    rows = [json.loads(line)["embedding"] for line in out.splitlines()]
    assert not code
    near(torch.tensor(rows), lm.embed(TEXTS, pool="mean"))
    file, made = tmp_path / "texts", tmp_path / "made.safetensors"
    file.write_text("\n".join(TEXTS) + "\n", "utf-8")
    code, out, _ = command("--file", str(file), "--out", str(made))
    assert not code and not out
    from safetensors.torch import load_file

    near(load_file(made)["embeddings"], lm.embed(TEXTS))
    code, _, err = command("x", "--layer", "77")
    assert code == 2 and "layer is 77" in err and "Traceback" not in err
    code, _, err = command()
    assert code == 2 and "give at least one text" in err


def test_scaled_vectors_compare_as_cosines(model):
    lm, _ = model
    raw, scaled = lm.embed(TEXTS, normalised=False), lm.embed(TEXTS)
    near(scaled, normalize(raw, dim=-1))


def layout(path, pooling=None, modules=("Transformer", "Pooling", "Normalize"), **prompts):
    """What sentence-transformers writes beside a model: Qwen3-Embedding's layout where nothing else is said."""
    kinds = [
        {
            "idx": i,
            "name": str(i),
            "path": f"{i}_{kind}" if i else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(modules)
    ]
    (path / "modules.json").write_text(json.dumps(kinds))
    (path / "1_Pooling").mkdir(exist_ok=True)
    modes = {
        f"pooling_mode_{x}": False for x in ("cls_token", "mean_tokens", "max_tokens", "lasttoken")
    }
    said = {
        "word_embedding_dimension": 64,
        "include_prompt": True,
        **modes,
        "pooling_mode_lasttoken": True,
    }
    (path / "1_Pooling" / "config.json").write_text(json.dumps(said | (pooling or {})))
    told = {
        "prompts": {"query": "Instruct: find it\nQuery:", "document": ""},
        "default_prompt_name": None,
    }
    (path / "config_sentence_transformers.json").write_text(json.dumps(told | prompts))
    return path


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A random model in Qwen3-Embedding's layout: no head, names without `model.`, a tokenizer that ends each text."""
    from tokenizers import Tokenizer, processors
    from transformers import Qwen3Model

    path = tmp_path_factory.mktemp("published") / "m"
    theirs = Qwen3Model.from_pretrained(qwen(path)).eval()
    theirs.save_pretrained(path)
    config = json.loads((path / "config.json").read_text())
    config["architectures"] = ["Qwen3ForCausalLM"]
    (path / "config.json").write_text(json.dumps(config))
    text = Tokenizer.from_file(str(path / "tokenizer.json"))
    end = text.token_to_id("<|im_end|>")
    text.post_processor = processors.TemplateProcessing(
        single="$A <|im_end|>", special_tokens=[("<|im_end|>", end)]
    )
    text.save(str(path / "tokenizer.json"))
    return layout(path), theirs, text


@torch.no_grad()
def test_qwen3_embeddings_layout_gives_its_vectors(published, monkeypatch, capsys):
    path, theirs, text = published
    from safetensors import safe_open

    with safe_open(path / "model.safetensors", "pt") as file:
        assert "embed_tokens.weight" in file.keys()  # noqa: SIM118
    lm = load(str(path), draft="none", dtype="float32")

    def vectors(before):
        ids = [text.encode(before + t).ids for t in TEXTS]
        rows = [theirs(torch.tensor([x])).last_hidden_state[0, -1] for x in ids]
        return normalize(torch.stack(rows), dim=-1)

    near(lm.embed(TEXTS), vectors(""))
    near(lm.embed(TEXTS, prompt="document"), vectors(""))
    near(lm.embed(TEXTS, prompt="query"), vectors("Instruct: find it\nQuery:"))
    near(load(str(path), draft="none", dtype="native").embed(TEXTS), vectors(""))
    layout(path, {"pooling_mode_lasttoken": False, "pooling_mode_mean_tokens": True})
    assert torch.equal(lm.embed(TEXTS), lm.embed(TEXTS, pool="mean"))
    layout(path, default_prompt_name="query")
    near(lm.embed(TEXTS), vectors("Instruct: find it\nQuery:"))
    near(lm.embed(TEXTS, template="{text}"), vectors(""))
    layout(path)
    monkeypatch.setattr(
        sys, "argv", ["polydec", "embed", TEXTS[0], "--model", str(path), "--dtype", "float32", "--prompt", "query"]
    )  # fmt: skip
    with pytest.raises(SystemExit) as done:
        main()
    assert not done.value.code
    row = torch.tensor(json.loads(capsys.readouterr().out)["embedding"])
    near(row, vectors("Instruct: find it\nQuery:")[0])


@pytest.mark.parametrize(
    "more, fields, sentence",
    [
        ({}, {"prompt": "quary"}, "prompt is 'quary': "),
        ({}, {"prompt": "query", "template": "x {text}"}, "in the place of a template"),
        ({"pooling": {"pooling_mode_cls_token": True}}, {}, "asks for pooling_mode_cls_token, pooling_mode_lasttoken"),
        ({"pooling": {"pooling_mode_lasttoken": False}}, {}, "asks for no pooling"),
        ({"modules": ("Transformer", "Pooling", "Dense")}, {}, "has Dense: "),
        ({"modules": ("Transformer", "Normalize")}, {}, "has 0 poolings"),
        ({"prompts": {"query": 3}}, {}, "prompts must be texts by name"),
        ({"default_prompt_name": "x"}, {}, "default_prompt_name one of these"),
    ],
)  # fmt: skip
def test_layouts_that_are_not_read_are_refused(published, more, fields, sentence):
    path, _, _ = published
    lm = load(str(path), draft="none", dtype="float32")
    layout(path, **more)
    with pytest.raises(ValueError, match=r".") as error:
        lm.embed(TEXTS, **fields)
    layout(path)
    assert sentence in str(error.value) and len(str(error.value)) <= 300


@pytest.mark.parametrize(
    "fields, sentence",
    [
        ({"is_causal": False}, "is_causal is false"),
        (
            {"architectures": ["Qwen3BidirectionalModel"]},
            "architectures names Qwen3BidirectionalModel",
        ),
    ],
)
def test_bidirectional_variants_are_refused_by_name(published, tmp_path, fields, sentence):
    path, _, _ = published
    for file in path.glob("*.*"):
        (tmp_path / file.name).symlink_to(file)
    config = json.loads((path / "config.json").read_text()) | fields
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=sentence):
        load(str(tmp_path), draft="none", dtype="float32")

"""Checkpoints: every kind of name, directories that we write, and what is refused."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from request_road import load_road
from safetensors.torch import save_file
from tokenizers import Tokenizer as HFTokenizer
from tokenizers import decoders, models, pre_tokenizers, processors
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, MistralConfig

from polydec.core.decoder import answer_one
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.models.formats import tensor_files
from polydec.models.sessions import checkpoint, sources
from polydec.models.text.tokenizer import Tokenizer
from project_paths import DATA_FOLDER

DATA = DATA_FOLDER
SIZE = {
    "vocab_size": 260,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}</s>\n{% endfor %}assistant:"


def model_of(config=None, seed=0):
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config or LlamaConfig(**SIZE)).float().eval()
    for p in model.parameters():
        p.data = (
            p.data + 0.3 * torch.randn_like(p)
            if p.dim() < 2
            else torch.randn_like(p) * p.shape[-1] ** -0.5
        )
    return model


def text_of():
    """Bytes and a few marks; it puts <s> first."""
    tokens = ["<unk>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    t = HFTokenizer(models.BPE({c: i for i, c in enumerate(tokens)}, []))
    t.add_special_tokens(["<unk>", "<s>", "</s>"])
    t.pre_tokenizer, t.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return Tokenizer(t, eos=[2], template=TEMPLATE, names={"bos_token": "<s>", "eos_token": "</s>"})


def row_of(point, ids):
    return run_coroutines(
        [point.lm.open_session(ids).score_draft(Draft.chain_draft(ids[-1]), ScoreRequest())]
    )[0].log_weights(0)


@torch.inference_mode()
def their_row(model, ids):
    return model(input_ids=torch.tensor([ids])).logits[0, -1]


IDS = [1, 40, 50, 60, 70, 80]


@pytest.fixture
def saved(tmp_path):
    model = model_of()
    sources.save_checkpoint(
        tmp_path / "m", model.config.to_dict(), model.state_dict(), text_of(), {"temperature": 0.7}
    )
    return tmp_path / "m"


def test_what_we_save_both_read(saved):
    model, got = model_of(), checkpoint.load_bundle(str(saved), dtype="float32", threads=1)
    assert not list(saved.glob("*.part"))
    assert got.name == str(saved) == got.path and got.dtype == "float32" and got.kernel
    assert got.generation == {"eos_token_id": [2], "temperature": 0.7}
    assert got.lm.vocab.size == 260 and got.lm.vocab.eos == got.text.eos == {2}
    assert got.lm.vocab.tokenizer == got.text.fingerprint == text_of().fingerprint
    torch.testing.assert_close(row_of(got, IDS), their_row(model, IDS), atol=1e-4, rtol=1e-4)
    theirs, words = (
        AutoModelForCausalLM.from_pretrained(saved).eval(),
        AutoTokenizer.from_pretrained(saved),
    )
    assert (
        theirs.generation_config.eos_token_id == [2] and theirs.generation_config.temperature == 0.7
    )
    torch.testing.assert_close(their_row(theirs, IDS), their_row(model, IDS), atol=0, rtol=0)
    assert words.encode("hé </s>x") == list(got.text.encode("hé </s>x"))
    chat = [{"role": "user", "content": "hi"}]
    assert list(got.text.chat_prompt(chat)) == words.apply_chat_template(chat)["input_ids"]


def test_saving_replaces_and_needs_a_tokenizer(saved):
    model = model_of(seed=1)
    sources.save_checkpoint(saved, model.config.to_dict(), model.state_dict(), text_of())
    got = checkpoint.load_bundle(str(saved), dtype="float32")
    torch.testing.assert_close(row_of(got, IDS), their_row(model, IDS), atol=1e-4, rtol=1e-4)
    with pytest.raises(ValueError, match="polydec_base"):
        sources.save_checkpoint(saved, model.config.to_dict(), model.state_dict(), None)


def test_sharded_and_torch_files(tmp_path):
    model = model_of()
    model.save_pretrained(tmp_path / "s", max_shard_size="20KB")
    assert len(list((tmp_path / "s").glob("*.safetensors"))) > 2
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "config.json").write_bytes((tmp_path / "s" / "config.json").read_bytes())
    torch.save(model.state_dict(), tmp_path / "b" / "pytorch_model.bin")
    for kind in "sb":
        with pytest.warns(UserWarning, match="no tokenizer"):
            got = checkpoint.load_bundle(str(tmp_path / kind), dtype="float32")
        torch.testing.assert_close(row_of(got, IDS), their_row(model, IDS), atol=1e-4, rtol=1e-4)
        assert got.lm.vocab.tokenizer == "" and got.text.decode(IDS[:2]) == "<1> <40>"
    lost = sorted((tmp_path / "s").glob("*.safetensors"))[1]
    lost.unlink()
    with pytest.raises(ValueError, match=f"incomplete: {lost.name}"):
        checkpoint.load_bundle(str(tmp_path / "s"))
    (tmp_path / "b" / "pytorch_model.bin").write_bytes(b"PK nonsense")
    with pytest.raises(ValueError, match="damaged"):
        checkpoint.load_bundle(str(tmp_path / "b"))


def test_a_draft_borrows_tokenizer_and_embeddings(saved, tmp_path):
    model = model_of(seed=5)
    weights = {k: t for k, t in model.state_dict().items() if "embed" not in k}
    config = {**model.config.to_dict(), "polydec_base": str(saved)}
    sources.save_checkpoint(tmp_path / "d", config, weights, None)
    assert not (tmp_path / "d" / "tokenizer.json").exists()
    target, draft = (
        checkpoint.load_bundle(str(saved), dtype="float32"),
        checkpoint.load_bundle(str(tmp_path / "d"), dtype="float32"),
    )
    target.lm.vocab.require_same(draft.lm.vocab, "draft")
    assert draft.lm.vocab == target.lm.vocab and draft.text.encode("hi") == target.text.encode("hi")
    model.set_input_embeddings(model_of().get_input_embeddings())
    torch.testing.assert_close(row_of(draft, IDS), their_row(model, IDS), atol=1e-4, rtol=1e-4)


def test_only_the_embeddings_are_borrowed():
    own, base = (
        {"a": torch.zeros(1)},
        {"a": torch.ones(1), "b": torch.ones(1), "model.embed_tokens.weight": torch.ones(2)},
    )
    got = tensor_files.SharedEmbeddingWeights(own, base)
    assert (
        set(got) == {"a", "model.embed_tokens.weight"}
        and len(got) == 2
        and "b" not in got
        and float(got["a"]) == 0
    )
    assert set(tensor_files.SharedEmbeddingWeights(base, base)) == set(base)


@pytest.mark.parametrize(
    "generation, config, want",
    [
        ({"eos_token_id": [3, 4]}, {"eos_token_id": 2}, {2, 3, 4}),
        ({}, {"eos_token_id": 5}, {2, 5}),
        ({}, {"eos_token_id": None}, {2}),
    ],
)
def test_where_eos_comes_from(saved, generation, config, want):
    (saved / "generation_config.json").write_text(json.dumps(generation))
    (saved / "config.json").write_text(
        json.dumps({**json.loads((saved / "config.json").read_text()), **config})
    )
    assert sources.open_source(str(saved)).text.eos == want


def test_chat_templates_of_every_place(saved):
    (saved / "chat_template.json").write_text(json.dumps({"chat_template": "old"}))
    assert sources.open_source(str(saved)).text.template.source == TEMPLATE
    (saved / "chat_template.jinja").unlink()
    assert sources.open_source(str(saved)).text.template.source == "old"
    (saved / "chat_template.json").unlink()
    assert not sources.open_source(str(saved)).text.has_chat


@pytest.mark.skipif(
    not (DATA / "model_stories260k").is_dir(),
    reason="needs the folder model_stories260k of POLYDEC_DATA",
)
def test_a_published_model_writes_what_it_should():
    got = checkpoint.load_bundle(str(DATA / "model_stories260k" / "hf"), dtype="float32")
    from polydec.core.request import Request
    from polydec.lab.testing.kits import build
    from polydec.laws.shapers.greedy import GreedyRule
    from polydec.laws.targets.shaped import ShapedTarget

    decoder = build("plain", ShapedTarget(got.lm, GreedyRule()))[0]
    for line in (DATA / "model_stories260k" / "expected.jsonl").read_text().splitlines()[:4]:
        row = json.loads(line)
        ids = got.text.encode(row["prompt"])
        result = run_coroutines(
            [
                answer_one(
                    decoder, Request(ids, max_tokens=200, writer=got.text.text_writers(after=ids))
                )
            ]
        )[0]
        made = [x for x in result.token_ids if x not in got.text.eos]
        assert made == row["greedy_ids"][: len(made)] and len(made) == len(row["greedy_ids"])
        assert row["prompt"] + result.text == row["greedy_text"]


@pytest.mark.skipif(
    not (DATA / "model_stories260k").is_dir(),
    reason="needs the folder model_stories260k of POLYDEC_DATA",
)
def test_a_continued_text_keeps_its_space():
    import polydec

    lm = polydec.load(str(DATA / "model_stories260k" / "hf"), dtype="float32")
    whole = json.loads((DATA / "model_stories260k" / "expected.jsonl").read_text().splitlines()[0])[
        "greedy_text"
    ]
    for words in (2, 5):
        prompt = " ".join(whole.split(" ")[:words])
        got = polydec.generate(lm, prompt, max_tokens=8)
        assert got.text[0] == " " and whole.startswith(prompt + got.text)
        assert polydec.generate(lm, lm.encode_prompt(prompt), max_tokens=8).text == got.text


@pytest.mark.skipif(
    not (DATA / "tokenizer_gpt2").is_dir(), reason="needs the folder tokenizer_gpt2 of POLYDEC_DATA"
)
def test_a_tokenizer_without_tokenizer_json(saved):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (saved / name).unlink()
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        (saved / name).write_bytes((DATA / "tokenizer_gpt2" / name).read_bytes())
    text = sources.open_source(str(saved)).text
    assert text.size == 50257 and text.decode(text.encode("Hello, wörld")) == "Hello, wörld"
    assert text.encode("Hello world") == (15496, 995)


# Bad input


def refused(name, match, **options):
    with pytest.raises(ValueError, match=match) as e:
        checkpoint.load_bundle(str(name), **options)
    assert "\n" not in str(e.value) and len(str(e.value)) < 600


def test_names_that_are_nothing(tmp_path):
    refused("", "model is empty")
    refused("zoo:smolm2", "no embedded model 'zoo:smolm2': .*zoo:smollm2")
    refused(tmp_path / "none", "no such file or directory")
    refused("./none.gguf", "no such file or directory")
    refused(tmp_path, "directory without a config.json")
    (tmp_path / "x").write_text("hello, world")
    refused(tmp_path / "x", "does not begin with the letters GGUF")


def test_directories_that_are_broken(saved):
    whole, config = (saved / "model.safetensors").read_bytes(), (saved / "config.json").read_text()
    for n in (0, 5, 200, len(whole) // 2, len(whole) - 1):
        (saved / "model.safetensors").write_bytes(whole[:n])
        refused(saved, "truncated or damaged")
    (saved / "model.safetensors").unlink()
    refused(saved, "directory without weights")
    (saved / "model.safetensors.index.json").write_text("{}")
    refused(saved, "no weight_map")
    (saved / "model.safetensors.index.json").unlink()
    (saved / "model.safetensors").write_bytes(whole)
    for bad, match in (
        ("{", "not a JSON object"),
        ("[]", "it is a list"),
        ("{}", "names no model_type"),
    ):
        (saved / "config.json").write_text(bad)
        refused(saved, match)
    (saved / "config.json").write_text(json.dumps({**json.loads(config), "hidden_size": 48}))
    refused(saved, "cannot be loaded: .*shape")
    (saved / "config.json").write_text(
        json.dumps({**json.loads(config), "model_type": "no-such-model"})
    )
    refused(saved, "cannot be loaded: .*no-such-model")
    (saved / "config.json").write_text(config)
    (saved / "tokenizer.json").write_text("{}")
    refused(saved, r"not a readable tokenizer\.json")


def test_missing_tensors_are_not_made_up(tmp_path):
    """transformers would fill them with random numbers."""
    from transformers import GPT2Config

    model = model_of(GPT2Config(vocab_size=260, n_embd=32, n_layer=2, n_head=4, n_positions=64))
    model.save_pretrained(tmp_path)
    left_out = ("lm_head.weight", "transformer.h.1.ln_2.weight")
    weights = {k: t.clone() for k, t in model.state_dict().items() if k not in left_out}
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.warns(UserWarning, match="no tokenizer"):
        refused(tmp_path, r"weights lack transformer\.h\.1\.ln_2\.weight")


def test_options_out_of_range(saved):
    refused(saved, "threads is 0", threads=0)
    refused(saved, "dtype is 'int3'", dtype="int3")
    refused(saved, "device", device="tpu")


def test_threads(saved):
    before = torch.get_num_threads()
    try:
        checkpoint.load_bundle(str(saved), dtype="float32", threads=2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_text_without_a_tokenizer(tmp_path):
    model_of(MistralConfig(**SIZE)).save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="token ids"):
        got = checkpoint.load_bundle(str(tmp_path), dtype="float32")
    assert not got.text.has_chat and got.text.eos == {2}
    assert got.text.encode("<7> <259>") == (7, 259) and got.text.decode([7, 259]) == "<7> <259>"
    writer = got.text.text_writers()()
    assert [writer.push_token(7), writer.push_token(8), writer.end_text()] == ["<7>", " <8>", ""]
    with pytest.raises(ValueError, match="'hello' cannot be encoded"):
        got.text.encode("hello")


def test_a_deferred_model_has_every_field_of_a_loaded_one():
    fields = [f.name for f in dataclasses.fields(checkpoint.ModelBundle)]
    loaded = checkpoint.ModelBundle(*fields)
    deferred = checkpoint.DeferredBundle("name", lambda: loaded)
    assert not deferred.is_loaded
    assert [getattr(deferred, name) for name in fields] == fields


def test_the_way_from_a_name_to_its_network_is_short():
    """Modules that are given the name or the path, as `benchmarks/request_road.py` counts them."""
    road = load_road("zoo:tiny")
    assert len(road.stations) <= 30 and road.returns <= 10, road.stations

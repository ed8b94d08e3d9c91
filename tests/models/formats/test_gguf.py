"""GGUF files: against the gguf library, transformers' own loading, and damaged in every way."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import struct
import tracemalloc

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from polydec.core.decoder import answer_one
from polydec.core.scheduler import run_coroutines
from polydec.core.types import ScoreRequest
from polydec.models.formats import zoo
from polydec.models.formats.gguf import GGUFCheckpoint
from polydec.models.formats.gguf_types import TYPES
from polydec.models.sessions import checkpoint, sources
from polydec.models.text.gguf_text import generation_defaults, read_text
from project_paths import DATA_FOLDER

DATA = DATA_FOLDER
SMOLLM2 = zoo.find_zoo_entry("smollm2").path
needs_smollm2 = pytest.mark.skipif(
    SMOLLM2 is None, reason="needs zoo:smollm2 (polydec zoo install smollm2)"
)

SIZE = {
    "vocab_size": 300,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 128,
}
CONFIGS = {
    "llama": LlamaConfig(**SIZE, rope_theta=5e5),
    "llama, tied": LlamaConfig(**SIZE, tie_word_embeddings=True),
    "qwen2": Qwen2Config(**SIZE),
    "qwen3": Qwen3Config(**{**SIZE, "head_dim": 32}),
}
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
}


def model_of(name):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[name]).float().eval()
    for p in model.parameters():
        p.data = (
            p.data + 0.3 * torch.randn_like(p)
            if p.dim() < 2
            else torch.randn_like(p) * p.shape[-1] ** -0.5
        )
    return model


def permuted(weight, heads):
    """As llama.cpp stores q and k: the partners of a rotation side by side."""
    return weight.reshape(heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def write_model(path, model, kind=Type.F32, extra=(), tokenizer=True):
    c, arch = model.config, model.config.model_type
    w = gguf.GGUFWriter(path, arch)
    w.add_context_length(c.max_position_embeddings)
    w.add_embedding_length(c.hidden_size)
    w.add_block_count(c.num_hidden_layers)
    w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count(c.num_attention_heads)
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_rope_freq_base(c.rope_parameters["rope_theta"])
    w.add_vocab_size(c.vocab_size)
    if arch == "qwen3":
        w.add_key_length(c.head_dim)
        w.add_value_length(c.head_dim)
    if tokenizer:
        byte_level(w, c.vocab_size)
    for add in extra:
        add(w)
    for name, t in model.state_dict().items():
        if name == "lm_head.weight" and c.tie_word_embeddings:
            continue
        stem, end = name.rsplit(".", 1)
        own = NAMES.get(stem) or f"blk.{stem.split('.')[2]}.{NAMES[stem.split('.')[-1]]}"
        a = t.numpy()
        if arch == "llama" and ".attn_" in own and own[-1] in "qk":
            a = permuted(a, c.num_attention_heads if own[-1] == "q" else c.num_key_value_heads)
        type = (
            kind if a.ndim == 2 and a.shape[1] % gguf.GGML_QUANT_SIZES[kind][0] == 0 else Type.F32
        )
        w.add_tensor(
            f"{own}.{end}", a if type == Type.F32 else gguf.quantize(a, type), raw_dtype=type
        )
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


def byte_level(w, size):
    alphabet = sorted(
        chr(c)
        for c in (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100), *range(0x100, 0x144))
    )
    merges = ["t h", "th e", "Ġ the", "Ġ Ġ", "i n", "Ċ Ċ"]
    tokens = [*alphabet, *(m.replace(" ", "") for m in merges), "<|end|>", "<|eot_id|>", "<tool>"]
    unused = [f"[PAD{i}]" for i in range(size - len(tokens))]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("smollm")
    w.add_token_list([*tokens, *unused])
    w.add_token_types([1] * (len(tokens) - 3) + [3, 3, 4] + [5] * len(unused))
    w.add_token_merges(merges)
    w.add_eos_token_id(tokens.index("<|end|>"))
    w.add_chat_template("{% for m in messages %}{{ m.content }}<|eot_id|>{% endfor %}")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("gguf") / "small.gguf", model_of("llama"), Type.Q4_1)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_models_weights_and_logits_come_back(name, tmp_path):
    model = model_of(name)
    file = GGUFCheckpoint(write_model(tmp_path / "m.gguf", model))
    state = model.state_dict()
    assert set(file) == set(state) - (
        {"lm_head.weight"} if CONFIGS[name].tie_word_embeddings else set()
    )
    for key, tensor in file.items():
        torch.testing.assert_close(tensor, state[key], atol=0, rtol=0)
    assert file.config["tie_word_embeddings"] == CONFIGS[name].tie_word_embeddings
    got = checkpoint.load_bundle(str(tmp_path / "m.gguf"), dtype="float32")
    ids = torch.randint(0, 300, (1, 40), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        want = model(input_ids=ids).logits[0, :-1]
    scores = run_coroutines(
        [got.lm.open_session(ids[0].tolist()).prefill_prompt(ScoreRequest(prompt=True))]
    )[0]
    torch.testing.assert_close(
        torch.stack([scores.log_weights(i) for i in range(39)]), want, atol=1e-4, rtol=1e-4
    )


def test_transformers_reads_the_same_out_of_the_file(small):
    pytest.importorskip("accelerate", reason="transformers reads GGUF files with accelerate only")
    theirs = AutoModelForCausalLM.from_pretrained(
        small.parent, gguf_file=small.name, dtype=torch.float32
    ).eval()
    file, state = GGUFCheckpoint(small), theirs.state_dict()
    for key, tensor in file.items():
        torch.testing.assert_close(tensor, state[key], atol=0, rtol=0)
    ours, config = file.config, theirs.config
    for key in (
        "vocab_size",
        "hidden_size",
        "num_key_value_heads",
        "rms_norm_eps",
        "max_position_embeddings",
    ):
        assert ours[key] == pytest.approx(getattr(config, key))
    assert ours["rope_theta"] == config.rope_parameters["rope_theta"] == 5e5


KINDS = [
    k
    for k in Type
    if k not in (Type.I8, Type.I16, Type.I32, Type.I64, Type.F64, Type.Q8_1, Type.Q8_K)
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
def test_every_type_is_dequantised_as_the_library_does(kind, tmp_path):
    block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(int(kind)).integers(
        0, 256, (6, 512 // block * size), dtype=np.uint8
    )
    if kind in (Type.F32, Type.F16, Type.BF16):
        raw = np.random.default_rng(0).normal(size=(6, 512)).astype(np.float32)
        raw = {
            Type.F32: raw,
            Type.F16: raw.astype(np.float16),
            Type.BF16: gguf.quantize(raw, Type.BF16),
        }[kind]
    w = gguf.GGUFWriter(tmp_path / "t.gguf", "qwen2")
    w.add_tensor("output.weight", raw, raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    file = GGUFCheckpoint(tmp_path / "t.gguf")
    with np.errstate(all="ignore"):
        try:
            want = torch.from_numpy(gguf.dequantize(raw, kind).astype(np.float32))
        except NotImplementedError:
            with pytest.raises(ValueError, match="cannot dequantise"):
                file["lm_head.weight"]
            return
        torch.testing.assert_close(
            file["lm_head.weight"].float(), want, atol=0, rtol=0, equal_nan=True
        )


def test_the_header_is_read_as_the_library_does(small):
    theirs, ours = gguf.GGUFReader(small), GGUFCheckpoint(small)
    fields = {k: f.contents() for k, f in theirs.fields.items() if not k.startswith("GGUF.")}
    assert ours.fields == fields
    assert {
        t.name: (tuple(t.shape[::-1].tolist()), t.tensor_type, t.data_offset)
        for t in theirs.tensors
    } == {name: (e.shape, e.type.number, e.start) for name, e in ours.entries.items()}


def test_every_kind_of_field(tmp_path):
    w = gguf.GGUFWriter(tmp_path / "f.gguf", "llama")
    w.add_uint8("a", 200)
    w.add_int8("b", -3)
    w.add_uint16("c", 60000)
    w.add_int16("d", -300)
    w.add_float64("e", 0.1)
    w.add_int32("f", -70000)
    w.add_uint64("g", 1 << 40)
    w.add_int64("h", -1 << 40)
    w.add_bool("i", True)
    w.add_string("j", "é")
    w.add_array("k", [1.5, 2.5])
    w.add_array("l", ["x", "", "ü"])
    w.add_array("m", [True, False])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    got = GGUFCheckpoint(tmp_path / "f.gguf").fields
    assert [got[k] for k in "abcdefghijklm"] == [
        200,
        -3,
        60000,
        -300,
        0.1,
        -70000,
        1 << 40,
        -1 << 40,
        True,
        "é",
        [1.5, 2.5],
        ["x", "", "ü"],
        [True, False],
    ]


def test_llama3_frequencies_become_its_scaling(tmp_path):
    def rope(factor):
        scaling = {
            "rope_type": "llama3",
            "rope_theta": 5e5,
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        config = LlamaConfig(**{**SIZE, "head_dim": 64}, rope_parameters=scaling)
        scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
        return (5e5 ** -(torch.arange(0, 64, 2) / 64) / scaled).numpy().astype(np.float32)

    for name, table, kind in (
        ("a", rope(32.0), "llama3"),
        ("b", np.linspace(1, 3, 32, dtype=np.float32), "longrope"),
    ):
        model = AutoModelForCausalLM.from_config(
            LlamaConfig(**{**SIZE, "head_dim": 64}, rope_theta=5e5)
        )
        path = write_model(
            tmp_path / f"{name}.gguf",
            model,
            extra=[
                lambda w, t=table: w.add_tensor("rope_freqs.weight", t),
                lambda w: w.add_rope_dimension_count(64),
                lambda w: w.add_key_length(64),
            ],
        )
        scaling = GGUFCheckpoint(path).config["rope_scaling"]
        assert scaling["rope_type"] == kind
        assert (
            scaling["factor"] == 32.0
            if kind == "llama3"
            else np.allclose(scaling["long_factor"], table)
        )
        assert checkpoint.load_bundle(str(path), dtype="float32").lm.network.layers == 2


def test_yarn_and_linear_scaling(tmp_path):
    for kind in ("linear", "yarn"):

        def add(w, kind=kind):
            w.add_string("llama.rope.scaling.type", kind)
            w.add_float32("llama.rope.scaling.factor", 4.0)
            w.add_uint32("llama.rope.scaling.original_context_length", 32)

        scaling = GGUFCheckpoint(
            write_model(tmp_path / f"{kind}.gguf", model_of("llama"), extra=[add])
        ).config["rope_scaling"]
        assert scaling["rope_type"] == kind and scaling["factor"] == 4.0
        assert (kind == "yarn") == (scaling.get("original_max_position_embeddings") == 32)


def test_the_tokenizer_of_a_file(small):
    file = GGUFCheckpoint(small)
    text = read_text(file)
    tokens = file.fields["tokenizer.ggml.tokens"]
    assert text.eos == {
        tokens.index("<|end|>"),
        tokens.index("<|eot_id|>"),
    }  # the file's own, and its template's
    assert generation_defaults(file, text.eos) == {"eos_token_id": sorted(text.eos)}
    assert [tokens[i] for i in text.encode("the  the12<tool><|end|>")] == [
        "the",
        "Ġ",
        "Ġthe",
        "1",
        "2",
        "<tool>",
        "<|end|>",
    ]
    assert [tokens[i] for i in text.encode("x  1")] == [
        "x",
        "ĠĠ",
        "1",
    ]  # digits are cut off before the words are
    assert text.decode(text.encode("the <tool>é<|end|>")) == "the <tool>é"
    assert "[PAD0]" in tokens and text.tokenizer.token_to_id("[PAD0]") is None
    assert len(text.chat_prompt([{"role": "user", "content": "in"}])) == 2


def test_sampling_defaults_of_a_file(tmp_path):
    path = write_model(
        tmp_path / "s.gguf",
        model_of("llama"),
        extra=[
            lambda w: w.add_float32("general.sampling.temp", 0.5),
            lambda w: w.add_int32("general.sampling.top_k", 20),
        ],
    )
    got = sources.open_source(str(path)).generation
    assert got["temperature"] == 0.5 and got["top_k"] == 20


@pytest.mark.skipif(
    not (DATA / "model_stories260k").is_dir(),
    reason="needs the folder model_stories260k of POLYDEC_DATA",
)
def test_sentencepiece_equals_the_original(tmp_path):
    """The tokenizer of stories260K, written as llama.cpp writes such, against the published one on real text."""
    rows = [
        json.loads(line)
        for line in (DATA / "model_stories260k" / "vocab.jsonl").read_text().splitlines()
    ]
    published = json.loads((DATA / "model_stories260k" / "hf" / "tokenizer.json").read_text())
    names = {i: t for t, i in published["model"]["vocab"].items()}
    w = gguf.GGUFWriter(tmp_path / "s.gguf", "llama")
    w.add_tokenizer_model("llama")
    w.add_token_list([names[i] for i in range(512)])
    w.add_token_scores([r["score"] for r in rows])
    w.add_token_types([2, 3, 3] + [6] * 256 + [1] * (512 - 259))
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    text = read_text(GGUFCheckpoint(tmp_path / "s.gguf"))
    for line in (DATA / "model_stories260k" / "expected.jsonl").read_text().splitlines():
        row = json.loads(line)
        assert list(text.encode(row["prompt"])) == row["prompt_ids"]
        assert text.decode([*row["prompt_ids"], *row["greedy_ids"]]) == row["greedy_text"]
    from tokenizers import Tokenizer

    theirs = Tokenizer.from_file(str(DATA / "model_stories260k" / "hf" / "tokenizer.json"))
    with gzip.open(DATA / "text_tinystories_slice" / "train.jsonl.gz", "rt") as lines:
        for _, line in zip(range(200), lines):
            story = json.loads(line)["text"]
            assert list(text.encode(story)) == theirs.encode(story).ids
            assert text.decode(text.encode(story)) == story


@pytest.mark.skipif(
    not (DATA / "tokenizer_gpt2").is_dir(), reason="needs the folder tokenizer_gpt2 of POLYDEC_DATA"
)
@pytest.mark.parametrize("pre", ["gpt-2", "qwen2", "llama-bpe", "tekken"])
def test_byte_level_kinds_cut_text_as_published(pre, tmp_path):
    """GPT-2's table under each way to cut: all bytes come back, digits stand as each kind has them."""
    vocab = json.loads((DATA / "tokenizer_gpt2" / "vocab.json").read_text())
    merges = (DATA / "tokenizer_gpt2" / "merges.txt").read_text().splitlines()[1:]
    w = gguf.GGUFWriter(tmp_path / "b.gguf", "llama")
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(pre)
    w.add_token_list(sorted(vocab, key=vocab.__getitem__))
    w.add_token_types([1] * 50256 + [3])
    w.add_token_merges(merges)
    w.add_bos_token_id(50256)
    w.add_eos_token_id(50256)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    text = read_text(GGUFCheckpoint(tmp_path / "b.gguf"))
    ids = text.encode("We're 20260101 Naïve:  世界\n\n x")
    assert text.decode(ids) == "We're 20260101 Naïve:  世界\n\n x"
    assert (ids[0] == 50256) == (pre in ("llama-bpe", "tekken"))
    digits = [t for t in map(text.tokenizer.id_to_token, ids) if re.search(r"\d", t)]
    assert digits == {"gpt-2": ["Ġ20", "26", "01", "01"], "llama-bpe": ["202", "601", "01"]}.get(
        pre, list("20260101")
    )
    if pre == "gpt-2":
        from transformers import AutoTokenizer

        theirs = AutoTokenizer.from_pretrained(DATA / "tokenizer_gpt2")
        for line in (DATA / "MANIFEST.md").read_text().splitlines():
            assert list(text.encode(line)) == theirs.encode(line)


# Damaged files


def refused(path, content, match="cannot be read as GGUF"):
    path.write_bytes(content)
    with pytest.raises(ValueError, match=match) as e:
        checkpoint.load_bundle(str(path))
    assert "\n" not in str(e.value)


def test_a_file_cut_anywhere_is_refused(small, tmp_path):
    whole = small.read_bytes()

    @settings(max_examples=60)
    @given(st.integers(0, len(whole) - 40))
    def cut(n):
        refused(tmp_path / "cut.gguf", whole[:n])

    cut()


def test_random_bytes_never_crash(small, tmp_path):
    """Damage anywhere in the header: refused in one sentence, or read (a changed name or number)."""
    whole = small.read_bytes()

    @settings(max_examples=150)
    @given(st.integers(4, 2000), st.binary(min_size=1, max_size=8))
    def damage(at, junk):
        (tmp_path / "d.gguf").write_bytes(whole[:at] + junk + whole[at + len(junk) :])
        try:
            source = sources.open_source(str(tmp_path / "d.gguf"))
            dict(source.weights)
        except ValueError as e:
            assert "d.gguf" in str(e)

    damage()


def test_absurd_counts_are_refused_at_once(small, tmp_path):
    whole, bad = small.read_bytes(), tmp_path / "bad.gguf"
    tracemalloc.start()
    refused(bad, b"", "cannot be read as GGUF")
    refused(bad, b"PK\3\4" + whole[4:], "does not begin with the letters GGUF")
    refused(bad, whole[:4] + struct.pack("<I", 1) + whole[8:], "version is 1")
    refused(bad, whole[:4] + struct.pack(">I", 3) + whole[8:], "little-endian")
    refused(bad, whole[:8] + struct.pack("<Q", 1 << 60) + whole[16:], "announces .* tensors")
    refused(bad, whole[:16] + struct.pack("<Q", 1 << 50) + whole[24:], "announces .* fields")
    refused(bad, whole[:24] + struct.pack("<Q", 1 << 62) + whole[32:], "characters of a string")
    at = whole.index(b"token_embd.weight") + len(b"token_embd.weight")
    refused(bad, whole[:at] + struct.pack("<I", 99) + whole[at + 4 :], "99 dimensions")
    refused(
        bad,
        whole[: at + 4] + struct.pack("<Q", 65) + whole[at + 12 :],
        "rows of 65, not a multiple of the 32",
    )
    refused(bad, whole[: at + 4] + struct.pack("<Q", 1 << 40) + whole[at + 12 :], "ends at byte")
    refused(bad, whole[: at + 20] + struct.pack("<I", 77) + whole[at + 24 :], "type 77")
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(whole) < peak_bytes < 50 * len(whole), "nothing is made that a count announced"


@pytest.mark.parametrize(
    "field",
    [
        "tokenizer.ggml.eos_token_id",
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.merges",
        "tokenizer.chat_template",
        "llama.rope.freq_base",
        "llama.block_count",
    ],
)
def test_fields_of_the_wrong_kind(field, small, tmp_path, monkeypatch):
    for wrong in ("x", [1.5], -3) if "template" not in field else (1, [1.5]):
        monkeypatch.setattr(sources, "GGUFCheckpoint", lambda path, w=wrong: _with(path, field, w))
        with pytest.raises(ValueError, match=r"small\.gguf"):
            checkpoint.load_bundle(str(small))


def _with(path, field, value):
    file = GGUFCheckpoint(path)
    file.fields[field] = value
    return file


def test_a_model_in_several_parts(tmp_path):
    """As the gguf library splits it: the same tensors as whole; what is missing, damaged or of another model is said."""
    whole = tmp_path / "whole.gguf"
    write_model(whole, model_of("llama"))
    one, reader = GGUFCheckpoint(whole), gguf.GGUFReader(whole)
    w = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=5)
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            kind, sub = field.types[0], field.types[-1]
            w.add_key_value(
                key, field.contents(), kind, sub if kind == gguf.GGUFValueType.ARRAY else None
            )
    for t in reader.tensors:
        w.add_tensor(t.name, np.array(t.data), raw_dtype=t.tensor_type)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    files = sorted(tmp_path.glob("m-*.gguf"))
    split = GGUFCheckpoint(files[0])
    assert (
        len(files) == len(split.parts) > 2 and split.config == one.config and set(split) == set(one)
    )
    assert all(torch.equal(split[name], one[name]) for name in one)
    with pytest.raises(ValueError, match="give the first"):
        GGUFCheckpoint(files[1])
    good = files[1].read_bytes()
    for data, match in (
        (good[:100], "a part of the model, cannot be read"),
        (files[2].read_bytes(), "is not part 2"),
        (None, "a part of the model, cannot be read"),
    ):
        files[1].unlink() if data is None else files[1].write_bytes(data)
        with pytest.raises(ValueError, match=match):
            GGUFCheckpoint(files[0])


def test_what_is_no_llama_is_refused(tmp_path):
    def mixture(w):
        w.add_expert_count(8)

    def parts(w):
        w.add_uint16("split.count", 3)

    def ropes(w):
        w.add_string("llama.rope.scaling.type", "weird")

    def stray(w):
        w.add_tensor("blk.0.ssm_a", np.zeros(4, np.float32))

    def kind(w):
        w.add_tokenizer_model("bert")
        w.add_token_list(["a"])

    model = model_of("llama")
    for add, match in (
        (mixture, "lacks the field llama.expert_used_count"),
        (parts, "one of 3 parts"),
        (ropes, "'weird'"),
        (stray, "blk.0.ssm_a"),
    ):
        write_model(tmp_path / "x.gguf", model, extra=[add])
        with pytest.raises(ValueError, match=match):
            checkpoint.load_bundle(str(tmp_path / "x.gguf"))
    write_model(tmp_path / "y.gguf", model, extra=[kind], tokenizer=False)
    with pytest.raises(ValueError, match="model 'bert'"):
        checkpoint.load_bundle(str(tmp_path / "y.gguf"))
    write_model(tmp_path / "y.gguf", model, tokenizer=False)
    with pytest.raises(ValueError, match=r"lacks the field tokenizer\.ggml\.tokens"):
        checkpoint.load_bundle(str(tmp_path / "y.gguf"))
    w = gguf.GGUFWriter(tmp_path / "z.gguf", "mamba")
    byte_level(w, 300)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    with pytest.raises(ValueError, match="architecture 'mamba'"):
        checkpoint.load_bundle(str(tmp_path / "z.gguf"))


# The real one


def real_texts(each=8):
    for path in sorted(DATA.glob("text_*/*.jsonl.gz")):
        with gzip.open(path, "rt") as lines:
            for _, line in zip(range(each), lines):
                row = json.loads(line)
                yield (row.get("text") or "\n".join(t["utterance"] for t in row["turns"]))[:3000]


@needs_smollm2
@pytest.mark.skipif(not (DATA / "text_docs").is_dir(), reason="needs texts of POLYDEC_DATA")
def test_smollm2_tokenizer_equals_transformers_but_for_digits_after_spaces():
    """transformers cuts digits off after the words, the model's own tokenizer before them: they differ where two blanks
    or more stand before a digit, and nowhere else."""
    from transformers import AutoTokenizer

    text = read_text(GGUFCheckpoint(SMOLLM2))
    theirs = AutoTokenizer.from_pretrained(SMOLLM2.parent, gguf_file=SMOLLM2.name)
    assert text.size == len(theirs) == 49152 and text.names["eos_token"] == theirs.eos_token
    n = 0
    for whole in real_texts():
        n += 1
        assert text.decode(text.encode(whole)) == whole
        letters = re.sub(r"\d", "x", whole)
        assert list(text.encode(letters)) == theirs.encode(letters)
        single = re.sub(r"\s+(\s)(\d)", r"\1\2", whole)
        assert list(text.encode(single)) == theirs.encode(single)
    assert n >= 50
    chat = [{"role": "user", "content": "What is 12 + 30?"}]
    assert (
        list(text.chat_prompt(chat))
        == theirs.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
    )


@needs_smollm2
def test_smollm2_header_and_tensors_are_read_as_the_library_does():
    theirs, ours = gguf.GGUFReader(SMOLLM2), GGUFCheckpoint(SMOLLM2)
    for t in (theirs.tensors[0], theirs.tensors[2], theirs.tensors[-1]):
        entry = ours.entries[t.name]
        assert (entry.start, entry.stop) == (t.data_offset, t.data_offset + t.n_bytes)
        want = torch.from_numpy(gguf.dequantize(t.data[:64], t.tensor_type))
        torch.testing.assert_close(ours.stored_tensor(t.name)[:64], want, atol=0, rtol=0)
    assert ours.fields["tokenizer.ggml.tokens"] == theirs.fields["tokenizer.ggml.tokens"].contents()


@pytest.mark.slow
@needs_smollm2
def test_smollm2_writes_what_transformers_writes():
    pytest.importorskip("accelerate", reason="transformers reads GGUF files with accelerate only")
    theirs = AutoModelForCausalLM.from_pretrained(
        SMOLLM2.parent, gguf_file=SMOLLM2.name, dtype=torch.float32
    ).eval()
    ours = checkpoint.load_bundle("zoo:smollm2", dtype="float32")
    from polydec.core.request import Request
    from polydec.lab.testing.kits import build
    from polydec.laws.shapers.greedy import GreedyRule
    from polydec.laws.targets.shaped import ShapedTarget

    target = build("plain", ShapedTarget(ours.lm, GreedyRule()))[0]
    for question in (
        "What is the capital of France?",
        "Write a Python function that adds two numbers.",
        "Translate to German: the house is green.",
        "Tell me a short story about 3 cats.",
    ):
        ids = ours.text.chat_prompt([{"role": "user", "content": question}])
        with torch.inference_mode():
            want = theirs(input_ids=torch.tensor([ids])).logits[0, :-1]
            text = theirs.generate(
                torch.tensor([ids]),
                max_new_tokens=64,
                do_sample=False,
                eos_token_id=2,
                pad_token_id=2,
            )
        scores = run_coroutines(
            [ours.lm.open_session(ids).prefill_prompt(ScoreRequest(prompt=True))]
        )[0]
        got = torch.stack([scores.log_weights(i) for i in range(len(ids) - 1)])
        torch.testing.assert_close(got, want, atol=2e-3, rtol=1e-4)
        result = run_coroutines([answer_one(target, Request(ids, max_tokens=64))])[0]
        assert list(result.token_ids) == text[0, len(ids) :].tolist()


def test_types_are_those_of_the_library():
    known = {int(t): (t.name, *sizes) for t, sizes in gguf.GGML_QUANT_SIZES.items()}
    ours = {n: (t.name, t.block, t.size) for n, t in TYPES.items()}
    both = known.keys() & ours.keys()
    assert len(both) > 25 and {n: known[n] for n in both} == {n: ours[n] for n in both}


@pytest.mark.parametrize("change", ["none", "unused", "twice"])
def test_a_fingerprint_is_of_the_tokenizers_table_however_it_was_found(small, change):
    """Where all tokens of the file have ids, the table is not read back from the tokenizer."""
    file = GGUFCheckpoint(SMOLLM2 if change == "none" and SMOLLM2 else small)
    tokens, types = file.fields["tokenizer.ggml.tokens"], file.fields["tokenizer.ggml.token_type"]
    types[:] = [1 if kind == 5 else kind for kind in types]
    if change == "unused":
        types[-1] = 5
    if change == "twice":
        tokens[-1] = tokens[-2]
    text = read_text(file)
    table = sorted((i, token) for token, i in text.tokenizer.get_vocab().items())
    assert len(table) == len(tokens) - (change != "none")
    assert text.fingerprint == hashlib.sha256(json.dumps(table).encode()).hexdigest()[:16]

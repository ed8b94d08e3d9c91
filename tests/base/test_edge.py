"""What comes in by model files: a wrong type, size or number is one sentence, before anything is made of it."""

from __future__ import annotations

import json
import resource

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

from polydec.lab.fuzz import fuzz_files
from polydec.models.formats import edge
from polydec.models.sessions import checkpoint

DEEP = "[" * 10_000 + "]" * 10_000
SIZE = {
    "vocab_size": 260,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A Llama and a GPT-2, each with a tokenizer."""
    path = tmp_path_factory.mktemp("edge")
    torch.manual_seed(0)
    for name, config in (
        ("llama", LlamaConfig(**SIZE, head_dim=16)),
        ("gpt2", GPT2Config(vocab_size=260, n_embd=32, n_layer=2, n_head=4, n_positions=64)),
    ):
        AutoModelForCausalLM.from_config(config).save_pretrained(path / name)
        tokens = ["<unk>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
        Tokenizer(models.BPE({c: i for i, c in enumerate(tokens)}, [])).save(
            str(path / name / "tokenizer.json")
        )
    return path


@pytest.fixture(params=["llama", "gpt2"])
def place(request, whole, tmp_path):
    return _copy(whole / request.param, tmp_path / "m")


@pytest.fixture
def llama(whole, tmp_path):
    return _copy(whole / "llama", tmp_path / "m")


def _copy(there, here):
    here.mkdir()
    for f in there.iterdir():
        (here / f.name).write_bytes(f.read_bytes())
    return here


def change(path, name="config.json", **fields):
    at = path / name
    content = json.loads(at.read_text()) if at.is_file() else {}
    at.write_text(json.dumps({**content, **fields}))


def refused(path, match="", **options):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=match) as e:
        checkpoint.load_bundle(str(path), **options)
    assert len(str(e.value)) <= 300 and str(e.value).isprintable(), str(e.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000, (
        "a wrong file took memory"
    )


COUNTS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "head_dim",
)
STRANGE = (
    0,
    -1,
    True,
    False,
    1.5,
    1e300,
    2**64 - 1,
    2**32 + 32,
    1 << 22,
    "4",
    [4],
    {"a": 4},
    float("nan"),
)


@pytest.mark.parametrize("dtype", ["auto", "float32"])
@pytest.mark.parametrize("field", COUNTS)
def test_counts_of_every_wrong_kind(llama, field, dtype):
    content = (llama / "config.json").read_text()
    for value in STRANGE:
        (llama / "config.json").write_text(content)
        change(llama, **{field: value})
        refused(llama, dtype=dtype)


@pytest.mark.parametrize(
    "field, value",
    [
        ("max_position_embeddings", 0),
        ("max_position_embeddings", 1e300),
        ("max_position_embeddings", True),
        ("rms_norm_eps", -1.0),
        ("rms_norm_eps", "x"),
        ("rms_norm_eps", float("inf")),
        ("rope_theta", 0),
        ("rope_theta", "x"),
        ("rope_theta", 1e300),
        ("hidden_act", 3),
        ("hidden_act", {}),
        ("layer_types", ["full_attention"]),
        ("layer_types", [3, 3]),
        ("sliding_window", "x"),
        ("rope_parameters", 3),
        ("rope_parameters", {"rope_type": 3}),
        ("rope_parameters", {"rope_type": "linear", "factor": "x"}),
        ("rope_parameters", {"rope_type": "linear", "factor": 1e300}),
        ("rope_parameters", {"rope_type": "linear", "factor": 0}),
        (
            "rope_parameters",
            {
                "rope_type": "longrope",
                "short_factor": [1.0],
                "long_factor": [1.0],
                "original_max_position_embeddings": 8,
            },
        ),
        (
            "rope_parameters",
            {
                "rope_type": "llama3",
                "factor": 2.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 1.0,
                "original_max_position_embeddings": 8,
            },
        ),
        ("rope_parameters", {"partial_rotary_factor": 0.01}),
        ("rope_parameters", {"partial_rotary_factor": 3}),
        ("model_type", ""),
        ("model_type", 3),
        ("model_type", "x" * 10_000),
        ("model_type", "\x1b[2J"),
        ("eos_token_id", "x"),
        ("eos_token_id", [2, "x"]),
        ("eos_token_id", -1),
        ("eos_token_id", 1e300),
        ("polydec_base", {}),
        ("polydec_base", ["x"]),
        ("polydec_base", 3),
        ("polydec_base", "no/such/place"),
        ("quantization_config", 3),
        ("polydec_causal", "x"),
        ("tie_word_embeddings", "x"),
        ("vocab_size", 1 << 23),
    ],
)
def test_fields_of_the_wrong_kind(llama, field, value):
    change(llama, **{"rope_parameters": None, field: value})
    refused(llama)


@pytest.mark.parametrize(
    "field, value",
    [
        ("n_layer", 10**9),
        ("n_layer", -1),
        ("n_layer", "x"),
        ("n_embd", 1 << 20),
        ("n_head", 0),
        ("vocab_size", 1 << 40),
        ("vocab_size", True),
        ("n_positions", 1 << 20),
        ("n_head", 5),
    ],
)
def test_other_architectures(whole, tmp_path, field, value):
    path = _copy(whole / "gpt2", tmp_path / "m")
    change(path, **{field: value})
    refused(path)


def test_a_base_that_is_its_own(llama):
    change(llama, polydec_base=str(llama))
    refused(llama, "more than 4 times")


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "generation_config.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "tokenizer.json",
        "model.safetensors.index.json",
    ],
)
@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", "null", DEEP, '{"a": ' * 10_000, b"\xff\xfe{", '"' + "x" * 100_000 + '"'],
)
def test_files_that_are_no_object(place, name, text):
    if "index" in name:
        (place / "model.safetensors").unlink()
    (place / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    refused(place)


@pytest.mark.parametrize(
    "fields",
    [
        {"eos_token_id": "x"},
        {"temperature": "hot"},
        {"top_k": 1.5},
        {"top_p": []},
        {"do_sample": 3},
        {"temperature": float("nan")},
        {"eos_token_id": [[1]]},
    ],
)
def test_generation_configs(llama, fields):
    change(llama, "generation_config.json", **fields)
    refused(llama, f"{next(iter(fields))}.* is ")


@pytest.mark.parametrize(
    "template", [3, ["x"], [{"name": "default"}], [{"name": 3, "template": "x"}], {"a": 3}]
)
def test_chat_templates_of_the_wrong_kind(llama, template):
    change(llama, "tokenizer_config.json", chat_template=template)
    refused(llama, "chat_template")
    (llama / "tokenizer_config.json").unlink()
    change(llama, "chat_template.json", chat_template=template)
    refused(llama, "chat_template")
    (llama / "chat_template.json").unlink()
    (llama / "chat_template.jinja").write_bytes(b"\xff\xfe")
    refused(llama, r"chat_template\.jinja")


def test_weights_that_are_damaged(llama):
    weights = load_file(llama / "model.safetensors")
    for name, bad in (
        ("model.norm.weight", torch.zeros(32, 0)),
        ("model.norm.weight", torch.zeros(31)),
        ("model.embed_tokens.weight", torch.zeros(260)),
        ("model.layers.0.mlp.up_proj.weight", torch.zeros(64, 31)),
        ("model.layers.1.self_attn.q_proj.weight", torch.zeros(0, 32)),
        ("model.norm.weight", torch.full((32,), float("nan"))),
        ("lm_head.weight", torch.full((260, 32), float("inf"))),
    ):
        save_file({**weights, name: bad}, llama / "model.safetensors", {"format": "pt"})
        for dtype in ("auto", "float32"):
            refused(llama, name.rpartition(".")[0], dtype=dtype)


@pytest.mark.parametrize("tokens", [[0, 260], [-1, 3], [3, 3], [], [[1, 2]], [0.5, 1.0], 3])
def test_a_head_over_strange_tokens(llama, tokens):
    weights = load_file(llama / "model.safetensors")
    t = torch.tensor(tokens)
    save_file(
        {**weights, "lm_head.tokens": t, "lm_head.weight": torch.zeros(t.numel(), 32)},
        llama / "model.safetensors",
        {"format": "pt"},
    )
    refused(llama, r"lm_head\.tokens")


@pytest.mark.parametrize(
    "content",
    [
        {"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}},
        {"model": {"type": "BPE", "vocab": {}, "merges": [["a", "b"]]}},
        {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": 3}},
        {"model": {"type": "Unigram", "vocab": []}},
        {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "decoder": {"type": "Nothing"}},
        {
            "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
            "normalizer": {"type": "Replace", "pattern": {"Regex": "("}},
        },
    ],
)
def test_tokenizers_that_are_damaged(llama, content):
    whole = json.loads((llama / "tokenizer.json").read_text())
    (llama / "tokenizer.json").write_text(json.dumps({**whole, **content}))
    refused(llama, "tokenizer")


class PanicException(BaseException):
    """As pyo3 raises it."""


@pytest.mark.parametrize(
    "error", [PanicException("index out of bounds\nat x.rs"), Exception("bare")]
)
def test_a_tokenizer_that_panics(monkeypatch, llama, error):
    from polydec.models.text import tokenizer as text

    point = checkpoint.load_bundle(str(llama))

    def fail(*args, **options):
        raise error

    class Broken:
        from_file = from_str = encode = decode = staticmethod(fail)

    monkeypatch.setattr(text, "HFTokenizer", Broken)
    refused(llama, r"not a readable tokenizer\.json")
    point.text.tokenizer = Broken()
    with pytest.raises(ValueError, match="cannot be encoded"):
        point.text.encode("x")
    monkeypatch.setattr(
        Broken, "encode", staticmethod(lambda *a, **o: (_ for _ in ()).throw(KeyboardInterrupt()))
    )
    with pytest.raises(KeyboardInterrupt):
        point.text.encode("x")


def test_token_ids_beyond_the_model(llama):
    """A tokenizer may know more tokens than the model: they are legal until a text has one."""
    content = json.loads((llama / "tokenizer.json").read_text())
    content["added_tokens"] = [
        {
            "id": 270 + i,
            "content": f"<{i}>",
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for i in range(3)
    ]
    for i in range(3):
        content["model"]["vocab"][f"<{i}>"] = 270 + i
    (llama / "tokenizer.json").write_text(json.dumps(content))
    point = checkpoint.load_bundle(str(llama))
    assert point.text.encode("ab")
    with pytest.raises(ValueError, match="makes token 271 of this text: the model has 260 tokens"):
        point.text.encode("a<1>")
    change(llama, "generation_config.json", eos_token_id=[2, 271])
    refused(llama, "eos_token_id is 271, but ids lie in 0 to 259")


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("dtype", ["auto", "float32"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_scores_that_are_no_numbers(whole, tmp_path, name, dtype, temperature):
    """Finite weights whose products are not: one error, and no token."""
    import polydec

    path = _copy(whole / name, tmp_path / "m")
    weights = load_file(path / "model.safetensors")
    norm = next(k for k in ("model.norm.weight", "transformer.ln_f.weight") if k in weights)
    save_file(
        {**weights, norm: torch.full((32,), 3e38)}, path / "model.safetensors", {"format": "pt"}
    )
    with pytest.raises(ValueError, match="scores of the next token are NaN or infinite"):
        lm = polydec.load(str(path), draft=None, ngrams=None, dtype=dtype)
        polydec.generate(lm, "ab", max_tokens=3, sampling=lm.sampling_with(temperature=temperature))


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_damaged_files(tmp_path, seed):
    """Drawn damage: each loads and writes, or is refused in one sentence."""
    done = 0
    for i, case in enumerate(fuzz_files.damaged_file_cases(seed, 250, tmp_path)):
        try:
            case()
            done += 1
        except ValueError as e:
            assert 0 < len(str(e)) <= 300 and str(e).isprintable(), (i, str(e))
        except Exception as e:
            e.add_note(f"case {i} of seed {seed}")
            raise
    assert 5 < done < 200


def test_printable():
    assert (
        edge.escape_control_characters("a\x1b[31m\tb\nc\x00\x9b\u202e世🙂")
        == "a\\x1b[31m\tb\nc\\x00\\x9b\\u202e世🙂"
    )
    assert (
        edge.error_sentence("a\n\x1b b  " + "x" * 5000).isprintable()
        and 299 <= len(edge.error_sentence("y " * 5000)) <= 300
    )
    assert edge.error_sentence("/" + "p" * 400 + "/model.gguf is bad").endswith(
        "/model.gguf is bad"
    )

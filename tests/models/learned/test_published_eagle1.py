"""EAGLE-1 as it is published: what it drafts is what its arithmetic says, in each of the layouts, and written again."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import linear, silu

import polydec
from polydec.core.scheduler import run_coroutines
from polydec.core.types import RowDetail, ScoreRequest
from polydec.methods.speculative.drafters._states import StateLaws
from polydec.models.learned import artefacts
from polydec.models.learned.export import export_for_engines
from polydec.models.learned.kinds.eagle import EagleModel
from polydec.models.sessions import sources

H, HEADS, KV, INNER, VOCAB = 192, 6, 2, 96, 4096
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": H,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "vocab_size": VOCAB,
    "bias": True,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 1024,
    "hidden_act": "silu",
}
LAYOUTS = {
    "authors": (CONFIG, "pytorch_model.bin", ""),
    "vllm": ({**CONFIG, "architectures": ["EagleLlamaForCausalLM"]}, "model.safetensors", ""),
    "sglang": (
        {**CONFIG, "architectures": ["LlamaForCausalLMEagle"], "tie_word_embeddings": True},
        "model.safetensors",
        "model.",
    ),
}


def tensors(seed=0, bias=True):
    g = torch.Generator().manual_seed(seed)

    def some(*shape):
        return torch.randn(shape, generator=g) * (0.7 / shape[-1] ** 0.5)

    kv = KV * H // HEADS
    t = {
        "fc.weight": some(H, 2 * H),
        "layers.0.self_attn.q_proj.weight": some(H, H),
        "layers.0.self_attn.k_proj.weight": some(kv, H),
        "layers.0.self_attn.v_proj.weight": some(kv, H),
        "layers.0.self_attn.o_proj.weight": some(H, H),
        "layers.0.mlp.gate_proj.weight": some(INNER, H),
        "layers.0.mlp.up_proj.weight": some(INNER, H),
        "layers.0.mlp.down_proj.weight": some(H, INNER),
        "layers.0.post_attention_layernorm.weight": 1 + some(H),
    }
    return t | ({"fc.bias": 3 * some(H)} if bias else {})


def write(path, layout="vllm", t=None, config=None):
    own, file, prefix = LAYOUTS[layout]
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config or own), "utf-8")
    t = {prefix + name: one for name, one in (tensors() if t is None else t).items()}
    if file.endswith(".bin"):
        torch.save(t, path / file)
    else:
        save_file(t, path / file)
    return str(path)


def norm(x, w):
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w


def layer(t, embed_TH, state_TH):
    """The published layer over a whole text at once: what leaves it, T rows."""

    def w(name):
        return t["layers.0." + name + ".weight"]

    T, D = len(embed_TH), H // HEADS
    x = linear(torch.cat([embed_TH, state_TH], -1), t["fc.weight"], t.get("fc.bias"))
    q, k, v = (linear(x, w(f"self_attn.{p}_proj")).view(T, -1, D).transpose(0, 1) for p in "qkv")
    angle = torch.outer(torch.arange(T), 10000.0 ** (-torch.arange(0, D, 2) / D)).repeat(1, 2)

    def turn(x):
        half = torch.cat([-x[..., D // 2 :], x[..., : D // 2]], -1)
        return x * angle.cos() + half * angle.sin()

    k, v = (x.repeat_interleave(HEADS // KV, 0) for x in (turn(k), v))
    score = turn(q) @ k.transpose(1, 2) / D**0.5 + torch.full((T, T), float("-inf")).triu(1)
    x = x + linear((score.softmax(-1) @ v).transpose(0, 1).reshape(T, -1), w("self_attn.o_proj"))
    h = norm(x, w("post_attention_layernorm"))
    return x + linear(
        silu(linear(h, w("mlp.gate_proj"))) * linear(h, w("mlp.up_proj")), w("mlp.down_proj")
    )


@pytest.fixture(scope="module")
def lm():
    return polydec.load("zoo:tiny", draft=None, ngrams=None, dtype="float32")


@pytest.fixture(scope="module")
def head():
    """The target's head alone, and its final norm's weights."""
    weights = sources.open_source("zoo:tiny").weights
    name = "lm_head.weight" if "lm_head.weight" in weights else "model.embed_tokens.weight"
    return weights[name].float(), weights["model.norm.weight"].float()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_drafts_are_those_of_the_published_arithmetic(tmp_path, lm, head, layout):
    t = tensors(3, bias=layout != "sglang")
    given = polydec.load(
        "zoo:tiny",
        draft=None,
        ngrams=None,
        dtype="float32",
        trained=[write(tmp_path / "e", layout, t)],
    )
    text = lm.encode_prompt(
        "Once upon a time there was a fox who wanted to see the sea and the", raw=True
    )
    session = lm.checkpoint.lm.open_session(text)
    (known,) = run_coroutines(
        [session.prefill_prompt(ScoreRequest(RowDetail.NOTHING, hidden=True, prompt=True))]
    )
    state = norm(known.hidden_NH[: len(text) - 1].float(), head[1])
    embed = session.embed_tokens(text[1:]).float()
    want = []
    for _ in range(4):  # each level stands on what the layer made above it
        out = layer(t, embed, state)
        want.append(int(linear(out[-1], head[0]).argmax()))
        embed = torch.cat([embed, session.embed_tokens(want[-1:]).float()])
        state = torch.cat([state, out[-1:]])
    session.close()
    drafts = []

    def on(event):
        if type(event).__name__ == "ProposedEvent":
            drafts.append(event.token)

    options = {"width": 1, "nodes": 4, "depth": 4, "cost_aware": False}
    polydec.generate(given, text, method="eagle-2", options=options, max_tokens=6, on=on)
    assert list(drafts[0][1:]) == want
    assert isinstance(given.find_artefact(EagleModel), EagleModel)
    for prompt in ("The old river", "Two kings met in a wood", "A"):
        plain = polydec.generate(lm, prompt, max_tokens=20).token_ids
        for method in ("eagle", "eagle-2"):
            assert polydec.generate(given, prompt, method=method, max_tokens=20).token_ids == plain
            drawn = {"sampling": lm.sampling_with(temperature=0.7), "seed": 3, "max_tokens": 12}
            assert (
                polydec.generate(given, prompt, method=method, **drawn).token_ids
                == polydec.generate(lm, prompt, **drawn).token_ids
            )


@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_laws_behind_the_norm_are_the_heads_alone(head, dtype):
    session = polydec.load(
        "zoo:tiny", draft=None, ngrams=None, dtype=dtype
    ).checkpoint.lm.open_session((1, 2))
    state = (
        torch.randn(5, H, generator=torch.Generator().manual_seed(1))
        * torch.tensor([0.1, 1, 3, 10, 30])[:, None]
    )
    laws = StateLaws(session)
    laws.add_normed(range(5), state)
    for i in range(5):
        want = linear(state[i], head[0])
        got = laws.logits[i].logits_RV[0].float()
        assert (got - want).abs().max() < (1e-4 if dtype == "float32" else 0.05) * want.abs().max()
    session.close()


def test_written_and_read_again_it_drafts_the_same(tmp_path, lm):
    t = tensors(1)
    done = export_for_engines(write(tmp_path / "e", "authors", t), tmp_path / "out", tokens=5)
    again = load_file(tmp_path / "out" / "model.safetensors")
    assert set(again) == set(t) and all(torch.equal(again[name], t[name]) for name in t)
    other = load_file(tmp_path / "out" / "vllm" / "model.safetensors")
    assert set(other) == set(t) - {"fc.bias"} and all(
        torch.equal(other[name], t[name]) for name in other
    )
    for where in (tmp_path / "out", tmp_path / "out" / "vllm"):
        config = json.loads((where / "config.json").read_text("utf-8"))
        assert (
            config["architectures"] == ["LlamaForCausalLMEagle", "EagleLlamaForCausalLM"]
            and config["rope_theta"] == 10000.0
        )
        assert (
            config["bias"] is config["attention_bias"] is False and "polydec_trained" not in config
        )
    assert done.vllm == {
        "method": "eagle",
        "model": str(tmp_path / "out" / "vllm"),
        "num_speculative_tokens": 5,
    }
    assert "fc.bias" in done.what and done.sglang[:4] == (
        "--speculative-algorithm",
        "EAGLE",
        "--speculative-draft-model-path",
        str(tmp_path / "out"),
    )
    one, two = (
        artefacts.bind_artefact(artefacts.load_artefact(str(tmp_path / name)), lm.checkpoint.lm)
        for name in ("e", "out")
    )
    g = torch.Generator().manual_seed(2)
    embed_NWH, state_NH = torch.randn(3, 1, H, generator=g), torch.randn(3, H, generator=g)
    assert torch.equal(one.layer_inputs(embed_NWH, state_NH), two.layer_inputs(embed_NWH, state_NH))
    plain = export_for_engines(
        write(tmp_path / "p", t=tensors(bias=False)), tmp_path / "out2", target=lm.checkpoint.lm
    )
    assert (
        "fc.bias" not in plain.what
        and not load_file(tmp_path / "out2" / "model.safetensors")["fc.bias"].any()
    )


@pytest.mark.parametrize(
    "change, says",
    [
        ({"num_hidden_layers": 2}, "num_hidden_layers"),
        ({"num_attention_heads": 5}, "divide the width"),
        ({"intermediate_size": 7}, "mlp"),
        ({"attention_bias": True}, "attention_bias"),
        ({"add_para_norm": True}, "add_para_norm"),
        ({"hidden_size": 96}, "shape"),
    ],
    ids=str,
)
def test_what_cannot_be_read_is_one_sentence(tmp_path, change, says):
    with pytest.raises(ValueError, match=says) as error:
        artefacts.load_artefact(write(tmp_path / "e", config={**LAYOUTS["vllm"][0], **change}))
    assert len(str(error.value)) <= 300


def test_foreign_and_damaged_weights(tmp_path, lm):
    with pytest.raises(ValueError, match="embedding table"):
        artefacts.bind_artefact(
            artefacts.load_artefact(
                write(tmp_path / "t", t={**tensors(), "embed_tokens.weight": torch.zeros(VOCAB, H)})
            ),
            lm.checkpoint.lm,
        )
    for name, value in (
        ("fc.weight", torch.full((H, 2 * H), float("nan"))),
        ("fc.bias", torch.zeros(3)),
    ):
        with pytest.raises(ValueError, match="damaged"):
            artefacts.load_artefact(write(tmp_path / "d", t={**tensors(), name: value}))
    few = tensors()
    del few["layers.0.mlp.up_proj.weight"]
    with pytest.raises(ValueError, match="lack"):
        artefacts.load_artefact(write(tmp_path / "d", t=few))

"""EAGLE-3 in its published layout: read, written, and computed as its paper's code and the two engines do it."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import linear, silu

import polydec
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.models.formats import zoo
from polydec.models.learned import artefacts, published
from polydec.models.learned.export import WHY, export_for_engines
from polydec.models.learned.kinds.eagle3 import Eagle3Model

H, HEADS, KV, INNER, VOCAB, SOME = 192, 6, 2, 96, 4096, 500
CONFIG = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": H,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "vocab_size": VOCAB,
    "draft_vocab_size": SOME,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 1024,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "eagle_aux_hidden_state_layer_ids": [1, 3, 4],
}


def tensors(seed=0):
    g = torch.Generator().manual_seed(seed)

    def some(*shape):
        return (
            torch.randn(shape, generator=g) * (0.7 / shape[-1] ** 0.5)
            if len(shape) == 2
            else 1 + 0.3 * torch.randn(shape, generator=g)
        )

    token = torch.randperm(VOCAB, generator=g)[:SOME].sort().values
    kv = KV * H // HEADS
    return {
        "fc.weight": some(H, 3 * H),
        "norm.weight": some(H),
        "lm_head.weight": some(SOME, H) * 3,
        "midlayer.self_attn.q_proj.weight": some(H, 2 * H),
        "midlayer.self_attn.k_proj.weight": some(kv, 2 * H),
        "midlayer.self_attn.v_proj.weight": some(kv, 2 * H),
        "midlayer.self_attn.o_proj.weight": some(H, H),
        "midlayer.mlp.gate_proj.weight": some(INNER, H),
        "midlayer.mlp.up_proj.weight": some(INNER, H),
        "midlayer.mlp.down_proj.weight": some(H, INNER),
        "midlayer.input_layernorm.weight": some(H),
        "midlayer.hidden_norm.weight": some(H),
        "midlayer.post_attention_layernorm.weight": some(H),
        "d2t": token - torch.arange(SOME),
        "t2d": torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, token, True),
    }


def write(path, config=CONFIG, t=None, file="model.safetensors"):
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config), "utf-8")
    t = tensors() if t is None else t
    if file.endswith(".bin"):
        torch.save(t, path / file)
    else:
        save_file(t, path / file)
    return path


def norm(x, w):
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w


def layer(t, embed_TH, state_TH, before):
    """The published layer over a whole text at once: what leaves it, T rows."""

    def w(name):
        return t["midlayer." + name + ".weight"]

    T, D = len(embed_TH), H // HEADS
    n = norm(state_TH, w("hidden_norm"))
    both = torch.cat([norm(embed_TH, w("input_layernorm")), n], -1)
    q, k, v = (linear(both, w(f"self_attn.{x}_proj")).view(T, -1, D).transpose(0, 1) for x in "qkv")
    angle = torch.outer(torch.arange(T), 10000.0 ** (-torch.arange(0, D, 2) / D)).repeat(1, 2)

    def turn(x):
        half = torch.cat([-x[..., D // 2 :], x[..., : D // 2]], -1)
        return x * angle.cos() + half * angle.sin()

    k, v = (x.repeat_interleave(HEADS // KV, 0) for x in (turn(k), v))
    score = turn(q) @ k.transpose(1, 2) / D**0.5 + torch.full((T, T), float("-inf")).triu(1)
    x = (n if before else state_TH) + linear(
        (score.softmax(-1) @ v).transpose(0, 1).reshape(T, -1), w("self_attn.o_proj")
    )
    h = norm(x, w("post_attention_layernorm"))
    return x + linear(
        silu(linear(h, w("mlp.gate_proj"))) * linear(h, w("mlp.up_proj")), w("mlp.down_proj")
    )


def logits(t, out):
    small = linear(norm(out, t["norm.weight"]), t["lm_head.weight"])
    full = torch.full((len(out), VOCAB), float("-inf"))
    full[:, torch.arange(SOME) + t["d2t"]] = small
    return full


@pytest.fixture(scope="module")
def lm():
    return polydec.load("zoo:tiny", draft=None, ngrams=None)


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_drafts_are_those_of_the_published_arithmetic(tmp_path, lm, before, file):
    t = tensors(3)
    made = artefacts.bind_artefact(
        artefacts.load_artefact(
            str(write(tmp_path / "e", {**CONFIG, "norm_before_residual": before}, t, file))
        ),
        lm.checkpoint.lm,
    )
    text = lm.encode_prompt(
        "Once upon a time there was a fox who wanted to see the sea and the", raw=True
    )
    session = lm.checkpoint.lm.open_session(text)
    (known,) = run_coroutines(
        [session.prefill_prompt(ScoreRequest(RowDetail.NOTHING, exits=(1, 3, 4), prompt=True))]
    )
    state = torch.cat([known.exit_laws(d, range(len(text) - 1)).hidden_NH for d in (1, 3, 4)], -1)
    embed = session.embed_tokens(text[1:])
    fused = linear(state.float(), t["fc.weight"])
    out = layer(t, embed.float(), fused, before)
    want = [int(logits(t, out[-1:])[0].argmax())]
    for _ in range(3):  # each level stands on what the layer made above it
        embed = torch.cat([embed, session.embed_tokens(want[-1:])])
        fused = torch.cat([fused, out[-1:]])
        out = layer(t, embed.float(), fused, before)
        want.append(int(logits(t, out[-1:])[0].argmax()))
    drafts = []

    def on(event):
        if type(event).__name__ == "ProposedEvent":
            drafts.append(event.token)

    given = replace(lm, artefacts=(made,))
    polydec.generate(
        given,
        text,
        method="eagle-3",
        options={"width": 1, "nodes": 4, "depth": 4, "cost_aware": False},
        max_tokens=6,
        on=on,
    )
    assert list(drafts[0][1:]) == want
    session.close()


def test_greedy_texts_are_the_models_own(tmp_path, lm):
    given = polydec.load("zoo:tiny", draft=None, ngrams=None, trained=[str(write(tmp_path / "e"))])
    assert isinstance(given.find_artefact(Eagle3Model), Eagle3Model)
    for prompt in (
        "The old river",
        "Two kings met in a wood",
        "A",
        "Once upon a time there was a fox. The fox",
    ):
        whole = {"width": 1, "nodes": 3, "depth": 3, "cost_aware": False}
        for tree in (whole, {"width": 4, "nodes": 16, "depth": 4}):
            a = polydec.generate(given, prompt, method="eagle-3", options=tree, max_tokens=24)
            assert a.token_ids == polydec.generate(lm, prompt, max_tokens=24).token_ids


def test_it_is_written_as_it_was_read(tmp_path, lm):
    t = tensors(1)
    done = export_for_engines(str(write(tmp_path / "e", t=t)), tmp_path / "out", tokens=5)
    again = load_file(tmp_path / "out" / "model.safetensors")
    config = json.loads((tmp_path / "out" / "config.json").read_text("utf-8"))
    assert set(again) == set(t) and all(torch.equal(again[k], t[k]) for k in t)
    assert {k: config[k] for k in CONFIG if k != "rope_theta"} == {
        k: v for k, v in CONFIG.items() if k != "rope_theta"
    }
    assert config["rope_theta"] == 10000.0 and config["eagle_config"][
        "eagle_aux_hidden_state_layer_ids"
    ] == [0, 2, 3]
    assert done.vllm == {
        "method": "eagle3",
        "model": str(tmp_path / "out"),
        "num_speculative_tokens": 5,
    }
    assert done.sglang[-1] == "6" and "EAGLE3" in done.sglang
    del config["eagle_aux_hidden_state_layer_ids"]  # SGLang's own field says the same
    one = artefacts.load_artefact(str(write(tmp_path / "sg", config, t)))
    assert one.eagle.depths == (1, 3, 4)
    named = {k.replace("midlayer.", "layers.0."): v for k, v in t.items()}
    assert artefacts.load_artefact(str(write(tmp_path / "other", t=named))).bound_drafter(
        lm.checkpoint.lm
    ).depths == (1, 3, 4)


@pytest.mark.parametrize(
    "change, says",
    [
        ({"num_hidden_layers": 2}, "num_hidden_layers"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"vocab_size": None}, "vocab_size"),
        ({"num_attention_heads": 5}, "divide the width"),
        ({"draft_vocab_size": 400}, "d2t"),
        ({"architectures": ["MedusaForCausalLM"]}, "Medusa"),
        ({"intermediate_size": 7}, "mlp"),
        ({"attention_bias": True}, "attention_bias"),
    ],
    ids=str,
)
def test_what_cannot_be_read_is_one_sentence(tmp_path, change, says):
    with pytest.raises(ValueError, match=says) as error:
        artefacts.load_artefact(str(write(tmp_path / "e", {**CONFIG, **change})))
    assert len(str(error.value)) <= 300


def test_damaged_weights(tmp_path, lm):
    for name, value in (
        ("norm.weight", torch.full((H,), float("nan"))),
        ("lm_head.weight", torch.zeros(3, H)),
        ("d2t", torch.full((SOME,), 4000)),
        ("fc.weight", torch.zeros(H + 1, 3 * H)),
    ):
        with pytest.raises(ValueError, match="damaged"):
            artefacts.load_artefact(str(write(tmp_path / "e", t={**tensors(), name: value})))
    missing = tensors()
    del missing["midlayer.hidden_norm.weight"]
    with pytest.raises(ValueError, match="hidden_norm"):
        artefacts.load_artefact(str(write(tmp_path / "e", t=missing)))
    (tmp_path / "e" / "model.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(ValueError, match="damaged"):
        artefacts.load_artefact(str(tmp_path / "e"))
    plain = {k: v for k, v in CONFIG.items() if k != "eagle_aux_hidden_state_layer_ids"}
    unsaid = str(write(tmp_path / "u", plain))
    with pytest.raises(ValueError, match="too few"):
        artefacts.bind_artefact(artefacts.load_artefact(unsaid), lm.checkpoint.lm)
    with pytest.raises(ValueError, match="target is not given"):
        export_for_engines(unsaid, tmp_path / "none")
    assert published.default_eagle3_depths(32) == (2, 16, 29)
    wide = str(write(tmp_path / "w", {**CONFIG, "eagle_aux_hidden_state_layer_ids": [1, 2]}))
    with pytest.raises(ValueError, match="2 layers"):
        artefacts.bind_artefact(artefacts.load_artefact(wide), lm.checkpoint.lm)
    table = {**tensors(), "embed_tokens.weight": torch.zeros(VOCAB, H)}
    with pytest.raises(ValueError, match="embedding table"):
        artefacts.bind_artefact(
            artefacts.load_artefact(str(write(tmp_path / "t", t=table))), lm.checkpoint.lm
        )


def test_a_draft_model_is_what_transformers_reads(tmp_path):
    transformers = pytest.importorskip("transformers")
    done = export_for_engines("zoo:tiny-draft", tmp_path / "out")
    assert done.vllm["method"] == "draft_model" and done.sglang[1] == "STANDALONE"
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", dtype=torch.float32
    )
    small = polydec.load("zoo:tiny-draft", draft=None, ngrams=None, dtype="float32")
    ids = small.encode_prompt("The old river ran to the sea", raw=True)
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "out")(
        "The old river ran to the sea"
    ).input_ids == list(ids)
    session = small.checkpoint.lm.open_session(ids)
    (scores,) = run_coroutines([session.score_draft(Draft.chain_draft(ids[-1]), ScoreRequest())])
    with torch.no_grad():
        row = theirs(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
    assert torch.allclose(scores.logprob_row(0), row, atol=1e-4)
    with pytest.raises(ValueError, match="must be a directory that is empty"):
        export_for_engines("zoo:tiny-draft", tmp_path / "out")
    assert "polydec_base" not in json.loads((tmp_path / "out" / "config.json").read_text())


def test_a_gguf_file_gets_the_architecture_that_others_look_for(tmp_path):
    if zoo.find_zoo_entry("smollm2").path is None:
        pytest.skip("needs zoo:smollm2 (polydec zoo install smollm2)")
    export_for_engines("zoo:smollm2", tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]


def test_what_no_other_engine_can_take(tmp_path, lm):
    for module in artefacts.MODULES.values():
        if module.KIND.name == "block-drafter":  # its file is read first
            continue
        one = module.examples(lm.checkpoint.lm.vocab, H, 64)[0]
        module.save(tmp_path / module.KIND.name, one, {}) if module.KIND.name == "eagle-3" else (
            tmp_path / module.KIND.name
        ).mkdir()
        if module.KIND.name != "eagle-3":
            (tmp_path / module.KIND.name / "config.json").write_text(
                json.dumps({"polydec": module.KIND.name})
            )
        with pytest.raises(ValueError, match="vLLM and SGLang") as error:
            export_for_engines(str(tmp_path / module.KIND.name), tmp_path / "out")
        assert len(str(error.value)) <= 300
        other = {"heads": "medusa", "eagle": "eagle", "eagle-3-narrow": "eagle-3"}.get(
            module.KIND.name
        )
        assert other is None or f"--kind {other}-published`" in str(error.value)
    assert set(WHY) <= set(artefacts.MODULES) - {"eagle-3"}
    with pytest.raises(ValueError, match="masked-diffusion"):
        export_for_engines("zoo:diffusion", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command(tmp_path, polydec_command):
    said = polydec_command("export", write(tmp_path / "e"), tmp_path / "out", "--tokens", 3)
    assert (
        said.code == 0
        and '"method": "eagle3"' in said.out
        and "--speculative-num-draft-tokens 4" in said.out
    )
    assert "layers 1, 3, 4" in said.out
    unsaid = str(
        write(
            tmp_path / "u",
            {k: v for k, v in CONFIG.items() if k != "eagle_aux_hidden_state_layer_ids"},
        )
    )
    for args, says in (
        ((unsaid, str(tmp_path / "o2")), "target is not given"),
        (("nope/", str(tmp_path / "o3")), "nope"),
        ((str(tmp_path / "e"), str(tmp_path / "out")), "empty"),
        ((unsaid, str(tmp_path / "o2"), "--target", "zoo:tiny"), "too few"),
    ):
        said = polydec_command("export", *args)
        assert (
            said.code == 2 and says in said.err and len(said.err.splitlines()) == 1 and not said.out
        )

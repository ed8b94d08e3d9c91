"""The native step next to the dequantised weights: exactly in storage, closely in arithmetic."""

from __future__ import annotations

import json

import gguf
import numpy as np
import pytest
import torch
from native_checkpoints import TYPES, config, weights, write_gguf
from safetensors.torch import save_file

from polydec.core.types import RowDetail, ScoreRequest
from polydec.models.formats.gguf import GGUFCheckpoint
from polydec.models.formats.rope import RotaryEmbedding
from polydec.models.learned import state_layer
from polydec.models.learned.state_layer import DraftVocabularyHead
from polydec.models.native.library import native_step_availability
from polydec.models.native.network import CpuStep, rotary_cos_sin
from polydec.models.nets.query import NetworkQuery
from polydec.models.nets.transformer import LlamaTransformer
from polydec.models.sessions import checkpoint

pytestmark = pytest.mark.skipif(
    not native_step_availability()[0], reason=native_step_availability()[1]
)
SCALINGS = {
    "linear": {"rope_type": "linear", "factor": 2.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "longrope": {
        "rope_type": "longrope",
        "short_factor": [1.0 + i / 16 for i in range(16)],
        "long_factor": [2.0 + i for i in range(16)],
        "original_max_position_embeddings": 32,
    },
}


def logits(net, ids):
    cache = net.new_cache()
    cache.stage_slots(range(-1, len(ids) - 1))
    return net.forward([NetworkQuery(cache, 0, tuple(ids), range(len(ids)), ScoreRequest())])[
        0
    ].logits_RV


def close(config_, weights_, ids, scale=1e-5):
    near = logits(CpuStep.build(config_, weights_, threads=2), ids).double()
    exact = logits(LlamaTransformer.build(config_, weights_, dtype="float64"), ids)
    assert (near - exact).abs().max() < scale * exact.abs().max() * 10
    assert (near - exact).pow(2).mean().sqrt() < scale * exact.std()


@pytest.mark.parametrize("kind", TYPES)
def test_rows_equal_the_gguf_library_exactly(kind, tmp_path):
    write_gguf(tmp_path / "m.gguf", kind, seed=11)
    f = GGUFCheckpoint(tmp_path / "m.gguf")
    net = CpuStep.build(f.config, f, threads=2)
    t = next(
        t for t in gguf.GGUFReader(tmp_path / "m.gguf").tensors if t.name == "token_embd.weight"
    )
    exact = gguf.dequantize(np.array(t.data), t.tensor_type) if kind != "F32" else np.array(t.data)
    for i in range(len(exact)):
        assert np.array_equal(
            net.embedding_row(i).numpy().view(np.int32), exact[i].astype(np.float32).view(np.int32)
        ), i


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("tied", [False, True])
def test_block_types_match_their_dequantised_weights(kind, tied, tmp_path):
    write_gguf(tmp_path / "m.gguf", kind, seed=13, tied=tied)
    f = GGUFCheckpoint(tmp_path / "m.gguf")
    close(f.config, f, list(range(60)))


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_families(kind, tied, dtype):
    c = config(kind, tie_word_embeddings=tied, sliding_window=None)
    close(c, weights(c, seed=17, dtype=dtype), list(range(70)))


@pytest.mark.parametrize("kind", SCALINGS)
def test_rotary_scalings(kind):
    c = config(rope_scaling=SCALINGS[kind], max_position_embeddings=128)
    close(c, weights(c, seed=19), [i % 83 for i in range(120)], 3e-5)


@pytest.mark.parametrize("factor", [0.25, 0.5, 0.75])
def test_rotary_of_a_part_of_the_head(factor):
    c = config(partial_rotary_factor=factor)
    close(c, weights(c, seed=37), list(range(70)))


@pytest.mark.parametrize("width", [1, 7, 128, 130, 250])
def test_sliding_windows(width):
    c = config("qwen2", use_sliding_window=True, sliding_window=width, max_window_layers=1)
    close(c, weights(c, seed=41), [i % 83 for i in range(300)])


def test_angles_are_those_of_transformers():
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    c = config(head_dim=64, max_position_embeddings=4096, rope_theta=100000.0)
    known = LlamaRotaryEmbedding(
        LlamaConfig(**{**c, "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0}})
    )
    cosine, sine = known(torch.zeros(1, 1), torch.arange(4096)[None])
    ours = rotary_cos_sin(RotaryEmbedding.of_config(c, 64), 4096)
    assert (ours[0] - cosine[0, :, :32]).abs().max() < 2e-7 and (
        ours[1] - sine[0, :, :32]
    ).abs().max() < 2e-7


def test_bidirectional():
    c = config(polydec_causal=False)
    close(c, weights(c, seed=23), list(range(40)))


def test_drafts_with_few_answers_and_narrow_embeddings():
    c = config()
    w = weights(c, seed=29)
    w["model.embed_tokens.weight"] = torch.randn(83, 40)
    w["model.embed_tokens.proj.weight"] = torch.randn(64, 40) / 6
    w["lm_head.tokens"] = torch.tensor([80, 3, 5, 7, 1])
    w["lm_head.weight"] = torch.randn(5, 64)
    ids = list(range(30))
    near, exact = (
        logits(CpuStep.build(c, w), ids),
        logits(LlamaTransformer.build(c, w, dtype="float64"), ids),
    )
    assert near.isneginf().equal(exact.isneginf())
    kept = ~near.isneginf()
    assert (near.double()[kept] - exact[kept]).abs().max() < 1e-4
    cache = CpuStep.build(c, w).new_cache()
    cache.stage_slots([-1])
    (a,) = CpuStep.build(c, w).forward(
        [NetworkQuery(cache, 0, (ids[0],), range(1), ScoreRequest(law=RowDetail.ARGMAX))]
    )
    assert list(a.argmax) == near[:1].argmax(-1).tolist() and a.later().equal(near[:1])


def test_quantised_when_loaded_says_so():
    c = config()
    w = weights(c, seed=31)
    net = CpuStep.build(c, w, quantize="q8_0")
    assert net.dtype == "Q8_0" and "quantised" in net.approximate
    assert not CpuStep.build(c, w).approximate
    off = logits(net, list(range(30))) - logits(CpuStep.build(c, w), list(range(30)))
    assert 0 < off.abs().max() < 0.5


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"hidden_size": 48, "intermediate_size": 100}, "multiples of 32"),
        ({"model_type": "gpt2"}, "gpt2"),
    ],
)
def test_what_it_does_not_serve(changes, words):
    c = config(**changes)
    with pytest.raises(ValueError, match=words):
        CpuStep.build(c, weights(c))


def test_refusals_are_sentences():
    c = config()
    w = weights(c)
    with pytest.raises(ValueError, match="threads is 0"):
        CpuStep.build(c, w, threads=0)
    with pytest.raises(ValueError, match="quantize is 'q2'"):
        CpuStep.build(c, w, quantize="q2")
    with pytest.raises(ValueError, match="AVX9"):
        CpuStep.build(c, w, isa="AVX9")
    with pytest.raises(ValueError, match=r"lack model\.norm"):
        CpuStep.build(c, {k: v for k, v in w.items() if k != "model.norm.weight"})
    with pytest.raises(ValueError, match="k_proj"):
        CpuStep.build(c, {**w, "model.layers.1.self_attn.k_proj.weight": torch.zeros(32, 64)})
    net = CpuStep.build(c, w)
    with pytest.raises(ValueError, match="outside"):
        logits(net, [83])
    with pytest.raises(ValueError, match="512"):
        logits(net, [1] * 513)
    cache = net.new_cache()
    cache.stage_slots([-1])
    for layers, without in (((1, 0), ()), ((2,), ()), ((0, 1), (2, 3))):
        with pytest.raises(ValueError, match="layers outside the network"):
            net.forward(
                [
                    NetworkQuery(
                        cache,
                        0,
                        (1,),
                        (0,),
                        ScoreRequest(),
                        layers=layers,
                        without=frozenset(without),
                    )
                ]
            )


def test_a_forked_process_has_threads_of_its_own():
    import os

    c = config()
    net = CpuStep.build(c, weights(c), threads=2)
    truth = logits(net, [1, 2, 3])
    if not (child := os.fork()):
        os._exit(0 if logits(net, [1, 2, 3]).equal(truth) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert logits(net, [1, 2, 3]).equal(truth)


@pytest.mark.filterwarnings("ignore:.*has no tokenizer")
def test_a_draft_of_floats_is_stored_in_8_bits_where_the_step_serves_it(tmp_path):
    def written(name, **changes):
        c = config(**changes)
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(c))
        save_file(weights(c), tmp_path / name / "model.safetensors")
        return str(tmp_path / name)

    plain, draft = (
        load(written(name))
        for name, load in (("a", checkpoint.load_bundle), ("b", checkpoint.load_draft))
    )
    assert plain.dtype == "F32" and draft.dtype == "Q8_0"
    law, near = (logits(x.lm.network, range(40)).softmax(-1) for x in (plain, draft))
    assert 0 < (law - near).abs().max() < 0.2
    odd = written(
        "c", hidden_size=48, head_dim=12
    )  # the step serves multiples of 32: torch runs it as it is
    assert checkpoint.load_draft(odd).dtype == checkpoint.load_bundle(odd).dtype
    assert checkpoint.load_draft(plain.path, dtype="float32").dtype == "float32"
    with pytest.raises(ValueError, match="no such file"):
        checkpoint.load_draft("./nowhere")


@pytest.mark.parametrize("wide", [None, 128], ids=["a stream", "a token beside it"])
@pytest.mark.parametrize("headed", [False, True])
def test_a_layer_on_states_is_the_one_of_torch_within_8_bits(wide, headed, monkeypatch):
    layer, width = state_layer.random_state_layer(64, 3, wide), wide or 64
    own = (
        DraftVocabularyHead(torch.arange(2, 90, 3), torch.randn(30, 64), torch.ones(64))
        if headed
        else None
    )
    vocab = 90 if headed else 1
    native = layer.layer_network(vocab, own)
    monkeypatch.setattr(state_layer.cpu, "try_native_network", lambda *a, **k: (None, "not asked"))
    torchs = layer.layer_network(vocab, own)
    assert isinstance(native, CpuStep) and isinstance(torchs, LlamaTransformer)
    x = torch.randn(12, width, generator=torch.Generator().manual_seed(5))
    answers = []
    for net in (native, torchs):
        cache = net.new_cache()
        cache.stage_slots((-1, 0, 1, 2, 2, 2, 5, 6, 6, 8, 9, 9))  # a tree
        answers.append(
            net.forward([NetworkQuery(cache, 0, (), range(12), ScoreRequest(hidden=True), x)])[0]
        )
    ours, theirs = answers
    assert (ours.hidden_RH - theirs.hidden_RH).abs().max() < 0.05 * theirs.hidden_RH.abs().max()
    if headed:
        assert torch.equal(ours.logits_RV.isinf(), theirs.logits_RV.isinf())
        assert (ours.logits_RV.softmax(-1) - theirs.logits_RV.softmax(-1)).abs().max() < 0.2

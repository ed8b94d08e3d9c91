"""Adapters as PEFT writes them: a directory of one is a model's name, and its weights are the sum."""

import json
import shutil

import pytest
import torch
from safetensors.torch import save_file

import micro
import polydec
from polydec.base.errors import FileError
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.models.sessions import checkpoint, sources

NAMES = ("self_attn.q_proj", "self_attn.o_proj", "mlp.down_proj")
SHAPES = {"self_attn.q_proj": (32, 32), "self_attn.o_proj": (32, 32), "mlp.down_proj": (32, 64)}


def write(path, base, *, rank=4, seed=0, config=None, drop=(), **tensors):
    """A random adapter of the micro model at `base`, in the published form."""
    path.mkdir(exist_ok=True)
    g = torch.Generator().manual_seed(seed)
    out = {}
    for layer in range(2):
        for name in NAMES:
            rows, columns = SHAPES[name]
            at = f"base_model.model.model.layers.{layer}.{name}"
            out[f"{at}.lora_A.weight"] = torch.randn(rank, columns, generator=g) / 8
            out[f"{at}.lora_B.weight"] = torch.randn(rows, rank, generator=g) / 8
    out = {k: v for k, v in (out | tensors).items() if k not in drop}
    save_file(out, path / "adapter_model.safetensors")
    said = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base),
        "r": rank,
        "lora_alpha": 16,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": [name.split(".")[1] for name in NAMES],
    } | (config or {})
    (path / "adapter_config.json").write_text(json.dumps(said))
    return path, out


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return micro.write(tmp_path_factory.mktemp("base"))


def merged(base, tensors, scale):
    """The weights by the formula W + alpha / r B A."""
    out = dict(sources.open_source(str(base)).weights.items())
    for name, a in tensors.items():
        if name.endswith("lora_A.weight"):
            own = name.removeprefix("base_model.model.").replace("lora_A.weight", "weight")
            out[own] = out[own] + scale * tensors[name.replace("lora_A", "lora_B")] @ a
    return out


def laws(lm):
    async def one():
        session = lm.open_session((5, 6, 7))
        scores = await session.score_draft(Draft.chain_draft(7, (8, 9)), ScoreRequest())
        return torch.stack([scores.logprob_row(i) for i in range(3)])

    return run_coroutines([one()])[0]


@pytest.mark.parametrize("rslora", [False, True])
def test_the_weights_are_the_sum(base, tmp_path, rslora):
    path, tensors = write(tmp_path / "lora", base, config={"use_rslora": rslora})
    whole = merged(base, tensors, 16 / (4**0.5 if rslora else 4))
    source = sources.open_source(str(path))
    assert source.weights.keys() == whole.keys()
    for name, want in whole.items():
        assert source.weights[name].allclose(want, atol=1e-6), name
    mine = sources.open_source(str(base))
    sources.save_checkpoint(tmp_path / "whole", mine.config, whole, mine.text, mine.generation)
    for dtype in ("float32", "auto"):
        ours, theirs, before = (
            laws(checkpoint.load_bundle(str(p), dtype=dtype).lm)
            for p in (path, tmp_path / "whole", base)
        )
        assert ours.allclose(theirs, atol=1e-5) and not ours.allclose(before, atol=0.05)


@pytest.mark.parametrize("start", [True, False, "gaussian", "eva", "orthogonal", "mica", "lora_ga"])
def test_how_training_began_changes_nothing(base, tmp_path, start):
    path, tensors = write(tmp_path / "lora", base, config={"init_lora_weights": start})
    whole = merged(base, tensors, 4.0)
    assert all(
        w.allclose(whole[n], atol=1e-6) for n, w in sources.open_source(str(path)).weights.items()
    )


@pytest.mark.parametrize("start", ["pissa", "olora"])
@pytest.mark.parametrize("rslora", [False, True])
def test_what_training_began_with_is_taken_out(base, tmp_path, start, rslora):
    """PEFT takes it out of the checkpoint when it loads the adapter: untrained, the sum is the checkpoint."""
    config, scale = {"init_lora_weights": start, "use_rslora": rslora}, 16 / (2 if rslora else 4)
    path, tensors = write(tmp_path / "lora", base, config=config)
    own = sources.open_source(str(base)).weights
    fresh = dict(tensors)
    for name in tensors:
        if not name.endswith("lora_A.weight"):
            continue
        module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        if start == "pissa":
            left, values, right = torch.linalg.svd(own[f"{module}.weight"], full_matrices=False)
            root = (values[:4] / scale).sqrt()
            a, b = root[:, None] * right[:4], left[:, :4] * root
        else:
            orthogonal, triangular = torch.linalg.qr(own[f"{module}.weight"])
            a, b = triangular[:4], orthogonal[:, :4]
        fresh[name], fresh[name.replace("lora_A", "lora_B")] = a.contiguous(), b.contiguous()
    changed = sources.open_source(str(path)).weights
    write(tmp_path / "fresh", base, config=config, **fresh)
    untrained = sources.open_source(str(tmp_path / "fresh")).weights
    plain, _ = write(tmp_path / "plain", base, config=config | {"init_lora_weights": True})
    differ = 0
    for name, want in own.items():
        assert untrained[name].allclose(want, atol=1e-5), name
        differ += not changed[name].allclose(
            sources.open_source(str(plain)).weights[name], atol=1e-3
        )
    assert differ == 6
    name = "model.layers.0.mlp.down_proj.weight"
    parts = [sources.open_source(str(p)).weights.source_of(name)[-1] for p in (path, plain)]
    assert not parts[0].equal(parts[1])


def test_alpha_by_module(base, tmp_path):
    config = {
        "alpha_pattern": {
            "layers.1.self_attn.o_proj": 2,
            "o_proj": 32,
            "^model.layers.0.mlp.down_proj": 1,
        }
    }
    path, tensors = write(tmp_path / "lora", base, config=config)
    alphas = {
        "model.layers.0.self_attn.q_proj": 16,
        "model.layers.0.self_attn.o_proj": 32,
        "model.layers.1.self_attn.o_proj": 2,
        "model.layers.0.mlp.down_proj": 1,
        "model.layers.1.mlp.down_proj": 16,
    }
    weights = sources.open_source(str(path)).weights
    for module, alpha in alphas.items():
        assert weights[f"{module}.weight"].allclose(
            merged(base, tensors, alpha / 4)[f"{module}.weight"], atol=1e-6
        )


def test_an_adapter_is_a_name_wherever_a_model_has_one(base, tmp_path):
    """Of the model, with what it was before as its draft (SVDecode), and of a draft."""
    path, _ = write(tmp_path / "lora", base)
    tuned = polydec.load(str(path), draft=str(base))
    text = {
        s: polydec.generate(tuned, "The grey fox", max_tokens=8, **more).choices[0].token_ids
        for s, more in {"plain": {}, "far": {"steer": "svdecode"}}.items()
    }
    assert len(text["plain"]) == len(text["far"]) == 8
    drafted = polydec.generate(
        polydec.load(str(base), draft=str(path)), "The grey fox", method="draft-model", max_tokens=8
    )
    plain = polydec.generate(polydec.load(str(base)), "The grey fox", max_tokens=8)
    assert drafted.choices[0].token_ids == plain.choices[0].token_ids


def test_what_is_kept_in_eight_bits_is_kept_for_each_adapter(base, tmp_path):
    """A table that was quantised once is found again by what it is made of."""
    one, _ = write(tmp_path / "one", base)
    two, _ = write(tmp_path / "two", base, seed=1)
    name = "model.layers.0.mlp.down_proj.weight"
    parts = [sources.open_source(str(p)).weights.source_of(name) for p in (one, two)]
    assert not all(a.equal(b) for a, b in zip(*parts, strict=True))
    other = sources.open_source(str(one)).weights.source_of("model.norm.weight")
    assert len(other) == 1


def test_an_adapter_of_an_adapter(base, tmp_path):
    first, a = write(tmp_path / "first", base)
    second, b = write(tmp_path / "second", first, seed=1)
    name = "model.layers.1.mlp.down_proj"
    want = merged(base, a, 4.0)[name + ".weight"]
    at = f"base_model.model.{name}"
    want = want + 4.0 * b[f"{at}.lora_B.weight"] @ b[f"{at}.lora_A.weight"]
    assert sources.open_source(str(second)).weights[name + ".weight"].allclose(want, atol=1e-5)
    write(tmp_path / "first", tmp_path / "first")
    with pytest.raises(FileError, match="stand behind one another, more than 4 times"):
        sources.open_source(str(second))


def test_dora_gives_each_row_its_own_length(base, tmp_path):
    """As PEFT merges it: m (W + s B A) / |W + s B A|, a length for each output."""
    g = torch.Generator().manual_seed(4)
    lengths = {}
    for layer in range(2):
        for name in NAMES:
            at = f"base_model.model.model.layers.{layer}.{name}.lora_magnitude_vector"
            lengths[at] = 0.5 + torch.rand(SHAPES[name][0], generator=g)
    path, tensors = write(tmp_path / "dora", base, config={"use_dora": True}, **lengths)
    whole = merged(base, tensors, 4.0)
    changed = 0
    for name, value in sources.open_source(str(path)).weights.items():
        m = lengths.get(f"base_model.model.{name.removesuffix('.weight')}.lora_magnitude_vector")
        want = whole[name]
        if m is not None:
            want = want / want.norm(dim=1, keepdim=True) * m[:, None]
            assert value.norm(dim=1).allclose(m, atol=1e-5)
            changed += 1
        assert value.allclose(want, atol=1e-5), name
    assert changed == 6
    short = {next(iter(lengths)): torch.ones(7)}
    path, _ = write(tmp_path / "dora", base, config={"use_dora": True}, **{**lengths, **short})
    with pytest.raises(FileError, match="no lengths of the 32 rows"):
        sources.open_source(str(path))


def write_factors(path, base):
    """An IA3 adapter of the micro model: outputs of keys, inputs of the feed-forward layers."""
    path.mkdir()
    g = torch.Generator().manual_seed(6)
    at = "base_model.model.model.layers.{}.{}.ia3_l"
    out = {}
    own = dict(sources.open_source(str(base)).weights.items())
    for layer in range(2):
        for name, inputs in (("self_attn.k_proj", False), ("mlp.down_proj", True)):
            rows, columns = own[f"model.layers.{layer}.{name}.weight"].shape
            shape = (1, columns) if inputs else (rows, 1)
            out[at.format(layer, name)] = torch.rand(shape, generator=g) + 0.5
    save_file(out, path / "adapter_model.safetensors")
    said = {
        "peft_type": "IA3",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base),
        "target_modules": ["k_proj", "down_proj"],
        "feedforward_modules": ["down_proj"],
        "fan_in_fan_out": False,
        "init_ia3_weights": True,
        "modules_to_save": None,
    }
    (path / "adapter_config.json").write_text(json.dumps(said))
    return path, out


def test_ia3_multiplies_outputs_or_inputs(base, tmp_path):
    path, factors = write_factors(tmp_path / "ia3", base)
    own = sources.open_source(str(base)).weights
    changed = 0
    for name, value in sources.open_source(str(path)).weights.items():
        factor = factors.get(f"base_model.model.{name.removesuffix('.weight')}.ia3_l")
        want = own[name] if factor is None else own[name] * factor
        assert value.allclose(want, atol=1e-6), name
        changed += factor is not None
    assert changed == 4
    # Factors of inputs of the feed-forward layer act as if its inputs were multiplied.
    at = "model.layers.0.mlp.down_proj"
    x = torch.randn(64)
    want = own[at + ".weight"] @ (factors[f"base_model.model.{at}.ia3_l"][0] * x)
    assert (sources.open_source(str(path)).weights[at + ".weight"] @ x).allclose(want, atol=1e-5)
    assert laws(polydec.load(str(path), draft=None).checkpoint.lm).isfinite().all()


def test_what_is_kept_of_dora_and_ia3_is_their_own(base, tmp_path):
    """A file of converted weights is found by what they are made of: lengths and factors belong to it."""
    path, _ = write_factors(tmp_path / "ia3", base)
    name = "model.layers.0.mlp.down_proj.weight"
    merged_weights = sources.open_source(str(path)).weights
    assert any(
        part is not None and part.shape == (1, 64) for part in merged_weights.source_of(name)
    )


AT = "base_model.model.model.layers.0.mlp.down_proj"
WRONG = {
    "peft_type is 'LOHA'": {"config": {"peft_type": "LOHA"}},
    "columns and rows NAME.ia3_l": {"config": {"peft_type": "IA3"}},
    "has use_dora and no lengths": {"config": {"use_dora": True}},
    "fan_in_fan_out is set": {"config": {"fan_in_fan_out": True}},
    "alpha_pattern has 'q.\\*'": {"config": {"alpha_pattern": {"q.*": 3}}},
    "alpha_pattern.q_proj is -3": {"config": {"alpha_pattern": {"q_proj": -3}}},
    "lora_bias is set": {"config": {"lora_bias": True}},
    "modules_to_save is set": {"config": {"modules_to_save": ["lm_head"]}},
    "target_parameters is set": {"config": {"target_parameters": ["experts.gate_up_proj"]}},
    "trainable_token_indices is set": {"config": {"trainable_token_indices": [1]}},
    "arrow_config is set": {"config": {"arrow_config": {"top_k": 2}}},
    "kasa_config is set": {"config": {"kasa_config": {"beta": 0.1}}},
    "init_lora_weights is 'pissa_niter_4'": {"config": {"init_lora_weights": "pissa_niter_4"}},
    "init_lora_weights is 'corda'": {"config": {"init_lora_weights": "corda"}},
    "init_lora_weights is 'loftq'": {"config": {"init_lora_weights": "loftq"}},
    "init_lora_weights is 'other'": {"config": {"init_lora_weights": "other"}},
    "down_proj', which target_modules": {"config": {"target_modules": ["q_proj", "o_proj"]}},
    "layers.1.mlp.down_proj', which": {"config": {"layers_to_transform": [0]}},
    "layers.0.mlp.down_proj', which": {"config": {"layers_to_transform": 1}},
    "layers.0.self_attn.o_proj', which": {"config": {"exclude_modules": ["o_proj"]}},
    "layer_replication is set": {"config": {"layer_replication": [[0, 2]]}},
    "alora_invocation_tokens is set": {"config": {"alora_invocation_tokens": [1]}},
    "bias is 'all'": {"config": {"bias": "all"}},
    "lora_alpha": {"config": {"lora_alpha": "16"}},
    "base_model_name_or_path": {"config": {"base_model_name_or_path": None}},
    "pairs of NAME": {"drop": (f"{AT}.lora_B.weight",)},
    "they are no pair": {f"{AT}.lora_A.weight": torch.zeros(3, 64)},
    "NaN": {f"{AT}.lora_A.weight": torch.full((4, 64), torch.nan)},
    "has \\(32, 64\\) of that name": {f"{AT}.lora_A.weight": torch.zeros(4, 63)},
    "has none of that name": {
        "config": {"target_modules": ".*_proj"},
        "base_model.model.model.layers.9.mlp.up_proj.lora_A.weight": torch.zeros(4, 32),
        "base_model.model.model.layers.9.mlp.up_proj.lora_B.weight": torch.zeros(64, 4),
    },
}


@pytest.mark.parametrize("said", WRONG)
def test_what_is_wrong_is_one_sentence(base, tmp_path, said):
    path, _ = write(tmp_path / "lora", base, **WRONG[said])
    with pytest.raises(FileError, match=said) as e:
        sources.open_source(str(path))
    assert len(str(e.value)) <= 300 and "\n" not in str(e.value)


def test_a_directory_without_weights_or_without_a_base_says_so(base, tmp_path):
    path, _ = write(tmp_path / "lora", base)
    (path / "adapter_model.safetensors").unlink()
    with pytest.raises(FileError, match="safetensors beside it"):
        sources.open_source(str(path))
    path, _ = write(tmp_path / "far", tmp_path / "nowhere")
    with pytest.raises(FileError, match="nowhere"):
        sources.open_source(str(path))


def test_a_whole_checkpoint_counts_before_an_adapter(base, tmp_path):
    both = shutil.copytree(base, tmp_path / "both")
    (both / "adapter_config.json").write_text("{}")
    assert set(sources.open_source(both).weights) == set(sources.open_source(base).weights)

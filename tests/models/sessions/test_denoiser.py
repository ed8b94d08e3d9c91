"""Masked-diffusion checkpoints: LLaDA's layouts, Dream's and ours, against a plain reference; caches of canvases."""

import json

import pytest
import torch
from safetensors.torch import save_file
from torch.nn.functional import scaled_dot_product_attention, silu

import micro
from polydec import Engine, load
from polydec.core.scheduler import run_coroutines
from polydec.methods.diffusion.loop.no_early_end import NoEarlyEndDenoiser
from polydec.methods.diffusion.loop.prompted import PromptGuidedDenoiser
from polydec.methods.diffusion.refreshes.dual import DualRefresh
from polydec.methods.diffusion.refreshes.prefix import PrefixRefresh
from polydec.models.sessions import checkpoint

W, H, KV, INNER, LAYERS, V, MASK = 32, 4, 2, 48, 3, 40, 39
EXPERTS, USED, SMALL = 4, 2, 32


def tensors(seed=0, bias=False):
    """A random model by short names: of layer i "i.q" and so on."""
    g = torch.Generator().manual_seed(seed)

    def some(*shape, scale=0.25):
        return torch.randn(*shape, generator=g) * scale

    D = W // H
    out = {"embed": some(V, W, scale=1.0), "norm": 1 + some(W, scale=0.1), "head": some(V, W)}
    for i in range(LAYERS):
        out |= {
            f"{i}.q": some(H * D, W),
            f"{i}.k": some(KV * D, W),
            f"{i}.v": some(KV * D, W),
            f"{i}.o": some(W, H * D),
            f"{i}.gate": some(INNER, W),
            f"{i}.up": some(INNER, W),
            f"{i}.down": some(W, INNER),
            f"{i}.n1": 1 + some(W, scale=0.1),
            f"{i}.n2": 1 + some(W, scale=0.1),
        }
        if bias:
            out |= {
                f"{i}.q.bias": some(H * D),
                f"{i}.k.bias": some(KV * D),
                f"{i}.v.bias": some(KV * D),
            }
    return out


def with_experts(t, dense=(0,)):
    """The same with norms of queries and keys, and with experts in the layers that are not `dense`."""
    g, out = torch.Generator().manual_seed(7), dict(t)
    for i in range(LAYERS):
        out |= {f"{i}.{n}n": 1 + torch.randn(W // H, generator=g) * 0.1 for n in "qk"}
        if i not in dense:
            out |= {f"{i}.router": torch.randn(EXPERTS, W, generator=g)}
            for part, rows, columns in (("gate", SMALL, W), ("up", SMALL, W), ("down", W, SMALL)):
                del out[f"{i}.{part}"]
                out |= {
                    f"{i}.{part}{e}": torch.randn(rows, columns, generator=g) * 0.25
                    for e in range(EXPERTS)
                }
    return out


def reference(t, ids, theta=10000.0, eps=1e-5, block=0):
    """Logits of a bidirectional Llama block, or of one that sees no further than its block, written out."""
    t, D, T = {k: v.double() for k, v in t.items()}, W // H, len(ids)
    angle = torch.outer(
        torch.arange(T).double(), theta ** (-torch.arange(0, D, 2).double() / D)
    ).repeat(1, 2)

    behind = torch.arange(T)[None] // (block or T) > torch.arange(T)[:, None] // (block or T)
    mask = torch.zeros(T, T).double().masked_fill(behind, float("-inf"))

    def norm(x, weight):
        return x * (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * weight

    def turn(x):
        a, b = x.chunk(2, -1)
        return x * angle.cos() + torch.cat([-b, a], -1) * angle.sin()

    def mlp(h, at, one=""):
        return (silu(h @ t[at + "gate" + one].T) * (h @ t[at + "up" + one].T)) @ t[
            at + "down" + one
        ].T

    x = t["embed"][torch.tensor(ids)]
    for i in range(LAYERS):
        h = norm(x, t[f"{i}.n1"])
        q, k, v = (
            (h @ t[f"{i}.{n}"].T + t.get(f"{i}.{n}.bias", 0)).view(T, -1, D).transpose(0, 1)
            for n in "qkv"
        )
        q, k = (norm(z, t[f"{i}.{n}n"]) if f"{i}.{n}n" in t else z for n, z in (("q", q), ("k", k)))
        k, v = (z.repeat_interleave(H // KV, 0) for z in (turn(k), v))
        y = (
            scaled_dot_product_attention(turn(q)[None], k[None], v[None], mask)[0]
            .transpose(0, 1)
            .reshape(T, -1)
        )
        x = x + y @ t[f"{i}.o"].T
        h = norm(x, t[f"{i}.n2"])
        if f"{i}.router" in t:
            share, used = (h @ t[f"{i}.router"].T).softmax(-1).topk(USED)
            x = x + sum(
                (used == e).double().mul(share).sum(-1, keepdim=True) * mlp(h, f"{i}.", str(e))
                for e in range(EXPERTS)
            )
        else:
            x = x + mlp(h, f"{i}.")
    return norm(x, t["norm"]) @ t["head"].T


HF = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
    "qn": "self_attn.q_norm",
    "kn": "self_attn.k_norm",
    "router": "mlp.gate",
    **{
        f"{part}{e}": f"mlp.experts.{e}.{part}_proj"
        for part in ("gate", "up", "down")
        for e in range(EXPERTS)
    },
    "n1": "input_layernorm",
    "n2": "post_attention_layernorm",
}
LLADA = {
    "q": "q_proj",
    "k": "k_proj",
    "v": "v_proj",
    "o": "attn_out",
    "gate": "ff_proj",
    "up": "up_proj",
    "down": "ff_out",
    "n1": "attn_norm",
    "n2": "ff_norm",
}


def named(t, layer, parts, ends):
    out = {}
    for name, value in t.items():
        i, _, rest = name.partition(".")
        part, _, kind = rest.partition(".")
        out[(layer.format(i) + parts[part] if rest else ends[name]) + "." + (kind or "weight")] = (
            value
        )
    return out


def write(path, layout, t, **changes):
    path.mkdir(parents=True, exist_ok=True)
    hf = {
        "vocab_size": V,
        "hidden_size": W,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": H,
        "num_key_value_heads": KV,
        "intermediate_size": INNER,
        "max_position_embeddings": 96,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "eos_token_id": 1,
    }
    ends = {"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}
    config = {
        "ours": {**hf, "model_type": "llama", "polydec_causal": False, "polydec_mask": MASK},
        "sdar": {**hf, "model_type": "sdar", "mask_token_id": MASK, "block_size": 4},
        "fast-dllm": {**hf, "model_type": "Fast_dLLM_Qwen", "mask_token_id": MASK, "bd_size": 4},
        "dream": {
            **hf,
            "model_type": "Dream",
            "mask_token_id": MASK,
            "auto_map": {"AutoModel": "modeling_dream.DreamModel"},
        },
        "llada-moe": {
            **hf,
            "model_type": "llada",
            "mask_token_id": MASK,
            "dense_intermediate_size": INNER,
            "intermediate_size": None,
            "expert_intermediate_size": SMALL,
            "num_experts": EXPERTS,
            "num_experts_per_tok": USED,
            "moe_layer_freq": [0, 1, 1],
            "qk_layernorm": True,
            "norm_topk_prob": None,
            "partial_rotary_factor": 1,
            "auto_map": {"AutoModel": "modeling_lladamoe.LLaDAMoEModelLM"},
        },
        "llada": {
            "model_type": "llada",
            "d_model": W,
            "n_heads": H,
            "n_kv_heads": KV,
            "n_layers": LAYERS,
            "mlp_hidden_size": INNER,
            "vocab_size": V,
            "embedding_size": V,
            "max_sequence_length": 96,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "weight_tying": False,
            "mask_token_id": MASK,
            "eos_token_id": 1,
            "block_type": "llama",
            "rope": True,
            "activation_type": "silu",
            "layer_norm_type": "rms",
            "include_bias": False,
            "alibi": False,
            "auto_map": {"AutoModelForCausalLM": "modeling_llada.LLaDAModelLM"},
        },
    }[layout] | changes
    if layout == "llada":
        at = "model.transformer."
        weights = named(
            t,
            at + "blocks.{}.",
            LLADA,
            {"embed": at + "wte", "norm": at + "ln_f", "head": at + "ff_out"},
        )
    else:
        weights = named(t, "model.layers.{}.", HF, ends)
    (path / "config.json").write_text(
        json.dumps({k: v for k, v in config.items() if v is not None})
    )
    save_file({k: v.contiguous() for k, v in weights.items()}, path / "model.safetensors")
    return str(path)


CANVAS = (3, 5, None, None, 7, None, 2, None, None, None)
IDS = [MASK if x is None else x for x in CANVAS]
ROWS = [i for i, x in enumerate(CANVAS) if x is None]


def scored(model, canvas=CANVAS, rows=tuple(ROWS), feeds=None):
    board = model.open_canvas(len(canvas))

    async def go():
        out = None
        for feed, seen in feeds or [(range(len(canvas)), canvas)]:
            out = await board.score_canvas(seen, [r for r in rows if r in feed], feed)
        return out

    return run_coroutines([go()])[0]


@pytest.mark.filterwarnings("ignore:.*has no tokenizer")
@pytest.mark.parametrize("dtype", ["float32", "auto"])
@pytest.mark.parametrize("layout", ["ours", "llada", "dream", "llada-moe"])
def test_logits_are_those_of_a_plain_reference(tmp_path, layout, dtype):
    t = tensors(1, bias=layout == "dream")
    t = with_experts(t) if layout == "llada-moe" else t
    model = checkpoint.load_bundle(write(tmp_path, layout, t), dtype=dtype).lm
    assert model.mask == MASK and model.shifted == (layout == "dream") and model.network.size == V
    want = reference(t, IDS)[[r - model.shifted for r in ROWS]]
    got = scored(model)
    assert bool((got[:, MASK] == float("-inf")).all())
    others = [x for x in range(V) if x != MASK]
    assert float((got - want)[:, others].abs().max()) < (2e-4 if dtype == "float32" else 1e-2)


@pytest.mark.filterwarnings("ignore:.*has no tokenizer")
def test_a_shifted_head_reads_the_position_before(tmp_path):
    """The same weights, shifted or not: rows lie one apart."""
    t = tensors(2)
    straight, shifted = (
        checkpoint.load_bundle(
            write(tmp_path / str(s), "ours", t, polydec_shifted=s), dtype="float32"
        ).lm
        for s in (False, True)
    )
    a, b = scored(straight, rows=(2, 4, 6)), scored(shifted, rows=(3, 5, 7))
    assert torch.equal(a, b)


@pytest.mark.filterwarnings("ignore:.*has no tokenizer")
@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "auto"])
def test_feeding_a_part_keeps_the_rest(tmp_path, dtype, shifted):
    """Fed anew, an unchanged canvas gives what it gave; a changed block sees the old keys and values of the others, and a full
    pass forgets them."""
    model = checkpoint.load_bundle(
        write(tmp_path, "ours", tensors(3), polydec_shifted=shifted), dtype=dtype
    ).lm
    n, block = len(CANVAS), range(5, 8)
    inside = tuple(r for r in ROWS if r in block)
    first = scored(model, rows=inside)
    for refresh in (PrefixRefresh(), DualRefresh()):
        again = scored(
            model,
            rows=inside,
            feeds=[(range(n), CANVAS), (refresh.fed_positions(CANVAS, CANVAS, block, 1), CANVAS)],
        )
        assert float((again - first)[:, :MASK].abs().max()) < 1e-4
    new = (*CANVAS[:5], 9, *CANVAS[6:])
    rows = (7,)
    whole = scored(model, new, rows)
    part = scored(
        model,
        new,
        rows,
        [(range(n), CANVAS), (DualRefresh().fed_positions(CANVAS, CANVAS, block, 1), new)],
    )
    full = scored(model, new, rows, [(range(n), CANVAS), (range(n), new)])
    assert (
        float((full - whole)[:, :MASK].abs().max())
        < 1e-4
        < 1e-3
        < float((part - whole)[:, :MASK].abs().max())
    )


@pytest.mark.filterwarnings("ignore:.*has no tokenizer")
@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "auto"])
def test_any_positions_can_be_fed(tmp_path, dtype, shifted):
    """What stands apart is fed in one pass, where each sees the new keys and values of the others: with all that changed, and
    nothing that saw it, left out, a pass over some positions is a pass over all."""
    t = tensors(3)
    model = checkpoint.load_bundle(
        write(tmp_path, "ours", t, polydec_shifted=shifted, num_hidden_layers=1), dtype=dtype
    ).lm
    new = (
        *CANVAS[:3],
        8,
        *CANVAS[4:6],
        11,
        12,
        *CANVAS[8:],
    )  # in one layer keys and values depend on their tokens alone
    rows, fed = (2, 9), (2, 3, 6, 7, 9)
    whole, part = (
        scored(model, new, rows),
        scored(model, new, rows, [(range(10), CANVAS), (fed, new)]),
    )
    late = scored(model, new, rows, [(range(10), CANVAS), ((2, 3, 9), new)])
    assert (
        float((part - whole)[:, :MASK].abs().max())
        < 1e-4
        < 1e-3
        < float((late - whole)[:, :MASK].abs().max())
    )


@pytest.mark.filterwarnings("ignore:.*has no tokenizer")
@pytest.mark.parametrize("dtype", ["float32", "auto"])
@pytest.mark.parametrize("layout", ["ours", "sdar", "fast-dllm"])
def test_a_block_causal_model_sees_no_further_than_its_block(tmp_path, layout, dtype):
    """All at once, and block after block with what stands before kept: both are the reference's logits."""
    t = tensors(4, bias=layout == "fast-dllm")
    model = checkpoint.load_bundle(
        write(tmp_path, layout, t, **({"polydec_block": 4} if layout == "ours" else {})),
        dtype=dtype,
    ).lm
    shifted = layout == "fast-dllm"
    assert (model.block, model.shifted, model.mask) == (4, shifted, MASK)
    want = reference(t, IDS, block=4)[[r - shifted for r in ROWS]]
    whole = scored(model, rows=tuple(ROWS))
    assert float((whole - want)[:, :MASK].abs().max()) < (2e-4 if dtype == "float32" else 3e-2)
    feeds = [(range(4), CANVAS[:4]), (range(4, 8), CANVAS[:8]), (range(8, 10), CANVAS)]
    board = model.open_canvas(10)

    async def go():
        return [
            await board.score_canvas(seen, [r for r in ROWS if r in feed], feed)
            for feed, seen in feeds
        ]

    assert float((torch.cat(run_coroutines([go()])[0]) - whole)[:, :MASK].abs().max()) < 1e-4


@pytest.mark.filterwarnings("ignore:.*has no tokenizer")
def test_a_canvas_may_become_shorter(tmp_path):
    model = checkpoint.load_bundle(write(tmp_path, "ours", tensors(3)), dtype="float32").lm
    short = CANVAS[:6]
    got = scored(model, short, (3, 5), [(range(10), CANVAS), (range(6), short)])
    assert float((got - scored(model, short, (3, 5)))[:, :MASK].abs().max()) < 1e-5


@pytest.mark.filterwarnings("ignore:.*has no tokenizer")
def test_the_first_pass_feeds_all(tmp_path):
    model = checkpoint.load_bundle(write(tmp_path, "ours", tensors(3)), dtype="float32").lm
    with pytest.raises(ValueError, match="the first pass feeds all 10 positions"):
        scored(model, feeds=[(range(2, 8), CANVAS)])
    with pytest.raises(
        ValueError, match="the canvas has 97 positions: the model's context holds 96"
    ):
        model.open_canvas(97)


@pytest.mark.filterwarnings("ignore:.*has no tokenizer")
@pytest.mark.parametrize(
    "layout, changes, message",
    [
        (
            "llada",
            {"block_type": "sequential"},
            "block_type is 'sequential': of LLaDA's layouts 'llama' is run",
        ),
        ("llada", {"activation_type": "swiglu"}, "activation_type is 'swiglu'"),
        ("llada", {"alibi": True}, "alibi is set"),
        ("llada", {"block_group_size": 2}, "block_group_size is 2"),
        ("llada", {"n_heads": None}, "n_heads"),
        ("llada", {"mask_token_id": None}, "mask_token_id"),
        ("llada", {"mask_token_id": 40}, "the mask token is 40: it must lie in 0 to 39"),
        (
            "llada-moe",
            {"shared_expert_intermediate_size": 64},
            "shared_expert_intermediate_size is set: of LLaDA-MoE's layouts",
        ),
        ("llada-moe", {"moe_layer_freq": [0, 2, 1]}, "moe_layer_freq"),
        ("llada-moe", {"expert_intermediate_size": None}, "expert_intermediate_size"),
        ("dream", {"mask_token_id": None}, "polydec_mask"),
        ("ours", {"polydec_mask": -1}, "polydec_mask"),
        ("ours", {"polydec_mask": "x"}, "polydec_mask"),
    ],
)
def test_what_cannot_be_run_is_said(tmp_path, layout, changes, message):
    with pytest.raises(ValueError) as error:
        checkpoint.load_bundle(write(tmp_path, layout, tensors(), **changes))
    assert (
        message in str(error.value)
        and "\n" not in str(error.value)
        and len(str(error.value)) <= 300
    )


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    """A random model with a tokenizer, made a masked-diffusion one."""
    path = micro.write(tmp_path_factory.mktemp("masked"))
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(
        json.dumps({**config, "polydec_causal": False, "polydec_mask": config["vocab_size"] - 1})
    )
    return load(str(path), dtype="float32")


@pytest.mark.parametrize("cache", [0, 1, 2])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_unequal_canvases_in_one_batch(lm, temperature, cache):
    def submit(engine, i):
        options = {"threshold": 0.3, "block": 5, "cache": cache}
        return engine.submit(
            "The grey fox " * (i + 1),
            method="fast-dllm",
            options=options,
            max_tokens=7 + 4 * i,
            seed=i,
            raw=True,
            n=1 + i % 2,
            sampling=lm.sampling_with(temperature=temperature),
        )

    alone = []
    for i in range(4):
        engine = Engine(lm)
        alone.append(engine.run([submit(engine, i)])[0])
    engine = Engine(lm)
    together = engine.run([submit(engine, i) for i in range(4)])
    assert [[c.token_ids for c in a.choices] for a in alone] == [
        [c.token_ids for c in a.choices] for a in together
    ]
    assert sum(len(c.token_ids) for a in alone for c in a.choices) > 20


def test_feeding_all_is_no_cache_and_a_model_of_one_block_needs_none(lm):
    def ask(cache, block, threshold):
        engine = Engine(lm)
        return engine.run(
            [
                engine.submit(
                    "The grey fox",
                    method="fast-dllm",
                    max_tokens=16,
                    raw=True,
                    ignore_eos=True,
                    options={"cache": cache, "block": block, "threshold": threshold},
                )
            ]
        )[0]

    assert (
        ask(1, 0, 0.5).token_ids != () and ask(0, 4, 0.0).token_ids == ask(2, 4, 0.0).token_ids
    )  # a pass a block
    fed = [ask(c, 4, 1.5).metrics["positions_fed"] for c in (0, 1, 2)]
    assert fed[0] > fed[1] > fed[2]


@pytest.mark.parametrize(
    "fields, message",
    [
        (
            {"method": "prompt-lookup"},
            "method prompt-lookup decodes autoregressive models and this is a masked-diffusion one",
        ),
        ({"method": "plain"}, "take llada, fast-dllm"),
        ({"method": "fast-dllm", "presence": 1}, "sampling rule presence"),
        ({"method": "fast-dllm", "options": {"threshold": 3}}, "threshold is 3"),
        ({"method": "fast-dllm", "max_tokens": 4000}, "max_tokens is 4000"),
    ],
)
def test_refusals(lm, fields, message):
    fields = dict(fields)
    if fields.pop("presence", None):
        fields["sampling"] = lm.sampling_with(presence_penalty=1.0)
    with pytest.raises(ValueError) as error:
        Engine(lm).submit("The fox", **fields)
    assert message in str(error.value) and len(str(error.value)) <= 300


def test_an_autoregressive_model_is_refused(tmp_path, lm):
    ar = load(str(micro.write(tmp_path)), draft=None)
    with pytest.raises(
        ValueError,
        match="method fast-dllm decodes masked-diffusion models and this is an autoregressive one",
    ):
        Engine(ar).submit("The fox", method="fast-dllm")
    guided = load(lm.name, draft=str(tmp_path))
    with pytest.raises(
        ValueError, match="method fast-dllm decodes a masked-diffusion model without one"
    ):
        Engine(guided).submit("The fox", method="auto")
    with pytest.raises(
        ValueError,
        match="infill is given: only a masked-diffusion or an insertion model fills gaps",
    ):
        Engine(ar).submit("The fox", infill="a[[2]]b")


def answered(lm, question, method, **options):
    engine = Engine(lm)
    asked = engine.submit(question, method=method, options=options, max_tokens=24, ignore_eos=True)
    return engine.run([asked])[0]


@pytest.mark.parametrize("dtype", ["float32", "auto"])
@pytest.mark.parametrize("cache", [1, 2])
def test_guesses_share_what_a_block_keeps(dtype, cache):
    """freedave on kept keys and values writes what fast-dllm writes on them, and feeds less than without them."""
    lm, fed = load("zoo:diffusion", draft=None, dtype=dtype, threads=1), [0, 0]
    for question in ("pick: 498034", "count: 518508", "table: 4", "on: 4"):
        options = {"threshold": 2.0, "block": 8, "cache": cache}
        want = answered(lm, question, "fast-dllm", **options)
        got = answered(lm, question, "freedave", **options, drafts=4)
        assert got.choices[0].token_ids == want.choices[0].token_ids
        assert got.metrics["target_passes"] < want.metrics["target_passes"]
        whole = answered(lm, question, "freedave", threshold=2.0, block=8, drafts=4)
        fed = [n + o.metrics["positions_fed"] for n, o in zip(fed, (got, whole), strict=True)]
    assert not lm.checkpoint.lm.nbytes  # every twin gave back what it held
    assert fed[0] < (0.8, 0.6)[cache - 1] * fed[1]


@pytest.mark.parametrize("dtype", ["float32", "auto"])
@pytest.mark.parametrize("name", ["zoo:diffusion", "zoo:block-diffusion"])
def test_twins_of_a_board_go_their_own_ways(name, dtype):
    """Each says what a board of its own would say after the same passes, whichever of them writes first."""
    model = load(name, draft=None, dtype=dtype, threads=1).checkpoint.lm
    dice = torch.Generator().manual_seed(0)
    known = [int(x) for x in torch.randint(5, 60, (150,), generator=dice)]
    start = (*known, *(None,) * 10)
    canvases = [(*known, *(None,) * i, 7 + i, *(None,) * (9 - i)) for i in range(4)]
    feed = range(144, 160)

    def rows(canvas):
        return [i for i in feed if canvas[i] is None]

    async def forked():
        board = model.open_canvas(160, 150)
        await board.score_canvas(start, rows(start), range(160))
        boards = [board, *(board.fork() for _ in canvases[1:])]
        pairs = [*zip(boards, canvases)]
        out = {
            i: await pairs[i][0].score_canvas(c, rows(c), feed)
            for i, c in [*enumerate(canvases)][::-1]
        }
        again = [await b.score_canvas(c, rows(c), feed) for b, c in pairs]
        for b in boards:
            b.close()
        return [out[i] for i in range(4)], again

    async def alone():
        out = []
        for canvas in canvases:
            board = model.open_canvas(160, 150)
            await board.score_canvas(start, rows(start), range(160))
            out.append(await board.score_canvas(canvas, rows(canvas), feed))
            board.close()
        return out

    (first, again), want = run_coroutines([forked()])[0], run_coroutines([alone()])[0]
    for a, b, c in zip(first, again, want, strict=True):
        assert torch.equal(a, c) and torch.equal(b, c)


@pytest.mark.parametrize(
    "method", ["fast-dllm", "freedave", "guided-diffusion", "dkv-cache", "ccd"]
)
def test_a_text_with_gaps_keeps_what_is_given(lm, tmp_path, method):
    model = (
        load(lm.name, draft=str(micro.write(tmp_path)), dtype="float32")
        if method == "guided-diffusion"
        else lm
    )
    given = (5, None, None, 9, None, 11)
    for seed in range(3):
        engine = Engine(model)
        out = engine.run(
            [
                engine.submit(
                    "The fox",
                    method=method,
                    infill=given,
                    seed=seed,
                    logprobs=1,
                    sampling=lm.sampling_with(temperature=0.9),
                )
            ]
        )[0]
        ids = out.choices[0].token_ids
        ends = [i for i, x in enumerate(ids) if x in lm.checkpoint.lm.vocab.eos]
        kept = [(x, y) for x, y in zip(ids, given) if y is not None]
        assert kept and all(x == y for x, y in kept) and (len(ids) == 7 or ends == [len(ids) - 1])


def test_infilled_text_says_its_gaps_in_brackets(lm):
    engine = Engine(lm)
    plan = engine.submit("The fox", method="auto", infill="The[[2]] fox").plan
    fox = lm.checkpoint.text.encode(" fox", special=False)
    start = lm.checkpoint.text.encode("The", special=False)
    assert (
        plan.request.given[:-1] == (*start, None, None, *fox)
        and plan.request.given[-1] in lm.checkpoint.lm.vocab.eos
    )
    for bad, message in (
        ("The fox", "infill has no gap"),
        ((1, 2), "infill has no gap"),
        ((None, 10**6), r"infill\[1\] is"),
        ("[[5000]]", "infill has 5000 tokens, gaps included: there is room for 256"),
    ):
        with pytest.raises(ValueError, match=message):
            engine.submit("The fox", method="auto", infill=bad)


def test_no_end_stands_before_min_tokens(lm):
    vocab = lm.checkpoint.lm.vocab
    seen = set()
    for seed in range(12):
        for least in (0, 9):
            engine = Engine(lm)
            out = engine.run(
                [
                    engine.submit(
                        "The fox",
                        method="mdlm",
                        max_tokens=12,
                        seed=seed,
                        stop_token_ids=tuple(range(40)),
                        sampling=lm.sampling_with(temperature=1.5, min_tokens=least),
                    )
                ]
            )[0]
            ids = out.choices[0].token_ids
            assert len(ids) > least
            seen.add(len(ids) > 9)
    assert seen == {True, False} and vocab.size > 40


@pytest.mark.parametrize("dtype", ["float32", "native"])
@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"polydec_shifted": True},
        {"polydec_block": 4},
        {"polydec_block": 4, "polydec_shifted": True},
    ],
)
def test_states_have_the_laws_of_a_score(tmp_path, kind, dtype):
    """Also in a second pass that feeds a part (but under a shifted head, where one position more is fed for states), and under
    what bends laws by position or by the prompt."""
    path = micro.write(tmp_path, hidden=64)
    config = json.loads((path / "config.json").read_text())
    masked = {**config, "polydec_causal": False, "polydec_mask": config["vocab_size"] - 1, **kind}
    (path / "config.json").write_text(json.dumps(masked))
    model = load(str(path), draft=None, dtype=dtype).checkpoint.lm
    first: tuple = (5, 9, 7, None, None, 11, None, None)
    second: tuple = (5, 9, 7, 8, None, 11, None, None)

    async def laws(target, read):
        board, out = target.open_canvas(8, 3), []
        for canvas, feed in (
            (first, range(8)),
            (second, range(0 if "polydec_shifted" in kind else 3, 8)),
        ):
            rows = [p for p in feed if canvas[p] is None]
            if read:
                states = await board.read_canvas(canvas, feed)
                out.append(target.laws_of_states(states[[p - feed[0] for p in rows]], rows))
            else:
                out.append(await board.score_canvas(canvas, rows, feed))
        board.close()
        return torch.cat(out).log_softmax(-1)

    for target in (
        model,
        NoEarlyEndDenoiser(model, frozenset({3}), 5),
        PromptGuidedDenoiser(model, 0.7),
    ):
        a, b = run_coroutines([laws(target, True)])[0], run_coroutines([laws(target, False)])[0]
        finite = b > float("-inf")
        assert torch.equal(a > float("-inf"), finite) and float((a - b)[finite].abs().max()) < 1e-4
    assert model.embed_canvas((5, None)).shape == (2, config["hidden_size"])

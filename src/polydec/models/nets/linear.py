"""Linear layers: weights packed once, for the kernel that this machine runs fastest.

What differs between kernels is how the weights are held and in what precision they are multiplied:

- `onednn-fp32`: the file's numbers as they are.
- `fbgemm-fp16`: weights rounded to float16 (11 bits; beyond 65,504 clamped), arithmetic in float32.
  On some CPUs one to three rows round differently from four and more (1e-4 in a log-probability).
- `onednn-bf16`: weights and activations of the layers rounded to bfloat16 (8 bits), sums in
  float32; the residual stream stays float32 and the head is fbgemm-fp16. Only on CPUs that have
  bfloat16 arithmetic. Rounding so coarse would make a hair's breadth of difference between a plain
  pass and a draft's into 1e-2 in a logit, so nothing but the linear layers may differ at all: keys,
  values and attention are float64.
- `torch-fp64`, `torch-fp32`: torch.nn.functional.linear; for tests, and for CPUs that the others do
  not know.

A row of the oneDNN kernels does not depend on how many rows are in the call: only one to three rows
alone are summed in another order, so that calls are padded to four.

What `--dtype torch` asks for, and `--dtype auto` where the compiled step cannot serve, is "auto"
here: it measures the first three on the model's own shapes, at the rows of a plain pass, of one
with a draft and of a batch (1, 8 and 32, weighed alike), and keeps the choice, by machine and
shapes, in $XDG_CACHE_HOME/polydec/kernels.json: a choice made anew each time could change a text at
a near-tie. Its law is that of weights rounded to float16, or of weights and activations rounded to
bfloat16, where one of these wins. Who decodes one request at a time may find float16 faster where
it takes bfloat16: 70 against 50 plain tokens a second for smollm2 on two Zen 4 cores.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from polydec.base.edge import read_json
from polydec.base.errors import RequestError

Linear = Callable[[Tensor], Tensor]  # [T, in] -> [T, out]
Shape = tuple[int, int]  # out, in


def _torch(weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Linear:
    w, b = weight.to(dtype).contiguous(), None if bias is None else bias.to(dtype)
    return lambda x: linear(x.to(dtype), w, b)


def _onednn(weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Linear:
    # The layout is chosen once, for calls of about 8 rows.
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.to(dtype).contiguous(), 8)
    op, b = torch.ops.mkldnn._linear_pointwise.default, None if bias is None else bias.to(dtype)

    def run_once(x: Tensor) -> Tensor:
        x, m = x.to(dtype), len(x)
        # One to three rows are summed in another order: padded, a row is the same in every call.
        if m < 4:
            return op(pad(x, (0, 0, 0, 4 - m)), packed, b, "none", [], "")[:m]
        return op(x, packed, b, "none", [], "")

    return run_once


def _fbgemm_fp16(weight: Tensor, bias: Tensor | None) -> Linear:
    b = None if bias is None else bias.float()
    packed = torch.ops.quantized.linear_prepack_fp16.default(weight.float().contiguous(), b)
    op = torch.ops.quantized.linear_dynamic_fp16.default
    return lambda x: op(x, packed)


def _always() -> bool:
    return True


def has_bf16() -> bool:
    """Whether this CPU multiplies bfloat16 itself (AVX512-BF16 or AMX), and oneDNN may use it
    (`ONEDNN_MAX_CPU_ISA`)."""
    multiplies = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    if not (multiplies and torch.backends.mkldnn.is_available()):
        return False
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _fbgemm() -> bool:
    return "fbgemm" in torch.backends.quantized.supported_engines


@dataclass(frozen=True)
class LinearKernel:
    """A way to hold weights and to multiply by them.

    Attributes:
        name: What the kernel is called in profiles and messages.
        dtype: What the weights are held in.
        pack: Makes a layer of a weight ``[out, in]`` and a bias ``[out]``, or None.
        usable: Whether this machine can run it.
        takes: What a layer is best given and gives.
        attention: What keys, values and attention are computed in.
        least: Rows to which a call is padded.
        head: The kernel of the output layer, where that is another one; else None.
    """

    name: str
    dtype: str
    pack: Callable[[Tensor, Tensor | None], Linear]
    usable: Callable[[], bool] = _always
    takes: torch.dtype = torch.float32
    attention: torch.dtype = torch.float32
    least: int = 1
    head: LinearKernel | None = None


FP64 = LinearKernel(
    "torch-fp64",
    "float64",
    lambda w, b: _torch(w, b, torch.float64),
    takes=torch.float64,
    attention=torch.float64,
)
FP32 = LinearKernel("torch-fp32", "float32", lambda w, b: _torch(w, b, torch.float32))
ONEDNN32 = LinearKernel(
    "onednn-fp32",
    "float32",
    lambda w, b: _onednn(w, b, torch.float32),
    torch.backends.mkldnn.is_available,
    attention=torch.float64,
    least=4,
)
FBGEMM16 = LinearKernel("fbgemm-fp16", "float16", _fbgemm_fp16, _fbgemm)
ONEDNN16 = LinearKernel(
    "onednn-bf16",
    "bfloat16",
    lambda w, b: _onednn(w, b, torch.bfloat16),
    has_bf16,
    torch.bfloat16,
    torch.float64,
    4,
    FBGEMM16 if _fbgemm() else ONEDNN32,
)
MEASURED = (ONEDNN32, FBGEMM16, ONEDNN16)


def cuda_kernel(dtype: str) -> LinearKernel:
    """The kernel of a GPU: torch's own, in bfloat16 unless another dtype is asked for. Untested: no
    GPU was at hand."""
    if dtype == "auto":
        dtype = "bfloat16"
    number = getattr(torch, dtype)
    return LinearKernel(
        f"cuda-{dtype}", dtype, lambda w, b: _torch(w, b, number), takes=number, attention=number
    )


def cpu_kernel(dtype: str, shapes: Sequence[Shape]) -> LinearKernel:
    """Choose the kernel of this CPU for a dtype.

    Args:
        dtype: "auto" (the fastest one, measured), "float32", "bfloat16", "float16" or "float64".
        shapes: Shapes (out, in) of all layers of the model.

    Returns:
        The kernel.

    Raises:
        RequestError: This CPU cannot serve the dtype.
    """
    # auto chooses by the shapes, as the fastest kernel depends on how wide the matrices are.
    if dtype == "auto":
        return choose_linear_kernel(tuple(shapes), torch.get_num_threads())
    if dtype == "bfloat16" and not has_bf16():
        raise RequestError(
            "dtype is 'bfloat16': this CPU has no bfloat16 arithmetic; 'auto' or 'float32' run here"
        )
    if dtype == "float16" and not _fbgemm():
        raise RequestError(
            "dtype is 'float16': this build of torch has no FBGEMM kernels; 'auto' or 'float32' run here"
        )
    return {
        "float32": ONEDNN32 if ONEDNN32.usable() else FP32,
        "bfloat16": ONEDNN16,
        "float16": FBGEMM16,
        "float64": FP64,
    }[dtype]


def measure_kernels(
    kernels: Sequence[LinearKernel],
    shapes: Sequence[Shape],
    rows: Sequence[int] = (1, 8, 32),
    repeats: int = 7,
) -> dict[str, list[float]]:
    """Measure one pass over layers with random weights, for each kernel and number of rows.

    The kernels take turns, so that a change of the machine's load meets all of them.

    Args:
        kernels: The kernels to compare; each must be usable.
        shapes: Shapes (out, in) of the layers.
        rows: Numbers of rows in a call. Default 1, 8 and 32: a plain pass, one with a draft, a
            batch.
        repeats: Times that each is measured, 1 or more; fewer where two seconds are over. Default
            7.

    Returns:
        By kernel name the best time in milliseconds for each number of rows.
    """
    weights = [torch.randn(s) * s[1] ** -0.5 for s in shapes]
    packed = {k.name: [k.pack(w, None) for w in weights] for k in kernels}
    best = {k.name: [float("inf")] * len(rows) for k in kernels}
    # Each kernel is measured twice at least, whatever the time.
    deadline = (
        time.perf_counter() + 2.0
    )  # on a busy machine a pass can take a hundred times as long
    with torch.inference_mode():
        for n in range(repeats):
            if n > 1 and time.perf_counter() > deadline:
                break
            for name, layers in packed.items():
                for r, m in enumerate(rows):
                    xs = {s[1]: torch.randn(m, s[1]) for s in shapes}
                    start = time.perf_counter()
                    for call, s in zip(layers, shapes):
                        call(xs[s[1]])
                    best[name][r] = min(best[name][r], 1e3 * (time.perf_counter() - start))
    return best


def is_batch_invariant(kernel: LinearKernel, shapes: Sequence[Shape]) -> bool:
    """Whether rows come out the same however many are in the call, as they must where activations
    are rounded.

    Args:
        kernel: The kernel to try; only one with bfloat16 weights is tried.
        shapes: Shapes (out, in) of the model's layers.

    Returns:
        Whether every prefix of a batch gave the same bits, for each input size.
    """
    if kernel.dtype != "bfloat16":
        return True
    # How a row is summed depends on the input size only: one layer for each of them.
    for into in sorted({s[1] for s in shapes}):
        layer = kernel.pack(torch.randn(64, into), None)
        x = torch.randn(33, into)
        with torch.inference_mode():
            whole = layer(x)
            if not all(torch.equal(layer(x[:m]), whole[:m]) for m in (1, 2, 4, 5, 8, 16, 31)):
                return False
    return True


def sample_layer_shapes(shapes: Sequence[Shape], budget: int = 24_000_000) -> list[Shape]:
    """The first layers of the model, large enough not to fit a cache where the model does not
    either.

    Args:
        shapes: Shapes (out, in) of the model's layers, in order.
        budget: Numbers that the sample may have in all. Default 24 million.

    Returns:
        Shapes of the sample; the last layer may be cut to fewer outputs.
    """
    chosen = list[Shape]()
    left = budget
    for s in shapes:
        if left <= 0:
            break
        chosen.append((min(s[0], max(1, left // s[1])), s[1]))
        left -= s[0] * s[1]
    return chosen


def cpu_name() -> str:
    """The processor's model name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(x.split(":", 1)[1].strip() for x in lines if x.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def profile_path() -> Path:
    """Where the choice of kernels is kept."""
    return (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        / "polydec"
        / "kernels.json"
    )


def _read() -> dict[str, dict[str, str]]:
    try:
        profile = read_json(profile_path())
    except (OSError, ValueError, RuntimeError):
        return {}
    return {
        machine: {model: name for model, name in known.items() if isinstance(name, str)}
        for machine, known in profile.items()
        if isinstance(known, dict)
    }


def _write(profile: Mapping[str, Mapping[str, str]]) -> None:
    try:
        path = profile_path()
        path.parent.mkdir(parents=True, exist_ok=True)
        # Written under a name of its own, then renamed: another process reads the old file or the
        # new one.
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(profile, indent=1))
        part.replace(path)
    except (OSError, RuntimeError):
        pass  # a home that cannot be written to: the choice lasts as long as the process


@lru_cache
def choose_linear_kernel(shapes: tuple[Shape, ...], threads: int) -> LinearKernel:
    """The fastest usable kernel for a model on this machine: from the profile, else measured and
    stored there.

    Args:
        shapes: Shapes (out, in) of all layers of the model.
        threads: Threads that torch computes with; they are part of the profile's key.

    Returns:
        The kernel. torch's own in float32, where no other is usable.
    """
    usable = {k.name: k for k in MEASURED if k.usable() and is_batch_invariant(k, shapes)}
    if len(usable) < 2:
        return next(iter(usable.values()), FP32)
    machine = f"{cpu_name()}, {torch.backends.cpu.get_cpu_capability()}, {threads} threads, torch {torch.__version__}"
    model = " ".join(
        f"{n}x{o}x{i}" for (o, i), n in sorted({s: shapes.count(s) for s in shapes}.items())
    )
    profile = _read()
    # A choice made once stays: another kernel rounds in another way, which could change a text at a
    # near-tie.
    kept = profile.get(machine, {}).get(model)
    if kept in usable:
        return usable[kept]
    took = measure_kernels(list(usable.values()), sample_layer_shapes(shapes))
    best = min(usable.values(), key=lambda k: sum(took[k.name]))
    # Read again: another process may have chosen in the meantime, a second replica for example. Its
    # choice counts, so that both write the same texts.
    profile = _read()
    theirs = profile.setdefault(machine, {}).get(model)
    if theirs in usable:
        return usable[theirs]
    profile[machine][model] = best.name
    _write(profile)
    return best

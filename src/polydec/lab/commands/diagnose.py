"""What `polydec doctor --bench` measures: t(m) of each path, where the time of a pass goes, and
bandwidth."""

from __future__ import annotations

from typing import Any

import torch
from rich.console import Console

from polydec import api
from polydec.core.types import RowDetail
from polydec.lab.bench import other_engines
from polydec.request.passes import PassTimer, measure_pass_times

ROWS = (1, 2, 4, 8, 16)
CONTEXTS = (64, 1024)
SECONDS = 3.0


def diagnose_passes(model: str, threads: int | None) -> dict[str, Any]:
    """Measure passes of a model on every path, and where the time of a native pass goes.

    Args:
        model: Name of the model, as `polydec.load` takes it.
        threads: Processor threads; None: the usual number.

    Returns:
        Figures in ms, GB/s and GFLOPS; an engine that cannot run here has the reason in place of
        figures.
    """
    native = api.load(model, draft=None, threads=threads)
    # The timed rows must fit behind the context as well.
    contexts = [c for c in CONTEXTS if c + 32 <= native.network.context]
    out: dict[str, Any] = {"contexts": contexts, "rows": list(ROWS), "sides": {}}
    if not native.checkpoint.why:
        net = native.network
        out["sides"][native.checkpoint.kernel] = pass_times_by_context(net, contexts)
        call = PassTimer(net, contexts[0], want=RowDetail.ROW)
        # The first call starts the counters at zero; the second one reads the share of each part.
        net.profile_seconds()
        took = [call(1) for _ in range(50)]
        split = net.profile_seconds()
        whole = sum(took)
        # What the counters do not see is the time in Python.
        out["split"] = {k: v / whole for k, v in split.items()} | {
            "python": max(0.0, 1 - sum(split.values()) / whole)
        }
        t1 = out["sides"][native.checkpoint.kernel][contexts[0]][1]
        out["weights_mb"] = net.nbytes / 1e6
        out["read_gb_s"], out["reached_gb_s"] = net.measure_bandwidth() / 1e9, net.nbytes / t1 / 1e6
        out["peak_gflops"] = net.measure_peak() / 1e9
    path = native.checkpoint.path
    # One model in memory at a time: the next engine loads the same weights.
    del native
    cores = threads or api.TORCH_THREADS
    torch.set_num_threads(cores)
    ours = api.load(model, draft=None, dtype="torch", threads=threads)
    out["sides"][ours.checkpoint.kernel] = pass_times_by_context(ours.network, contexts)
    del ours
    # Other engines need not be installed: each says why it cannot run.
    for name, open_ in (
        ("transformers", other_engines.transformers_engine),
        ("llama.cpp", other_engines.llama_cpp),
    ):
        try:
            out["sides"][name] = {
                c: measure_pass_times(open_(path, c, cores), ROWS, SECONDS) for c in contexts
            }
        except other_engines.EngineUnavailable as e:
            out["sides"][name] = str(e)
    return out


def pass_times_by_context(net: Any, contexts: list[int]) -> dict[int, dict[int, float]]:
    """Time passes of a network.

    Args:
        net: The network.
        contexts: Cached tokens before each timed pass.

    Returns:
        Milliseconds by context and number of rows.
    """
    return {
        c: measure_pass_times(PassTimer(net, c, want=RowDetail.ROW), ROWS, SECONDS)
        for c in contexts
    }


def show_diagnosis(report: dict[str, Any], out: Console) -> None:
    """Print what `diagnose_passes` found.

    Args:
        report: Its result.
        out: Where to print.
    """
    for context in report["contexts"]:
        out.print(f"\nms of a pass behind {context} tokens, logits of all rows")
        out.print(f"{'rows':28}" + "".join(f"{m:>9}" for m in report["rows"]))
        for side, t in report["sides"].items():
            # A text says why a side could not be measured.
            if isinstance(t, str):
                figures = t
            else:
                figures = "".join(f"{t[context][m]:9.2f}" for m in report["rows"])
            out.print(f"{side:28}{figures}")
    # Shares of a pass, where the step can tell them.
    if "split" in report:
        out.print(
            "\nof one row behind {} tokens: ".format(report["contexts"][0])
            + ", ".join(f"{k} {v:.0%}" for k, v in report["split"].items())
        )
        out.print(
            f"weights {report['weights_mb']:.1f} MB a pass: {report['reached_gb_s']:.1f} GB/s of "
            f"{report['read_gb_s']:.1f} that this machine reads; fp32 peak {report['peak_gflops']:.0f} GFLOPS"
        )

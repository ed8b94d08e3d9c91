"""polydec doctor: what runs here, on which path, and why; with --bench how fast."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from polydec import api
from polydec.base.errors import PolydecError
from polydec.cli.lab_commands import lab_module
from polydec.models import native as cpu
from polydec.models.formats import zoo
from polydec.request import machine
from polydec.request.loading import loading_options


def doctor(
    model: Annotated[
        str, typer.Option(help="model to ask about: a name like generate's")
    ] = "zoo:smollm2",
    bench: Annotated[
        bool,
        typer.Option(
            "--bench",
            help="measure passes, their split and bandwidth, beside other "
            "engines that are installed (about a minute)",
        ),
    ] = False,
    threads: Annotated[int | None, typer.Option(help="CPU threads (default: all cores)")] = None,
    json_: Annotated[bool, typer.Option("--json", help="one JSON object")] = False,
) -> None:
    """Machine, kernels, models: what runs, which path serves and why, what is missing.\f

    Args:
        model: Name of the model to ask about. Default "zoo:smollm2".
        bench: Whether passes are measured, beside other engines that are installed. Default False.
        threads: CPU threads. Default None: all cores.
        json_: Whether one JSON object is printed. Default False.
    """
    loading_options()["threads"].convert_value(threads)
    if bench and machine.relative_cpu_load() > 0.2:
        Console(stderr=True).print(
            f"warning: the machine is busy (load {machine.relative_cpu_load():.1f} of its cores): figures are "
            "doubtful",
            style="yellow",
        )
    report = installation_facts() | {"model": path_of(model, threads)}
    if bench:
        # Measuring is part of the lab, which need not be installed.
        diagnose = lab_module("diagnose", "polydec doctor --bench")
        with Console(stderr=True).status("measuring"):
            report["bench"] = diagnose.diagnose_passes(model, threads)
    if json_:
        print(json.dumps(report))
    else:
        print_doctor_report(report)


def installation_facts() -> dict[str, Any]:
    """What this machine and installation have."""
    # Imported here: `polydec --help` must not pay for it.
    import torch

    from polydec.request import profile

    runs, why = cpu.native_step_availability()
    return {
        "machine": machine.describe_machine(),
        # A container may give the process fewer cores than the machine has.
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "load": round(machine.relative_cpu_load(), 2),
        "memory_gb": total_memory_gb(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "native": {
            "runs": runs,
            "why_not": why,
            "instruction_sets": list(cpu.native_instruction_sets()) if runs else [],
        },
        "zoo": [
            {
                "name": f"zoo:{e.name}",
                "here": e.here,
                "size": e.size,
                # Models of a package of ours travel with it; others are fetched by name.
                "get": None if e.here or e.package is None else f"polydec zoo install {e.name}",
            }
            for e in zoo.zoo_entries()
        ],
        "optional": {
            name: importlib.util.find_spec(name) is not None
            for name in ("transformers", "llama_cpp")
        },
        "data": data_folder_facts(),
        "profiles": str(profile.pass_profiles_path())
        if profile.pass_profiles_path().exists()
        else None,
    }


def total_memory_gb() -> float | None:
    """Memory of this machine in GB; None where the system does not say."""
    try:
        # Not every system knows these names.
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    except (ValueError, OSError, AttributeError):
        return None


def data_folder_facts() -> dict[str, Any]:
    """What POLYDEC_DATA names (None: nothing), and whether it is there."""
    named = os.environ.get("POLYDEC_DATA") or None
    return {"path": named, "here": named is not None and Path(named).exists()}


def data_folder_sentence(facts: Mapping[str, Any]) -> str:
    """What `polydec train` reads where no `--data` is given."""
    if facts["path"] is None:
        return "POLYDEC_DATA is not set: training reads --data, or the sample that travels along"
    if facts["here"]:
        return f"{facts['path']}: here"
    return f"{facts['path']}: not here (POLYDEC_DATA names it)"


def path_of(model: str, threads: int | None) -> dict[str, Any]:
    """Which path `auto` takes for a model, and why not the native one.

    Args:
        model: Name of the model, as `polydec.load` takes it.
        threads: Processor threads; None: the usual number.

    Returns:
        Facts about the model, its draft and its profile, or the error that kept it from loading.
    """
    from polydec.models.learned.kinds.ngrams import NGrams
    from polydec.request import profile

    try:
        with warnings.catch_warnings():
            # The report says it by itself.
            warnings.filterwarnings("ignore", message="the native step does not run")
            lm = api.load(model, threads=threads)
    # The rest of the report is still worth printing.
    except PolydecError as e:
        return {"name": model, "error": str(e)}
    # What `polydec tune` stored for this model and machine.
    kept = profile.read_pass_profile(lm)
    table = lm.find_artefact(NGrams)

    # Alike for the model and for its draft.
    def part_of(point: Any) -> dict[str, Any]:
        return {
            "name": point.name,
            "kernel": point.kernel,
            "weights": point.dtype,
            "why_not_native": point.why or None,
        }

    return {
        **part_of(lm.checkpoint),
        "draft": part_of(lm.draft) if lm.draft else None,
        "ngrams": None if table is None else {"order": table.order, "contexts": len(table.key_M)},
        "artefacts": [a.kind for a in lm.artefacts],
        "profile": None if kept is None else asdict(kept),
    }


def print_doctor_report(report: dict[str, Any]) -> None:
    """Print the report of `polydec doctor` for a reader."""
    out = Console(highlight=False, soft_wrap=True)
    native = report["native"]
    model = report["model"]
    out.print(f"machine     {report['machine']}")
    out.print(
        f"            {report['cores']} cores for this process, load {report['load']:.2f} of them, "
        f"{report['memory_gb'] or '?'} GB, GPU: {report['gpu'] or 'none'}"
    )
    out.print(
        "native step "
        # Either the instruction sets, or why the native step does not run.
        + (
            f"runs: {', '.join(native['instruction_sets'])} (the first is used)"
            if native["runs"]
            else cpu.describe_missing_native_step(native["why_not"]).removeprefix(
                "the native step "
            )
        )
    )
    # The heading stands before the first row only.
    for e in report["zoo"]:
        out.print(
            f"{'model' if e is report['zoo'][0] else '':11} {e['name']:20} "
            + (
                f"here, {e['size']}"
                if e["here"]
                else f"missing{': ' + e['get'] if e['get'] else ''}"
            )
        )
    out.print(f"data        {data_folder_sentence(report['data'])}")
    for name, installed in report["optional"].items():
        out.print(
            f"{'optional' if name == 'transformers' else '':11} {name}: {'installed' if installed else 'not installed'}"
        )
    if "error" in model:
        out.print(f"asked       {model['error']}")
        return
    for who, m in (("asked", model), ("draft", model["draft"])):
        if m:
            if m["why_not_native"]:
                why = f"; not the native step: {m['why_not_native']}"
            else:
                why = ""
            out.print(f"{who:11} {m['name']}: {m['kernel']}, weights {m['weights']}{why}")
    if table := model["ngrams"]:
        out.print(
            f"ngrams      {table['contexts']:,} contexts of up to {table['order']} tokens, for auto and ngram-draft"
        )
    kept = model["profile"]
    if kept:
        # Two points of the profile are enough to see what a draft costs.
        few = [m for m in (1, 8) if m in kept["rows"]]
        out.print(
            f"profile     measured {kept['measured']}: "
            + ", ".join(f"t({m}) {kept['rows'][m]:.2f} ms" for m in few)
        )
    else:
        out.print("profile     none: `polydec tune` measures one for --method auto")
    if "bench" in report:
        diagnose = lab_module("diagnose", "polydec doctor --bench")
        diagnose.show_diagnosis(report["bench"], out)

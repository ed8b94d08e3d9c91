"""polydec tune: what passes cost here, kept for `--method auto`; and what that means for your
prompts."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated

import typer
from rich.console import Console

from polydec import api
from polydec.base.edge import require_integer
from polydec.base.errors import RequestError
from polydec.base.interrupts import said_when_stopped
from polydec.cli import prompts
from polydec.cli.lab_commands import lab_module
from polydec.request import machine
from polydec.request.loading import loading_options


def tune(
    model: Annotated[
        str,
        typer.Option(
            help="Hub id (owner/repo or owner/repo:Q4_K_M), directory, GGUF file or zoo:NAME"
        ),
    ] = "zoo:smollm2",
    draft: Annotated[str, typer.Option(help="draft model, `default` or `none`")] = "default",
    dtype: Annotated[str, typer.Option(help="as for generate")] = "auto",
    compute: Annotated[
        str | None, typer.Option(help="float32, int16 or int8: as for generate")
    ] = None,
    cache_dtype: Annotated[
        str | None, typer.Option(help="float32, float16 or int8: as for generate")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads (default: all cores)")] = None,
    seconds: Annotated[float, typer.Option(help="how long to measure, 1 to 100")] = 30.0,
    on: Annotated[
        Path | None,
        typer.Option(
            help="prompts of yours (JSON lines, or one a line): predict what each method would do on them, and measure the best"
        ),
    ] = None,
    limit: Annotated[int, typer.Option(help="of --on: use the first prompts only")] = 8,
    max_tokens: Annotated[int, typer.Option(help="of --on: tokens of an answer")] = 64,
    best: Annotated[int, typer.Option(help="of --on: how many methods are measured, 1 to 8")] = 3,
    raw: Annotated[bool, typer.Option("--raw", help="of --on: without the chat template")] = False,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="keep what was measured although the machine is busy")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="the profile as one JSON object")] = False,
) -> None:
    """Measure what a pass over 1 to 32 rows costs on this machine, for the target and its draft, and keep it.\f

    Args:
        model: Name of the model. Default "zoo:smollm2".
        draft: Name of the draft model, "default" or "none". Default "default".
        dtype: Numbers that the models compute in. Default "auto".
        compute: "float32", "int16" or "int8". Default None: the compiled step's own choice.
        cache_dtype: "float32", "float16" or "int8". Default None: the compiled step's own choice.
        threads: CPU threads. Default None: all cores.
        seconds: How long to measure, 1 to 100. Default 30.
        on: File of prompts for which methods are compared. Default None.
        limit: First prompts of that file that are used. Default 8.
        max_tokens: Tokens of an answer to them. Default 64.
        best: How many methods are measured on them, 1 to 8. Default 3.
        raw: Whether they go in without the chat template. Default False.
        anyway: Whether what a busy machine measured is kept. Default False.
        json_: Whether the profile is printed as one JSON object. Default False.
    """
    # Everything that needs no model is checked before one is loaded.
    if not 1 <= seconds <= 100:
        raise RequestError(f"seconds is {seconds:g}: it must lie in 1 to 100")
    loading_options()["threads"].convert_value(threads)
    require_integer("limit", limit, 1, 10_000)
    require_integer("max_tokens", max_tokens, 2, 1 << 20)
    require_integer("best", best, 1, 8)
    if on is None:
        rows = None
    else:
        rows = prompts.first_prompt_rows(prompts.read_prompt_rows(on), limit)
    if rows is None:
        on_prompts = None
    else:
        # Advice on prompts is part of the lab, which need not be installed.
        on_prompts = lab_module("tune_on", "polydec tune --on")
    from polydec.request import profile

    # Before half a minute of measuring whose result could not be stored.
    check_profile_folder(profile.pass_profiles_path().parent)
    lm = api.load(
        model,
        draft=None if draft == "none" else draft,
        dtype=dtype,
        threads=threads,
        compute=compute,
        cache_dtype=cache_dtype,
    )
    if rows is not None and on_prompts is not None:
        # Before half a minute of measuring: prompts that are refused end the command now.
        on_prompts.require_tunable_prompts(lm, rows, max_tokens, raw)
    err = Console(stderr=True, highlight=False)
    recorded = os.environ.get("POLYDEC_PROFILE")
    if recorded:
        err.print(
            f"warning: `auto` reads {recorded!r}, which POLYDEC_PROFILE names, in place of what is measured now",
            style="yellow",
        )
    # Asked before: the measurement itself is a load.
    load = machine.relative_cpu_load()
    if load > machine.BUSY:
        err.print(
            f"warning: the machine is busy (load {load:.1f} of its cores): figures are doubtful",
            style="yellow",
        )
    with (
        said_when_stopped(
            lambda: "stopped: nothing was measured anew, and the same command begins anew"
        ),
        err.status(f"measuring passes for {seconds:g} seconds"),
    ):
        measured = profile.measure_pass_profile(lm, seconds=seconds)
    # Every later choice of `auto` rests on it: a wrong one is worse than an older one.
    kept = load <= machine.BUSY or anyway
    # Stored before the prompts are decoded, which may be stopped.
    if kept:
        profile.keep_surely(lm, measured)
        where = f"kept in {profile.pass_profiles_path()}"
    else:
        where = (
            f"not kept, as the machine is busy (load {load:.1f} of its cores): run it again when nothing else "
            "computes, or with --anyway"
        )
    # Advice needs prompts of the user's own.
    advice = None
    if rows is not None and on_prompts is not None:
        # A stop here loses nothing of what was measured.
        stopped = f"stopped: what passes cost is {where}; nothing of your prompts is kept"
        with said_when_stopped(lambda: stopped), err.status("decoding") as status:
            advice = on_prompts.advise_settings(
                lm, rows, measured, max_tokens, raw, best, status.update
            )
    if json_:
        told = {
            "machine": machine.describe_machine(lm.network),
            "key": profile.pass_profile_key(lm),
            "kept": kept,
            **asdict(measured),
        }
        print(json.dumps(told if advice is None else {**told, "on": advice.to_json()}))
        return
    out = Console(highlight=False, soft_wrap=True)
    out.print(profile.pass_profile_key(lm), style="dim")
    out.print(
        f"rows   ms behind {measured.context:4} tokens   times t(1)   ms behind {measured.far_context:4} tokens   times t(1)"
    )
    for m, t in sorted(measured.rows.items()):
        # Far contexts are measured for fewer numbers of rows.
        if m in measured.far:
            far = f"{measured.far[m]:23.2f} {measured.far[m] / measured.far[1]:12.2f}"
        else:
            far = ""
        out.print(f"{m:4} {t:22.2f} {t / measured.rows[1]:12.2f} {far}".rstrip())
    for k, t in measured.beside.items():
        out.print(
            f"{k} sequences of a row each: {t:.2f} ms behind {measured.context} tokens, {measured.far_beside[k]:.2f} behind "
            f"{measured.far_context}"
        )
    if measured.draft:
        out.print(
            f"draft model: {measured.draft[1]:.2f} ms a token ({measured.draft[1] / measured.rows[1]:.0%} of a pass)"
        )
    out.print(where)
    if advice is not None and on_prompts is not None:
        on_prompts.show_advice(advice)


def check_profile_folder(folder: Path) -> None:
    """Check that a profile can be stored, which is what the command is for.

    Raises:
        RequestError: The folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise RequestError(
            f"a profile cannot be kept in {str(folder)!r}: {error.strerror} (XDG_CACHE_HOME names another "
            "place)"
        ) from None

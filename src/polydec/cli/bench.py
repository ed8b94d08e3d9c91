"""polydec bench: methods side by side on prompts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from polydec import api
from polydec.base.edge import printable, whole
from polydec.base.errors import RequestError
from polydec.cli import asking, prompts
from polydec.cli.declared import shared
from polydec.cli.flags import BENT, LOADED, Flags
from polydec.cli.shown import cell, emit, emit_drawn
from polydec.methods import registry
from polydec.methods.kit import family_of
from polydec.request import machine
from polydec.request.fields import CHOICES

if TYPE_CHECKING:
    from polydec.bench import measure

NAN = float("nan")
BASES = {"ar": "plain", "diffusion": "llada", "insertion": "insertion-language-models"}
"""By a model's family, what the other methods are held against: a token a pass."""
USUAL = {**registry.DEFAULTS, "ar": "prompt-lookup,token-recycling"}
"""By a model's family, what is held against it where nobody names methods."""


@shared
def bench(
    flags: Flags,
    methods: Annotated[
        str | None,
        typer.Option(
            help="comma-separated, options after colons (draft-model:depth=3), or `all`; default: "
            "prompt-lookup,token-recycling, or fast-dllm"
        ),
    ] = None,
    suite: Annotated[
        str | None,
        typer.Option(
            help="instead of timing, count right answers at each degree of "
            "parallelism: parallelbench, parallelbench-digits"
        ),
    ] = None,
    each: Annotated[int, typer.Option(help="of a suite: problems of each task")] = 25,
    data: Annotated[
        Path | None,
        typer.Option(help="prompts: JSON lines, or one a line (default: built-in ones)"),
    ] = None,
    prompt_tokens: Annotated[
        int | None, typer.Option(help="of running text: tokens of a prompt")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="use the first prompts only")] = None,
    batch: Annotated[int, typer.Option(help="requests at once")] = 1,
    repeat: Annotated[int, typer.Option(help="interleaved repetitions")] = 3,
) -> None:
    """Time methods side by side: tokens/s, ratio to plain decoding (of a masked-diffusion model: to llada) with its 95 %
    interval, tokens a pass, acceptance."""
    whole("batch", batch, 1, CHOICES)
    whole("repeat", repeat, 1, 1000)
    if flags.method != "auto" or flags.set_:
        raise RequestError(
            "bench does not take --method or --set: it compares methods, with their options behind them, as in "
            "--methods plain,draft-model:depth=3"
        )
    flags.only("bench", {*LOADED, *BENT, "max_tokens", "seed", "raw", "json_"})
    if suite is not None:
        if (
            data is not None
            or prompt_tokens is not None
            or limit is not None
            or flags.max_tokens is not None
        ):
            raise RequestError(
                "bench --suite does not take --data, --prompt-tokens, --limit or --max-tokens: its problems and "
                "lengths are its own"
            )
        return compare(flags, suite, methods, whole("each", each, 1, 10_000))
    from polydec.bench import measure  # behind the checks: it loads torch

    named = None if methods in (None, "all") else parse(methods)
    lm = flags.load()
    family = family_of(lm.checkpoint.lm)
    some = (
        parse(USUAL[family])
        if methods is None
        else everything(lm, family)
        if named is None
        else named
    )
    base = BASES[family]
    chosen = [measure.Method(base, {}), *(m for m in some if m.label != base)]
    rows = prompts.first(prompts.read(data, lm, prompt_tokens) if data else prompts.BUILT_IN, limit)
    request = {
        "sampling": flags.sampling(lm),
        "max_tokens": flags.max_tokens or 128,
        "seed": flags.seed,
    }
    asking.check(
        lm,
        ((r.prompt, flags.raw or r.raw) for r in rows),
        ((m.name, m.options) for m in chosen),
        **request,
    )
    tasks: list[measure.Task] = []
    for workload in dict.fromkeys(r.workload for r in rows):
        mine = [r for r in rows if r.workload == workload]
        tasks += [
            measure.Task(
                workload, tuple(r.prompt for r in mine[i : i + batch]), flags.raw or mine[i].raw
            )
            for i in range(0, len(mine), batch)
        ]
    if machine.busy() > 0.2:
        Console(stderr=True).print(
            f"warning: the machine is busy (load {machine.busy():.1f} of its cores): "
            "figures are doubtful",
            style="yellow",
        )
    runs: dict[str, list[measure.Run]] = {}
    try:
        with Progress(console=Console(stderr=True), transient=True) as progress:
            bar = progress.add_task("measuring", total=len(tasks) * repeat * len(chosen))
            measure.measure(
                lm,
                chosen,
                tasks,
                **request,
                repeats=repeat,
                into=runs,
                tick=lambda label: progress.update(
                    bar, advance=1, description=escape(printable(label))
                ),
            )
    finally:  # also of what was measured before a failure or Ctrl-C
        if any(runs.values()):
            publish(lm, measure.table(lm, runs, tasks, base), base, flags)


def compare(flags: Flags, suite: str, methods: str | None, each: int) -> None:
    """A suite's tasks by several methods: how often the answer is right, passes, closed forms."""
    from polydec.bench import parallelbench

    some = list(parallelbench.problems(suite, each, flags.seed))
    lm = flags.load()
    chosen = parse(methods) if methods else parallelbench.default(lm)
    sampling = flags.sampling(lm)
    for m in chosen:
        lm.check(m.name, m.options)
    scores = list[dict[str, Any]]()
    with Progress(console=Console(stderr=True), transient=True) as progress:
        tasks = list(dict.fromkeys(p.task for p in some))
        bar = progress.add_task("answering", total=len(tasks) * len(chosen))
        for task in tasks:
            for m in chosen:
                mine = [p for p in some if p.task == task]
                scores.append(parallelbench.score(lm, m, mine, sampling, flags.seed).row())
                progress.update(bar, advance=1, description=escape(f"{task}, {printable(m.label)}"))
    if flags.json_:
        emit(
            json.dumps(
                {
                    "model": lm.name,
                    "suite": suite,
                    "temperature": sampling.temperature,
                    "rows": scores,
                }
            )
        )
        return
    emit_drawn(lambda out: show_scores(scores, out))


def show_scores(rows: list[dict[str, Any]], out: Console) -> None:
    """A line for each task and method."""
    table = Table(box=None, pad_edge=False)
    for column in (
        "task",
        "method",
        "right",
        "95 %",
        "closed form",
        "as asked",
        "passes",
        "tokens/pass",
    ):
        table.add_column(
            column, no_wrap=True, justify="left" if column in ("task", "method") else "right"
        )
    for r in rows:
        exact = r["closed_form"]
        table.add_row(
            cell(r["task"]),
            cell(r["method"]),
            f"{r['right']:.1%}",
            f"{r['low']:.1%}-{r['high']:.1%}",
            "-" if exact is None else f"{exact:.1%}",
            f"{r['strict']:.1%}",
            f"{r['passes']:.2f}",
            f"{r['tokens_per_pass'] or NAN:.2f}",
        )
    out.print(table)
    known = {r["task"]: (r["in_training"], r["n"]) for r in rows if r["in_training"]}
    for task, (some, n) in known.items():
        out.print(
            f"{task}: {some} of {n} questions were in the training of the embedded models: it has too few others",
            style="dim",
            soft_wrap=True,
            markup=False,
        )


def publish(lm: api.LM, table: list[dict[str, Any]], base: str, flags: Flags) -> None:
    """The table, or its JSON, on standard output."""
    if flags.json_:
        emit(
            json.dumps(
                {
                    "machine": machine.describe(lm.network),
                    "kernel": lm.checkpoint.kernel,
                    "rows": table,
                }
            )
        )
        return
    how = "chat template" if lm.checkpoint.text.has_chat and not flags.raw else "raw"
    about = (
        f"{printable(lm.name)}, {lm.checkpoint.kernel}, {how}, decoding only (the prompt left out), ratio to {base}; "
        f"{machine.describe(lm.network)}"
    )

    def draw(out: Console) -> None:
        show(table, out)
        out.print(about, style="dim", soft_wrap=True, markup=False)

    emit_drawn(draw)


def parse(methods: str) -> list[measure.Method]:
    """`a,b:k=v:k=2,1,1`. Raises RequestError for an unknown method or option."""
    from polydec.bench.measure import spelt

    return [spelt(item) for item in re.split(r",(?!\s*\d)", methods)]


def everything(lm: api.LM, family: str) -> list[measure.Method]:
    """All methods that can decode this model."""
    from polydec.bench.measure import Method

    kit = lm.kit()
    return [
        Method(name, {}) for name in sorted(registry.of_family(family)) if registry.can(name, kit)
    ]


def show(rows: list[dict[str, Any]], out: Console) -> None:
    table = Table(box=None, pad_edge=False)
    for column in (
        "workload",
        "method",
        "tokens/s",
        "ratio",
        "95 %",
        "tokens/pass",
        "acceptance",
        "identical",
        "4-grams",
    ):
        table.add_column(
            column, no_wrap=True, justify="left" if column in ("workload", "method") else "right"
        )
    for r in sorted(rows, key=lambda r: (r["workload"] == "all", r["workload"])):
        low, high = r["ratio_interval"] or (NAN, NAN)
        table.add_row(
            cell(r["workload"]),
            cell(r["method"]),
            f"{r['tokens_per_second']:.1f}",
            f"{r['ratio_to_plain'] or NAN:.2f}",
            f"{low:.2f}-{high:.2f}",
            f"{r['tokens_per_pass'] or NAN:.2f}",
            f"{r['mean_acceptance_length']:.2f}",
            "yes" if r["identical"] else "no",
            f"{r['distinct_4grams']:.2f}",
        )
    out.print(table)

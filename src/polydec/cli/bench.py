"""polydec bench: methods side by side on prompts."""
from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from polydec import registry
from polydec.bench import machine, measure
from polydec.cli import prompts
from polydec.cli.flags import Flags, shared, wide


@shared
def bench(flags: Flags,
          methods: Annotated[str, typer.Option(help="comma-separated, options after colons (draft-model:depth=3), or `all`")]
          = "plain,prompt-lookup,token-recycling",
          data: Annotated[Path | None, typer.Option(help="prompts: JSON lines, or one a line (default: built-in ones)")] = None,
          prompt_tokens: Annotated[int | None, typer.Option(help="of running text: tokens of a prompt")] = None,
          limit: Annotated[int | None, typer.Option(help="use the first prompts only")] = None,
          batch: Annotated[int, typer.Option(help="requests at once")] = 1,
          repeat: Annotated[int, typer.Option(help="interleaved repetitions")] = 3) -> None:
    """Time methods side by side: tokens/s, ratio to plain with its 95 % interval, tokens a pass, acceptance."""
    for name, value in (("batch", batch), ("repeat", repeat)):
        if value < 1:
            raise ValueError(f"{name} is {value}: it must be at least 1")
    if flags.set_ or flags.n != 1 or flags.trace or flags.stop or flags.logprobs is not None:
        raise ValueError("bench does not take --set, --n, --trace, --stop or --logprobs: "
                         "write a method's options after it, as in draft-model:depth=3")
    chosen = parse(methods)
    lm = flags.load()
    chosen = [m for m in chosen if methods != "all" or registry.can(m.name, lm.kit())]
    rows = prompts.first(prompts.read(data, lm, prompt_tokens) if data else prompts.BUILT_IN, limit)
    for m in chosen:
        lm.check(m.name, m.options)
    tasks: list[measure.Task] = []
    for workload in dict.fromkeys(r.workload for r in rows):
        mine = [r for r in rows if r.workload == workload]
        tasks += [measure.Task(workload, tuple(r.prompt for r in mine[i:i + batch]), flags.raw or mine[i].raw)
                  for i in range(0, len(mine), batch)]
    if machine.busy() > 0.2:
        Console(stderr=True).print(f"warning: the machine is busy (load {machine.busy():.1f} of its cores): "
                                   "figures are doubtful", style="yellow")
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("measuring", total=len(tasks) * repeat * len(chosen))
        runs = measure.measure(lm, chosen, tasks, sampling=flags.sampling(lm), max_tokens=flags.max_tokens or 128,
                               repeats=repeat, seed=flags.seed,
                               tick=lambda label: progress.update(bar, advance=1, description=label))
    table = measure.table(lm, runs, tasks)
    if flags.json_:
        print(json.dumps({"machine": machine.describe(lm.network), "kernel": lm.checkpoint.kernel, "rows": table}))
    else:
        show(table)
        Console(highlight=False, soft_wrap=True).print(
            f"{lm.name}, {lm.checkpoint.kernel}, {'chat template' if lm.checkpoint.text.has_chat and not flags.raw else 'raw'}"
            f", decoding only (the prompt left out); {machine.describe(lm.network)}", style="dim")


def parse(methods: str) -> list[measure.Method]:
    """`a,b:k=v:k=2,1,1`; plain comes first, always. Raises ValueError for an unknown method or option."""
    out = [measure.Method("plain", {})]
    for item in (sorted(registry.recipes()) if methods == "all" else re.split(r",(?!\s*\d)", methods)):
        name, *pairs = item.strip().split(":")
        registry.get(name)
        options: dict[str, str] = {}
        for pair in pairs:
            key, eq, value = pair.partition("=")
            if not eq:
                raise ValueError(f"methods holds {item!r}: options are written as {name}:option=value")
            options[key] = value
        if name != "plain":
            out.append(measure.Method(name, options))
    return out


def show(rows: list[dict[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("workload", "method", "tokens/s", "ratio", "95 %", "tokens/pass", "acceptance", "identical", "4-grams"):
        table.add_column(column, no_wrap=True, justify="left" if column in ("workload", "method") else "right")
    for r in sorted(rows, key=lambda r: (r["workload"] == "all", r["workload"])):
        low, high = r["ratio_interval"] or (float("nan"),) * 2
        table.add_row(r["workload"], r["method"], f"{r['tokens_per_second']:.1f}", f"{r['ratio_to_plain'] or float('nan'):.2f}",
                      f"{low:.2f}-{high:.2f}", f"{r['tokens_per_pass']:.2f}", f"{r['mean_acceptance_length']:.2f}",
                      "yes" if r["identical"] else "no", f"{r['distinct_4grams']:.2f}")
    wide().print(table)

"""polydec verify: a certificate that a method keeps its promise on this model and machine."""
from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from polydec import registry
from polydec.bench import machine
from polydec.bench.certify import compare
from polydec.cli import prompts
from polydec.cli.flags import Flags, shared, wide


@shared
def verify(flags: Flags,
           data: Annotated[Path | None, typer.Option(help="prompts: JSON lines, or one a line (default: built-in)")] = None,
           prompt_tokens: Annotated[int | None, typer.Option(help="of running text: tokens of a prompt")] = None,
           limit: Annotated[int | None, typer.Option(help="use the first prompts only")] = None) -> None:
    """Compare a method's greedy text with plain decoding, token for token. Exit code 1 where a fault is found."""
    method = "prompt-lookup" if flags.method == "plain" else flags.method
    registry.get(method)
    if flags.temperature:
        raise ValueError(f"temperature is {flags.temperature}: verify compares greedy texts, so it must be 0")
    lm = flags.load()
    sampling = replace(flags.sampling(lm), temperature=0.0)
    rows = prompts.first(prompts.read(data, lm, prompt_tokens) if data else prompts.BUILT_IN, limit)
    lm.check(method, flags.options())
    console = wide(stderr=flags.json_)
    shown = track(rows, "comparing", console=Console(stderr=True), transient=True)
    found = [compare(lm, r.prompt, method, flags.options(), sampling=sampling, max_tokens=flags.max_tokens or 128,
                     raw=flags.raw or r.raw) for r in shown]
    counts = {v: sum(c.verdict == v for c in found) for v in ("equal", "near-tie", "fault")}
    if flags.json_:
        print(json.dumps({"machine": machine.describe(lm.network), "model": lm.name, "method": method,
                          "kernel": lm.checkpoint.kernel, "counts": counts,
                          "prompts": [{"prompt": r.key[:80], "verdict": c.verdict, **vars(c)}
                                                        for r, c in zip(rows, found, strict=True)]}))
    else:
        table = Table(box=None, pad_edge=False)
        for column in ("prompt", "verdict", "tokens", "first divergence", "gap"):
            table.add_column(column, no_wrap=True, max_width=60)
        for r, c in zip(rows, found, strict=True):
            where = "" if c.equal else f"token {c.at}: {_show(lm, c.plain)} / {_show(lm, c.method)}"
            gap = "" if c.gap is None else f"{c.gap:.1e}"
            table.add_row(" ".join(r.key.split())[:60], c.verdict, str(c.tokens), where, gap)
        console.print(table)
        console.print(f"{method} on {lm.name} ({lm.checkpoint.kernel}): " + ", ".join(f"{n} {v}" for v, n in counts.items()))
    raise typer.Exit(1 if counts["fault"] else 0)


def _show(lm: object, token: int | None) -> str:
    return "end" if token is None else repr(lm.checkpoint.text.decode([token]))       # pyright: ignore

"""polydec verify: a certificate that a method keeps its promise on this model and machine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track

from polydec import api
from polydec.base.edge import printable
from polydec.base.errors import RequestError
from polydec.bench.certify import Comparison, compare
from polydec.bench.drift import drift
from polydec.cli import asking, prompts
from polydec.cli.declared import shared
from polydec.cli.flags import BENT, LOADED, Flags
from polydec.cli.shown import cell, emit
from polydec.methods import registry
from polydec.methods.kit import family_of
from polydec.request import machine

TAKEN = {*LOADED, *BENT, "method", "set_", "max_tokens", "seed", "raw", "json_"}
ENDED = {
    "order",
    "stop",
    "stop_token_id",
    "ignore_eos",
    "regex",
    "json_schema",
    "grammar",
    "choice",
    "span_of",
    "constraint_",
    "finish",
    "cache",
    "cache_set",
}
"""Flags that say which texts there may be and where they end, and over which cache."""


@shared
def verify(
    flags: Flags,
    data: Annotated[
        Path | None, typer.Option(help="prompts: JSON lines, or one a line (default: built-in)")
    ] = None,
    prompt_tokens: Annotated[
        int | None, typer.Option(help="of running text: tokens of a prompt")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="use the first prompts only")] = None,
) -> None:
    """Compare a method's greedy text with plain decoding, token for token; of a masked-diffusion model, the laws of a kept
    cache with those of passes over the whole canvas. Exit code 1 where a fault is found."""
    method = flags.method
    registry.get(method)
    flags.only("verify", {*TAKEN, *ENDED})
    if flags.temperature:
        raise RequestError(
            f"temperature is {flags.temperature}: verify compares greedy texts, so it must be 0"
        )
    lm = flags.load()
    rows = prompts.first(prompts.read(data, lm, prompt_tokens) if data else prompts.BUILT_IN, limit)
    request = {
        "sampling": replace(flags.sampling(lm), temperature=0.0),
        "max_tokens": flags.max_tokens or 128,
    }
    if family_of(lm.checkpoint.lm) == "diffusion":
        flags.only("verify, of a masked-diffusion model,", TAKEN)
        return drifts(lm, method, rows, request, flags)
    request = {
        k: v for k, v in flags.request(lm).items() if k not in ("method", "options", "raw")
    } | request
    asking.check(
        lm,
        ((r.prompt, flags.raw or r.raw) for r in rows),
        (("plain", {}), (method, flags.options())),
        **request,
    )
    found = list[Comparison]()
    if not flags.json_:
        emit(LINE.format("prompt", "verdict", "tokens", "gap", "first divergence").rstrip())
    try:
        for r in track(rows, "comparing", console=Console(stderr=True), transient=True):
            found.append(
                compare(lm, r.prompt, method, flags.options(), **request, raw=flags.raw or r.raw)
            )
            if not flags.json_:
                emit(line(lm, r, found[-1]))
    finally:  # also of what was compared before a failure or Ctrl-C
        if found:
            publish(lm, method, rows, found, flags)
    raise typer.Exit(1 if any(c.verdict == "fault" for c in found) else 0)


def drifts(
    lm: api.LM, method: str, rows: Sequence[prompts.Row], request: Mapping[str, Any], flags: Flags
) -> None:
    """How far the laws of a masked-diffusion model's cache are from those without one."""
    name = registry.of_model(method, "diffusion")
    asking.check(
        lm, ((r.prompt, flags.raw or r.raw) for r in rows), ((name, flags.options()),), **request
    )
    found = [
        drift(
            lm, r.prompt, name, flags.options(), **request, raw=flags.raw or r.raw, seed=flags.seed
        )
        for r in track(rows, "comparing", console=Console(stderr=True), transient=True)
    ]
    if flags.json_:
        emit(
            json.dumps(
                {
                    "model": lm.name,
                    "method": name,
                    "prompts": [{"prompt": r.key[:80], **asdict(d)} for r, d in zip(rows, found)],
                }
            )
        )
        return
    emit(DRIFT.format("prompt", "laws", "passes", "KL, nats", "largest", "other token"))
    for r, d in zip(rows, found):
        emit(
            DRIFT.format(
                cell(r.key, 60).plain,
                d.rows,
                d.passes,
                f"{d.nats:.2e}",
                f"{d.most:.2e}",
                f"{d.moved:.1%}",
            )
        )


DRIFT = "{:60}  {:>6}  {:>6}  {:>9}  {:>9}  {:>11}"
LINE = "{:60}  {:8}  {:>6}  {:>7}  {}"


def line(lm: api.LM, row: prompts.Row, c: Comparison) -> str:
    """What was found of one prompt."""
    where = "" if c.equal else f"token {c.at}: {_show(lm, c.plain)} / {_show(lm, c.method)}"
    return LINE.format(
        cell(row.key, 60).plain, c.verdict, c.tokens, "" if c.gap is None else f"{c.gap:.1e}", where
    ).rstrip()


def publish(
    lm: api.LM, method: str, rows: Sequence[prompts.Row], found: Sequence[Comparison], flags: Flags
) -> None:
    """The sum of it, or all of it as JSON, on standard output."""
    counts = {v: sum(c.verdict == v for c in found) for v in ("equal", "near-tie", "fault")}
    if flags.json_:
        emit(
            json.dumps(
                {
                    "machine": machine.describe(lm.network),
                    "model": lm.name,
                    "method": method,
                    "kernel": lm.checkpoint.kernel,
                    "counts": counts,
                    "prompts": [
                        {"prompt": r.key[:80], "verdict": c.verdict, **vars(c)}
                        for r, c in zip(rows, found)
                    ],
                }
            )
        )
    else:
        emit(
            f"{method} on {printable(lm.name)} ({lm.checkpoint.kernel}): "
            + ", ".join(f"{n} {v}" for v, n in counts.items())
        )


def _show(lm: api.LM, token: int | None) -> str:
    return "end" if token is None else repr(lm.checkpoint.text.decode([token]))

"""polydec explain: what a request would do, part by part, without decoding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from polydec import api
from polydec.base.errors import PolydecError, RequestError
from polydec.cli.declared import shared
from polydec.cli.flags import Flags, Steered
from polydec.cli.generate import asked
from polydec.cli.shown import cell, emit, emit_drawn

if TYPE_CHECKING:
    from polydec.request.explain import Part


@shared
def explain(
    flags: Flags,
    prompt: Annotated[
        str | None, typer.Argument(help="the prompt; `-` or nothing: standard input")
    ] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="read the prompt from this file")] = None,
    steered: Steered = Steered(),  # noqa: B008
) -> None:
    """Say what `polydec generate` would do with these flags: what acts, in which order, what does nothing, what is promised.
    Nothing is decoded. A request that is refused ends with exit code 2; what would run in its place is said."""
    text = asked(prompt, prompt_file)
    if flags.trace is not None:
        raise RequestError("trace is given: explain decodes nothing, so there is nothing to trace")
    flags.check_names()
    steering = steered.request()
    from polydec.request.explain import explain as parts_of

    lm = flags.load()
    ask = api.Ask(text, **flags.request(lm), **steering)
    try:
        parts = parts_of(lm, ask)
    except PolydecError as why:
        refused(lm, ask, str(why), flags.json_)
        raise
    if flags.json_:
        emit(json.dumps({"parts": [p.to_json() for p in parts], "refused": None, "instead": []}))
    else:
        emit_drawn(lambda out: out.print(table(parts)))


def refused(lm: api.LM, ask: api.Ask, why: str, as_json: bool) -> None:
    """What would run instead. The sentence itself goes to standard error, as that of every command does."""
    from polydec.request.explain import instead

    ways = instead(lm, ask)
    if as_json:
        emit(json.dumps({"parts": [], "refused": why, "instead": ways}))
    elif ways:
        emit(f"it would run {', or '.join(ways)}")


def table(parts: list[Part]) -> Table:
    """One row a part, in the order in which they act."""
    out: Any = Table(box=None, pad_edge=False)
    for column in ("part", "which", "with", "what it does", "needs"):
        out.add_column(column, no_wrap=column in ("part", "which"))
    for p in parts:
        with_ = ", ".join(f"{k}={v}" for k, v in p.options.items())
        out.add_row(p.role, cell(p.name), cell(with_), cell(p.says), ", ".join(p.needs) or "-")
    return out

"""polydec explain: what a request would do, part by part, without decoding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from polydec import api
from polydec.base.errors import PolydecError, RequestError
from polydec.cli.declared_flags import expand_flag_parameters
from polydec.cli.flags import RequestFlags, SteeringFlags
from polydec.cli.generate import (
    check_system_message,
    prompt_behind_system,
    read_prompt_text,
)
from polydec.cli.terminal_output import emit_drawn, print_result, table_cell_text

if TYPE_CHECKING:
    from polydec.request.explain import RequestPart


@expand_flag_parameters
def explain(
    flags: RequestFlags,
    prompt: Annotated[
        str | None, typer.Argument(help="the prompt; `-` or nothing: standard input")
    ] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="read the prompt from this file")] = None,
    system: Annotated[
        str | None, typer.Option(help="system message, for a model with a chat template")
    ] = None,
    steered: SteeringFlags = SteeringFlags(),  # noqa: B008
) -> None:
    """Say what `polydec generate` would do with these flags: what acts, in which order, what does nothing, what is promised.
    Nothing is decoded. A request that is refused ends with exit code 2; what would run in its place is said.\f

    Args:
        flags: Model, method and sampling of the request.
        prompt: The prompt; "-" or None: standard input.
        prompt_file: File with the prompt. Default None.
        system: Message of the system before the prompt. Default None: there is none.
        steered: How the model's law is bent. Default: not at all.
    """
    text = read_prompt_text(prompt, prompt_file)
    if flags.trace is not None:
        raise RequestError("trace is given: explain decodes nothing, so there is nothing to trace")
    if system is not None:
        # As `generate` has it: an image leaves a place for the system.
        beside = flags.written_from is not None and not flags.image
        check_system_message(system, raw=flags.raw, sourced=beside)
    flags.check_names()
    # Names are checked before the model is loaded.
    steering = steered.steering_fields()
    from polydec.request.explain import explain_request as parts_of

    lm = flags.load()
    ask = api.Ask(prompt_behind_system(text, system), **flags.request_fields(lm), **steering)
    try:
        # Planning the request is what refuses it; nothing is decoded.
        parts = parts_of(lm, ask)
    except PolydecError as why:
        print_request_alternatives(lm, ask, str(why), flags.json_)
        raise
    if flags.json_:
        print_result(
            json.dumps({"parts": [p.to_json() for p in parts], "refused": None, "instead": []})
        )
    else:
        emit_drawn(lambda out: out.print(request_parts_table(parts)))


def print_request_alternatives(lm: api.LoadedModel, ask: api.Ask, why: str, as_json: bool) -> None:
    """Print what would run in place of a refused request. The refusal itself goes to standard
    error, as that of every command does.

    Args:
        lm: The loaded model.
        ask: The request that is refused.
        why: The refusal, a sentence.
        as_json: Whether to print one JSON object.
    """
    from polydec.request.explain import request_alternatives

    ways = request_alternatives(lm, ask)
    if as_json:
        print_result(json.dumps({"parts": [], "refused": why, "instead": ways}))
    elif ways:
        print_result(f"it would run {', or '.join(ways)}")


def request_parts_table(parts: list[RequestPart]) -> Table:
    """A table with one row for each part, in the order in which they act."""
    out: Any = Table(box=None, pad_edge=False)
    for column in ("part", "which", "with", "what it does", "needs"):
        out.add_column(column, no_wrap=column in ("part", "which"))
    for p in parts:
        with_ = ", ".join(f"{k}={v}" for k, v in p.options.items())
        out.add_row(
            p.role,
            table_cell_text(p.name),
            table_cell_text(with_),
            table_cell_text(p.says),
            ", ".join(p.needs) or "-",
        )
    return out

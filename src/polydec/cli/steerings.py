"""polydec steerings: the ways to bend a model's law with a second one."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.table import Table

from polydec.cli.methods import in_full
from polydec.cli.terminal_output import emit_drawn
from polydec.methods.registry import steer


def steerings(
    name: Annotated[
        str | None, typer.Argument(help="a name, alias or arXiv number: that one in full")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="a JSON list")] = False,
) -> None:
    """List every way to steer (`polydec generate --steer NAME`): any method decodes what it makes of the model's law.\f

    Args:
        name: A name, an alias or an arXiv number. Default None: all steerings.
        json_: Whether a JSON list is printed. Default False.
    """
    rows = [
        steer.describe_steering(n)
        for n in (sorted(steer.steering_modules()) if name is None else (name,))
    ]
    if json_:
        print(json.dumps(rows))
    elif name is not None:
        in_full(rows[0], "--steer-set")
    else:
        table = Table(box=None, pad_edge=False)
        for column in ("steering", "needs", "what it is"):
            table.add_column(column, no_wrap=column != "what it is")
        for r in rows:
            table.add_row(r["name"], ", ".join(r["needs"]) or "-", r["title"])
        emit_drawn(lambda out: out.print(table))

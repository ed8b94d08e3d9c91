"""polydec methods: what can be asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from polydec.base.errors import PolydecError
from polydec.cli.shown import emit_drawn
from polydec.methods import registry

LONGEST = 200
"""Characters of a search that are looked at."""


def methods(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="a name, alias or arXiv number: that method in full; other words: the methods that speak of them"
        ),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="a JSON list")] = False,
) -> None:
    """List every method: what it is, promises, needs, options, source. With a name: one method in full; with words: those
    whose name, title, paper or summary holds them all."""
    names, whole = found(" ".join(words or ()))
    rows = [registry.describe(n) for n in names]
    if json_:
        print(json.dumps(rows))
        return
    if not whole:
        table = Table(box=None, pad_edge=False)
        for column in ("method", "guarantee", "needs", "what it is"):
            table.add_column(column, no_wrap=column != "what it is")
        for r in rows:
            table.add_row(r["name"], str(r["guarantee"]), ", ".join(r["needs"]) or "-", r["title"])
        emit_drawn(lambda out: out.print(table))
        return
    in_full(rows[0], "--set")


def in_full(r: Mapping[str, Any], flag: str) -> None:
    """Print all that is known of one method, or of one way to steer; flag: what sets its options."""
    console = Console(highlight=False)
    console.print(f"[bold]{r['name']}[/bold]: {r['title']}")
    console.print(r["summary"])
    for key in (
        "aliases",
        "kind",
        "family",
        "guarantee",
        "needs",
        "needs_training",
        "reduces_to",
        "parent",
        "home",
        "source",
        "arxiv",
    ):
        if value := r.get(key):
            shown = (
                ", ".join(map(str, value))
                if isinstance(value, list)
                else "yes"
                if value is True
                else value
            )
            console.print(f"  {key.replace('_', ' ')}: {shown}")
    for option, facts in r["options"].items():
        console.print(f"  {flag} {option}={written(facts['default'])}  {facts['help']}")


def found(words: str) -> tuple[list[str], bool]:
    """The methods that these words mean, and whether they single out one. Raises RequestError where there is none."""
    if not words.strip():
        return sorted(registry.recipes()), False
    try:
        return [registry.find(words)], True
    except PolydecError:
        names = registry.search(words[:LONGEST])
        if not names:
            raise
        return names, len(names) == 1


def written(value: object) -> str:
    """A default as --set takes it."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()

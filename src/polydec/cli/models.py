"""polydec models: the models on this machine."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from polydec.base.edge import escape_control_characters
from polydec.cli.terminal_output import print_result
from polydec.models.formats import hub_cache


def models(
    json_: Annotated[bool, typer.Option("--json", help="one JSON object")] = False,
) -> None:
    """List the models on this machine: name, kind, size, where.\f

    Args:
        json_: Whether one JSON object is printed. Default False.
    """
    found = hub_cache.list_stored_models()
    cache = hub_cache.hub_cache_folder()
    if json_:
        rows = [
            {"name": m.name, "kind": m.kind, "bytes": m.size, "path": str(m.path), "home": m.home}
            for m in found
        ]
        print_result(json.dumps({"models": rows, "cache": str(cache)}))
        return
    cells = [
        ("name", "kind", "size", "where"),
        *((m.name, m.kind, size_text(m.size), str(m.path)) for m in found),
    ]
    # The last column needs no width: a path may be as long as it is.
    widths = [max(len(row[column]) for row in cells) for column in range(3)]
    lines = [
        f"{name:{widths[0]}}  {kind:{widths[1]}}  {size:>{widths[2]}}  {where}"
        for name, kind, size, where in cells
    ]
    # Embedded models are no downloads, and `rm` cannot free what they take.
    downloads = [m.size for m in found if m.home == "hub"]
    if downloads:
        lines.append(
            f"downloads take {size_text(sum(downloads))} in {cache}: polydec rm NAME removes one"
        )
    else:
        lines.append(f"no downloads in {cache}: polydec pull NAME makes one")
    print_result(escape_control_characters("\n".join(lines)))


def size_text(size: int) -> str:
    """Bytes in MB, from a thousand MB on in GB."""
    if size >= 1e9:
        return f"{size / 1e9:.1f} GB"
    return f"{size / 1e6:.1f} MB"

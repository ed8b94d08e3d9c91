"""polydec rm: remove a model from the cache of downloads."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from polydec.base.edge import escape_control_characters
from polydec.base.errors import RequestError
from polydec.cli.models import size_text
from polydec.cli.terminal_output import print_result
from polydec.models.formats.hub_cache import plan_model_removal


def rm(
    name: Annotated[
        str, typer.Argument(help="owner/repo, or owner/repo:Q4_K_M for one of its GGUF files")
    ],
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
) -> None:
    """Remove a model from the cache of downloads, after asking. Nothing outside of it is touched.\f

    Args:
        name: Name of the model, as `polydec models` lists it.
        yes: Whether it is removed without asking. Default False.
    """
    removal = plan_model_removal(name)
    files = "1 file" if removal.files == 1 else f"{removal.files} files"
    frees = f"{files} in {removal.path}, {size_text(removal.size)}"
    if not yes:
        # A script must say itself that it means it.
        if sys.stdin is None or not sys.stdin.isatty():
            raise RequestError(
                f"--yes is not given and nobody can be asked: it removes {frees}, without a question"
            )
        # Standard output holds results alone, so the question goes to standard error.
        typer.echo(escape_control_characters(f"{name}: {frees}"), err=True)
        if not typer.confirm("Remove it?", err=True):
            typer.echo("nothing was removed", err=True)
            # A program that called this must see that the model is still there.
            raise typer.Exit(1)
    removal.execute()
    print_result(escape_control_characters(f"{name} is removed: {frees}"))

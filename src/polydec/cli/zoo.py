"""polydec zoo: the embedded models."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from polydec.models.formats import zoo

app = typer.Typer(
    help="Embedded models: what is here, what each is, how to get it.", invoke_without_command=True
)


@app.callback()
def zoo_list(context: typer.Context) -> None:
    """Embedded models: what is here, what each is, how to get it."""
    # The group without a subcommand is the list itself.
    if context.invoked_subcommand is not None:
        return
    table = Table(box=None, pad_edge=False)
    for column in ("name", "here", "size", "licence", "what it is"):
        table.add_column(column, no_wrap=column != "what it is")
    for entry in zoo.zoo_entries():
        table.add_row(
            f"zoo:{entry.name}",
            "yes" if entry.here else "no",
            entry.size,
            entry.licence,
            entry.what,
        )
    Console(highlight=False).print(table)


@app.command()
def install(
    name: Annotated[str, typer.Argument(help="smollm2")],
    quiet: Annotated[
        bool, typer.Option("--quiet", help="say nothing where it is here already")
    ] = False,
) -> None:
    """Fetch the weights of a model that does not travel in the package.\f

    Args:
        name: Name of the model, without "zoo:".
        quiet: Whether nothing is said where the weights are here already. Default False.
    """
    path = zoo.install_zoo_model(name)
    if not quiet:
        print(f"zoo:{name} is at {path}")

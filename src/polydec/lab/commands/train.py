"""polydec train: models and drafts, on this machine."""

from __future__ import annotations

import typer

from polydec.lab.commands.training import TrainingCommandGroup

app = typer.Typer(
    cls=TrainingCommandGroup,
    help="Train language models and drafts; an interrupted run goes on where it was.",
    no_args_is_help=True,
)


@app.callback()
def train() -> None:
    """Train language models and drafts; an interrupted run goes on where it was."""

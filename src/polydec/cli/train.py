"""polydec train: models and drafts, on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from polydec.cli.training import Trainings

app = typer.Typer(
    cls=Trainings,
    help="Train language models and drafts; an interrupted run goes on where it was.",
    no_args_is_help=True,
)


@app.callback()
def train() -> None:
    """Train language models and drafts; an interrupted run goes on where it was."""


@app.command()
def strength(
    target: Annotated[str, typer.Option(help="the tuned model: a name like --model's")],
    draft: Annotated[str, typer.Option(help="the model before tuning")],
    data: Annotated[
        Path, typer.Option(help="JSON lines with prompt and answer that neither was tuned on")
    ],
    head: Annotated[float, typer.Option(help="as of the steering, 0 to 1")] = 0.1,
    raw: Annotated[bool, typer.Option("--raw", help="no chat template")] = False,
) -> None:
    """Find the strength for `--steer svdecode` under which right answers are likeliest; prints one JSON object."""
    from polydec import api
    from polydec.train.strength import read_pairs
    from polydec.train.strength import strength as best

    pairs = read_pairs(data)
    print(
        json.dumps(
            vars(best(api.load(target, draft=draft, ngrams=None), pairs, head=head, raw=raw))
        )
    )

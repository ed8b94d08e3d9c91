"""polydec train: models and drafts, on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from polydec.base.errors import RequestError
from polydec.cli.training import add_all

app = typer.Typer(
    help="Train language models and drafts; an interrupted run goes on where it was.",
    no_args_is_help=True,
)

# flags that several commands have
Resumed = Annotated[
    Path, typer.Option(help="directory to write (its state.pt lets an interrupted run go on)")
]
TEXT = (
    "your own text: .txt, .jsonl (text, prompt, question and answer, turns, messages), a folder of these or of a data set "
    "(Arrow, Parquet); or `sample`, which travels along (default: POLYDEC_DATA, else ../shared/data, else sample)"
)
Data = Annotated[Path | None, typer.Option(help=TEXT)]
Seed = Annotated[int, typer.Option(help="names the randomness")]
Json = Annotated[bool, typer.Option("--json", help="what was measured, as one JSON object")]


@app.command()
def lm(
    out: Resumed,
    data: Data = None,
    preset: Annotated[str, typer.Option(help="tiny or tiny-draft")] = "tiny",
    steps: Annotated[
        int | None, typer.Option(help="optimiser steps (default: the preset's)")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="directory whose tokenizer to use (default: train one)")
    ] = None,
    teacher: Annotated[
        Path | None, typer.Option(help="directory of a model whose laws to learn")
    ] = None,
    train_mb: Annotated[str, typer.Option(help="megabytes of prose, code and dialogue")] = "10,8,6",
    start: Annotated[
        str | None,
        typer.Option(help="directory or zoo:NAME to begin with (default: random weights)"),
    ] = None,
    layers: Annotated[
        int | None, typer.Option(help="first layers of --start, or more, that begin as identities")
    ] = None,
    early_exit: Annotated[
        float, typer.Option(help="scale of the early-exit loss, 0 (off) to 1")
    ] = 0.0,
    layer_dropout: Annotated[
        float, typer.Option(help="how often the last layer is left out, 0 to 0.5")
    ] = 0.0,
    seed: Seed = 0,
    compiled: Annotated[
        bool, typer.Option("--compile", help="torch.compile (needs a C++ compiler)")
    ] = False,
    json_: Json = False,
) -> None:
    """Train a small language model from text: tokenizer, packing, schedule, held-out bits per byte beside a 5-gram."""
    from polydec.train.exits import Depths
    from polydec.train.lm import LMSpec, train_lm  # heavy, and of no use to the other commands

    try:
        megabytes = tuple(float(x) for x in train_mb.split(","))
    except ValueError:
        raise RequestError(
            f"train_mb is {train_mb!r}: it must be numbers, such as 10,8,6"
        ) from None
    spec = LMSpec(
        out=str(out),
        data=None if data is None else str(data),
        preset=preset,
        steps=steps,
        seed=seed,
        tokenizer=None if tokenizer is None else str(tokenizer),
        teacher=None if teacher is None else str(teacher),
        train_mb=megabytes,
        compiled=compiled,
        start=start,
        layers=layers,
        depths=Depths(early_exit, layer_dropout),
    )
    result = train_lm(spec)
    if json_:
        print(json.dumps({k: v for k, v in result.items() if k != "curve"}))
        return
    table = Table(box=None, pad_edge=False)
    for column in ("held-out bits per byte", "model", f"{spec.order}-gram"):
        table.add_column(column)
    for kind, bits in result["bits_per_byte"].items():
        table.add_row(
            kind, f"{bits:.3f}", f"{result[f'bits_per_byte_{spec.order}_gram'][kind]:.3f}"
        )
    Console(highlight=False).print(table)
    print(
        f"{result['parameters']:,} parameters, {result['tokens']:,} tokens, {result['seconds']:.0f} s; written to {out}"
    )


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


add_all(app)

"""polydec export: a draft model or a drafter as vLLM and SGLang load it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from polydec import api
from polydec.base.edge import escape_control_characters, require_integer


def export(
    name: Annotated[
        str,
        typer.Argument(help="a draft model (any name of a model), or the directory of a drafter"),
    ],
    out: Annotated[Path, typer.Argument(help="the directory to write, new or empty")],
    target: Annotated[
        str | None,
        typer.Option(
            help="the model that a drafter reads, where its files do not say which of its layers"
        ),
    ] = None,
    tokens: Annotated[
        int, typer.Option(help="drafted a step, in the settings that are printed")
    ] = 4,
) -> None:
    """Write a draft model or a drafter as vLLM and SGLang load it, and print the settings for both.\f

    Args:
        name: A draft model, or the directory of a drafter.
        out: Directory to write, new or empty.
        target: Model that a drafter reads. Default None: its files say which layers.
        tokens: Tokens drafted a step, in the settings that are printed. Default 4.
    """
    require_integer("tokens", tokens, 1, 64)
    from polydec.models.learned.export import export_for_engines as write

    if target is None:
        model = None
    else:
        # Without a draft: only the layers of the target are looked at.
        model = api.load(target, draft=None, ngrams=None)
    done = write(name, out, tokens=tokens, target=None if model is None else model.checkpoint.lm)
    print(escape_control_characters(f"{out}: {done.what}"))
    print("vLLM:   --speculative-config " + shlex.quote(json.dumps(dict(done.vllm))))
    if done.sglang:
        print("SGLang: " + shlex.join(done.sglang))

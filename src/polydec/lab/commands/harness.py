"""polydec harness: lm-evaluation-harness with our models and methods in it."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated, Any

import typer

from polydec.base.errors import MissingError

SETTINGS: dict[str, Any] = {"ignore_unknown_options": True}
"""The flags are the harness's own."""


def harness(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            help="what lm_eval takes, as in --tasks NAME --model_args model=zoo:smollm2"
        ),
    ] = None,
) -> None:
    """Run lm-evaluation-harness on a model and a method.

    All flags are those of the harness (polydec harness run --help shows them), and --model polydec need not be said.
    --model_args takes model, method (with its options behind it, as in draft-model:depth=3), batch_size, draws, max_length
    and seed, and what polydec.load takes.
    """
    if find_spec("lm_eval") is None:
        raise MissingError(
            "lm-evaluation-harness is not here: pip install 'polydec[harness]' brings it"
        )
    from polydec.lab.bench.harness import main

    main(arguments or ["run", "--help"])

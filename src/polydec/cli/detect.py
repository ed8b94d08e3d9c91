"""polydec detect: does a text carry the watermark of a key?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from polydec import api
from polydec.cli.generate import read_prompt_text
from polydec.cli.terminal_output import print_result


def detect(
    text: Annotated[
        str | None, typer.Argument(help="the text; `-` or nothing: standard input")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="read the text from this file")] = None,
    model: Annotated[
        str,
        typer.Option(
            help="whose tokenizer wrote the text: Hub id, directory, GGUF file or zoo:NAME",
        ),
    ] = "zoo:smollm2",
    key: Annotated[int, typer.Option(help="watermark_key of the request")] = 0,
    share: Annotated[float, typer.Option(help="watermark_share of the request")] = 0.25,
    repeats: Annotated[
        bool, typer.Option("--repeats", help="count pairs of tokens each time they stand there")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="one JSON object")] = False,
) -> None:
    """Look for the watermark (`--sample watermark_bias=2`) in a text. A z of 4 and more is reached by 3 texts in 100,000 that
    have none.\f

    Args:
        text: The text; "-" or None: standard input.
        file: File with the text. Default None.
        model: Model whose tokenizer wrote the text. Default "zoo:smollm2".
        key: The request's `watermark_key`. Default 0.
        share: The request's `watermark_share`, 0 to 1. Default 0.25.
        repeats: Whether a pair of tokens counts each time it stands there. Default False.
        json_: Whether one JSON object is printed. Default False.
    """
    checked_text = read_prompt_text(text, file)
    from polydec.request.detect import detect_watermark as look

    lm = api.load(model, draft=None, ngrams=None)
    # Without special tokens: no model wrote them.
    tokens = lm.checkpoint.text.encode(checked_text, special=False)
    verdict = look(tokens, lm.checkpoint.lm.vocab.size, share=share, key=key, repeats=repeats)
    if json_:
        print_result(json.dumps(vars(verdict)))
    else:
        print_result(
            f"z = {verdict.z:.2f} (p = {verdict.p:.1e}): {verdict.green} of {verdict.scored} tokens are green, "
            f"{share * verdict.scored:.0f} would be by chance"
        )

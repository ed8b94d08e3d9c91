"""polydec embed: vectors of texts, read out of a language model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from polydec import api
from polydec.base.errors import RequestError
from polydec.base.files import replace_file_atomically
from polydec.cli import prompts
from polydec.cli.terminal_output import print_result
from polydec.models.formats.images import Image
from polydec.request import reading
from polydec.request.loading import loading_options as loading

FIELDS, LOADING = reading.embedding_options(), loading()


def _flag(name: str) -> Any:
    option = FIELDS[name]
    return typer.Option(help=f"{option.help}; {option.legal}")


def embed(
    texts: Annotated[list[str] | None, typer.Argument(help="texts, a vector for each")] = None,
    file: Annotated[Path | None, typer.Option(help="a text a line of this file")] = None,
    model: Annotated[str, typer.Option(help=LOADING["name"].help)] = LOADING["name"].default,
    dtype: Annotated[str, typer.Option(help=LOADING["dtype"].help)] = LOADING["dtype"].default,
    pool: Annotated[str | None, _flag("pool")] = None,
    layer: Annotated[int | None, _flag("layer")] = None,
    normalised: Annotated[
        bool, typer.Option("--normalised/--as-they-are", help=FIELDS["normalised"].help)
    ] = True,
    template: Annotated[str | None, _flag("template")] = None,
    prompt: Annotated[str | None, _flag("prompt")] = None,
    prepend_from: Annotated[int, _flag("prepend_from")] = 0,
    prepend_to: Annotated[int, _flag("prepend_to")] = 0,
    image: Annotated[
        list[Path] | None,
        typer.Option(
            help="an image before the text; several: one for each text, or one text for all"
        ),
    ] = None,
    with_: Annotated[
        list[str] | None,
        typer.Option("--with", help="prefixes of `polydec train parallel-embeddings`"),
    ] = None,
    path: Annotated[int | None, _flag("path")] = None,
    join: Annotated[str | None, _flag("join")] = None,
    out: Annotated[
        Path | None, typer.Option(help="write a safetensors file with the tensor `embeddings`")
    ] = None,
) -> None:
    """Print a vector of each text, a JSON object a line: the state of its last token, or the mean over its tokens.\f

    Args:
        texts: Texts, a vector for each. Default None.
        file: File with a text a line, read after `texts`. Default None.
        model: Name of the model.
        dtype: Numbers that the model computes in.
        pool: "last" or "mean". Default None: the model's own way.
        layer: Layer behind which states are read. Default None: the last one.
        normalised: Whether vectors have length 1. Default True.
        template: What stands around a `{text}`. Default None.
        prompt: Name of a prompt of the model's. Default None.
        prepend_from: First layer before which the placeholder takes the last token's state. Default
            0.
        prepend_to: The layer after the last such one. Default 0: there is none.
        image: Images, one before each text, or each before the only text. Default None.
        with_: Directories of what was trained for the model. Default None.
        path: Number of the path that is read alone. Default None: all of them.
        join: "mean" or "concat" of all paths. Default None: the mean.
        out: File for the tensor `embeddings`. Default None: rows of JSON are printed.
    """
    # Settings are checked before the model is loaded.
    how = reading.EmbeddingSettings(
        pool, layer, normalised, template, prompt, prepend_from, prepend_to, path, join
    )
    lines = list(texts or ())
    if file is not None:
        # A line a text.
        lines += [line for line in prompts.read_text(file).splitlines() if line.strip()]
    if not lines:
        raise RequestError("there is no text: give at least one text, or a file of them (--file)")
    # Neither a draft nor a table is needed to read.
    lm = api.load(model, draft=None, ngrams=None, dtype=dtype, trained=with_ or ())
    rows = lm.embed(lines, [Image(at) for at in image or ()], **vars(how))
    # Rows of JSON for people and pipes; a file keeps the numbers exactly.
    if out is None:
        for at, row in enumerate(rows.tolist()):
            print_result(json.dumps({"index": at, "embedding": row}))
        return
    from safetensors.torch import save

    # Written as a whole or not at all.
    made = save({"embeddings": rows.contiguous()})
    replace_file_atomically(out, lambda path: path.write_bytes(made))

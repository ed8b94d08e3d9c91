"""polydec watch: a stream of images, put into words where what would be said of it changes."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from polydec import api
from polydec.base.errors import RequestError
from polydec.cli.terminal_output import print_result
from polydec.models.formats.images import Image
from polydec.request.loading import loading_options as loading

LOADING = loading()


def watch(
    images: Annotated[list[Path], typer.Argument(help="images in the order of the stream")],
    prompt: Annotated[str, typer.Option(help="what is asked of each image")] = "describe it",
    model: Annotated[str, typer.Option(help=LOADING["name"].help)] = "zoo:vision",
    with_: Annotated[
        list[str] | None, typer.Option("--with", help="an answer embedder of `polydec train jepa`")
    ] = None,
    change: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=2.0,
            help="a text where one less the cosine with the segment so far is above this, as the stream comes",
        ),
    ] = None,
    spread: Annotated[
        float | None,
        typer.Option(
            min=0.0, help="with --change: or where the segment's variance would be above this"
        ),
    ] = None,
    gap: Annotated[
        int, typer.Option(min=1, help="with --change: images between two texts at least")
    ] = 1,
    silence: Annotated[
        int | None, typer.Option(min=1, help="with --change: images between two texts at most")
    ] = None,
    segments: Annotated[
        int | None, typer.Option(min=1, help="so many texts for the whole stream, by clusters")
    ] = None,
    cost: Annotated[
        float | None, typer.Option(min=0.0, help="clusters that cost more to merge stay apart")
    ] = None,
    every: Annotated[int | None, typer.Option(min=1, help="a text every so many images")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="tokens of a text at most")] = 48,
    method: Annotated[str, typer.Option(help="by which texts are written")] = "auto",
) -> None:
    """Say what a stream of images shows, where that changes: JSON lines of `first`, `last`, `text`, `tokens`.\f

    Args:
        images: Images in the order of the stream.
        prompt: What is asked of each image.
        model: Name of the model, which must read images.
        with_: Directories of what was trained for it. Default None.
        change: Of the stream, above which a text is written. Default None: another flag says when.
        spread: Variance above which a text is written. Default None.
        gap: Images between two texts at least.
        silence: Images between two texts at most. Default None.
        segments: Texts of the whole stream. Default None.
        cost: Of merging clusters, at most. Default None.
        every: Images between two texts. Default None.
        max_tokens: Tokens of a text at most.
        method: By which texts are written.
    """
    # Imported late: `--help` needs nothing that computes.
    from polydec.request.stream_policies import (
        ChangeSegments,
        SegmentPolicy,
        UniformSegments,
        WardSegments,
    )
    from polydec.request.watching import watch_images

    ways = {
        "--change": change is not None,
        "--segments or --cost": segments is not None or cost is not None,
        "--every": every is not None,
    }
    # Two rules would have to be joined somehow, and none would say every image.
    if sum(ways.values()) != 1:
        raise RequestError(f"give one of {', '.join(ways)}: it says when a text is written")
    # A flag that nobody reads would be dropped silently.
    if change is None and (spread is not None or silence is not None or gap > 1):
        raise RequestError("--spread, --gap and --silence go with --change: leave them out")
    # Each checks its own values, before the model is loaded.
    policy: SegmentPolicy
    if change is not None:
        policy = ChangeSegments(change, spread, gap, silence)
    elif every is not None:
        policy = UniformSegments(every)
    else:
        policy = WardSegments(segments or 0, cost)
    # Neither a draft nor a table is needed.
    lm = api.load(model, draft=None, ngrams=None, trained=with_ or ())
    stream = [Image(path) for path in images]
    # A line a text, in the order of the stream.
    for told in watch_images(lm, stream, prompt, policy, max_tokens=max_tokens, method=method):
        print_result(json.dumps(asdict(told)))

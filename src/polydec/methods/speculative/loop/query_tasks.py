"""What a request asks of a query decoder (X-Decoder): its options become one task."""

from __future__ import annotations

from dataclasses import dataclass

from polydec.base.errors import RequestError
from polydec.methods.registry.kit import Kit
from polydec.methods.speculative.loop.query_decoding import (
    CaptionTask,
    NamingTask,
    QueryTask,
    ReferringTask,
    region_cells,
)
from polydec.models.learned.kinds.query_decoder import QueryDecoder


@dataclass(frozen=True)
class QueryChoice:
    """The options of a request.

    Attributes:
        names: Names parted by |, or "all". "": none.
        refer: A phrase. "": none.
        region: Left, top, right and bottom in pixels, parted by commas. "": the whole image.
        cached: Whether a caption holds what its decoder has computed.
    """

    names: str = ""
    refer: str = ""
    region: str = ""
    cached: bool = True


def choose_query_task(kit: Kit, decoder: QueryDecoder, choice: QueryChoice) -> QueryTask:
    """The task that options ask for: masks of names or of a phrase, else a caption.

    Args:
        kit: What the recipe is given.
        decoder: The query decoder.
        choice: The options.

    Returns:
        The task.

    Raises:
        RequestError: The answer is constrained, two options ask for different answers, or one of them
            is nothing that this decoder can do.
    """
    if kit.language is not None:
        raise RequestError(
            "constraint is given: method x-decoder writes what its queries read, so leave it out or take plain"
        )
    # Each of them is another task of the same decoder.
    given = {"names": choice.names, "refer": choice.refer, "region": choice.region}
    set_ones = [name for name, value in given.items() if value]
    if len(set_ones) > 1:
        raise RequestError(
            f"{' and '.join(set_ones)} are given: each asks for another answer, so give one"
        )
    longest = decoder.sizes.longest
    if choice.names == "all":
        if not decoder.names:
            raise RequestError("names is 'all': this query decoder learned none, so give some")
        return NamingTask(decoder.names)
    if choice.names:
        # Empty parts are slips of the pen, and name nothing.
        parts = [part for part in choice.names.split("|") if part.strip()]
        if not parts:
            raise RequestError(f"names is {choice.names!r:.60}: give at least one, parted by |")
        return NamingTask(tuple(_spelled(kit, part, "names", longest) for part in parts))
    if choice.refer:
        return ReferringTask(_spelled(kit, choice.refer, "refer", longest))
    if not choice.region:
        return CaptionTask(None, choice.cached)
    # Pixels as the model reads the image, whatever its file has.
    grid = decoder.sizes.mask_grid
    box = _box_of_text(choice.region, grid[1] * decoder.cell, grid[0] * decoder.cell)
    return CaptionTask(region_cells(box, grid, decoder.cell), choice.cached)


def _spelled(kit: Kit, text: str, option: str, longest: int) -> tuple[int, ...]:
    """A name or a phrase in tokens."""
    tokens = kit.target.vocab.spell_text(text.strip(), f"{option} is {text!r:.60}")
    if not 1 <= len(tokens) <= longest:
        raise RequestError(
            f"{option} is {text!r:.60}: it has {len(tokens)} tokens, and must have 1 to {longest}"
        )
    return tokens


def _box_of_text(text: str, width: int, height: int) -> tuple[int, ...]:
    """A box within an image of this size."""
    parts = text.split(",")
    if len(parts) == 4 and len(text) < 64 and all(part.strip().isdecimal() for part in parts):
        left, top, right, bottom = (int(part) for part in parts)
        if left < right <= width and top < bottom <= height:
            return left, top, right, bottom
    raise RequestError(
        f"region is {text!r:.60}: it must be left,top,right,bottom in whole pixels, left below right and top below bottom, "
        f"within {width} x {height}"
    )

"""X-Decoder: captions, names and masks of an image, from the queries of one decoder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from polydec.base.errors import RequestError
from polydec.base.options import ValueNote
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import PROMPT_IMAGE, ArtefactNeed, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue

if TYPE_CHECKING:
    from polydec.methods.speculative.loop.query_decoding import QueryTask
    from polydec.models.learned.kinds.query_decoder import QueryDecoder

CARD = Card(
    name="x-decoder",
    title="X-Decoder",
    summary="A decoder of its own reads the prompt's image by object queries and caption queries: a caption of it or of a "
    "region, or masks of what is named.",
    kind="reading",
    family="ar",
    guarantee=Exactness.APPROXIMATE,
    source="Zou et al., Generalized decoding for pixel, image, and language, 2022",
    reduces_to="the same caption with cached=true and cached=false",
    parent="plain",
    home="images of one size, of which captions, names and masks are wanted",
    needs=(PROMPT_IMAGE, ArtefactNeed("query-decoder")),
    needs_training=True,
    shows_masks=True,
    aliases=("generalized decoding", "generalised decoding", "xdecoder"),
    arxiv="2212.11270",
    published="the best figures of its time on 8 data sets of open-vocabulary and referring segmentation",
)
PUBLISHED = PublishedPreset(
    {
        "cached": PublishedValue(
            False, "the published code computes latent queries and the whole buffer for each token"
        )
    }
)


def build(
    kit: Kit,
    *,
    names: Annotated[
        str,
        ValueNote("none: a caption; all: every name that it learned"),
        "names of things, parted by |: those that are found are written, each with its mask",
    ] = "",
    refer: Annotated[str, ValueNote("none"), "a phrase: what it speaks of gets a mask"] = "",
    region: Annotated[
        str,
        ValueNote("none: the whole image"),
        "left,top,right,bottom in pixels, as the model reads the image: what a caption is about",
    ] = "",
    cached: Annotated[
        bool, "latent queries and earlier tokens of a caption are held; false: computed for each"
    ] = True,
) -> Decoder:
    from polydec.methods.speculative.loop.query_decoding import QueryDecoding
    from polydec.models.learned.kinds.query_decoder import QueryDecoder

    if kit.language is not None:
        raise RequestError(
            "constraint is given: method x-decoder writes what its queries read, so leave it out or take plain"
        )
    # Each of them is another task of the same decoder.
    given = {"names": names, "refer": refer, "region": region}
    set_ones = [name for name, value in given.items() if value]
    if len(set_ones) > 1:
        raise RequestError(
            f"{' and '.join(set_ones)} are given: each asks for another answer, so give one"
        )
    decoder = kit.needed_artefact(QueryDecoder)
    return QueryDecoding(
        kit.target, decoder, _query_task(kit, decoder, names, refer, region, cached)
    )


def _query_task(
    kit: Kit, decoder: QueryDecoder, names: str, refer: str, region: str, cached: bool
) -> QueryTask:
    """What the options ask for."""
    from polydec.methods.speculative.loop.query_decoding import (
        CaptionTask,
        NamingTask,
        ReferringTask,
        region_cells,
    )

    longest = decoder.sizes.longest
    if names == "all":
        if not decoder.names:
            raise RequestError("names is 'all': this query decoder learned none, so give some")
        return NamingTask(decoder.names)
    if names:
        parts = [part for part in names.split("|") if part.strip()]
        if not parts:
            raise RequestError(f"names is {names!r:.60}: give at least one, parted by |")
        return NamingTask(tuple(_spelled(kit, part, "names", longest) for part in parts))
    if refer:
        return ReferringTask(_spelled(kit, refer, "refer", longest))
    if not region:
        return CaptionTask(None, cached)
    grid = decoder.sizes.mask_grid
    box = _box_of_text(region, grid[1] * decoder.cell, grid[0] * decoder.cell)
    return CaptionTask(region_cells(box, grid, decoder.cell), cached)


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

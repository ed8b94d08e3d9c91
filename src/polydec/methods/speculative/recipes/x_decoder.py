"""X-Decoder: captions, names and masks of an image, from the queries of one decoder."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import ValueNote
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import PROMPT_IMAGE, ArtefactNeed, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue

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
    from polydec.methods.speculative.loop.query_tasks import QueryChoice, choose_query_task
    from polydec.models.learned.kinds.query_decoder import QueryDecoder

    decoder = kit.needed_artefact(QueryDecoder)
    task = choose_query_task(kit, decoder, QueryChoice(names, refer, region, cached))
    return QueryDecoding(kit.target, decoder, task)

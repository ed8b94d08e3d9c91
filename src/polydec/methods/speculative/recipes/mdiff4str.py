"""MDiff4STR: a canvas of masks is filled while the image is looked at."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from polydec.base.options import InRange, OneOf, ValueNote
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import IMAGE, Kit
from polydec.methods.registry.published_presets import PublishedPreset
from polydec.methods.speculative.recipes._readers import needed_reader, reading_decoder

CARD = Card(
    name="mdiff4str",
    title="MDiff4STR",
    summary="A masked-diffusion reader of its own fills in the letters of a word in an image, in each pass those surer "
    "than the mean.",
    kind="reading",
    family="ar",
    guarantee=Exactness.APPROXIMATE,
    source="MDiff4STR: mask diffusion model for scene text recognition, 2025",
    reduces_to="one pass in which all letters are read by themselves, at steps 1",
    parent="plain",
    home="words in images of which parts are covered",
    needs=(IMAGE, needed_reader("mdiff4str")),
    needs_training=True,
    aliases=("mask diffusion for scene text recognition",),
    published="97.3 % on six benchmarks, about 3 times as fast as AR decoders with three passes",
)
PUBLISHED = PublishedPreset({})


def build(
    kit: Kit,
    *,
    steps: Annotated[
        int, InRange(1, 64), ValueNote("1: all letters at once"), "passes over the canvas at most"
    ] = 3,
    policy: Annotated[
        str,
        OneOf("low-confidence", "block-low-confidence", "random", "left-to-right", "cloze"),
        ValueNote("left-to-right and cloze take a pass a letter, whatever steps is"),
        "which masks a pass fills: sure ones of all or of a block, half of them at random, the first one; or each is read "
        "anew beside the others",
    ] = "low-confidence",
    reflect: Annotated[
        bool, "one more pass looks at the whole word, and mends what it is surer of"
    ] = False,
) -> Decoder:
    from polydec.models.nets.masked_head import fill_canvas

    read = partial(fill_canvas, steps=steps, policy=policy, reflect=reflect)
    return reading_decoder(kit, "mdiff4str", read)

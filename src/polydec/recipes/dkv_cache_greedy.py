"""Keys and values of all but a small window are kept."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.card import Card
from polydec.methods.kit import Kit

CARD = Card(
    name="dkv-cache-greedy",
    title="dKV-Cache-Greedy",
    summary="Feeds what was written last, the next gap and a few behind it: a handful of positions a pass.",
    kind="refresh",
    family="diffusion",
    guarantee=Exactness.APPROXIMATE,
    source="Ma et al., dKV-Cache: the cache for diffusion language models, 2025",
    reduces_to="left-to-right for every = 1",
    parent="left-to-right",
    home="long canvases",
    published="1.63 times without a cache, 72.25 to 68.23 % right on GSM8K (LLaDA-8B-Instruct, random "
    "order)",
)


def build(
    kit: Kit,
    *,
    width: Annotated[int, AtLeast(0), "gaps behind the next one that are fed with it"] = 4,
    every: Annotated[int, AtLeast(1), "passes of a block after which everything is fed again"] = 2,
    block: Annotated[
        int, AtLeast(0), "positions that are filled before later ones may be (0: all are one block)"
    ] = 32,
) -> Decoder:
    from polydec.families.diffusion.denoising import Denoising
    from polydec.refreshes.window import Window
    from polydec.unmaskers.left_to_right import LeftToRight

    return Denoising(
        kit.denoiser, LeftToRight(), Window(width, every), block, kit.shapers, every == 1
    )

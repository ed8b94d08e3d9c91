"""Several canvases a pass, and the text of one token a pass."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.diffusion.recipes._options import BlockLength, WriteThreshold
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue

CARD = Card(
    name="freedave",
    title="FreeDave",
    aliases=("free-draft-and-verify",),
    arxiv="2510.00294",
    summary="Guesses several passes from one and checks them in the next, side by side: the same text, fewer passes.",
    kind="unmasking",
    family="diffusion",
    guarantee=Exactness.APPROXIMATE,
    source="Wu and Zhang, Free draft-and-verification: toward lossless parallel decoding for diffusion LLMs, 2025",
    reduces_to="fast-dllm of the same threshold and cache, whose text it always writes (without subset)",
    parent="llada",
    home="where a pass over several canvases costs little more than over one",
    published="up to 3.78 times, in a later version up to 2.83 times, without loss (mathematics and code; "
    "Dream, LLaDA, TraDo, SDAR)",
)
PUBLISHED = PublishedPreset(
    {
        "cache": PublishedValue(2, "its dual cache; ours feeds everything, which keeps the text"),
    }
)


def build(
    kit: Kit,
    *,
    drafts: Annotated[int, InRange(1, 64), "canvases of a pass"] = 4,
    threshold: WriteThreshold = 2.0,
    block: BlockLength = 32,
    cache: Annotated[
        int,
        InRange(0, 2),
        "keys and values kept in a block, and shared by its canvases: 0 none, 1 those before it, 2 all others",
    ] = 0,
    eager: Annotated[
        bool, "guess on into the blocks behind the one that is filled (without a cache)"
    ] = False,
    subset: Annotated[
        bool,
        "accept a guess whose tokens are among those that would be written (FreeDave++, with a threshold below 1)",
    ] = False,
) -> Decoder:
    from polydec.methods.diffusion.loop.denoising import DenoisingDecoder
    from polydec.methods.diffusion.loop.free_drafts import FreeDraftDenoising
    from polydec.methods.diffusion.refreshes import refresh_for_cache
    from polydec.methods.diffusion.unmaskers.threshold import ThresholdUnmasker

    refresh = refresh_for_cache(kit.denoiser.block, cache)
    # This decoder decides the text; drafts only save passes.
    base = DenoisingDecoder(
        kit.denoiser, ThresholdUnmasker(threshold), refresh, block, kit.shapers, not cache
    )
    return FreeDraftDenoising(base, drafts, eager, subset)

"""Parts of a block from the left, with a cache of the block."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.diffusion.recipes._options import WriteThreshold
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import BLOCKS, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue

CARD = Card(
    name="fast-dllm-v2",
    title="Fast-dLLM v2",
    arxiv="2509.26328",
    summary="Fills parts of a block-causal model's blocks from the left; keeps finished blocks, and the other parts of one.",
    kind="unmasking",
    family="diffusion",
    guarantee=Exactness.APPROXIMATE,
    source="Wu et al., Fast-dLLM v2: efficient block-diffusion LLM, 2025",
    reduces_to="block-diffusion without `cache` and parts",
    parent="block-diffusion",
    home="block-causal models with long blocks",
    needs=(BLOCKS,),
    published="up to 2.54 times the throughput of Qwen2.5-7B-Instruct (7B)",
)
PUBLISHED = PublishedPreset(
    {
        "rerun": PublishedValue(
            True,
            "the whole block is fed for as long as a part begins with a gap; ours feeds the part alone",
        ),
        "handed": PublishedValue(
            True, "a block's first token comes from the pass that ends the block before it"
        ),
    }
)


def build(
    kit: Kit,
    *,
    threshold: WriteThreshold = 0.9,
    block: Annotated[
        int,
        AtLeast(0),
        "positions of a part of the model's block that is filled first (0: all of it)",
    ] = 8,
    cache: Annotated[bool, "passes of a part, its first one excepted, feed that part alone"] = True,
    rerun: Annotated[
        bool, "but feed the whole block for as long as the part begins with a gap, as published"
    ] = False,
    handed: Annotated[
        bool,
        "a block's first token is written alone, by the pass that finishes the block before it, as published",
    ] = False,
) -> Decoder:
    from polydec.methods.diffusion.loop.denoising import DenoisingDecoder
    from polydec.methods.diffusion.loop.next_block_token import FirstTokenDenoising
    from polydec.methods.diffusion.refreshes.blockwise import BlockwiseRefresh
    from polydec.methods.diffusion.unmaskers.threshold import ThresholdUnmasker

    own = kit.denoiser.block
    # `rerun` counts the positions of a part: all of the block where there are no parts.
    base = DenoisingDecoder(
        kit.denoiser,
        ThresholdUnmasker(threshold),
        BlockwiseRefresh(own, cache, (block or own) if rerun else 0),
        block,
        kit.shapers,
        not cache,
    )
    return FirstTokenDenoising(base) if handed else base

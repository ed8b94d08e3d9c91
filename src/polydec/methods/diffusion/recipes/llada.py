"""Low-confidence remasking."""

from __future__ import annotations

from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.diffusion.recipes._options import (
    BlockLength,
    BlockPasses,
    CacheLevel,
    PromptStrength,
)
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="llada",
    title="Low-confidence remasking",
    aliases=("low-confidence", "maskgit-plus"),
    arxiv="2502.09992",
    summary="Fills a fixed number of gaps a pass, those that the model is surest of, block by block.",
    kind="unmasking",
    family="diffusion",
    guarantee=Exactness.APPROXIMATE,
    source="Nie et al., Large language diffusion models (LLaDA), 2025",
    reduces_to="left-to-right for block = 1; one-shot argmax for block = 0, steps = 1 without chance",
    parent="mdlm",
    home="any text of a masked-diffusion model",
)
PUBLISHED = PublishedPreset()


def build(
    kit: Kit,
    *,
    block: BlockLength = 32,
    steps: BlockPasses = 0,
    guidance: PromptStrength = 0.0,
    cache: CacheLevel = 0,
) -> Decoder:
    from polydec.methods.diffusion.loop.denoising import DenoisingDecoder
    from polydec.methods.diffusion.loop.prompted import PromptGuidedDenoiser
    from polydec.methods.diffusion.refreshes import refresh_for_cache
    from polydec.methods.diffusion.unmaskers.confidence import ConfidenceUnmasker

    # Guidance runs a second canvas, without the prompt, in the same pass.
    denoiser = PromptGuidedDenoiser(kit.denoiser, guidance) if guidance else kit.denoiser
    # Keys and values that a cache keeps are stale: the laws are the model's only without one.
    return DenoisingDecoder(
        denoiser,
        ConfidenceUnmasker(steps),
        refresh_for_cache(kit.denoiser.block, cache),
        block,
        kit.shapers,
        not cache,
    )

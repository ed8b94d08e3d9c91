"""A trained filter says which tokens are right already."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast, InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.diffusion.recipes._options import CacheLevel
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import ArtefactNeed, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue

CARD = Card(
    name="learn2pd",
    title="Learn2PD",
    aliases=("learning-to-parallel-decode",),
    arxiv="2509.25188",
    needs_training=True,
    summary="A small net over the confidences of a block says which tokens are final; cuts the canvas where the text ends.",
    kind="unmasking",
    family="diffusion",
    guarantee=Exactness.APPROXIMATE,
    source="Bao et al., Learning to parallel: accelerating diffusion LLMs via learnable parallel decoding, 2025",
    reduces_to="llada for threshold = 1 without end-of-text prediction",
    parent="fast-dllm",
    home="one kind of text, canvases longer than answers",
    needs=(ArtefactNeed("filter"),),
    published="up to 22.58 times one token a pass without loss of accuracy, 57.51 times with a cache "
    "(LLaDA-8B-Instruct, GSM8K, 1,024 tokens)",
)
PUBLISHED = PublishedPreset(
    {
        "sure": PublishedValue(0.0, "any predicted end cuts the canvas; ours wants it sure"),
    }
)


def build(
    kit: Kit,
    *,
    threshold: Annotated[
        float,
        InRange(0, 1),
        "of the filter: how likely right a token must be to be written at once",
    ] = 0.96,
    ending: Annotated[bool, "cut the canvas where an end is written or surely predicted"] = True,
    sure: Annotated[
        float,
        InRange(0, 1),
        "probability from which a predicted end cuts (0: any does, as released)",
    ] = 0.9,
    spare: Annotated[int, AtLeast(0), "gaps behind that end that stay on the canvas"] = 0,
    cache: CacheLevel = 0,
) -> Decoder:
    from polydec.methods.diffusion.loop.denoising import DenoisingDecoder
    from polydec.methods.diffusion.loop.endings import FullLengthEnding, PredictedEnding
    from polydec.methods.diffusion.loop.known_tokens import BlockTokens, NoKnownTokens
    from polydec.methods.diffusion.refreshes import refresh_for_cache
    from polydec.methods.diffusion.unmaskers.filtered import FilteredUnmasker
    from polydec.models.learned.kinds.filter import ConfidenceFilter

    # Blocks are as long as the filter's input; known tokens show the model's confidence if the
    # filter was trained on it.
    return DenoisingDecoder(
        kit.denoiser,
        FilteredUnmasker(kit.needed_artefact(ConfidenceFilter), threshold),
        refresh_for_cache(kit.denoiser.block, cache),
        kit.needed_artefact(ConfidenceFilter).size,
        kit.shapers,
        not cache,
        PredictedEnding(sure, spare) if ending else FullLengthEnding(),
        BlockTokens() if kit.needed_artefact(ConfidenceFilter).written else NoKnownTokens(),
    )

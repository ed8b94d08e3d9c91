"""Early commit."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.diffusion.recipes._options import BlockLength
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue

CARD = Card(
    name="prophet",
    title="Prophet: early commit",
    aliases=("early-commit",),
    arxiv="2508.19982",
    summary="Fills the surest gaps one a pass, and all the rest at once when the best logits stand clear of the second best.",
    kind="unmasking",
    family="diffusion",
    guarantee=Exactness.APPROXIMATE,
    source="Li et al., Diffusion language models know the answer before decoding (Prophet), 2025",
    reduces_to="llada where no bound is reached",
    parent="llada",
    home="short answers that are known long before the last pass",
    published="up to 3.4 times fewer passes (LLaDA-8B, Dream-7B)",
)
PUBLISHED = PublishedPreset(
    {
        "counted": PublishedValue(
            True,
            "all positions of the answer's place count, written ones too; ours counts what is still to be known",
        )
    },
    unknown="where the answer stands is yours to say (region): without it the release never ends early",
)


def build(
    kit: Kit,
    *,
    early: Annotated[
        float,
        AtLeast(0),
        "mean distance of the best two logits that ends the first third of the passes",
    ] = 7.5,
    middle: Annotated[float, AtLeast(0), "the same, in the second third"] = 5.0,
    late: Annotated[float, AtLeast(0), "the same, in the last third"] = 2.5,
    passes: Annotated[
        int, AtLeast(0), "that an answer is expected to take (0: one for each of max_tokens)"
    ] = 0,
    block: BlockLength = 32,
    region: Annotated[
        int | None,
        AtLeast(0),
        "where the answer stands: its first position, counted from the first gap (none: all gaps up to a predicted end)",
    ] = None,
    span: Annotated[int, AtLeast(1), "positions of the region"] = 5,
    counted: Annotated[
        bool,
        "tokens that stand in the region count too, with the distances that the model gives there, as published",
    ] = False,
) -> Decoder:
    from polydec.methods.diffusion.loop.denoising import DenoisingDecoder
    from polydec.methods.diffusion.refreshes import exact_refresh
    from polydec.methods.diffusion.unmaskers.confidence import ConfidenceUnmasker
    from polydec.methods.diffusion.unmaskers.early_commit import EarlyCommitUnmasker, answer_region

    # The distances are measured anywhere in the canvas, so passes feed all that the model sees.
    unmasker = EarlyCommitUnmasker(
        ConfidenceUnmasker(),
        early,
        middle,
        late,
        passes=passes,
        region=answer_region(region, span),
        counted=counted,
    )
    return DenoisingDecoder(
        kit.denoiser,
        unmasker,
        exact_refresh(kit.denoiser.block),
        block,
        kit.shapers,
        written=unmasker,
    )

"""DoLa."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast, InRange, ValueNote
from polydec.core.protocols import Target
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import LAYERS, Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="dola",
    title="DoLa (decoding by contrasting layers)",
    summary="Favours what the last layer finds likelier than an earlier one: the one that differs most, at each token.",
    kind="steering",
    family="ar",
    guarantee=None,
    source="Chuang et al., DoLa: decoding by contrasting layers improves factuality in large language models, 2023 (published: "
    "head 0.1, and a repetition penalty of 1.2 beside it)",
    reduces_to="greedy decoding at head 1",
    home="questions of fact to models of 7 billion parameters and more",
    needs=(LAYERS,),
    aliases=("contrasting layers",),
    arxiv="2309.03883",
    published="about 12 to 17 points more on TruthfulQA (LLaMA)",
)
PUBLISHED = PublishedPreset(unknown="a repetition penalty of 1.2 beside it is the request's")


def build(
    kit: Kit,
    *,
    upper: Annotated[bool, "contrast with the upper half of the layers, not the lower"] = False,
    every: Annotated[int, AtLeast(1), "a candidate after every so many layers"] = 2,
    head: Annotated[
        float,
        InRange(0, 1),
        ValueNote("0 is off"),
        "least probability, as a fraction of the likeliest token's, that a token must have",
    ] = 0.1,
) -> Target:
    from polydec.laws.contrasts.difference import DifferenceContrast
    from polydec.laws.targets.layered import LayerContrastTarget
    from polydec.methods.economics.depth import candidate_exit_depths

    # log p of the last layer less log p of the candidate layer that differs most from it.
    return LayerContrastTarget(
        kit.target,
        candidate_exit_depths(kit.target.layers, every, upper),
        DifferenceContrast(1.0, 1.0, head),
    )

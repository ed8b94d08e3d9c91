"""The citation blocker of hyperfitted models."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.protocols import Target
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import ArtefactNeed, Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="citation-blocker",
    title="Citation blocker (no run of tokens of the texts that were learned)",
    summary="Bans each token that would complete a run of tokens that stands in counted texts, such as those learned by heart.",
    kind="steering",
    family="ar",
    guarantee=None,
    source="Carlsson et al., The hyperfitting phenomenon: sharpening and stabilizing LLMs for open-ended text generation, "
    "2024 (length: our choice, 5 tokens by what `polydec train hyperfit --citations 5` counts)",
    reduces_to="no steering where no run of the text was counted",
    home="models that know texts by heart, or whatever must not be copied word for word, with a table of counts",
    needs=(ArtefactNeed("ngram-counts"),),
    aliases=("citations", "hyperfitting"),
    arxiv="2412.04318",
)
PUBLISHED = PublishedPreset(
    unknown="how long a citation is is not said there, and is as your table was counted"
)


def build(
    kit: Kit,
    *,
    length: Annotated[
        int | None,
        InRange(2, 9),
        "tokens in a row that must not be copied, none: one more than the table's longest context",
    ] = None,
) -> Target:
    from polydec.laws.shapers.citations import CitationRule
    from polydec.laws.targets.shaped import ShapedTarget
    from polydec.models.learned.kinds.ngram_counts import NgramCounts

    table = kit.needed_artefact(NgramCounts)
    return ShapedTarget(kit.target, CitationRule(table, length or table.order + 1))

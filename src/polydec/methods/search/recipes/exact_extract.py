"""Exact extraction."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="exact-extract",
    title="Exact extraction",
    summary="Scores every span of a passage (or every text that a constraint allows) and answers with the most probable one.",
    kind="search",
    family="ar",
    guarantee=Exactness.APPROXIMATE,
    source="Castel et al., How optimal is greedy decoding for extractive question answering?, 2021",
    reduces_to="scoring all texts of the constraint one by one; without a constraint, all spans of the prompt",
    parent="beam",
    home="answers that stand in a passage, labels: a fixed set of texts",
    aliases=("exact extraction", "span extraction", "label scoring"),
    arxiv="2108.05857",
    published="71.4 F1 on SQuAD without examples, for a model that was trained to select spans",
)
PUBLISHED = PublishedPreset()


def build(
    kit: Kit,
    *,
    width: Annotated[int, InRange(1, 1024), "most answers (n) that can be asked for"] = 16,
) -> Decoder:
    from polydec.laws.targets.search_target import drop_greedy_rule
    from polydec.laws.targets.unconstrained import drop_constraint_rule
    from polydec.methods.search.loop.likeliest import LikeliestTextSearch

    # The search follows the language itself, and compares texts under the law that no mask
    # renormalises.
    return LikeliestTextSearch(
        drop_greedy_rule(drop_constraint_rule(kit.target)), kit.language, width
    )

"""Decoding with response aggregation."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange, ValueNote
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue
from polydec.methods.search.recipes._options import AnswerMark, TextCount

CARD = Card(
    name="drag",
    title="Decoding with response aggregation",
    summary="Draws several answers and says as much as they agree in: the month where they differ in the day, or that it does "
    "not know.",
    kind="rollouts",
    family="ar",
    guarantee=Exactness.APPROXIMATE,
    source="Yona et al., Narrowing the knowledge evaluation gap: open-domain question answering with multi-granularity "
    "answers, 2024 (there a language model aggregates: `ask`; without it rules for dates, numbers and places)",
    reduces_to="plain at one try",
    parent="self-consistency",
    home="questions after dates, numbers and places that the model knows roughly",
    aliases=("granola", "response-aggregation", "granola-qa"),
    arxiv="2401.04695",
    published="about 20 points more accuracy than greedy decoding, counted at several granularities",
)
PUBLISHED = PublishedPreset(
    {
        "ask": PublishedValue(
            "\\nSeveral answers were given:\\n{answers}\\nThe most specific answer that all of them agree with, or "
            '"I don\'t know" if they have nothing in common:',
            "a language model says what the answers agree in; ours are rules, as small models cannot be asked",
        )
    },
    unknown="the wording of its prompt, how many answers it draws and how hot could not be read, and are ours",
)


def build(
    kit: Kit,
    *,
    tries: TextCount = 5,
    share: Annotated[
        float, InRange(0.01, 1.0), "of them that a statement must be supported by"
    ] = 0.5,
    mark: AnswerMark = "",
    within: Annotated[
        str,
        ValueNote("none: no places are known"),
        "what lies within what: 'Lyon < France; France < Europe'",
    ] = "",
    unknown: Annotated[str, "what is said where they agree in nothing"] = "I don't know",
    ask: Annotated[
        str,
        ValueNote("\\n: a line break; {answers}: the answers, a line each; none: rules speak"),
        "what the model itself is asked to say what they agree in",
    ] = "",
    years: Annotated[
        bool | None,
        "whether bare numbers from 1000 to 2999 may be years; none: where the prompt asks when something was",
    ] = None,
) -> Decoder:
    from polydec.laws.targets.search_target import drop_greedy_rule
    from polydec.methods.search.loop.common_statement import AnswerAgreement, parse_name_hierarchy
    from polydec.methods.search.loop.drag import ResponseAggregationSearch
    from polydec.methods.search.loop.plain_texts import undrafted_method

    # Texts are drawn without drafts, one token a pass. The greedy rule is dropped: at temperature 0
    # it leaves one text, and there is nothing to aggregate.
    method = undrafted_method(drop_greedy_rule(kit.target))
    asked = ask.replace("\\n", "\n")
    return ResponseAggregationSearch(
        method,
        AnswerAgreement(share, parse_name_hierarchy(within)),
        tries,
        mark,
        unknown,
        asked,
        kit.context,
        years,
    )

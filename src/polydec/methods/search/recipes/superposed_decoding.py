"""Superposed decoding."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import GreaterThan, InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import STATES, Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue

CARD = Card(
    name="superposed-decoding",
    title="Superposed decoding",
    summary="Writes several texts with one pass a token: the model reads a mixture of their last tokens.",
    kind="search",
    family="ar",
    guarantee=Exactness.APPROXIMATE,
    source="Shen et al., Superposed decoding: multiple generations from a single autoregressive inference pass, 2024 "
    "(published: 3 texts, alpha 0.54, temperature 0.06, 9 tokens kept)",
    reduces_to="greedy decoding at width 1 and alpha 0",
    parent="beam",
    home="several short suggestions (--n) for the price of one; with an n-gram table",
    aliases=("superposed",),
    arxiv="2405.18400",
    needs=(STATES,),
    published="at least 2.44 times faster than three and more separate texts (Llama-2-7B)",
)
PUBLISHED = PublishedPreset(
    {
        "interpolated": PublishedValue(
            True,
            "contexts of 1 to 5 tokens are added up with fixed weights; ours takes the longest",
        ),
        "as_counted": PublishedValue(
            True,
            "every continuation counts as often as it was seen; our usual table holds the likeliest ones, discounted",
        ),
        "late": PublishedValue(
            True,
            "ends are looked for among 2 x width pairs, up to the last token; ours stops sooner",
        ),
    },
    unknown="its tables were counted in 100,000 documents or more, of RedPajama, and yours are what you count",
)


def build(
    kit: Kit,
    *,
    width: Annotated[int, InRange(1, 64), "texts that are kept"] = 3,
    temperature: Annotated[float, GreaterThan(0), "of the shared law"] = 0.06,
    kept: Annotated[
        int,
        InRange(1, 4096),
        "likeliest tokens that may follow: at least width, at most all there are",
    ] = 9,
    alpha: Annotated[
        float | None,
        InRange(0, 1),
        "share of the n-gram table in a score, none: 0.54, or 0 where there is no table",
    ] = None,
    interpolated: Annotated[
        bool,
        "the table's contexts of 1 to 5 tokens are added up and unknown tokens dropped, as published; else the longest counts",
    ] = False,
    as_counted: Annotated[
        bool,
        "take a table of every continuation as it was counted (--with DIR of `polydec train ngrams --order 5 "
        "--as-counted`), as published",
    ] = False,
    late: Annotated[
        bool,
        "a text may end among the best 2 x width pairs, and the search goes on to the last token, as published",
    ] = False,
) -> Decoder:
    from polydec.laws.targets.search_target import drop_greedy_rule
    from polydec.methods.search.loop.superposed import LEVELS, SuperposedSearch
    from polydec.models.learned.kinds.ngram_counts import NgramCounts
    from polydec.models.learned.kinds.ngrams import NGrams

    # Without a table the law alone tells the texts apart.
    table = kit.needed_artefact(NgramCounts) if as_counted else kit.find_artefact(NGrams)
    levels = LEVELS if interpolated else ()
    return SuperposedSearch(
        drop_greedy_rule(kit.target), width, temperature, kept, alpha, table, levels, late
    )

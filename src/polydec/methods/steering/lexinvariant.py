"""A table of embeddings for each request."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange, ValueNote
from polydec.core.protocols import Target
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import PLAIN_PROMPT, Kit
from polydec.methods.registry.published_presets import PublishedPreset

CARD = Card(
    name="lexinvariant",
    title="Lexinvariant (a table of embeddings for each request)",
    summary="Deals the rows of the embedding table to the tokens anew for each request, by its seed, and takes the mean over "
    "several such tables.",
    kind="steering",
    family="ar",
    guarantee=None,
    source="Huang et al., Lexinvariant language models, 2023 (there rows are drawn anew; here the drawn rows of the "
    "directory are dealt anew)",
    reduces_to="no steering at tables 0",
    needs=(PLAIN_PROMPT,),
    home="models of `polydec train words --kind lexinvariant`, for which no symbol means anything before the text",
    aliases=("random embedding tables", "renamed symbols"),
    arxiv="2305.16349",
)
PUBLISHED = PublishedPreset(
    refused="published tables are drawn anew for each text; here the drawn rows of one table are dealt anew"
)


def build(
    kit: Kit,
    *,
    tables: Annotated[
        int, InRange(0, 64), ValueNote("0 changes nothing"), "tables whose laws are averaged"
    ] = 1,
) -> Target:
    from polydec.laws.targets.renamed import mean_of_renamings

    return mean_of_renamings(kit.target, kit.seed, tables)

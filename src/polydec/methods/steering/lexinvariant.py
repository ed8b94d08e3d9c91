"""A table of embeddings for each request."""

from __future__ import annotations

from typing import Annotated

from polydec.base.errors import RequestError
from polydec.base.options import InRange, ValueNote
from polydec.core.protocols import Target
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
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
    from polydec.laws.contrasts.mixture import MixtureContrast
    from polydec.laws.targets.contrast import ContrastTarget
    from polydec.laws.targets.renamed import RenamedTarget, deal_names

    # Vectors of a prompt stand for tokens of their own, which have no name.
    if not kit.prompt:
        raise RequestError(
            "steering lexinvariant renames the tokens of the prompt: vectors have no name"
        )
    law = kit.target
    for number in range(tables):
        named = RenamedTarget(kit.target, deal_names(kit.target.vocab, kit.seed, number))
        # The k-th of k laws has a share of 1 / k, so all of them weigh the same.
        law = (
            named
            if not number
            else ContrastTarget(law, (named,), MixtureContrast(1 / (number + 1)))
        )
    return law

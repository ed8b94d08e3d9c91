"""A law behind a prompt whose tokens are merged: what stands together often is read as one vector
(dynamic tokenization)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.protocols import Target
from polydec.laws.targets.soft_prompt import SoftPromptTarget
from polydec.models.sessions.soft import make_soft_tokens
from polydec.models.text.token_merges import TokenMerger


class TokenUnitEncoder(Protocol):
    """Make the vectors of units (models/learned/kinds/hypernetwork.py)."""

    @property
    def longest_unit(self) -> int: ...
    def unit_vector(self, unit: Sequence[int], part_KH: Tensor) -> Tensor:
        """Make the vector of one unit.

        Args:
            unit: Its token ids.
            part_KH: What enters the model for them, shape ``[K, H]``.

        Returns:
            The vector, shape ``[H]``.
        """
        ...


def merge_prompt_tokens(
    target: Target, prompt: Sequence[int], encoder: TokenUnitEncoder, share: float, boundary: str
) -> SoftPromptTarget:
    """Show a target a prompt in which neighbouring tokens are merged, each merged unit as one
    vector (dynamic tokenization).

    The merges are those of this prompt alone, so they are the same in any company. The prompt's
    last token stays as it is: it is what the first pass foretells from. Tokens that are not merged
    keep their own embeddings. Whoever reads words is given the prompt.

    Exact: the law of `target` behind these vectors.
    Reduces to: `target` at share 0, or where no pair may be merged.
    Source: Feher, Vulić and Minixhofer, "Retrofitting large language models with dynamic
    tokenization" (2024).

    Args:
        target: The law to read.
        prompt: Token ids of the prompt.
        encoder: Makes the vectors of units.
        share: Part of the way to as few units as the boundary allows, 0 to 1.
        boundary: What a unit may hold, a name of `models.text.token_merges.BOUNDARIES`.

    Returns:
        The target behind the shortened prompt.

    Raises:
        RequestError: What the tokens stand for is not known.
    """
    words = target.vocab.words
    if words is None or not any(words.pieces):
        raise RequestError(
            "tokens cannot be merged: what bytes the tokens of this model's tokenizer stand for is not known"
        )
    merger = TokenMerger(words.pieces, boundary, encoder.longest_unit)
    # The first pass feeds the last token by itself, so it cannot be part of a unit.
    (units,) = merger.merge_by_share([prompt[:-1]], share)
    # `instead`: the ids that are read. `rows`: for each token of the prompt the place in `instead`
    # at which its row is read: that of its unit.
    instead = list[int]()
    rows = list[int]()
    # Opened only to look up embeddings; nothing is fed in it.
    session = target.open_session((prompt[-1],))
    try:
        for unit in units:
            # All tokens of a unit share one row: the law inside a unit is that behind all of it.
            rows += [len(instead)] * len(unit)
            if len(unit) == 1:
                instead += unit
            else:
                state_H = encoder.unit_vector(unit, session.embed_tokens(unit))
                instead += make_soft_tokens(
                    state_H[None], target.vocab.size, len(state_H), "a merged token"
                )
    finally:
        session.close()
    return SoftPromptTarget(target, tuple(prompt), (*instead, prompt[-1]), tuple(rows))

"""The card of a recipe: its name, paper, needs and promises."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from polydec.core.types import Exactness
from polydec.methods.registry.kit import (
    ANY_DRAFT,
    DRAFT,
    MASKED_DRAFT,
    PATCH_DRAFT,
    SMALLER_DRAFT,
    KitNeed,
)

PROMISE_WORDS: Mapping[Exactness | None, str] = MappingProxyType(
    {
        Exactness.LAW: "same distribution as {}",
        Exactness.ARGMAX: "same greedy text as {}",
        Exactness.APPROXIMATE: "changes the text",
        None: "",
    }
)
"""What a method promises, for those who do not know the promise's name."""


def promise_in_words(kept: Exactness | None, family: str) -> str:
    """Say what a method keeps, in words that need no explanation.

    Args:
        kept: What it keeps; None: that cannot be said.
        family: The family of the method.

    Returns:
        The words; "" where nothing can be said.
    """
    # Plain decoding goes from left to right: other families have only their model to be held to.
    return PROMISE_WORDS[kept].format("plain" if family in ("ar", "any") else "the model")


@dataclass(frozen=True)
class Card:
    """One published method (or a plain composition).

    name: the file's, with hyphens; aliases: other names that people look for it by (the paper's,
    another library's, an earlier one of ours); arxiv: the paper's number there, "" where it has
    none; kind: "draft-and-verify", "unmasking", "insertion", "sampler", "search" (the n best
    texts), "rollouts" (of several drawn texts one), "routing" (two models share out the steps),
    "reading" (an image, by a network of its own), "drawing" (a picture of vectors),
    "constraint", "refresh", "steering" or "press"; family: "ar", "diffusion", "insertion", "patches" or "any";
    guarantee: what it promises, None where that cannot be said; needs: what a kit must hold,
    checked before anything runs; source: authors, paper, year; reduces_to: which simpler method it
    equals, and when; parent: the method that it must beat, at home: the workload where; published:
    what its paper (or somebody else's measurement that is named) reports, with model and setting,
    "" where no figure is known; unexercised: of a method that never drafts, or whose drafts are
    never accepted or never rejected, by that word ("drafted", "accepted", "rejected") one sentence
    that says why: an enumeration of its law fails where such a thing never happens and no reason is
    given; shows_masks: whether an answer may have masks of the prompt's image beside its text.
    """

    name: str
    title: str
    summary: str
    kind: str
    family: str
    guarantee: Exactness | None
    source: str
    reduces_to: str
    parent: str | None = None
    home: str = ""
    aliases: tuple[str, ...] = ()
    arxiv: str = ""
    needs: tuple[KitNeed, ...] = ()
    needs_training: bool = False
    published: str = ""
    unexercised: Mapping[str, str] = field(default_factory=dict[str, str])
    shows_masks: bool = False

    @property
    def needs_draft(self) -> bool:
        """Whether it decodes with a draft model."""
        kinds = (DRAFT, ANY_DRAFT, SMALLER_DRAFT, MASKED_DRAFT, PATCH_DRAFT)
        return any(need in self.needs for need in kinds)

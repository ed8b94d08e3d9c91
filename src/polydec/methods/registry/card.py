"""The card of a recipe: its name, paper, needs and promises."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from polydec.core.types import Exactness
from polydec.methods.registry.kit import ANY_DRAFT, DRAFT, MASKED_DRAFT, KitNeed


@dataclass(frozen=True)
class Card:
    """One published method (or a plain composition).

    Attributes:
        name: Name of the file, with hyphens.
        title: Name for people.
        summary: One sentence that says what it does.
        kind: "draft-and-verify", "unmasking", "insertion", "sampler", "search" (the n best texts),
            "rollouts" (of several drawn texts one), "routing" (two models share out the steps),
            "constraint", "refresh", "steering" or "press".
        family: Models that it decodes: "ar", "diffusion", "insertion" or "any".
        guarantee: What it promises of its text; None where that cannot be said.
        source: Authors, paper, year.
        reduces_to: Which simpler method it equals, and when.
        parent: Method that it must beat, on the workload `home`; None where there is none.
        home: The workload where it pays.
        aliases: Other names that people look for it by (the paper's, another library's, an earlier
            one of ours).
        arxiv: The paper's number there; "" where it has none.
        needs: What a kit must hold; checked before anything runs.
        needs_training: Whether something has to be trained for it.
        published: What its paper (or somebody else's measurement that is named) reports, with model
            and setting; "" where no figure is known.
        unexercised: For a method that never drafts, or whose drafts are never accepted or never
            rejected, by that word ("drafted", "accepted", "rejected") one sentence that says why.
            An enumeration of its law fails where such a thing never happens and no reason is given.
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

    @property
    def needs_draft(self) -> bool:
        """Whether it decodes with a draft model."""
        return any(need in self.needs for need in (DRAFT, ANY_DRAFT, MASKED_DRAFT))

"""What a recipe says of itself."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from polydec.core.types import Exactness


@dataclass(frozen=True)
class Card:
    """One published method (or a plain composition).

    name: the file's, with hyphens; kind: "draft-and-verify", "unmasking", "sampler", "search", "constraint" or "refresh";
    family: "ar", "diffusion" or "any"; guarantee: what it promises, None where that cannot be said; needs: "draft" and the
    like; same_tokenizer: whether that must have the target's; source: authors, paper, year; reduces_to: which simpler method
    it equals, and when; parent: the method that it must beat, at home: the workload where; options: one line of help for
    each parameter of `build`.
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
    needs: tuple[str, ...] = ()
    needs_training: bool = False
    same_tokenizer: bool = True
    options: Mapping[str, str] = field(default_factory=dict[str, str])

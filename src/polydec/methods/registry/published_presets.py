"""What a method's paper sets: the preset `published=true` of its options, with a reason for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from polydec.base.options import Option, callable_options

PRESET_FLAG = "published"
"""The option that takes the preset."""


@dataclass(frozen=True)
class PublishedValue:
    """One option as its paper has it.

    Attributes:
        value: Of the option, typed.
        why: What the paper says, and why our default is another.
    """

    value: Any
    why: str


@dataclass(frozen=True)
class PublishedPreset:
    """Where a recipe's defaults differ from its paper. Beside the recipe as PUBLISHED; without one
    nobody has read the paper against the options yet.

    Attributes:
        settings: By the name of an option; options that are not named are as published.
        unknown: What the paper sets and could not be read, so that it stays ours; "" where there is
            no such thing.
        refused: Why the preset cannot be had, as the end of a sentence: a part is not built, or
            nothing is named as the one setting; "" where it can.
    """

    settings: Mapping[str, PublishedValue] = field(default_factory=dict[str, PublishedValue])
    unknown: str = ""
    refused: str = ""

    @property
    def preset_sentence(self) -> str:
        """In a sentence what the preset does."""
        if self.refused:
            return f"published=true is refused: {self.refused}"
        if self.settings:
            options = ", ".join(self.settings)
            said = f"published=true sets {options}"
        elif self.unknown:
            said = "published=true changes nothing"
        else:
            said = "the defaults are the published ones"
        if self.unknown:
            return f"{said}; {self.unknown}"
        return said


def _published_flag(
    *, published: Annotated[bool, "everything that the paper sets, as the paper has it"] = False
) -> None:
    """Declares the option as a recipe declares its own."""


PRESET_OPTION: Option = callable_options(_published_flag)[0]

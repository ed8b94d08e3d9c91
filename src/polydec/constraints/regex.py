"""A regular expression."""

from __future__ import annotations

import re
from dataclasses import dataclass

from polydec.constraints import guidance
from polydec.core.types import Vocab
from polydec.edge import sentence
from polydec.options import shown

LONGEST = 100_000
"""Characters of an expression."""


@dataclass(frozen=True)
class Regex:
    """The whole answer matches `pattern`, in the syntax of Rust's regex crate without look-around and back references."""

    pattern: str

    def __post_init__(self) -> None:
        if not isinstance(self.pattern, str) or not 1 <= len(self.pattern) <= LONGEST:  # pyright: ignore
            raise ValueError(
                f"regex is {shown(self.pattern)}: it must be a text of 1 to {LONGEST} characters"
            )

    def language(self, vocab: Vocab, ends: frozenset[int]) -> guidance.Grammar:
        lark = guidance.library().regex_to_lark(self.pattern, "")
        try:
            return guidance.grammar(f"start: /{lark}/", vocab, ends)
        except guidance.Malformed as error:
            raise ValueError(
                sentence(f"regex is {shown(self.pattern)}: {said(str(error))}")
            ) from None


def said(problem: str) -> str:
    """The library's complaint about an expression, with the place of what it marks by an underline."""
    mark = re.search(r"^( +)\^", problem, re.MULTILINE)
    why = re.search(r"^\s*error: (.*)$", problem, re.MULTILINE)
    if mark is None or why is None:
        return guidance.first_line(problem)
    return f"{why[1]} at character {max(0, len(mark[1]) - 4)}"  # the expression is indented by four spaces

"""A regular expression."""

from __future__ import annotations

from dataclasses import dataclass

from polydec.base.edge import whole_text
from polydec.base.errors import RequestError
from polydec.base.options import short_repr
from polydec.core.types import TokenVocabulary
from polydec.laws.constraints import guidance
from polydec.laws.constraints.expressions import Expression, parse_expression

LONGEST = 100_000
"""Characters of an expression."""


@dataclass(frozen=True)
class Regex:
    """The whole answer matches `pattern`, in the syntax of Rust's regex crate without look-around
    and back references.
    """

    pattern: str

    def __post_init__(self) -> None:
        if not isinstance(self.pattern, str) or not 1 <= len(self.pattern) <= LONGEST:  # pyright: ignore
            raise RequestError(
                f"regex is {short_repr(self.pattern)}: it must be a text of 1 to {LONGEST} characters"
            )
        whole_text(self.pattern, "regex")

    def regular_expression(self) -> Expression:
        """The expression as it was read. Raises RequestError, with the place, for what is not supported."""
        return parse_expression(self.pattern)

    def token_language(
        self, vocab: TokenVocabulary, ends: frozenset[int]
    ) -> guidance.GrammarLanguage:
        """Compile the expression for a vocabulary.

        Args:
            vocab: The vocabulary, with its tokenizer.
            ends: Token ids that may end an answer, at least one.

        Returns:
            The language.

        Raises:
            RequestError: The expression is malformed, too complex, or holds no text.
        """
        called = f"regex is {short_repr(self.pattern)}"
        return guidance.compile_language("regex", self.pattern, called, vocab, ends)

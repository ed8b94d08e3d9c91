"""A context-free grammar."""

from __future__ import annotations

from dataclasses import dataclass

from polydec.base.edge import whole_text
from polydec.base.errors import RequestError
from polydec.base.options import short_repr
from polydec.core.types import TokenVocabulary
from polydec.laws.constraints import guidance

LONGEST = 1_000_000
"""Characters of a grammar."""


@dataclass(frozen=True)
class LarkGrammar:
    """The whole answer is derived from the rule `start` of a grammar in Lark's form (as llguidance
    reads it: terminals in capitals or quotes, /regular expressions/, %json {a schema}, %ignore).

    A rule that only ever leads to itself has no text. Where `start` is such a rule the grammar is
    refused, and so is one that names tokens (`<|end|>`, `<[10]>`): a constraint is about text.
    """

    text: str

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not 1 <= len(self.text) <= LONGEST:  # pyright: ignore
            raise RequestError(
                f"grammar is {short_repr(self.text)}: it must be a text of 1 to {LONGEST} characters"
            )
        whole_text(self.text, "grammar")

    def token_language(
        self, vocab: TokenVocabulary, ends: frozenset[int]
    ) -> guidance.GrammarLanguage:
        """Compile the grammar for a vocabulary.

        Args:
            vocab: The vocabulary, with its tokenizer.
            ends: Token ids that may end an answer, at least one.

        Returns:
            The language.

        Raises:
            RequestError: The grammar is malformed, refused, or holds no text.
        """
        return guidance.compile_lark_language(self.text, vocab, ends)

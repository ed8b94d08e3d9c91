"""llguidance as it is used here: with which limits, and over which tokens. Nothing else is loaded with it."""

from __future__ import annotations

import re
from typing import Any

from polydec.base.errors import MissingError, RequestError
from polydec.laws.constraints import pieces

PLAIN = '%llguidance {"no_forcing": true}\n'
"""Else masks would hold the tokenizer's own spelling only wherever the bytes that come are known.
"""

STATES = 50_000
"""Of a lexer, one or two kilobytes each: they are made while an answer is written, and what needs
more is given up there.
"""


class MalformedGrammarError(RequestError):
    """What the library says of a grammar, with the place in it."""


def require_llguidance() -> Any:
    """The library. Raises MissingError where it is not installed."""
    try:
        import llguidance
    except ImportError:
        raise MissingError(
            "regex, JSON schema and grammar constraints need llguidance: pip install 'polydec[grammar]'"
        ) from None
    return llguidance


def build_guidance_tokenizer(spelled: tuple[bytes | None, ...], ends: tuple[int, ...]) -> Any:
    """Build the library's table of tokens.

    Args:
        spelled: The bytes of every id; None: it writes nothing.
        ends: Token ids that end a text, at least one.

    Returns:
        The table (an `LLTokenizer`).
    """
    wrapped = require_llguidance().TokenizerWrapper(_GuidanceTokenTable(spelled, ends))
    return require_llguidance().LLTokenizer(wrapped, n_vocab=len(spelled), eos_token=list(ends))


def compile_grammar_matcher(tokens: Any, lark: str) -> Any:
    """Compile a grammar.

    Args:
        tokens: Table of the tokens, from `build_guidance_tokenizer`.
        lark: The grammar in the library's form of Lark.

    Returns:
        A matcher in front of the first token.

    Raises:
        MalformedGrammarError: The library refuses the grammar.
    """
    limits = require_llguidance().LLParserLimits(verbose_errors=False, max_lexer_states=STATES)
    compiled = require_llguidance().LLMatcher(tokens, PLAIN + lark, log_level=0, limits=limits)
    if compiled.is_error():
        raise MalformedGrammarError(compiled.get_error())
    return compiled


class _GuidanceTokenTable:
    """The tokens, as the library asks for them."""

    def __init__(self, spelled: tuple[bytes | None, ...], ends: tuple[int, ...]) -> None:
        self.tokens = [p or b"" for p in spelled]
        self.special_token_ids = [i for i, p in enumerate(spelled) if p is None]
        self.eos_token_id = ends[0]
        self.bos_token_id = None
        self._ids, self._longest = pieces.by_bytes(spelled)

    def __call__(self, text: bytes | str) -> list[int]:
        """The longest token first, as far as there is one. Nobody reads this: spellings are the
        drafter's.
        """
        if isinstance(text, str):
            rest = text.encode()
        else:
            rest = text
        # Greedy: the longest token that fits, again and again.
        out = list[int]()
        while rest:
            fit = next(
                (n for n in range(min(self._longest, len(rest)), 0, -1) if rest[:n] in self._ids), 0
            )
            if not fit:
                break
            out.append(self._ids[rest[:fit]][0])
            rest = rest[fit:]
        return out


def first_line(problem: str) -> str:
    """What the library says, in one line: its message without the drawing of where that is."""
    # Lines that draw the place (numbers, bars, arrows) are left out.
    lines = [re.sub(r"^error: ", "", x.strip()) for x in problem.splitlines()]
    sentences = [x for x in lines if x and not re.match(r"^(\d+ \||\^|\|)|regex parse error:$", x)]
    return " ".join(" ".join(sentences).split()).removesuffix(" <non-verbose/>")

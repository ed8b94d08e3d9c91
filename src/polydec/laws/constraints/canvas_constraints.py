"""Constraints of a canvas: what a regular expression, a choice or a JSON schema means where tokens
are written in any order."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Protocol, cast

from polydec.base.errors import RequestError
from polydec.core.types import TokenVocabulary
from polydec.laws.constraints import pieces
from polydec.laws.constraints.byte_automaton import compile_expression
from polydec.laws.constraints.expressions import Expression, parse_expression
from polydec.laws.constraints.token_automaton import TokenAutomaton, compile_token_automaton


class RegularConstraint(Protocol):
    """A constraint whose texts are those of a regular expression."""

    def regular_expression(self) -> Expression:
        """Its texts. Raises RequestError, with the place, for what no regular expression says."""
        ...


def compile_canvas_constraint(
    constraint: Any,
    vocab: TokenVocabulary,
    ends: frozenset[int],
    forbidden: frozenset[int] = frozenset(),
) -> TokenAutomaton:
    """Make the automaton of a constraint over a vocabulary. It is remembered.

    Args:
        constraint: The constraint.
        vocab: The vocabulary, with its tokenizer.
        ends: Token ids that may end an answer; none of them: it ends where the canvas does.
        forbidden: Token ids that are never written. Default: none.

    Returns:
        The automaton.

    Raises:
        RequestError: It is not regular, malformed or too large, or no tokens spell a text of it.
    """
    if not hasattr(constraint, "regular_expression"):
        raise RequestError(
            f"constraint is a {type(constraint).__name__}: a masked-diffusion model writes in any order, and only a "
            "regular expression, a choice or a JSON schema without recursion says what fits between what is "
            "written, so take one of these"
        )
    spelled = pieces.token_byte_pieces(vocab, ends)
    return _compiled(cast(RegularConstraint, constraint), spelled, ends, forbidden)


@lru_cache(maxsize=32)
def _compiled(
    constraint: RegularConstraint,
    spelled: tuple[bytes | None, ...],
    ends: frozenset[int],
    forbidden: frozenset[int],
) -> TokenAutomaton:
    texts = compile_expression(constraint.regular_expression(), "constraint")
    return compile_token_automaton(texts, spelled, ends, "constraint", forbidden)


def compile_gap_pattern(
    pattern: str, vocab: TokenVocabulary, forbidden: frozenset[int] = frozenset()
) -> TokenAutomaton:
    """Make the automaton of what may fill one gap of a text. It is remembered.

    Args:
        pattern: A regular expression, which the whole gap must match.
        vocab: The vocabulary, with its tokenizer.
        forbidden: Token ids that are never written. Default: none.

    Returns:
        The automaton.

    Raises:
        RequestError: It is malformed or too large, or no tokens spell a text of it.
    """
    return _compiled_gap(pattern, pieces.token_byte_pieces(vocab, frozenset()), forbidden)


@lru_cache(maxsize=64)
def _compiled_gap(
    pattern: str, spelled: tuple[bytes | None, ...], forbidden: frozenset[int]
) -> TokenAutomaton:
    called = f"infill has a gap of {pattern[:60]!r}"
    texts = compile_expression(parse_expression(pattern, "the pattern of a gap"), called)
    return compile_token_automaton(texts, spelled, (), called, forbidden)

"""The seams: what is asked, and the language that it means to one vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from polydec.core.types import TokenVocabulary

if TYPE_CHECKING:
    from torch import Tensor

S = TypeVar("S")


class TokenLanguage(Protocol[S]):
    """A set of texts, said token by token from the first token of the answer.

    States are values: a step changes none, so any number of drafts can go on from one. `next_state` is
    total: behind a token that is not allowed lies a state from which nothing is. A token that ends
    the answer is allowed where the text is complete, and nothing is behind it.

    A language that knows by which bytes its texts end soonest may have a method `closing_bytes`, of a state
    as `forced_bytes` is: a way out (`LegalEndings`) then follows it.
    """

    @property
    def finite(self) -> bool:
        """Whether there are finitely many texts, each of few tokens."""
        ...

    def start_state(self) -> S: ...
    def next_state(self, state: S, token: int) -> S:
        """Advance the state by one token of the answer.

        Args:
            state: State behind the answer so far.
            token: Token id that follows.

        Returns:
            The state behind the longer answer; from the state behind a token that is not allowed,
            nothing is allowed.
        """
        ...

    def allows_token(self, state: S, token: int) -> bool:
        """Tell whether the text may go on with a token (or end with it). It costs less than a mask.

        Args:
            state: State behind the answer so far.
            token: Token id.

        Returns:
            True where it may.
        """
        ...

    def token_mask(self, state: S) -> Tensor:
        """Of every token whether it is allowed: bool, V."""
        ...

    def forced_bytes(self, state: S) -> bytes:
        """Bytes with which every allowed text goes on, as many as are known; none where it may end
        here.
        """
        ...


class OutputConstraint(Protocol):
    """What a user asks for, as a value."""

    def token_language(self, vocab: TokenVocabulary, ends: frozenset[int]) -> TokenLanguage[Any]:
        """Make the language that the constraint means to a vocabulary.

        Args:
            vocab: The vocabulary, with its tokenizer.
            ends: Token ids that may end an answer, at least one.

        Returns:
            The language.

        Raises:
            PolydecError: The constraint is malformed, not supported, or holds no text; the sentence
                says where.
        """
        ...

"""Answers that come to a legal end before their tokens run out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from polydec.base.errors import PolydecError, RequestError
from polydec.laws.constraints.legal_endings import LegalEndings
from polydec.laws.constraints.protocols import TokenLanguage

ROOM = 24
"""Tokens that are left beside a way out when it is taken, at least, and a quarter of all that
there may be at most. In between as many as the whole text needs: one token may lengthen the way out
by another such text in a list, and such tokens are not looked for one by one.
"""
AGAIN = 8
"""Where no way out was short enough, it is looked for again after so many tokens."""
LONGEST = 600
"""Tokens of a way out at most."""


class DeadlineState:
    """The state behind some tokens.

    Args:
        inner: State of the language itself.
        used: Tokens so far.
        look: At how many tokens a way out is looked for.
        out: The way out that is being taken. None: none is. It is looked for when somebody first
            asks.
    """

    __slots__ = ("inner", "look", "out", "used")

    def __init__(
        self, inner: Any, used: int, look: int, out: tuple[int, ...] | None = None
    ) -> None:
        self.inner = inner
        self.used = used
        self.look = look
        self.out = out


DEAD = DeadlineState(None, 0, 0, ())


@dataclass(frozen=True, eq=False)
class DeadlineLanguage:
    """The texts of `inner` that end within `most` tokens, the end included, as far as a way out is
    found.

    A way out is some tokens that lead from a text to a legal end. While there is time, everything
    is allowed that `inner` allows; when there is hardly more left than the way out takes, its
    tokens are the only ones.

    It is looked for ever more often the nearer the end is, and by a rule of thumb (`LegalEndings`):
    it need not be the shortest, and where none is found that fits, nothing is forced, and the
    answer may be cut as it would have been.

    Reduces to: `inner` where there is time enough.
    Source: own; the mask that it bends, as in Willard and Louf, "Efficient guided generation for
    large language models", 2023.

    Attributes:
        inner: The language.
        most: Most tokens of an answer.
        ways: Finds ways out, for one vocabulary.
        ends: Token ids that end an answer, as `inner` has them.
        known: What ends strings, as `LegalEndings.way_out` found it; it is added to.
    """

    inner: TokenLanguage[Any]
    most: int
    ways: LegalEndings
    ends: tuple[int, ...]
    known: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    """What ends strings: see `LegalEndings.way_out`."""

    @property
    def finite(self) -> bool:
        return self.inner.finite

    def start_state(self) -> DeadlineState:
        return self.state_after_thinking(0)

    def state_after_thinking(self, used: int) -> DeadlineState:
        """The state at a text before which so many tokens of the answer stand."""
        return DeadlineState(self.inner.start_state(), used, used)

    def next_state(self, state: DeadlineState, token: int) -> DeadlineState:
        """Advance the state by one token of the answer.

        Args:
            state: State behind the answer so far.
            token: Token id that follows.

        Returns:
            The state behind the longer answer; from the state behind a token that is not allowed,
            nothing is allowed.
        """
        self._look(state)
        if state.out is None:
            return DeadlineState(
                self.inner.next_state(state.inner, token), state.used + 1, state.look
            )
        # On the way out its tokens are the only ones.
        if state.out[:1] != (token,):
            return DEAD
        return DeadlineState(
            self.inner.next_state(state.inner, token), state.used + 1, state.look, state.out[1:]
        )

    def allows_token(self, state: DeadlineState, token: int) -> bool:
        """Tell whether a token may follow, or end the answer.

        Args:
            state: State behind the answer so far.
            token: Token id.

        Returns:
            True where it may.
        """
        self._look(state)
        if state.out is None:
            return self.inner.allows_token(state.inner, token)
        return state.out[:1] == (token,)

    def token_mask(self, state: DeadlineState) -> Tensor:
        self._look(state)
        if state.out is None:
            return self.inner.token_mask(state.inner)
        mask_V = torch.zeros(len(self.ways.pieces), dtype=torch.bool)
        mask_V[list(state.out[:1])] = True
        return mask_V

    def forced_bytes(self, state: DeadlineState) -> bytes:
        self._look(state)
        if state.out is None:
            return self.inner.forced_bytes(state.inner)
        return b"".join(self.ways.pieces[x] or b"" for x in state.out)

    def count_steered(self, tokens: Sequence[int], before: int = 0) -> int:
        """Count the tokens of an answer that were the only ones allowed, so that it ended in time.

        Args:
            tokens: Token ids of the answer.
            before: How many of them stand before the constrained text. Default 0.

        Returns:
            The count.
        """
        state = self.state_after_thinking(before)
        count = 0
        for token in tokens[before:]:
            self._look(state)
            count += state.out is not None
            state = self.next_state(state, token)
        return count

    def way_out(self, inner: Any, left: int) -> tuple[int, ...] | None:
        """Look for a way out.

        Args:
            inner: State of the language itself.
            left: Most tokens of the way.

        Returns:
            Token ids that end the text; None where none is found.
        """
        try:
            return self.ways.way_out(self.inner, inner, self.ends, min(left, LONGEST), self.known)
        except PolydecError:  # a grammar may become too complex there, where the answer need not go
            return None

    @cached_property
    def whole(self) -> tuple[int, ...]:
        """A whole text, as short as it was found; none where none was."""
        return self.way_out(self.inner.start_state(), self.most) or ()

    def _look(self, state: DeadlineState) -> None:
        """Find out whether it is time to go."""
        if state.out is not None or state.used < state.look:
            return
        left = self.most - state.used
        # Room beyond the way out, since one more token may make the way much longer.
        room = min(max(ROOM, len(self.whole)), self.most // 4)
        way = self.way_out(state.inner, left)
        if way is None:
            state.look = state.used + AGAIN
        elif left - len(way) <= room:
            state.out = way
        # What ends such a text soonest is known at once, and one token may lengthen it by much.
        elif hasattr(self.inner, "closing_bytes"):
            state.look = state.used + 1
        else:  # half of what may still be written freely, so that it may grow as fast
            state.look = state.used + max(1, (left - len(way) - room) // 2)


def in_time(
    inner: TokenLanguage[Any], most: int, pieces: tuple[bytes | None, ...], ends: Sequence[int]
) -> DeadlineLanguage:
    """Make a language whose texts end within so many tokens.

    Args:
        inner: The language.
        most: Most tokens of an answer, at least 1.
        pieces: The bytes of every id; None: it writes nothing.
        ends: Token ids that end an answer.

    Returns:
        The language.

    Raises:
        RequestError: No way out of its very beginning is so short.
    """
    language = DeadlineLanguage(inner, most, LegalEndings.of_pieces(pieces), tuple(ends))
    if not language.whole:
        raise RequestError(
            f"max_tokens is {most}: no text of the constraint was found that ends within so many tokens, so give "
            "more, or leave finish out"
        )
    return language

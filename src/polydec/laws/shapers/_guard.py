"""What the rules of a request forbid, looked at as its text is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from polydec.base.errors import RequestError
from polydec.base.options import join_names
from polydec.core.protocols import Shaper


class MaskingShaper(Shaper[Any], Protocol):
    """A shaper that takes tokens away, whatever their weight."""

    def forbids_token(self, state: Any, token: int) -> bool:
        """Tell whether a token must not be written after the text of a state.

        Args:
            state: The state behind the text so far.
            token: Token id.

        Returns:
            True where the rule gives the token no weight.
        """
        ...


@dataclass(frozen=True)
class ForbiddenTokenGuard:
    """Ends a text at which no rule leaves a token.

    Laws give a forbidden token no weight, so it is written in one case only: where the rules that
    are on leave none. A mask cannot say that itself. It sees one row and not the other rules, and
    drafters look at rows that no text ever reaches. So a row that is left empty stays a law of some
    kind, and the guard speaks when one of its tokens is really written.

    rules: names and shapers of the masks that are on (shapers with `forbids_token`). States are values: a
    text can be forked.
    """

    rules: tuple[tuple[str, MaskingShaper], ...]

    def start_state(self, prompt: Sequence[int]) -> tuple[Any, ...]:
        """The state behind a prompt."""
        return tuple(shaper.start_state(prompt) for _, shaper in self.rules)

    def next_states(self, states: tuple[Any, ...], token: int) -> tuple[Any, ...]:
        """Advance the states of all masks by one token of the answer.

        Args:
            states: One state for each rule, behind the answer so far.
            token: Token id that follows.

        Returns:
            The states behind the longer answer.

        Raises:
            RequestError: A rule forbids the token; the sentence names all rules that are on.
        """
        # The guard speaks when a forbidden token is really written, and not when a row is looked
        # at.
        if any(
            shaper.forbids_token(state, token)
            for (_, shaper), state in zip(self.rules, states, strict=True)
        ):
            names = [name for name, _ in self.rules]
            raise RequestError(
                f"no token is left that {join_names(names)} {'allows' if len(names) == 1 else 'allow together'}: "
                "the answer cannot go on, so loosen one of them or ask for fewer tokens"
            )
        return tuple(
            shaper.next_state(state, token)
            for (_, shaper), state in zip(self.rules, states, strict=True)
        )

    def kept_probability(self, states: tuple[Any, ...], logp_V: Tensor) -> float:
        """Sum the probability of the tokens that all rules leave.

        Args:
            states: One state for each rule, behind the answer so far.
            logp_V: Log-probabilities of the next token, shape ``[V]``.

        Returns:
            The log-probability of all these tokens together, at most 0.
        """
        # Rounding may bring the sum above 1.
        return min(0.0, float(self._left(states, logp_V).logsumexp(-1)))

    def leaves_single_token(self, states: tuple[Any, ...], logp_V: Tensor) -> bool:
        """Tell whether the rules leave exactly one token of a law.

        Args:
            states: One state for each rule, behind the answer so far.
            logp_V: Log-probabilities of the next token, shape ``[V]``.

        Returns:
            True where one token alone has weight.
        """
        return int(self._left(states, logp_V).isfinite().sum()) == 1

    def _left(self, states: tuple[Any, ...], logp_V: Tensor) -> Tensor:
        # Each mask sees what the ones before it have left.
        for (_, shaper), state in zip(self.rules, states, strict=True):
            logp_V = shaper.shape_law(state, logp_V)
        return logp_V

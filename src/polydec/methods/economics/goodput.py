"""How far a chain is worth drafting, by what its tokens cost and save."""

from __future__ import annotations

from collections.abc import Callable


def while_it_pays(
    accepted: Callable[[float], float],
    usual: float,
    saved_ms: float,
    token_ms: Callable[[int], float],
) -> Callable[[int, float], bool]:
    """The `go_on` of a budget for one chain: a further token is drafted while it is expected to save more than it costs.

    What the next token will be is not known yet, so it is expected to be accepted as often as halfway between the last token
    and the usual one, if all tokens before it are.

    accepted(q): how often a token is accepted to which the draft gives the probability q; usual: how often any token is;
    saved_ms: what an accepted token saves, in milliseconds; token_ms(n): what the token behind n drafted ones costs.
    """
    path = 1.0  # the chance that all tokens so far are accepted

    def go_on(depth: int, q: float) -> bool:
        nonlocal path
        last = accepted(q)
        path *= last
        return path * (0.5 * last + 0.5 * usual) * saved_ms > token_ms(depth)

    return go_on

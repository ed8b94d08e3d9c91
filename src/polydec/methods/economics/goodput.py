"""How far a chain is worth drafting, by what its tokens cost and save."""

from __future__ import annotations

from collections.abc import Callable


def while_it_pays(
    accepted: Callable[[float], float],
    usual: float,
    saved_ms: float,
    token_ms: Callable[[int], float],
) -> Callable[[int, float], bool]:
    """Make the `go_on` of a budget for one chain: draft on while it is expected to pay.

    What the next token will be is not known yet. It is expected to be accepted as often as halfway
    between the last token and the usual one, if all tokens before it are.

    Args:
        accepted: accepted(q) is how often a token is accepted to which the draft gives probability
            q.
        usual: How often any drafted token is accepted, 0 to 1.
        saved_ms: What an accepted token saves, in milliseconds.
        token_ms: token_ms(n) is what the token after n drafted ones costs, in milliseconds.

    Returns:
        A function for one chain; it remembers the chain's chance so far.
    """
    # The chance that all tokens so far are accepted: the product of their chances.
    path = 1.0

    def go_on(depth: int, q: float) -> bool:
        """Say whether a further token pays.

        Args:
            depth: Tokens that were drafted so far.
            q: Probability that the draft gave to the last of them.
        """
        nonlocal path
        last = accepted(q)
        path *= last
        # Expected saving of the next token against its cost.
        return path * (0.5 * last + 0.5 * usual) * saved_ms > token_ms(depth)

    return go_on

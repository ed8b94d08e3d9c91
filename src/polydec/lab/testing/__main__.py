"""`python -m polydec.lab.testing`: what the enumerated law of each lossless method exercised, a
line a method and all together."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from polydec.base.errors import PolydecError
from polydec.core.types import Exactness
from polydec.lab.testing.check_decoder import check_law
from polydec.lab.testing.examples import example_decoder
from polydec.lab.testing.exercised_counts import ExercisedCounts
from polydec.methods.registry import registry

COLUMNS = "{:34}  {:>6}  {:>8}  {:>9}  {:>9}  {:>8}"
LAWS = 8
LENGTH = 2
LONGER = 1
"""As the contract test enumerates them: random laws, tokens of an answer, and how many of the laws
have a token more.
"""


def lossless_methods() -> tuple[str, ...]:
    """The methods that continue a text by draft and verify and promise its law."""
    cards = [registry.get_recipe_module(name).CARD for name in registry.of_family("ar")]
    return tuple(
        card.name
        for card in cards
        if card.guarantee is Exactness.LAW and card.kind == "draft-and-verify"
    )


def exercised_by(names: Sequence[str]) -> Iterator[tuple[str, ExercisedCounts]]:
    """Enumerate the law of each method.

    Args:
        names: Methods that promise a law.

    Yields:
        The method, and what was exercised.

    Raises:
        AssertionError: A law is another one, or something never happened without a reason on the
            method's card.
        RequestError: A method is unknown.
    """
    for name in names:
        card = registry.get_recipe_module(name).CARD
        counts = check_law(
            lambda target, draft, method=card.name: example_decoder(method, target, draft),
            laws=LAWS,
            length=LENGTH,
            longer=LONGER,
            unexercised=card.unexercised,
        )
        yield card.name, counts


def _line(name: str, counts: ExercisedCounts) -> str:
    tokens = counts.drafted, counts.accepted, counts.rejected, counts.edited
    return COLUMNS.format(name, counts.laws, *tokens)


def main(names: Sequence[str]) -> int:
    """Print the table.

    Args:
        names: Methods; none: all that are lossless.

    Returns:
        The exit code: 0, 1 where a law is not kept or not exercised, 2 for an unknown method.
    """
    print(COLUMNS.format("method", "laws", "drafted", "accepted", "rejected", "edited"))
    total = ExercisedCounts()
    try:
        for name, counts in exercised_by(names or lossless_methods()):
            print(_line(name, counts), flush=True)
            total += counts
    except (AssertionError, PolydecError) as error:
        print(error, file=sys.stderr)
        if isinstance(error, AssertionError):
            return 1
        return 2
    print(_line("all", total))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

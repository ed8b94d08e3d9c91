"""A known fault, written down so that a test can put it back."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """`old` becomes `new` in `file` (below src/polydec), and `test` (a pytest node) must then fail."""

    name: str
    file: str
    old: str
    new: str
    test: str

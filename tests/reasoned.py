"""A mechanism under options for which its contract sees nothing of something."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Reasoned:
    """`inner`, which declares what never happens with these options.

    Args:
        inner: A drafter, a shaper, a target, an unmasker or a search.
        unexercised: By the name of a count of its contract, why it is 0.
    """

    inner: Any
    unexercised: Mapping[str, str]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

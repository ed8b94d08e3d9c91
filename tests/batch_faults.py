"""A decoder whose requests share no pass, and the failure of a contract that saw nothing of something."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from polydec.core.scheduler import run_coroutines
from polydec.core.types import Exactness


@dataclass(frozen=True)
class WaitsForOthers:
    """Runs a request to its end before anybody else's goes on."""

    inner: Any
    exactness: ClassVar[Exactness] = Exactness.APPROXIMATE

    @property
    def vocab(self):
        return self.inner.vocab

    async def write_choices(self, request, rng, into):
        return run_coroutines([self.inner.write_choices(request, rng, into)])[0]


def never_seen(count):
    """The failure of a contract that saw none of these."""
    return pytest.raises(
        AssertionError, match=f"does not exercise what it is there for: 0 {count} "
    )

"""Which known tokens a pass is asked about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class NoKnownTokens:
    """None of them."""

    def known_positions(self, state: Any, block: range) -> range:
        """Return no positions.

        Args:
            state: Not read.
            block: Not read.
        """
        return range(0)


@dataclass(frozen=True)
class BlockTokens:
    """Those of the block."""

    def known_positions(self, state: Any, block: range) -> range:
        """Return the block.

        Args:
            state: Not read.
            block: Positions that may be filled now.
        """
        return block

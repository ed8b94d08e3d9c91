"""Entries of a cache that are seen in the first layers of a network only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from polydec.models.nets import masks

Span = tuple[int, int]
"""Slots ``[first, stop)``."""


@dataclass(frozen=True)
class HiddenEntries:
    """Committed entries that no row of other entries sees from some layer on.

    Rows of the entries themselves see in all layers what they saw before: what becomes of them there
    is read by nobody, and need not be computed.

    Attributes:
        layer: Index of the first layer in which they are not seen.
        spans: Where they stand, in order.
    """

    layer: int
    spans: tuple[Span, ...]

    def hides_slot(self, slot: int) -> bool:
        """Whether a slot is among them."""
        return any(first <= slot < stop for first, stop in self.spans)

    def hide_from(
        self, slots: Sequence[int], size: int, seen: tuple[int, Tensor] | None, like: Tensor
    ) -> Tensor:
        """What the rows of a query see in layers where these entries are hidden.

        Args:
            slots: The slots of the rows.
            size: How many slots a layer reads, from the first one on.
            seen: What they see without that: a mask, and the slot of its first column, before which
                all is seen. None: they see everything.
            like: A tensor whose number type and device the mask takes.

        Returns:
            An additive mask, ``[rows, size]``.
        """
        if seen is None:
            mask = torch.zeros(len(slots), size, dtype=like.dtype, device=like.device)
        else:
            low, part = seen
            # A copy: masks are shared.
            mask = pad(part, (low, 0)).clone()
        # Their own rows keep what they see: a row that sees nothing has no law.
        rows = [row for row, slot in enumerate(slots) if not self.hides_slot(slot)]
        for first, stop in self.spans:
            mask[rows, first:stop] = masks.NEG_INF
        return mask

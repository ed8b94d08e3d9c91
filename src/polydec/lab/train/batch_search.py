"""How many pairs a step can take: searched with real passes, under a bound of memory.

Source: Canary-Flash (2025), whose search runs training steps on the worst data of each bucket until memory
is short. Here the bytes are counted that a pass keeps for its gradients, so that neither a clock nor
what else runs decides the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from polydec.base.errors import RequestError

FIRST = 32
"""Rows that the search of the first bucket begins with."""
CLOSE = 0.05
"""The search ends where the smallest number that is too large is so near to the largest that fits."""
KEPT = 0.9
"""Share of the bound that a step may take: lengths are the longest, and yet not all that takes memory."""
MOST = 1 << 16
"""Rows that are tried at most: whatever is small is no longer told apart."""


def largest_fitting_batch(fits: Callable[[int], bool], first: int = FIRST) -> int:
    """Search the largest number of rows that fits.

    Doubles until it does not fit, or halves until it does, then bisects.

    Args:
        fits: Whether so many rows fit; where some do, all fewer do.
        first: Number to begin with, at least 1.

    Returns:
        The largest number that was seen to fit, at least 0: at most 5 % below what does not.
    """
    rows = first
    # What is known to fit, and what is known not to; nothing is known of either at first.
    good = 0
    bad = MOST + 1
    while bad > good + 1 and (not good or bad - good > CLOSE * bad):
        if fits(rows):
            good = rows
        else:
            bad = rows
        # Doubled or halved while only one side is known.
        if bad > MOST:
            rows = 2 * good
        elif not good:
            rows = bad // 2
        else:
            rows = (good + bad) // 2
        # Nothing fits, or all does.
        if rows > MOST or rows < 1:
            break
    return good


class _TooLarge(Exception):
    """What a pass keeps is more than the bound: it is left at once."""


@dataclass
class SavedBytes:
    """Counts what a pass keeps for its gradients, each storage once, and leaves a pass that keeps more
    than a bound.

    Attributes:
        bound: Bytes.
        count: Bytes so far.
        known: Storages that were counted; held, so that no address is used twice.
        own: Storages that are not counted, such as those of weights.
    """

    bound: float
    own: frozenset[int]
    count: int = 0
    known: dict[int, Any] = field(default_factory=dict[int, Any])

    def count_saved(self, saved: Tensor) -> Tensor:
        """Count a tensor that a pass keeps, and keep it."""
        storage = saved.untyped_storage()
        # Two views of one storage are kept once.
        at = storage.data_ptr()
        if at not in self.known and at not in self.own:
            self.known[at] = storage
            self.count += storage.nbytes()
            # At once, so that a search never takes much more memory than the bound.
            if self.count > self.bound:
                raise _TooLarge
        return saved


def pass_fits(run_pass: Callable[[], Any], weights: Sequence[Tensor], bound: float) -> bool:
    """Whether a pass keeps no more for its gradients than a bound.

    Args:
        run_pass: Makes a loss.
        weights: Of the network, which are there whatever a pass keeps.
        bound: Bytes.

    Returns:
        True if it does; a pass that keeps more is not finished.
    """
    counter = SavedBytes(bound, frozenset(w.untyped_storage().data_ptr() for w in weights))
    try:
        with torch.autograd.graph.saved_tensors_hooks(counter.count_saved, lambda kept: kept):
            run_pass()
    except _TooLarge:
        return False
    return True


def searched_batch_rows(
    longest: Sequence[tuple[int, int]],
    run_pass: Callable[[int, int, int], Any],
    weights: Sequence[Tensor],
    memory: float,
) -> tuple[int, ...]:
    """Search how many rows of each bucket fit into memory.

    Args:
        longest: Tokens of the longest source and the longest target of each bucket.
        run_pass: Makes the loss of so many rows of such lengths: (rows, source, target).
        weights: Of the network.
        memory: Megabytes that a step may keep for its gradients.

    Returns:
        Rows of each bucket, in order.

    Raises:
        RequestError: Not even one row of a bucket fits.
    """
    # Megabytes are millions, as of the caches.
    bound = KEPT * memory * 1e6
    out = [0] * len(longest)
    first = FIRST
    # Ascending: a larger bucket takes fewer rows, so the last answer is a good beginning.
    for i in sorted(range(len(longest)), key=lambda i: (sum(longest[i]), i)):
        source, target = longest[i]

        def fits(rows: int, source: int = source, target: int = target) -> bool:
            """Whether so many pairs of the bucket fit.

            Args:
                rows: Pairs.
                source: Tokens of each source.
                target: Tokens of each target.

            Returns:
                True if they do.
            """
            return pass_fits(lambda: run_pass(rows, source, target), weights, bound)

        out[i] = largest_fitting_batch(fits, first)
        if not out[i]:
            raise RequestError(
                f"memory is {memory:g}: not even one pair of {source} and {target} tokens fits into so many "
                "megabytes; give more, or a smaller --longest"
            )
        # The next bucket is somewhat larger, so this is not far off.
        first = out[i]
    return tuple(out)

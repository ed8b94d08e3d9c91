"""t(m): what a pass over m rows costs on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from polydec.core.types import RowDetail, ScoreRequest
from polydec.models.nets.query import NetworkQuery


class PassTimer:
    """Passes of one network over fresh tokens behind a context of `context` cached ones.

    context: 1 or more; batch: sequences, each with its own cache; want: what is asked of every row
    (logits, or only the likeliest token).
    """

    def __init__(
        self,
        network: Any,
        context: int,
        *,
        batch: int = 1,
        want: RowDetail = RowDetail.ARGMAX,
        seed: int = 0,
    ) -> None:
        self._net = network
        self._want = ScoreRequest(law=want)
        self._random = torch.Generator().manual_seed(seed)
        self._caches = [network.new_cache() for _ in range(batch)]
        # Filled in parts, as a pass of a long context would take much memory.
        for cache in self._caches:
            for begin in range(0, context, 256):
                n = min(256, context - begin)
                cache.stage_slots(range(-1, n - 1))
                cache.commit_path(range(n))
                network.forward(
                    [
                        NetworkQuery(
                            cache, begin, self._tokens(n), (), ScoreRequest(law=RowDetail.NOTHING)
                        )
                    ]
                )

    def _tokens(self, n: int) -> tuple[int, ...]:
        return tuple(torch.randint(0, self._net.size, (n,), generator=self._random).tolist())

    def __call__(self, m: int) -> float:
        """Seconds of one pass in which every sequence feeds m rows."""
        queries = []
        for cache in self._caches:
            cache.commit_path(())
            queries.append(
                NetworkQuery(
                    cache,
                    cache.stage_slots(range(-1, m - 1)),
                    self._tokens(m),
                    range(m),
                    self._want,
                )
            )
        start = time.perf_counter()
        self._net.forward(queries)
        return time.perf_counter() - start


def measure_pass_times(
    call: Callable[[int], float],
    rows: Sequence[int],
    seconds: float,
    least: int = 3,
    behind: PassTimer | None = None,
    quantile: float = 0.5,
) -> dict[int, float]:
    """Time passes over several numbers of rows in turns. The first round, which warms up, is
    dropped.

    Args:
        call: The seconds of a pass over so many rows.
        rows: The numbers of rows, in the order in which they are taken.
        seconds: How long it goes on.
        least: Rounds that are measured whatever they take.
        behind: Runs one row before each, untimed (a draft's weights have left the processor's
            caches when its turn comes after a pass of the target). None: nothing does.
        quantile: Which of a call's sorted times is given, 0 to 1: 0.5, the median, is what it took,
            a lower one what it takes where little else runs.

    Returns:
        Milliseconds by the number of rows.
    """
    took: dict[int, list[float]] = {m: [] for m in rows}
    end = time.perf_counter() + seconds
    n = 0
    while n <= least or time.perf_counter() < end:
        for m in rows:
            if behind is not None:
                behind(1)
            t = call(m)
            if n:
                took[m].append(1e3 * t)
        n += 1
    return {m: sorted(t)[int((len(t) - 1) * quantile)] for m, t in took.items()}

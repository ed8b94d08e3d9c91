"""What answers of a replica took: the replica notes it, and the front asks for it when an answer is over."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from polydec.serve.request_log import LONGEST, RequestRecord, ResponseCounts

COUNTS_NAME = "x-polydec-counts"
"""The header in which a front names a request whose counts it is going to ask for."""

COUNTS_PATH = "/replica/counts/"
"""Where it asks for them, by that name."""

PATIENCE = 10.0
"""Seconds that a replica waits for an answer to end whose counts are asked for: its client may have left only now."""

MOST_NOTES = 4096
"""Requests whose counts wait to be asked for; the oldest is forgotten first."""


class ReplicaCounts:
    """The counts of requests that a front has named, each until it is asked for."""

    def __init__(self) -> None:
        self._waiting = OrderedDict[str, asyncio.Future[dict[str, Any]]]()

    def begin_request(self, name: str) -> None:
        """Note that a request has come.

        Args:
            name: What the front calls it. "": it is not going to ask.
        """
        if not name:
            return
        self._waiting[name] = asyncio.get_running_loop().create_future()
        if len(self._waiting) > MOST_NOTES:
            self._waiting.popitem(last=False)

    def end_request(self, name: str, record: RequestRecord) -> None:
        """Note what a request took, once its answer is over.

        Args:
            name: What the front calls it.
            record: Its record, which has ended.
        """
        future = self._waiting.get(name)
        if future is not None and not future.done():
            future.set_result(counts_json(record))

    async def take_counts(self, name: str) -> dict[str, Any]:
        """Wait for the end of a request, and hand over what it took.

        Args:
            name: What the front calls it.

        Returns:
            The counts as JSON; empty where the request is not known, or does not end.
        """
        future = self._waiting.get(name)
        if future is None:
            return {}
        try:
            return await asyncio.wait_for(asyncio.shield(future), PATIENCE)
        except TimeoutError:
            return {}
        finally:
            self._waiting.pop(name, None)


def counts_json(record: RequestRecord) -> dict[str, Any]:
    """What a request took, for the front. Seconds count from when it came: clocks of two processes may differ."""
    counts = record.counts
    return {
        "model": record.model,
        "method": counts.method,
        "prompt": counts.prompt,
        "output": counts.output,
        "written": counts.written,
        "cached": counts.cached,
        "reasons": list(counts.reasons),
        "first": None if counts.first is None else counts.first - record.began,
        "texts": [text[:LONGEST] for text in counts.texts],
    }


def counts_from_json(told: Mapping[str, Any], sent: float) -> ResponseCounts:
    """Read what `counts_json` wrote.

    Args:
        told: The counts as JSON.
        sent: When the request was handed on, by `time.perf_counter`.

    Returns:
        The counts.
    """
    first = told["first"]
    return ResponseCounts(
        told["method"],
        told["prompt"],
        told["output"],
        told["cached"],
        tuple(told["reasons"]),
        None if first is None else sent + first,
        tuple(told["texts"]),
        told["written"],
    )

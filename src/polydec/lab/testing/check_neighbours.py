"""What requests of one batch have to do with each other: they share passes, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from polydec.core.decoder import Decoder, answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.lab.testing.exercised_counts import ContractCounts, require_mechanism_exercised


class CountedNetwork(Protocol):
    """A toy network that counts how often it was called."""

    calls: int


@dataclass(frozen=True)
class BatchCounts(ContractCounts):
    """What a check saw of several requests in one batch.

    Attributes:
        shared: Calls of the model that a batch needed fewer than its requests need alone. 0 or
            more, like all of these.
        distinct: Answers that do not begin as the longest one does.
    """

    shared: int = 0
    distinct: int = 0


def check_neighbours(
    decoder: Decoder, requests: Sequence[Request], network: CountedNetwork
) -> BatchCounts:
    """Require of requests in one batch that each answer is what it is alone.

    Passes that requests shared and answers that differ must have been seen, unless a class
    attribute `unexercised` of the decoder says, by the name of a count (BatchCounts), why that is
    0.

    Args:
        decoder: The decoder.
        requests: At least one request, all different.
        network: The network whose passes the requests may share.

    Returns:
        The counts.

    Raises:
        AssertionError: An answer depends on its neighbours, or nothing was shared.
    """
    before = network.calls
    alone = [run_coroutines([answer_one(decoder, r)])[0].token_ids for r in requests]
    # Calls for all requests one by one: a batch that shares passes needs fewer.
    alone_calls = network.calls - before
    longest = max(alone, key=len)
    counts = BatchCounts(distinct=sum(text != longest[: len(text)] for text in alone))
    every = range(len(requests))
    # In both orders, so that each request has been before and behind each other one.
    for order in (every, every[::-1]):
        before = network.calls
        answers = run_coroutines([answer_one(decoder, requests[i]) for i in order])
        counts += BatchCounts(shared=max(0, alone_calls - (network.calls - before)))
        for i, answer in zip(order, answers, strict=True):
            assert answer.token_ids == alone[i], (
                f"request {i} has another answer beside its neighbours"
            )
    require_mechanism_exercised(counts, decoder)
    return counts

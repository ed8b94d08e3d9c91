"""What a session asks of its network for some cache entries, and the pass that answers it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from polydec.core.effects import ForwardQuery
from polydec.core.types import RowDetail, ScoreRequest
from polydec.models.nets.query import NetworkAnswer, NetworkQuery, NeuralNetwork
from polydec.models.sessions.ledger import LedgerEntry, SessionLedger, entries_of

SILENT = ScoreRequest(law=RowDetail.NOTHING)
"""Nothing is asked of a pass: it fills entries."""

PROMPT = 16
"""Tokens without a row that is asked for, from which on a query is a prompt's."""


def query_of(
    cache: Any,
    first: int,
    entries: Sequence[LedgerEntry],
    rows: Sequence[int],
    want: ScoreRequest,
    *run: Any,
) -> NetworkQuery:
    """Feed entries of one depth into the slots from `first` on. Those that have a state enter with it, the others as tokens;
    those that run under an adapter, of which a draft has one at most, are named. run: which layers, None or nothing: all."""
    states = [entry.state_H for entry in entries if entry.state_H is not None]
    only_states = bool(states) and len(states) == len(entries)
    tokens = (entry.token if entry.state_H is None else -1 for entry in entries)
    gated = tuple(i for i, entry in enumerate(entries) if entry.adapter is not None)
    return NetworkQuery(
        cache,
        first,
        () if only_states else tuple(tokens),
        rows,
        want,
        torch.stack(states) if states else None,
        *run,
        adapter=entries[gated[0]].adapter if gated else None,
        gated=gated,
    )


def build_forward(network: NeuralNetwork, query: NetworkQuery) -> ForwardQuery:
    """The pass of a query. One that begins with much that nobody asks about is a prompt's, and passes may take it in parts."""
    free = min(query.rows, default=len(query) - 1)
    if free < PROMPT or not network.tree or query.at is not None:
        return ForwardQuery(network, query, len(query), behind=query.first)

    def split(most: int) -> ForwardQuery:
        n = min(most, free)
        rest = build_forward(network, query.part(n, len(query)))
        return ForwardQuery(network, query.part(0, n), n, rest=rest, behind=query.first)

    return ForwardQuery(network, query, len(query), split, behind=query.first)


async def feed_text(
    ledger: SessionLedger,
    stop: int,
    rows: Sequence[int],
    want: ScoreRequest,
    entries: Sequence[LedgerEntry] = (),
    parent: Sequence[int] = (),
    twin: Any = None,
) -> NetworkAnswer:
    """One pass of the whole network over what the cache lacks of text[:stop], committed on the way, and over a draft's entries,
    staged. twin: the fork of the session's cache that is fed in its place."""
    if twin is None:
        cache = ledger.cache
    else:
        cache = twin
    if twin is None:
        ledger.filling = cache.length
    tokens = ledger.text[cache.length : stop]
    first = cache.end
    if tokens:
        cache.stage(range(-1, len(tokens) - 1))
        cache.commit(range(len(tokens)))
    cache.stage(parent)
    query = query_of(cache, first, [*entries_of(tokens), *entries], rows, want)
    answer = await build_forward(ledger.network, query)
    if twin is None:
        ledger.filling = None
    return answer


def defer_logits(answer: NetworkAnswer, row: int, head: Any) -> NetworkAnswer:
    """A row of states of which the network's head makes a law when somebody looks."""
    assert answer.hidden_RH is not None
    hidden_RH: Tensor = answer.hidden_RH[row : row + 1]
    return NetworkAnswer(None, hidden_RH, later=lambda: head(hidden_RH))

"""What a session asks of its network for some cache entries, and the pass that answers it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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
    """Make the query that feeds entries of one depth.

    Those that have a state enter with it, the others as tokens. Those that run under an adapter are
    named.

    Args:
        cache: The cache that has their slots.
        first: Slot of the first entry.
        entries: The entries, in the order of their slots.
        rows: Ascending indices of the entries that are answered.
        want: What is read of the answer.
        run: Layers, halves that are left out, attentions that read together, as far as they differ
            from a full pass. Nothing, or None: all layers.

    Returns:
        The query.
    """
    states = [entry.state_H for entry in entries if entry.state_H is not None]
    only_states = bool(states) and len(states) == len(entries)
    tokens = (entry.token if entry.state_H is None else -1 for entry in entries)
    gated = dict[Any, list[int]]()
    # A draft has one adapter at most; an image before it may have another one.
    for i, entry in enumerate(entries):
        if entry.adapter is not None:
            gated.setdefault(entry.adapter, []).append(i)
    return NetworkQuery(
        cache,
        first,
        # A query without tokens is one of vectors alone.
        () if only_states else tuple(tokens),
        rows,
        want,
        torch.stack(states) if states else None,
        *run,
        gated=tuple((adapter, tuple(changed)) for adapter, changed in gated.items()),
    )


def build_forward(network: NeuralNetwork, query: NetworkQuery) -> ForwardQuery:
    """Make the pass of a query.

    One that begins with many tokens of which nothing is asked is a prompt's, and the scheduler may
    take it in parts.

    Args:
        network: The network that answers.
        query: The query.

    Returns:
        What a session waits for.
    """
    # Tokens before the first answered row: a part may end after any of them.
    free = min(query.rows, default=len(query) - 1)
    if free < PROMPT or not network.tree or query.at is not None:
        return ForwardQuery(network, query, len(query), behind=query.first)

    def split_query(most: int) -> ForwardQuery:
        """The query's beginning of at most so many tokens, with the rest."""
        # A part may end only where no answered row has come yet: the rest answers.
        n = min(most, free)
        rest = build_forward(network, query.cut_query(n, len(query)))
        return ForwardQuery(network, query.cut_query(0, n), n, rest=rest, behind=query.first)

    return ForwardQuery(network, query, len(query), split_query, behind=query.first)


async def feed_text(
    ledger: SessionLedger,
    stop: int,
    rows: Sequence[int],
    want: ScoreRequest,
    entries: Sequence[LedgerEntry] = (),
    parent: Sequence[int] = (),
    twin: Any = None,
    mutual: int = 0,
) -> NetworkAnswer:
    """Feed text that the cache lacks, and a draft's entries after it, in one pass of all layers.

    The text is committed before the pass; the draft's entries are staged.

    Args:
        ledger: Account of the session.
        stop: Text up to this position is fed.
        rows: Ascending indices of the fed tokens that are answered, text first.
        want: What is read of the answer.
        entries: Entries of a draft. Default: none.
        parent: Of each of these the offset of its parent; -1: the end of the text.
        twin: A fork of the session's cache, which is fed in its place; None: the session's own
            cache.
        mutual: The last so many of these entries see one another. Default 0.

    Returns:
        The network's answer.
    """
    if twin is None:
        cache = ledger.cache
    else:
        cache = twin
    if twin is None:
        # If the pass fails, the session goes back to what was cached before (see
        # `SessionLedger.settle_pass`).
        ledger.filling = cache.length
    tokens = ledger.text[cache.length : stop]
    # Text that is not cached yet gets slots before the draft's nodes.
    first = cache.end
    if tokens:
        cache.stage_slots(range(-1, len(tokens) - 1))
        cache.commit_path(range(len(tokens)))
    cache.stage_slots(parent)
    query = query_of(cache, first, [*entries_of(tokens), *entries], rows, want)
    query = replace(query, mutual=mutual) if mutual else query
    answer = await build_forward(ledger.network, query)
    if twin is None:
        ledger.filling = None
    return answer


def defer_logits(answer: NetworkAnswer, row: int, head: Any) -> NetworkAnswer:
    """An answer of one row whose logits are computed when somebody looks.

    Args:
        answer: An answer with states.
        row: Which of its rows.
        head: Makes logits of states that lie before the final norm.

    Returns:
        The row's answer.
    """
    assert answer.hidden_RH is not None
    hidden_RH: Tensor = answer.hidden_RH[row : row + 1]
    return NetworkAnswer(None, hidden_RH, later=lambda: head(hidden_RH))

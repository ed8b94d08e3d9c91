"""Scores of all layers of a network, or of its first ones (early exit): entries climb, and no layer
runs twice for one that stays.

An entry says how many layers it has passed. A score to a depth takes all entries there: those that
are furthest back first, until they are level with those before them, and on together. What a
draft's nodes answered on the way is stored by depth, so a deeper score of the same draft, or one
that extends it, goes on from there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from polydec.core.effects import ForwardQuery
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.models.nets.query import NetworkAnswer, NetworkQuery
from polydec.models.nets.scores import LogitScores
from polydec.models.sessions.checks import require_readable
from polydec.models.sessions.ledger import LedgerEntry, ScoredDraft, SessionLedger, entry_of
from polydec.models.sessions.queries import SILENT, build_forward, defer_logits, query_of
from polydec.models.sessions.soft import state_of


async def score_whole(ledger: SessionLedger, draft: Draft, want: ScoreRequest) -> LogitScores:
    """Score a draft with all layers.

    Nearly always nothing is staged and the cache holds the text: then one query feeds the draft as
    it is.

    Args:
        ledger: Account of the session; it notes the draft.
        draft: The draft to score.
        want: What is read of the scores.

    Returns:
        The laws at every node.

    Raises:
        RequestError: The network cannot score this draft, or not with what is wanted.
    """
    network = ledger.network
    cache = ledger.cache
    n = len(draft.token)
    if (
        ledger.scored.entries
        or ledger.lag
        or ledger.skipped
        or want.exits
        or draft.state is not None
        or any(state_of(x) is not None for x in draft.token)
        or cache.length != len(ledger.text)
    ):
        return await score_to_depth(ledger, network.layers, draft, want)
    # The fast path: every node answers, and every staged entry has passed all layers afterwards.
    query = NetworkQuery(cache, cache.stage_slots(draft.parent), draft.token, range(n), want)
    answer = await ForwardQuery(network, query, n, behind=query.first)
    ledger.scored = ScoredDraft(draft, [ledger.through] * n, {network.layers: [(n, answer)]})
    return LogitScores((answer,))


async def score_to_depth(
    ledger: SessionLedger, depth: int, draft: Draft, want: ScoreRequest
) -> LogitScores:
    """Score a draft with the first layers, then final norm and head.

    Args:
        ledger: Account of the session; it notes the draft, and what its nodes answered at this
            depth.
        depth: How many layers run.
        draft: The draft to score; one that extends the last one feeds its new nodes only.
        want: What is read of the scores.

    Returns:
        The laws at every node.

    Raises:
        RequestError: The network cannot score this draft, or not with what is wanted.
    """
    ledger.settle_pass()
    require_readable(ledger.network, draft, want)
    if ledger.skipped is not None:
        # Other layers hold nothing of these entries: all of them is fed again.
        ledger.skipped = replace(ledger.skipped, evicted=0)
        ledger.forget_entries(ledger.skipped.first)
    scored = ledger.scored
    # The draft is fed anew if it does not extend the last one, or if nodes that have no answer at
    # this depth have climbed past it already.
    answered = sum(n for n, _ in scored.answers.get(depth, ()))
    if (
        scored.run is not None
        or not goes_on(scored, draft, depth, want)
        or any(entry.depth >= depth for entry in scored.entries[answered:])
    ):
        ledger.drop_draft()
        ledger.take_slots()
    await _stage(ledger, draft, want.exits)
    ledger.scored.answers.setdefault(depth, []).extend(await advance_to_depth(ledger, depth, want))
    return scores_of(ledger, depth, want)


def goes_on(scored: ScoredDraft, draft: Draft, key: Any, want: ScoreRequest) -> bool:
    """Whether a draft extends the staged one, and all that is wanted now of the staged nodes was
    answered.

    Args:
        scored: What was scored last.
        draft: The new draft.
        key: Under which answers are stored: a depth, or the layers that ran.
        want: What is read of the scores now.

    Returns:
        Whether a score can go on from the staged nodes.
    """
    if not scored.entries or scored.draft is None or not draft.is_extension_of(scored.draft):
        return False
    law = max(want.law, want.base) is not RowDetail.NOTHING
    for _, answer in scored.answers.get(key, ()):
        if (want.hidden and answer.hidden_RH is None) or (
            law and answer.logits_RV is None and answer.later is None
        ):
            return False
    return all(d in entry.exits for d in want.exits for entry in scored.entries if d <= entry.depth)


async def _stage(ledger: SessionLedger, draft: Draft, exits: tuple[int, ...]) -> None:
    """Make entries for the nodes that have none.

    What enters further up waits until the others have come there; on their way they pass some of
    the exits that are wanted.
    """
    ledger.scored.draft, n = draft, len(draft)
    depth = draft.enter or (0,) * n
    for below in sorted({*depth[len(ledger.scored.entries) :]}):
        if below:
            await advance_to_depth(ledger, below, replace(SILENT, exits=exits))
        _add(ledger, draft, sum(d <= below for d in depth), below)


def _add(ledger: SessionLedger, draft: Draft, stop: int, depth: int) -> None:
    """Stage the nodes below `stop` that have no entry yet."""
    known = len(ledger.scored.entries)
    ledger.cache.stage_slots(draft.parent[known:stop])
    ledger.scored.entries += [entry_of(draft, i, depth) for i in range(known, stop)]


async def advance_to_depth(
    ledger: SessionLedger, depth: int, want: ScoreRequest
) -> list[tuple[int, NetworkAnswer]]:
    """Take every entry to a depth: committed ones that lag, and staged ones.

    Args:
        ledger: Account of the session.
        depth: How many layers every entry shall have passed.
        want: What is read of the staged entries' answers.

    Returns:
        Answers for the staged entries among those that were not there yet, each with its number of
        rows.
    """
    cache = ledger.cache
    network = ledger.network
    layers = ledger.layers
    lagging = len(ledger.lag)
    entries = [*ledger.lag, *ledger.scored.entries]
    # Depths never rise from one entry to the next, so those that have to climb are the last ones.
    first = next((i for i, entry in enumerate(entries) if entry.depth < depth), len(entries))
    begin = cache.end - len(entries)
    answers = list[tuple[int, NetworkAnswer]]()
    if first < len(entries):
        cache.claim_slots(begin + first)  # entries are about to be written: not where others read
    while first < len(entries) and entries[-1].depth < depth:
        low = entries[-1].depth  # those that are furthest behind come last, and catch up first
        # The group runs up to the depth of the entries before it. Then they are one group, and one
        # pass takes all of them on.
        start = next(i for i, entry in enumerate(entries) if entry.depth == low)
        if start == first:
            stop = depth
        else:
            stop = entries[start - 1].depth
        group = entries[start:]
        # Rows of staged entries; those that lag are committed, and nobody reads their law.
        asked = range(max(0, lagging - start), len(group))
        deepest = stop == layers
        at_once = len(asked) == len(group) and (low == 0 or len(group) == 1)
        # At the last layer only the wanted rows come out. Below it every state is needed, as it is
        # what enters the next layer.
        if deepest:
            rows = asked
            now = want
        else:
            rows = range(len(group))
            # At the last depth only the laws that were asked for; below it none, but all states.
            ends = at_once and stop == depth
            if ends:
                law = want.law
                base = want.base
            else:
                law = RowDetail.NOTHING
                base = RowDetail.NOTHING
            now = replace(want, hidden=True, law=law, base=base)
        # None is the whole network, which may run in one compiled call.
        if (low, stop) == (0, layers):
            run = None
        else:
            run = tuple(range(low, stop))
        answer = await build_forward(network, query_of(cache, begin + start, group, rows, now, run))
        if stop == depth and (deepest or at_once):
            if asked:
                # One pass took the staged entries to the depth: its answer is theirs.
                answers = [(len(asked), answer)]
            else:
                answers = []
        elif stop == depth:  # rows that are seldom looked at: their heads wait until then
            answers = [(1, defer_logits(answer, i, network.head_logits)) for i in asked]
        for i, entry in enumerate(group):
            entries[start + i] = _climbed(entry, stop, answer, i - rows.start, deepest)
    ledger.lag = [entry for entry in entries[:lagging] if entry.depth < layers]
    ledger.scored.entries = entries[lagging:]
    return answers


def _climbed(
    entry: LedgerEntry, depth: int, answer: NetworkAnswer, row: int, deepest: bool
) -> LedgerEntry:
    """An entry that has passed the layers below `depth`.

    row: its place among the rows that were asked for, below 0: none.
    """
    exits = entry.exits
    if row >= 0 and answer.exits is not None:
        exits = {**exits, **{d: exit_RH[row] for d, exit_RH in answer.exits.items()}}
    if deepest or answer.hidden_RH is None:
        state_H = None
    else:
        state_H = answer.hidden_RH[row]
    return LedgerEntry(entry.token, depth, state_H, exits, entry.adapter)


def scores_of(ledger: SessionLedger, key: Any, want: ScoreRequest) -> LogitScores:
    """The rows of all staged nodes that were answered under a key, and the exits that were wanted.

    Args:
        ledger: Account of the session.
        key: A depth, or the layers that ran.
        want: What is read of the scores.

    Returns:
        The laws at every node.
    """
    entries = ledger.scored.entries
    answers = tuple(answer for _, answer in ledger.scored.answers[key])
    if not want.exits:
        return LogitScores(answers, None)
    return LogitScores(
        answers,
        (
            lambda depth, nodes: torch.stack([entries[i].exits[depth] for i in nodes]),
            ledger.network.head_logits,
        ),
    )

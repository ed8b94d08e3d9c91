"""Scores of a network without a tree mask: the branches of a draft are read one by one, each over a
fork of the cache."""

from __future__ import annotations

from typing import Any

from polydec.core.types import Draft, ScoreRequest
from polydec.models.nets.query import NetworkAnswer
from polydec.models.nets.scores import LogitScores
from polydec.models.sessions.checks import require_readable
from polydec.models.sessions.ledger import ScoredDraft, SessionLedger, entry_of
from polydec.models.sessions.queries import SILENT, feed_text


async def score_by_paths(
    ledger: SessionLedger, draft: Draft, want: ScoreRequest, chunk: int
) -> LogitScores:
    """Score a draft path by path.

    The forks stay until the next commit, which goes on with the one that holds its tokens; those
    that read a state in a token's place do not.

    Args:
        ledger: Account of the session; it notes the draft and the forks.
        draft: The draft to score.
        want: What is read of the scores.
        chunk: Tokens of text that is not cached yet which one pass takes at most.

    Returns:
        The laws at every node.

    Raises:
        RequestError: The network cannot score this draft, or not with what is wanted.
    """
    require_readable(ledger.network, draft, want)
    ledger.drop_draft()
    # Text that is not cached yet is fed once, into the session's own cache. A single token of it
    # rides with the paths instead, which saves a pass.
    while (left := len(ledger.text) - ledger.cache.length) > 1:
        await feed_text(ledger, ledger.cache.length + min(left, chunk), (), SILENT)
    # One pass for each path from the root to a leaf. Nodes that several paths share are computed
    # again in each of them.
    leaves = set(range(len(draft))) - set(draft.parent)
    rows = dict[int, NetworkAnswer]()
    twins = dict[tuple[int, ...], Any]()
    for leaf in sorted(leaves):
        path = (0, *draft.path_to(leaf))
        entries = [entry_of(draft, i) for i in path]
        twin = ledger.cache.fork()
        tail = len(ledger.text) - ledger.cache.length
        asked = range(tail, tail + len(path))
        chain = range(-1, len(path) - 1)
        answer = await feed_text(ledger, len(ledger.text), asked, want, entries, chain, twin)
        if all(entry.state_H is None for entry in entries):
            # A fork with a state in it would not hold the entry that the token itself makes.
            twins[tuple(draft.token[i] for i in path)] = twin
        for place, i in enumerate(path):
            rows[i] = _row(answer, place)
    ledger.scored = ScoredDraft(draft, twins=twins)
    return LogitScores([rows[i] for i in range(len(draft))])


def _row(answer: NetworkAnswer, i: int) -> NetworkAnswer:
    """One row of an answer."""
    return NetworkAnswer(
        None if answer.logits_RV is None else answer.logits_RV[i : i + 1],
        None if answer.hidden_RH is None else answer.hidden_RH[i : i + 1],
    )

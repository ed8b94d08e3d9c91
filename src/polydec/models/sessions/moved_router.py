"""Scores of a mixture of experts whose router is moved: what its rows would say had they gone
through other experts.

The pass runs over a fork of the cache that nobody keeps, so nothing of another routing ever stands
in the text's own entries.
"""

from __future__ import annotations

from polydec.core.types import Draft, ScoreRequest
from polydec.models.nets.scores import LogitScores
from polydec.models.sessions.checks import require_routing
from polydec.models.sessions.ledger import SessionLedger, entry_of
from polydec.models.sessions.queries import feed_text


async def score_with_routing(
    ledger: SessionLedger, draft: Draft, want: ScoreRequest
) -> LogitScores:
    """Score a draft with the router's scores moved (`want.routing`).

    What is staged or cached stays as it is; text that no pass has read is read by the fork alone,
    under the router's own choice.

    Args:
        ledger: Account of the session; it is not changed.
        draft: The draft to score.
        want: What is read of the scores, and how the router is moved.

    Returns:
        The laws at every node.

    Raises:
        RequestError: The network has no router of that shape, or the draft brings states.
    """
    require_routing(ledger.network, draft, want)
    # Only entries that have passed every layer; what is staged, or lags, is read again by the fork.
    twin = ledger.cache.fork(ledger.filled)
    unread = len(ledger.text) - twin.length
    nodes = range(len(draft))
    entries = [entry_of(draft, i) for i in nodes]
    rows = range(unread, unread + len(draft))
    answer = await feed_text(ledger, len(ledger.text), rows, want, entries, draft.parent, twin)
    return LogitScores((answer,))

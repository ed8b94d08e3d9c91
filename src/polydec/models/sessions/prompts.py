"""A prompt is fed in chunks, until what is left of it may ride with the first score."""

from __future__ import annotations

from collections.abc import Sequence

from polydec.base.errors import RequestError
from polydec.core.types import ScoreRequest
from polydec.models.nets.press import reads_repeats
from polydec.models.nets.query import NetworkAnswer
from polydec.models.nets.scores import LogitScores, exits_of
from polydec.models.sessions import depths
from polydec.models.sessions.ledger import SessionLedger
from polydec.models.sessions.queries import SILENT, feed_text
from polydec.models.sessions.repeats import read_repeats


async def prefill_prompt(ledger: SessionLedger, want: ScoreRequest, chunk: int) -> LogitScores:
    """Feed a prompt in chunks, until what is left of it may ride with the first score; see
    `Session.prefill_prompt`.

    Args:
        ledger: Account of the session.
        want: Which rows are asked for: `prompt`, `last`, or none.
        chunk: Tokens that one pass takes at most.

    Returns:
        The rows that were asked for; of no nodes where none were.

    Raises:
        RequestError: Rows of all the prompt are wanted, and parts of it come from an edited text.
    """
    answers: list[NetworkAnswer] = []
    if want.prompt and (ledger.grafts or ledger.edited is not None):
        raise RequestError(
            "reuse is 'edited': the method reads rows of the whole prompt, which is not fed again; take method auto or plain, "
            "or reuse prefix"
        )
    # Entries of an older text go in where the new text has come to them; what lies between is fed.
    while ledger.grafts:
        while (left := ledger.grafts[0].at - ledger.cache.length) > 0:
            await feed_text(ledger, ledger.cache.length + min(left, chunk), (), SILENT)
        ledger.graft_entries()
    rows = want.prompt or want.last
    # Rows are wanted of all layers: what only some layers have seen is fed again.
    if rows and ledger.skipped is not None:
        ledger.forget_entries(ledger.skipped.first)
    if want.prompt:  # an older text's cache has no rows to give
        ledger.forget_entries(0)
    elif want.last and ledger.text:
        ledger.forget_entries(min(ledger.cache.length, len(ledger.text) - 1))
    if ledger.prefix is not None:  # what was just forgotten is fed again
        ledger.prefix.cached = min(ledger.prefix.cached, ledger.cache.length)
        ledger.prefix = None
    if ledger.skipped is None:
        end = len(ledger.text)
    else:
        end = ledger.skipped.first
    if end > ledger.cache.length:
        ledger.cache.reserve_slots(end)
    # Without wanted rows a last chunk may stay: the first score feeds it.
    while (left := end - ledger.cache.length) > 0 and (rows or left > chunk):
        ledger.drop_draft()
        await depths.advance_to_depth(ledger, ledger.layers, SILENT)  # what a part has left behind
        first = ledger.cache.length
        stop = first + min(left, chunk)
        if ledger.pressed and reads_repeats(ledger.cache.press):
            await read_repeats(ledger, stop - 1)
        asked: Sequence[int] = ()
        # Which rows of this chunk: all, or the last one of the last chunk.
        if want.prompt:
            asked = range(stop - first)
        elif want.last and stop == end:
            asked = (stop - first - 1,)
        answer = await feed_text(ledger, stop, asked, want)
        ledger.shed_pressed()
        if asked:
            answers.append(answer)
    return LogitScores(
        answers, exits_of(answers, ledger.network.head_logits) if want.exits else None
    )

"""A text read once more, for a press that keeps what a repeat of it looks at
(methods/presses/kvzip.py)."""

from __future__ import annotations

from polydec.base.errors import RequestError
from polydec.core.types import RowDetail, ScoreRequest
from polydec.models.nets.press import count_sealed_blocks
from polydec.models.sessions.ledger import SessionLedger, entries_of
from polydec.models.sessions.queries import build_forward, feed_text, query_of

SILENT = ScoreRequest(law=RowDetail.NOTHING)


async def read_repeats(ledger: SessionLedger, deepest: int) -> None:
    """See to it that all blocks that rows of the next pass see packed have been repeated.

    A block is repeated right behind itself, where rows see it as it is and what stands before it
    packed: what a repeat looks at depends on the text alone.

    Args:
        ledger: Account of the session.
        deepest: Position of the row of the next pass that stands last.

    Raises:
        RequestError: A row sees a block packed that is not committed yet: the draft is too deep.
    """
    cache = ledger.cache
    press = cache.press
    needed = count_sealed_blocks(deepest, press)
    while len(cache.repeats) < needed:
        k = len(cache.repeats)
        stop = (k + 1) * press.block
        if cache.length >= stop:
            await _repeat_block(ledger, k * press.block, stop)
        elif cache.length < len(ledger.text):
            # After an eviction: text comes back a block at a time.
            ledger.drop_draft()
            await feed_text(ledger, min(len(ledger.text), cache.length + press.block), (), SILENT)
        else:
            raise RequestError(
                f"draft is {deepest - len(ledger.text)} deep: cache is {press.called} over blocks of {press.block}, which it "
                "must not reach beyond; take a larger block"
            )


async def _repeat_block(ledger: SessionLedger, first: int, stop: int) -> None:
    """Feed the tokens of a block behind it, and note their entries."""
    cache = ledger.cache
    twin = cache.fork(stop)
    tokens = ledger.text[first:stop]
    begin = twin.stage_slots(range(-1, len(tokens) - 1))
    await build_forward(ledger.network, query_of(twin, begin, entries_of(tokens), (), SILENT))
    at = begin - twin.start
    cache.repeats.append(twin.kv[..., at : at + len(tokens), :].clone())

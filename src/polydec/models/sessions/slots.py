"""Slots behind a text: vectors that see the text and one another, read in one pass. Nothing of them stays."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.types import RowDetail, ScoreRequest
from polydec.models.nets.grid_positions import ImageGrid
from polydec.models.nets.press import CachePress
from polydec.models.nets.query import NeuralNetwork
from polydec.models.sessions.ledger import LedgerEntry, SessionLedger
from polydec.models.sessions.queries import feed_text

STATES = ScoreRequest(law=RowDetail.NOTHING, hidden=True)
"""The states behind the last layer are asked for."""


def require_slots(
    network: NeuralNetwork, press: CachePress | None, text: int, vectors_NH: Tensor
) -> None:
    """Check that slots can be read behind a text.

    Args:
        network: The network that reads them.
        press: What packs the text's cache. None: nothing does.
        text: Tokens of the text.
        vectors_NH: What enters the first layer for the slots.

    Raises:
        RequestError: The network lets no token see what follows it, the cache is packed, a slot has
            another width than the network, or there is no room in the context.
    """
    if not getattr(network, "sees_ahead", False):
        raise RequestError(
            "slots that see one another are asked for: what runs this model lets no token see what follows it, so load it on "
            "the torch path (--dtype torch)"
        )
    if press is not None:
        raise RequestError(
            f"cache is {press.called}: slots behind a text are read over whole caches, so leave it out"
        )
    # One token's embedding tells how many numbers the network reads at a place.
    width = network.embed_tokens((0,)).shape[1]
    if vectors_NH.ndim != 2 or vectors_NH.shape[1] != width:
        raise RequestError(
            f"slots have shape {tuple(vectors_NH.shape)}: they must be (N, {width}), a row each"
        )
    if text + len(vectors_NH) > network.context:
        raise RequestError(
            f"{len(vectors_NH)} slots stand behind {text} tokens: the model's context holds {network.context}"
        )


async def read_slots(
    ledger: SessionLedger, vectors_NH: Tensor, grid: tuple[int, int] | None, causal: bool
) -> Tensor:
    """Read slots behind a session's text; see `Session.read_slots`.

    Args:
        ledger: Account of the session. What its cache lacks of the text is fed in the same pass.
        vectors_NH: What enters the first layer for the slots, at least one.
        grid: Rows and columns of the image whose cells the slots are. None: they follow as words do.
        causal: Whether a slot sees none behind it.

    Returns:
        States behind the last layer, ``[N, H]``.
    """
    network: Any = ledger.network
    ledger.settle_pass()
    # What has not passed every layer is fed again.
    ledger.forget_entries(ledger.filled)
    text = len(ledger.text)
    count = len(vectors_NH)
    # The slots are staged in a cache of their own, so that the text goes on without them.
    twin = ledger.cache.fork()
    # As if an image of this grid stood behind the text.
    if grid is not None and getattr(network, "tells_grids", False):
        saved = twin.grids[-1].saved_behind if twin.grids else 0
        twin.grids = (*twin.grids, ImageGrid(text, *grid, saved))
    # Rows of the text that is fed along come before those of the slots.
    lacks = text - twin.length
    answer = await feed_text(
        ledger,
        text,
        range(lacks, lacks + count),
        STATES,
        [LedgerEntry(-1, 0, row_H) for row_H in vectors_NH],
        range(-1, count - 1),
        twin,
        0 if causal else count,
    )
    assert answer.hidden_RH is not None
    return answer.hidden_RH

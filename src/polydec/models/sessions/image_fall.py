"""Images that are dropped within a network: a prompt is read layer by layer until its words no longer look
at them.

Where that happens is a property of the prompt, so the law is one and the same however a text is cut
into passes, drafted, forked or fed anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import torch
from torch import Tensor

from polydec.core.types import RowDetail, ScoreRequest
from polydec.models.nets.attention_share import attention_share
from polydec.models.nets.hidden_entries import HiddenEntries, Span
from polydec.models.nets.kv_cache import KVCache
from polydec.models.sessions.ledger import SessionLedger, entries_of
from polydec.models.sessions.queries import build_forward, query_of

STATES = ScoreRequest(law=RowDetail.NOTHING, hidden=True)
"""The states behind the last layer that runs are asked for."""


@dataclass(frozen=True)
class FallRule:
    """When the words of a prompt no longer look at an image.

    Attributes:
        share: They do not in a layer where less than this share of the most attention that any layer
            up to it gave to the image is left, 0 to 1.
        floor: Nor where less than this share of all attention is.
        earliest: Share of the layers that read the image in any case, 0 to 1; at least one does.
        last: Whether the last word of the prompt alone is asked, or all that stand behind the last
            image.
    """

    share: float
    floor: float
    earliest: float
    last: bool

    @property
    def is_off(self) -> bool:
        """Whether no image is ever dropped."""
        return self.share <= 0.0 and self.floor <= 0.0

    def first_layer(self, layers: int) -> int:
        """The first of so many layers in which an image may be dropped."""
        return max(1, ceil(self.earliest * layers))

    def has_fallen(self, shares: Sequence[float]) -> bool:
        """Whether an image is dropped in a layer.

        Args:
            shares: The attention that each layer up to it gave to the image, itself last.

        Returns:
            Whether that of the last one is too small.
        """
        return shares[-1] < max(self.share * max(shares), self.floor)


class ImageFall:
    """Where in the network the images of a prompt are dropped, once that is known.

    Args:
        prompt: Ids of the prompt, some of which stand for vectors.
        spans: The places of its images' vectors.
        rule: When they are dropped.
        called: What messages call whoever asks for that.

    Attributes:
        is_settled: Whether it is known.
        hidden: What is hidden from where on; None: nothing is, or it is not known yet.
        shares: The attention that each layer gave to the images, as far as it was asked for.
    """

    def __init__(
        self, prompt: tuple[int, ...], spans: tuple[Span, ...], rule: FallRule, called: str
    ) -> None:
        self.prompt = prompt
        self.spans = spans
        self.rule = rule
        self.called = called
        self.is_settled = False
        self.hidden: HiddenEntries | None = None
        self.shares = tuple[float, ...]()

    def is_of_text(self, text: Sequence[int]) -> bool:
        """Whether a text begins with the prompt."""
        return tuple(text[: len(self.prompt)]) == self.prompt

    @property
    def asked_rows(self) -> range:
        """The places whose attention decides."""
        end = len(self.prompt)
        return range(end - 1 if self.rule.last else self.spans[-1][1], end)

    @property
    def word_spans(self) -> list[Span]:
        """The runs of places that are no image's."""
        # What lies between two images, before the first one and behind the last.
        edges = [0, *(edge for span in self.spans for edge in span), len(self.prompt)]
        runs = zip(edges[::2], edges[1::2], strict=True)
        return [(first, stop) for first, stop in runs if first < stop]


async def settle_image_fall(ledger: SessionLedger, fall: ImageFall, chunk: int) -> None:
    """Find where the images of a prompt are dropped, and fill a session's cache with the prompt on the
    way: from there on its words are fed alone.

    Args:
        ledger: Account of the session, whose text begins with the prompt.
        fall: What is to be known; it is noted there.
        chunk: Tokens that one pass takes at most.
    """
    # Another session of the request has found it, or this one before its cache was given back.
    if fall.is_settled:
        ledger.cache.hidden = fall.hidden
        return
    network: Any = ledger.network
    end = len(fall.prompt)
    # The last token of the prompt is among the words that are asked, so a cache of its own is filled.
    cache: KVCache = network.new_watched_cache(fall.called)
    cache.grids = ledger.cache.grids
    cache.reserve_slots(end)
    cache.stage_slots(range(-1, end - 1))
    cache.commit_path(range(end))
    layers = network.layers
    first = fall.rule.first_layer(layers)
    shares = list[float]()
    hidden = None
    entered: Tensor | None = None
    # All layers that read the image in any case, then one after another.
    runs = [range(min(first, layers)), *(range(i, i + 1) for i in range(first, layers))]
    for run in runs:
        # Its states enter the next layer, unless the image is dropped in this one.
        left = await _run_layers(network, cache, fall.prompt, (0, end), run, entered, chunk)
        shares += [
            attention_share(cache, i, fall.asked_rows, fall.spans, network.score_cap) for i in run
        ]
        # The first run is of layers that read the image in any case.
        if run.start and fall.rule.has_fallen(shares):
            hidden = HiddenEntries(run.start, fall.spans)
            break
        entered = left
    if hidden is not None:
        cache.hidden = hidden
        # This layer once more, and all behind it: words alone go there.
        for span in fall.word_spans:
            await _run_layers(
                network, cache, fall.prompt, span, range(hidden.layer, layers), entered, chunk
            )
        # Nobody reads these, but what was never written may be no number.
        for start, stop in fall.spans:
            cache.kv[hidden.layer :, ..., start:stop, :] = 0
    # The last token is the answer's root, which the first score feeds.
    _take_entries(ledger, cache, end - 1)
    ledger.cache.hidden = hidden
    fall.shares = tuple(shares)
    fall.hidden = hidden
    fall.is_settled = True


def _take_entries(ledger: SessionLedger, cache: KVCache, count: int) -> None:
    """Give a session the first entries of a watched cache, without their queries."""
    # It may have shared the beginning of another text, which stands here as well.
    ledger.forget_entries(0)
    count = min(count, len(ledger.text))
    ledger.cache.reserve_slots(count)
    ledger.cache.append_entries(cache.kv[:, :2, :, :count])


async def _run_layers(
    network: Any,
    cache: KVCache,
    prompt: Sequence[int],
    span: Span,
    layers: range,
    entered: Tensor | None,
    chunk: int,
) -> Tensor:
    """Run some layers over a part of a prompt.

    Args:
        network: The network.
        cache: Has the slots of the whole prompt, committed.
        prompt: Ids of the prompt.
        span: The part.
        layers: Which layers run.
        entered: What enters the first of them at each place of the prompt, ``[T, H]``. None: the
            prompt itself.
        chunk: Tokens that one pass takes at most.

    Returns:
        The states behind the last of them, a row a place of the part.
    """
    first, stop = span
    out = list[Tensor]()
    for at in range(first, stop, chunk):
        end = min(stop, at + chunk)
        rows = range(end - at)
        run = tuple(layers)
        # Below the first layer vectors of images enter, and tokens by their embeddings.
        entries = entries_of(prompt[at:end])
        if entered is not None:
            entries = [
                replace(entry, state_H=state_H)
                for entry, state_H in zip(entries, entered[at:end], strict=True)
            ]
        answer = await build_forward(network, query_of(cache, at, entries, rows, STATES, run))
        assert answer.hidden_RH is not None
        # The states of this part, which enter the next layer.
        out.append(answer.hidden_RH)
    return torch.cat(out)

"""Superlinear attention: each query searches some sqrt(t) anchors behind it, and reads a span of keys
up to each of the best ones.

Networks gather the keys that a row reads (`SuperlinearAttention`), so a token costs some sqrt(t) of
them. Trainings compute the same by masks over all keys (`superlinear_mixture`), which short rows
bear.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from polydec.models.formats.superlinear import SuperlinearRule
from polydec.models.nets.masks import NEG_INF

AT_ONCE = 32
"""Rows whose keys are gathered together: those of a long prompt would fill memory."""


@dataclass(frozen=True, slots=True)
class SearchPlaces:
    """Where queries at some positions search, and how far their spans reach.

    Attributes:
        position_T: Positions of the queries.
        anchor_TA: Positions of anchors, nearest first; -1: there is none.
        behind_T: Keys before an anchor that belong to its span.
        ahead_T: Keys after it, likewise.
        window_T: Where the window begins; after the position itself where there is none.
    """

    position_T: Tensor
    anchor_TA: Tensor
    behind_T: Tensor
    ahead_T: Tensor
    window_T: Tensor

    @staticmethod
    def of_positions(rule: SuperlinearRule, position_T: Tensor) -> SearchPlaces:
        """The places of queries at these positions.

        Args:
            rule: Which keys a query reaches.
            position_T: Positions from 0, on the device of what is searched.

        Returns:
            The places.
        """
        length_T = position_T.cpu() + 1
        distance_A = torch.from_numpy(rule.stripe_distances(int(length_T.max())))
        anchor_TA = length_T[:, None] - distance_A

        def reach(factor: float) -> Tensor:
            return torch.from_numpy(rule.span_reach(length_T.numpy(), factor)).to(position_T.device)

        return SearchPlaces(
            position_T,
            anchor_TA.clamp(min=-1).to(position_T.device),
            reach(rule.behind),
            reach(rule.ahead),
            (position_T + 1 - rule.window_length).clamp(min=0),
        )

    def cut_rows(self, first: int, stop: int) -> SearchPlaces:
        """The places of some of the queries.

        Args:
            first: The first of them.
            stop: The one after the last.
        """
        return SearchPlaces(*(getattr(self, f.name)[first:stop] for f in fields(self)))


@dataclass(frozen=True, slots=True)
class ChosenSpans:
    """The spans that queries read.

    Attributes:
        first: First position of each span, ``[..., T, K]``.
        last: Last position; before `first` where there is no such span.
        gate: What the output over each span counts for; the K of a query sum to 1.
    """

    first: Tensor
    last: Tensor
    gate: Tensor


def choose_spans(rule: SuperlinearRule, places: SearchPlaces, search: Tensor) -> ChosenSpans:
    """Choose the spans of the highest anchors.

    Gradients reach the search through `gate` alone: which anchors are the highest has none.

    Args:
        rule: How many are chosen.
        places: Where the anchors stand.
        search: Scores of the anchors, ``[..., T, A]``.

    Returns:
        `rule.spans` spans a query. Where fewer anchors are there, the others are empty and count
        nothing; where none is, all are empty and count alike: the window alone is read.
    """
    score = search.float() if search.dtype != torch.float64 else search
    score = score.masked_fill(places.anchor_TA < 0, NEG_INF)
    # Slots without an anchor of their own: at the beginning of a text there are few.
    lacking = rule.spans - score.shape[-1]
    anchor = places.anchor_TA.expand(score.shape)
    if lacking > 0:
        score = torch.nn.functional.pad(score, (0, lacking), value=NEG_INF)
        anchor = torch.nn.functional.pad(anchor, (0, lacking), value=-1)
    top, at = score.topk(rule.spans, -1)
    there = top > NEG_INF
    anchor = anchor.gather(-1, at)
    # Without any anchor the softmax of -inf alone would be no number.
    none = ~there.any(-1, keepdim=True)
    gate = torch.softmax(top.masked_fill(none, 0.0), -1)
    first = (anchor - places.behind_T[:, None]).clamp(min=0)
    # A span ends before the window begins, so that no key counts twice; the query's own position is
    # the last one that it sees.
    end_T = (places.window_T - 1)[:, None]
    last = torch.minimum(anchor + places.ahead_T[:, None], end_T)
    return ChosenSpans(first, torch.where(there, last, first - 1), gate)


def superlinear_mixture(
    rule: SuperlinearRule, query: Tensor, search: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    """What queries of a whole text gather, by masks over all of its keys.

    Args:
        rule: Which keys are read.
        query: Queries, scaled already, ``[..., T, D]``.
        search: Search queries, scaled already, of the same shape.
        keys: Keys, ``[..., T, D]``.
        values: Values, likewise.

    Returns:
        What is gathered, ``[..., T, D]``.
    """
    T = query.shape[-2]
    at_T = torch.arange(T, device=query.device)
    places = SearchPlaces.of_positions(rule, at_T)
    found = (search @ keys.transpose(-1, -2)).gather(
        -1, places.anchor_TA.clamp(min=0).expand(*search.shape[:-1], -1)
    )
    spans = choose_spans(rule, places, found)
    scores = query @ keys.transpose(-1, -2)
    window_TT = (at_T >= places.window_T[:, None]) & (at_T <= at_T[:, None])
    # A slot without a span and without a window has a weight of 0; it must have a softmax.
    alone_TT = at_T == at_T[:, None]
    weights = torch.zeros_like(scores)
    for k in range(rule.spans):
        first = spans.first[..., k : k + 1]
        last = spans.last[..., k : k + 1]
        seen = (at_T >= first) & (at_T <= last) | window_TT
        seen = seen | (alone_TT & ~seen.any(-1, keepdim=True))
        part = torch.softmax(scores.masked_fill(~seen, NEG_INF), -1)
        weights = weights + part * spans.gate[..., k : k + 1].to(part.dtype)
    return weights @ values


@dataclass(frozen=True, slots=True)
class SuperlinearAttention:
    """The attention of one query of a pass, which gathers the keys that its rows read.

    Attributes:
        rule: Which keys are read.
        asks: Where its queries stand, ``[kv heads, group, m, head]``.
        searches: Where its search queries stand, likewise.
        gathers: Where what they gather goes, likewise.
        layers: Of every layer that runs the keys ``[kv heads, slots, head]`` and the values.
        gather: Of every layer what is copied first; empty where nothing is.
        places: Where each row searches, in positions.
        slot_MP: Of each row the slot of every position before it; None: position and slot are one.
    """

    rule: SuperlinearRule
    asks: Tensor
    searches: Tensor
    gathers: Tensor
    layers: Sequence[tuple[Tensor, Tensor]]
    gather: Sequence[Callable[[], Any]]
    places: SearchPlaces
    slot_MP: Tensor | None

    def attend_layer(self, at: int) -> None:
        """Gather what the query's rows read in the layer with this index among those that run."""
        if self.gather:
            self.gather[at]()
        keys, values = self.layers[at]
        for first in range(0, self.asks.shape[2], AT_ONCE):
            self._attend_rows(first, min(first + AT_ONCE, self.asks.shape[2]), keys, values)

    def _attend_rows(self, first: int, stop: int, keys: Tensor, values: Tensor) -> None:
        """Gather what the rows ``[first, stop)`` read."""
        rows = slice(first, stop)
        places = self.places.cut_rows(first, stop)
        query = self.asks[:, :, rows]
        KV, D = query.shape[0], query.shape[-1]
        slot_MP = None if self.slot_MP is None else self.slot_MP[rows]

        def read_entries(entries: Tensor, at: Tensor) -> Tensor:
            """Read entries of each row's own text.

            Args:
                entries: Keys or values, ``[kv heads, slots, head]``.
                at: Positions, ``[kv heads, group or 1, m, ...]``.

            Returns:
                ``[kv heads, group or 1, m, ..., head]``, in the queries' number type.
            """
            if slot_MP is not None:
                flat = at.flatten(3) if at.dim() > 4 else at
                at = slot_MP.expand(*at.shape[:2], -1, -1).gather(-1, flat).view(at.shape)
            index = at.reshape(KV, -1, 1).expand(-1, -1, D)
            return entries.gather(1, index).view(*at.shape, D).to(query)

        # Anchors and window are the same for all heads; spans are a head's own.
        anchor = places.anchor_TA.clamp(min=0).expand(KV, 1, -1, -1)
        search = self.searches[:, :, rows]
        spans = choose_spans(
            self.rule, places, (read_entries(keys, anchor) @ search[..., None])[..., 0]
        )
        # Spans of all rows are laid out to the length of the longest one.
        width = max(int((spans.last - spans.first).max()) + 1, 0)
        at = spans.first[..., None] + torch.arange(width, device=keys.device)
        beyond = at > spans.last[..., None]
        at = at.masked_fill(beyond, 0)
        size = min(self.rule.window_length, int(places.position_T.max()) + 1)
        near = places.position_T[:, None] - torch.arange(size, device=keys.device)
        before = near < 0
        near = near.clamp(min=0).expand(KV, 1, -1, -1)
        # Span and window have one softmax, for each span anew.
        by_span = (read_entries(keys, at) @ query[..., None, :, None])[..., 0]
        by_window = (read_entries(keys, near) @ query[..., None])[..., 0].masked_fill(
            before, NEG_INF
        )
        scores = torch.cat(
            [
                by_span.masked_fill(beyond, NEG_INF),
                by_window[..., None, :].expand(*by_span.shape[:-1], size),
            ],
            -1,
        )
        # An empty slot without a window has no key at all, and counts nothing.
        weights = torch.softmax(scores, -1).nan_to_num(0.0) * spans.gate[..., None].to(scores)
        y = torch.einsum("kgmsl,kgmsld->kgmd", weights[..., :width], read_entries(values, at))
        window = weights[..., width:].sum(3)
        y = y + torch.einsum("kgmw,kmwd->kgmd", window, read_entries(values, near)[:, 0])
        self.gathers[:, :, rows].copy_(y)

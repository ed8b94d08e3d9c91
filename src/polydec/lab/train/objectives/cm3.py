"""Spans move to the end of the row, so that a causal network learns to fill gaps too (CM3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from torch import Tensor, nn

from polydec.base.errors import RequestError
from polydec.lab.train.data import END
from polydec.lab.train.objectives.protocols import IGNORED, PlainStudent, cross_entropy, rows_of
from polydec.request.gap_marks import FILLED, GAP

MOST = 8
"""Gaps of a text at most."""
GAPS = tuple(GAP.format(k) for k in range(MOST))

Spans = Sequence[tuple[int, int]]
"""(first, behind the last) of each, in ascending order; none is empty, and no two share a token."""


@dataclass(frozen=True)
class CausalMasking(PlainStudent):
    """Spans of a row move to its end, so that the network learns to fill gaps too.

    Of each row a Poisson number of spans is cut out. A numbered mark stays in the place of each,
    and the spans follow the row, each after its mark and before FILLED. Every next token is learned
    except the numbered marks, which a text never writes. A row without spans stays as it is. A span
    is cut to the text of the row that it covers most of. A row is shortened by three tokens a span,
    so that it keeps its length.

    Attributes:
        mean: Mean of the Poisson law, 0 (spans are never moved) to 7; published: 1, which leaves 37
            % of rows as they are.

    Reduces to: `NextToken` at mean 0, to the bit.
    Source: Aghajanyan et al., "CM3: a causal masked multimodal model of the internet" (2022).
    """

    mean: float = 1.0
    marks = (*GAPS, FILLED)
    ends = (FILLED,)

    def __post_init__(self) -> None:
        if not 0 <= self.mean <= MOST - 1:
            raise RequestError(f"spans is {self.mean}: it must lie in 0 (none) to {MOST - 1}")

    def batch_loss(
        self,
        network: nn.Module,
        batch_BT: Tensor,
        ids: Mapping[str, int],
        rng: np.random.Generator,
        done: float = 0.0,
    ) -> Tensor:
        """The mean negative log-likelihood of the rows with their spans moved.

        Args:
            network: The student.
            batch_BT: Token ids, BEGIN first, shape ``[B, T]``.
            ids: Ids of the special tokens, by name.
            rng: Source of the spans; it is advanced.
            done: Not used: all steps are alike. Default 0.

        Returns:
            Nats a learned token.
        """
        rows = [self.moved_row(row, ids, rng) for row in batch_BT.numpy()]
        batch_BT = rows_of(rows)
        # A mark that is read is not learned to be written.
        labels_BT = batch_BT[:, 1:].clone()
        for mark in GAPS:
            labels_BT[labels_BT == ids[mark]] = IGNORED
        return cross_entropy(network, batch_BT[:, :-1], labels_BT)  # pyright: ignore[reportArgumentType]

    def moved_row(
        self, row_T: np.ndarray, ids: Mapping[str, int], rng: np.random.Generator
    ) -> np.ndarray:
        """Move the spans of one row; the row keeps its length.

        Args:
            row_T: Token ids, BEGIN first, shape ``[T]``.
            ids: Ids of the special tokens, by name.
            rng: Source of the spans; it is advanced.

        Returns:
            Token ids, shape ``[T]``.
        """
        text_L = row_T[1:]
        count = min(int(rng.poisson(self.mean)), MOST - 1, len(text_L) // 8)
        # Room for three marks of each span, so that no span reaches into what is cut off.
        room = len(text_L) - 3 * count
        spans = within_texts(draw_mask_spans(room, count, rng), text_L[:room] == ids[END])
        # Some spans may have been empty after cutting; only those that are left take marks.
        kept = text_L[: len(text_L) - 3 * len(spans)].tolist()
        return np.array([row_T[0], *move_spans_to_end(kept, spans, ids)], dtype=row_T.dtype)


def draw_mask_spans(length: int, count: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Draw spans of a text that do not overlap.

    Each candidate lies between two uniform places; of `count` squared candidates those are taken
    that meet no earlier one.

    Args:
        length: Tokens of the text.
        count: The most spans.
        rng: Source of the spans; it is advanced.

    Returns:
        Up to `count` spans, ascending.
    """
    spans = list[tuple[int, int]]()
    # More candidates than spans, as overlaps are thrown away; a bound, as the text may be too
    # short.
    for _ in range(count * count):
        low, high = sorted(rng.random(2))
        first = int(low * length)
        last = int(high * length + 0.5)
        if first < last and all(last <= a or first >= b for a, b in spans):
            spans.append((first, last))
        if len(spans) == count:
            break
    return sorted(spans)


def within_texts(spans: Spans, ends_L: np.ndarray) -> list[tuple[int, int]]:
    """Cut each span to the text that it covers most of.

    Args:
        spans: Spans, ascending.
        ends_L: Where texts end in the row, shape ``[L]``; an end belongs to no span.

    Returns:
        The spans that are not empty then.
    """
    # Texts lie between the ends; -1 and the length stand for the borders of the row.
    bounds = [-1, *np.flatnonzero(ends_L).tolist(), len(ends_L)]
    texts = [(a + 1, b) for a, b in pairwise(bounds)]
    cut = [
        max(
            ((max(first, a), min(last, b)) for a, b in texts),
            key=lambda part: part[1] - part[0],
        )
        for first, last in spans
    ]
    return [(first, last) for first, last in cut if first < last]


def move_spans_to_end(text: Sequence[int], spans: Spans, ids: Mapping[str, int]) -> list[int]:
    """Replace each span by a numbered mark, and append the spans.

    Args:
        text: Token ids.
        spans: Spans to move, ascending.
        ids: Ids of the special tokens, by name.

    Returns:
        Token ids, three more for each span.
    """
    before = list[int]()
    tail = list[int]()
    at = 0
    for (first, last), mark in zip(spans, GAPS):
        before += [*text[at:first], ids[mark]]
        # The mark says which gap is filled, FILLED that its text has ended.
        tail += [ids[mark], *text[first:last], ids[FILLED]]
        at = last
    return [*before, *text[at:], *tail]

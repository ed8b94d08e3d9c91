"""A span of a text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from polydec.base.edge import whole_text
from polydec.base.errors import RequestError
from polydec.base.options import shown
from polydec.constraints import pieces
from polydec.core.types import Vocab

LONGEST = 1_000_000
"""Characters of a text."""


@dataclass(frozen=True)
class SpanOf:
    """The answer is a span of `text`: some of its tokens, at least one, as they stand there one after another.

    Spans may begin and end inside words, and not inside characters. A span's first token may also be written without the space
    in front of it, where there is such a token: an answer begins a text of its own, a span stands inside one.

    Source: Castel et al., "How optimal is greedy decoding for extractive question answering?" (2021).
    """

    text: str

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not 1 <= len(self.text) <= LONGEST:  # pyright: ignore
            raise RequestError(
                f"span is of {shown(self.text)}: it must be a text of 1 to {LONGEST} characters"
            )
        whole_text(self.text, "span_of")

    def language(self, vocab: Vocab, ends: frozenset[int]) -> Spans:
        spelled = pieces.of(vocab, ends)
        assert vocab.words is not None, "pieces.of has looked"
        spans = Spans.of(vocab.words.encode(self.text, special=False), spelled, ends)
        if not spans.mask(spans.start()).any():
            raise RequestError(
                f"span is of {shown(self.text)}: no token of this model writes any of it"
            )
        return spans


WHOLE = (-1,)
"""The state before the first token."""


@dataclass(frozen=True, eq=False)
class Spans:
    """The language of the spans of some tokens. A state is the places behind the last token written, wherever it may stand.

    tokens: None parts spans that lie before and after it; bare: of a token the one without its leading space; within: places
    that lie inside a character, where no span begins or ends.
    """

    tokens: tuple[int | None, ...]
    bare: dict[int, int]
    size: int
    ends: frozenset[int]
    within: frozenset[int] = frozenset()
    finite = True

    @staticmethod
    def of(
        tokens: Sequence[int],
        spelled: Sequence[bytes | None] | None,
        ends: frozenset[int],
        size: int = 0,
    ) -> Spans:
        """The spans of these tokens. spelled: the bytes of every id, None: not known (then `size` ids are meant, and no span
        begins without its space). Ends and tokens that write nothing stand in no span."""
        if spelled is None:
            return Spans(tuple(None if x in ends else x for x in tokens), {}, size, ends)
        ids, _ = pieces.by_bytes(tuple(spelled))
        bare = dict[int, int]()
        for x in set(tokens):
            piece = spelled[x] or b""
            if piece[:1] == b" " and piece[1:] in ids:
                bare[x] = ids[piece[1:]][0]
        return Spans(
            tuple(None if x in ends or spelled[x] is None else x for x in tokens),
            bare,
            len(spelled),
            ends,
            frozenset(i for i, x in enumerate(tokens) if _continues(spelled[x])),
        )

    @cached_property
    def _places(self) -> dict[int, tuple[int, ...]]:
        """Of each token the places behind it where a span may begin with it."""
        out = defaultdict[int, list[int]](list)
        for i, x in enumerate(self.tokens):
            if x is not None and i not in self.within:
                out[x].append(i + 1)
                if x in self.bare:
                    out[self.bare[x]].append(i + 1)
        return {x: tuple(sorted(set(places))) for x, places in out.items()}

    def followers(self, state: tuple[int, ...]) -> list[int]:
        """The tokens that may be written behind a text, ends left out."""
        if state == WHOLE:
            return list(self._places)
        tokens = {self.tokens[i] for i in state if i < len(self.tokens)}
        return [x for x in tokens if x is not None]

    def start(self) -> tuple[int, ...]:
        return WHOLE

    def step(self, state: tuple[int, ...], token: int) -> tuple[int, ...]:
        if state == WHOLE:
            return self._places.get(token, ())
        return tuple(i + 1 for i in state if i < len(self.tokens) and self.tokens[i] == token)

    def allows(self, state: tuple[int, ...], token: int) -> bool:
        if token in self.ends:
            return self._complete(state)
        return bool(self.step(state, token))

    def mask(self, state: tuple[int, ...]) -> Tensor:
        out_V = torch.zeros(self.size, dtype=torch.bool)
        out_V[self.followers(state)] = True
        if self._complete(state):
            out_V[[x for x in self.ends if 0 <= x < self.size]] = True
        return out_V

    def _complete(self, state: tuple[int, ...]) -> bool:
        """Whether a span ends here."""
        return state != WHOLE and any(i not in self.within for i in state)

    def forced(self, state: tuple[int, ...]) -> bytes:
        return b""


def _continues(piece: bytes | None) -> bool:
    """Whether a token begins inside a character."""
    return bool(piece) and 0x80 <= piece[0] < 0xC0

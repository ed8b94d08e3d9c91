"""Grammars through llguidance: a lexer of derivatives and an Earley parser over bytes, and masks over a trie of the tokens.

It is an extra (`pip install 'polydec[grammar]'`). What a grammar allows is what its author wrote: every spelling of it in
tokens, none of them preferred.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polydec.constraints import pieces
from polydec.core.types import Vocab, Words
from polydec.edge import sentence

PLAIN = '%llguidance {"no_forcing": true}\n'
"""Else masks would hold the tokenizer's own spelling only wherever the bytes that come are known."""


class State:
    """Behind a text. matcher: None where nothing is allowed; its mask is computed when it is first asked for."""

    __slots__ = ("_mask_V", "matcher")

    def __init__(self, matcher: Any) -> None:
        self.matcher = matcher
        self._mask_V: Tensor | None = None

    def mask(self, ends: tuple[int, ...], size: int) -> Tensor:
        if self.matcher is None:  # one state for all grammars: it keeps no mask
            return torch.zeros(size, dtype=torch.bool)
        if self._mask_V is None:
            self._mask_V = self._masked(ends, size)
        return self._mask_V

    def _masked(self, ends: tuple[int, ...], size: int) -> Tensor:
        complete = self.matcher.is_accepting()
        bits = np.frombuffer(self.matcher.compute_bitmask(), dtype=np.uint8)
        error = self.matcher.get_error()
        if error and not error.startswith("NoExtension"):
            raise ValueError(
                sentence(
                    f"constraint became too complex to follow, so make it simpler: {first_line(error)}"
                )
            )
        # the library ends a text that cannot go on, complete or not
        mask_V = torch.from_numpy(np.unpackbits(bits, count=size, bitorder="little")).bool()
        mask_V[list(ends)] = complete
        return mask_V


DEAD = State(None)


@dataclass(frozen=True, eq=False)
class Grammar:
    """The language of a compiled grammar. root: the state before the first token; pieces: the bytes of every id."""

    root: State
    pieces: tuple[bytes | None, ...]
    ends: tuple[int, ...]
    finite = False

    def start(self) -> State:
        return self.root

    def step(self, state: State, token: int) -> State:
        if (
            self.pieces[token] is None
            or state.matcher is None
            or not state.matcher.validate_tokens([token])
        ):
            return DEAD  # an end, or nothing that may follow: nothing is behind either
        matcher = state.matcher.deep_copy()
        matcher.consume_token(token)
        return State(matcher)

    def allows(self, state: State, token: int) -> bool:
        if state.matcher is None:
            return False
        if self.pieces[token] is None:
            return token in self.ends and state.matcher.is_accepting()
        return bool(state.matcher.validate_tokens([token]))

    def mask(self, state: State) -> Tensor:
        return state.mask(self.ends, len(self.pieces))

    def forced(self, state: State) -> bytes:
        return (
            b""
            if state.matcher is None or state.matcher.is_accepting()
            else state.matcher.compute_ff_bytes()
        )


def grammar(lark: str, vocab: Vocab, ends: frozenset[int]) -> Grammar:
    """The language of a grammar in llguidance's form of Lark. Raises Malformed where it is none, ValueError where the library
    is missing, or no token can begin a text."""
    spelled = pieces.of(vocab, ends)
    assert vocab.words is not None, "pieces.of has looked"
    last = tuple(sorted(x for x in ends if 0 <= x < vocab.size))
    found = Grammar(_compiled(lark, vocab.words, spelled, last), spelled, last)
    if not found.mask(found.root).any():
        raise ValueError("constraint holds no text that this model's tokens can spell")
    return found


class Malformed(ValueError):
    """What the library says of a grammar, with the place in it."""


@lru_cache(maxsize=64)
def _compiled(
    lark: str, words: Words, spelled: tuple[bytes | None, ...], ends: tuple[int, ...]
) -> State:
    llguidance = library()
    limits = llguidance.LLParserLimits(verbose_errors=False)
    matcher = llguidance.LLMatcher(
        _tokenizer(words, spelled, ends), PLAIN + lark, log_level=0, limits=limits
    )
    if matcher.is_error():
        raise Malformed(matcher.get_error())
    return State(matcher)


def library() -> Any:
    """Raises ValueError where llguidance is not installed."""
    try:
        import llguidance
    except ImportError:
        raise ValueError(
            "regex, JSON schema and grammar constraints need llguidance: pip install 'polydec[grammar]'"
        ) from None
    return llguidance


@lru_cache(maxsize=8)
def _tokenizer(words: Words, spelled: tuple[bytes | None, ...], ends: tuple[int, ...]) -> Any:
    return library().LLTokenizer(
        library().TokenizerWrapper(_Table(spelled, ends)),
        n_vocab=len(spelled),
        eos_token=list(ends),
    )


class _Table:
    """The tokens, as the library asks for them."""

    def __init__(self, spelled: tuple[bytes | None, ...], ends: tuple[int, ...]) -> None:
        self.tokens = [p or b"" for p in spelled]
        self.special_token_ids = [i for i, p in enumerate(spelled) if p is None]
        self.eos_token_id, self.bos_token_id = ends[0], None
        self._ids, self._longest = pieces.by_bytes(spelled)

    def __call__(self, text: bytes | str) -> list[int]:
        """The longest token first, as far as there is one. Nobody reads this: spellings are the drafter's."""
        rest, out = text.encode() if isinstance(text, str) else text, list[int]()
        while rest:
            fit = next(
                (n for n in range(min(self._longest, len(rest)), 0, -1) if rest[:n] in self._ids), 0
            )
            if not fit:
                break
            out.append(self._ids[rest[:fit]][0])
            rest = rest[fit:]
        return out


def first_line(problem: str) -> str:
    """What the library says, in one line: its message without the drawing of where that is."""
    lines = [re.sub(r"^error: ", "", x.strip()) for x in problem.splitlines()]
    said = [x for x in lines if x and not re.match(r"^(\d+ \||\^|\|)|regex parse error:$", x)]
    return sentence(" ".join(said)).removesuffix(" <non-verbose/>")

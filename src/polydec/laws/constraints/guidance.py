"""Grammars through llguidance: a lexer of derivatives and an Earley parser over bytes, and masks over a trie of the tokens.

It is an extra (`pip install 'polydec[grammar]'`). What a grammar allows is what its author wrote: every spelling of it in
tokens, none of them preferred.

Constraints come from outside, and some bring down whoever compiles them: by a stack that runs over, by hours of work, by
gigabytes. So each is compiled in a worker first (`trial`, with limits on memory, time and stack), and in this process only
if that went well: the same text, by the same library, with several times the stack. What became of it is remembered, errors as
well. The worker starts with the first constraint (some tenths of a second, and again after each that ended it); then a new
constraint takes about twice what its compilation takes. Compiling and masks let other threads run.

Masks are made in this process: what a step may cost is bounded by the library's own limits (items and states), of which
`GrammarState` says where they are reached.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polydec.base.edge import error_sentence
from polydec.base.errors import PolydecError, RequestError
from polydec.base.subprocess_worker import (
    SubprocessLimits,
    SubprocessWorker,
    WorkerBusyError,
    WorkerEndedError,
)
from polydec.core.types import TokenVocabulary
from polydec.laws.constraints import compiler, pieces
from polydec.laws.constraints.compiler import require_llguidance

MEMORY = 768 << 20
SECONDS = 5.0
STACK = 2 << 20
"""Bytes of address space that the worker may use, a vocabulary and itself included; seconds of
computing for one constraint; bytes of its stack, a quarter of what a thread has here.
"""

KEPT = 64
HELD = 16 << 20
"""Constraints that are remembered, and bytes of those that were compiled, all together: dozens of
usual schemas.
"""

_WORKER = SubprocessWorker(
    Path(__file__).with_name("trial.py"), SubprocessLimits(MEMORY, SECONDS, STACK), "a constraint"
)


class GrammarState:
    """Behind a text. matcher: None where nothing is allowed; its mask is computed when it is first
    asked for.

    Several threads ask the first state of a remembered grammar at once (one plans a request while
    another decodes), and the library refuses a second caller while a first is inside. So they wait
    for each other here.
    """

    __slots__ = ("_alone", "_mask_V", "_matcher")

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher
        self._mask_V: Tensor | None = None
        self._alone = Lock()

    @property
    def dead(self) -> bool:
        return self._matcher is None

    def may_end(self) -> bool:
        """Whether the text may end here."""
        if self.dead:
            return False
        with self._alone:
            return self._matcher.is_accepting()

    def allows_token(self, token: int) -> bool:
        if self.dead:
            return False
        with self._alone:
            return bool(self._matcher.validate_tokens([token]))

    def state_after(self, token: int) -> GrammarState:
        """Behind one more token; `DEAD` where it may not follow."""
        if self.dead:
            return DEAD
        with self._alone:
            if not self._matcher.validate_tokens([token]):
                return DEAD
            # The copy is advanced, so that the state itself stays as it is.
            matcher = self._matcher.deep_copy()
        matcher.consume_token(token)
        return GrammarState(matcher)

    def forced_bytes(self) -> bytes:
        """The bytes that must follow; none where the text may end."""
        if self.dead:
            return b""
        with self._alone:
            # A text that may end is not forced to go on.
            if self._matcher.is_accepting():
                return b""
            return self._matcher.compute_ff_bytes()

    def token_mask(self, ends: tuple[int, ...], size: int) -> Tensor:
        """Compute the mask of the next token, once.

        Args:
            ends: Token ids that end an answer.
            size: Number of token ids (V).

        Returns:
            True at the tokens that may follow, shape ``[V]``, bool. It must not be written to.

        Raises:
            RequestError: The grammar became too complex to follow.
        """
        if self.dead:  # one state for all grammars: it keeps no mask
            return torch.zeros(size, dtype=torch.bool)
        with self._alone:
            if self._mask_V is None:
                self._mask_V = self._masked(ends, size)
            return self._mask_V

    def _masked(self, ends: tuple[int, ...], size: int) -> Tensor:
        complete = self._matcher.is_accepting()
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        error = self._matcher.get_error()
        if error and not error.startswith("NoExtension"):
            raise RequestError(
                error_sentence(
                    f"constraint became too complex to follow, so make it simpler: {compiler.first_line(error)}"
                )
            )
        # the library ends a text that cannot go on, complete or not
        mask_V = torch.from_numpy(np.unpackbits(bits, count=size, bitorder="little")).bool()
        mask_V[list(ends)] = complete
        return mask_V


DEAD = GrammarState(None)


@dataclass(frozen=True, eq=False)
class GrammarLanguage:
    """The language of a compiled grammar.

    Attributes:
        root: The state before the first token.
        pieces: The bytes of every id; None: it writes nothing.
        ends: Token ids that end an answer.
        lark: What was compiled; "" where that is of no use.
    """

    root: GrammarState
    pieces: tuple[bytes | None, ...]
    ends: tuple[int, ...]
    lark: str = ""
    finite = False

    def start_state(self) -> GrammarState:
        return self.root

    def next_state(self, state: GrammarState, token: int) -> GrammarState:
        """Advance the state by one token of the answer.

        Args:
            state: State behind the answer so far.
            token: Token id that follows.

        Returns:
            The state behind the longer answer; `DEAD` where the token may not follow.
        """
        if self.pieces[token] is None:
            return DEAD  # an end: nothing is behind it
        return state.state_after(token)

    def allows_token(self, state: GrammarState, token: int) -> bool:
        """Tell whether a token may follow, or end the answer.

        Args:
            state: State behind the answer so far.
            token: Token id.

        Returns:
            True where it may.
        """
        if self.pieces[token] is None:
            return token in self.ends and state.may_end()
        return state.allows_token(token)

    def token_mask(self, state: GrammarState) -> Tensor:
        return state.token_mask(self.ends, len(self.pieces))

    def forced_bytes(self, state: GrammarState) -> bytes:
        return state.forced_bytes()


def compile_language(
    kind: str, text: str, called: str, vocab: TokenVocabulary, ends: frozenset[int]
) -> GrammarLanguage:
    """Compile the language of a constraint.

    The result is remembered, errors as well.

    Args:
        kind: "regex", "json_schema", or "grammar" in llguidance's form of Lark.
        text: The constraint.
        called: How errors name it.
        vocab: The vocabulary, with its tokenizer.
        ends: Token ids that may end an answer.

    Returns:
        The language.

    Raises:
        RequestError: It is malformed, goes beyond the limits above, or holds no text that tokens
            can spell.
        MissingError: The library is not installed.
    """
    require_llguidance()  # so that it is said at once where it is missing
    spelled = pieces.token_byte_pieces(vocab, ends)
    last = tuple(sorted(x for x in ends if 0 <= x < vocab.size))
    known = _vocabulary(spelled, last)
    # The text may be long: it is remembered by its hash.
    compiled = _COMPILED.find_or_compile(
        (kind, _digest(text), called, known.number), lambda: _compiled(kind, text, called, known)
    )
    if compiled.wrong:
        raise RequestError(error_sentence(compiled.wrong))
    return GrammarLanguage(compiled.root, spelled, last, compiled.lark)


def compile_lark_language(
    lark: str, vocab: TokenVocabulary, ends: frozenset[int]
) -> GrammarLanguage:
    """Compile the language of a grammar in llguidance's form of Lark.

    Args:
        lark: The grammar.
        vocab: The vocabulary, with its tokenizer.
        ends: Token ids that may end an answer.

    Returns:
        The language.

    Raises:
        RequestError: As for `compile_language`.
        MissingError: The library is not installed.
    """
    return compile_language("grammar", lark, "grammar", vocab, ends)


@dataclass(frozen=True, eq=False)
class _WorkerVocabulary:
    """number: by which the worker knows it; sent: the line that tells it; tokens: of this process."""

    number: int
    sent: bytes
    tokens: Any


_NUMBERS = count()


@lru_cache(maxsize=8)
def _vocabulary(spelled: tuple[bytes | None, ...], ends: tuple[int, ...]) -> _WorkerVocabulary:
    number = next(_NUMBERS)
    # Latin-1 gives each byte a character, so that JSON can hold it.
    told = [None if p is None else p.decode("latin-1") for p in spelled]
    sent = json.dumps({"number": number, "pieces": told, "ends": ends}).encode() + b"\n"
    return _WorkerVocabulary(number, sent, compiler.build_guidance_tokenizer(spelled, ends))


@dataclass(frozen=True, eq=False)
class _CompiledConstraint:
    """root: the state before the first token; lark: what it is compiled of; held: bytes that it
    takes; wrong: why there is none.
    """

    root: GrammarState = DEAD
    lark: str = ""
    held: int = 0
    wrong: str = ""


def _compiled(
    kind: str, text: str, called: str, vocabulary: _WorkerVocabulary
) -> _CompiledConstraint:
    """In the worker, and then here. Raises RequestError for what may go well another time."""
    asked = {"number": vocabulary.number, "kind": kind, "text": text, "called": called}
    request = json.dumps(asked).encode() + b"\n"
    try:
        answer = _WORKER.ask_worker(request)
        for _ in range(2):  # it may have ended in between, for another's request
            # A new worker knows no vocabulary: it is sent once, then the constraint again.
            if "unknown" in answer:
                _WORKER.ask_worker(vocabulary.sent)
                answer = _WORKER.ask_worker(request)
    except WorkerBusyError as error:
        raise WorkerBusyError(
            error_sentence(f"constraint cannot be compiled yet: {error}")
        ) from None
    except WorkerEndedError as error:
        # What may go well another time is not remembered; what ended the worker by itself is.
        if error.again:
            raise RequestError(error_sentence(f"{called}: {error}")) from None
        return _CompiledConstraint(wrong=f"{called}: {error}, so make it simpler")
    except PolydecError as error:
        raise RequestError(error_sentence(f"constraint cannot be compiled: {error}")) from None
    if "unknown" in answer:
        raise RequestError("constraint cannot be compiled: its process ends again and again")
    if "error" in answer:
        return _CompiledConstraint(wrong=answer["error"])
    # The worker has compiled it with less memory and stack, so this process can, too.
    try:
        matcher = compiler.compile_grammar_matcher(vocabulary.tokens, answer["lark"])
    except compiler.MalformedGrammarError as error:  # the worker has just taken it
        raise RequestError(error_sentence(f"{called}: {compiler.first_line(str(error))}")) from None
    return _CompiledConstraint(
        GrammarState(matcher), answer["lark"], answer["held"] + len(answer["lark"])
    )


def _digest(text: str) -> bytes:
    """What a text is remembered by: it may be megabytes, and be refused."""
    return sha256(text.encode("utf-8", "surrogatepass")).digest()


class _CompiledConstraintCache:
    """The constraints that were compiled last, as many as take no more than HELD bytes together."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._known = OrderedDict[Any, _CompiledConstraint]()

    def find_or_compile(
        self, key: Any, make: Callable[[], _CompiledConstraint]
    ) -> _CompiledConstraint:
        """Look up a constraint, or compile it.

        Args:
            key: What it is remembered by.
            make: Compiles it; called without the lock.

        Returns:
            The compiled constraint.
        """
        with self._lock:
            compiled = self._known.get(key)
            if compiled is not None:
                self._known.move_to_end(key)
                return compiled
        compiled = make()  # without the lock: others need not wait
        with self._lock:
            self._known[key] = compiled
            # The one that was used longest ago goes first.
            while len(self._known) > KEPT or sum(x.held for x in self._known.values()) > HELD:
                self._known.popitem(last=False)
        return compiled


_COMPILED = _CompiledConstraintCache()

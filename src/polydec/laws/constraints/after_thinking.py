"""Answers behind thinking: what a constraint binds begins where the thinking ends, and the thinking has a budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.types import TokenCodec, TokenVocabulary
from polydec.laws.constraints.protocols import TokenLanguage
from polydec.models.formats.thinking_marks import (
    ReadState,
    ThinkingPhase,
    ThinkingReader,
    ThinkingSegmentKind,
    bytes_as_latin1,
)

BEFORE_ANSWER = (ThinkingPhase.FIRST, ThinkingPhase.BEHIND)
"""Phases in which a mark may come, or the answer."""


SOFT = 0.9
"""Share of a budget behind which a soft end begins to push."""


@dataclass(frozen=True)
class ThoughtState:
    """The state behind some tokens.

    Attributes:
        read: State of the reader of marks; None: no mark may come any more.
        answer: State of the answer's language; None: no answer has begun, or it is none of that
            language.
        used: Tokens so far.
        thought: How many of them are thinking.
        closing: How many tokens of the forced end stand; None: nothing is forced.
    """

    read: ReadState | None
    answer: Any = None
    used: int = 0
    thought: int = 0
    closing: int | None = None


DEAD = ThoughtState(None)


@dataclass(frozen=True, eq=False)
class AfterThinkingLanguage:
    """Texts whose answer, behind the thinking where there is some, is one of `inner`.

    The thinking is free, and ends with a mark: a text may not end inside of it where `inner` is
    given. Behind `budget` tokens of it the tokens of `closing` are the only ones allowed, so that
    it ends there. Between a mark and the answer one token of white space may stand.

    With `push` the end is soft: in the last tenth of the budget the log-weight of the token that
    begins `closing` (or goes on with what stands of it) rises by `push` for each further token.

    Exact: law: what is not forbidden keeps its chances as with any other constraint, and under
    `push` decoding follows the law that is pushed.
    Reduces to: `inner` where nothing is thought.
    Source: the budget as in Muennighoff et al., "s1: simple test-time scaling", 2025; the soft end
    as a budget of steps asks for (Merrill and Sabharwal, "The expressive power of transformers with
    chain of thought", 2024, which has no algorithm for it); where constraints begin is own.

    Attributes:
        inner: Language of the answers; None: any text.
        reader: Reads the marks, with one character for each byte.
        pieces: What each token writes in such characters; None: nothing.
        ends: Token ids that end a text.
        closing: Tokens of the text that ends the thinking.
        budget: Most tokens of thinking, 0 or more; None: as many as come.
        begin: Gives the state of `inner` at an answer before which so many tokens stand.
        push: Log-weight, 0 or more, that each token beyond nine tenths of the budget adds to the
            token that ends the thinking. 0: nothing is pushed.
    """

    inner: TokenLanguage[Any] | None
    reader: ThinkingReader
    pieces: tuple[str | None, ...]
    ends: frozenset[int]
    closing: tuple[int, ...]
    budget: int | None = None
    begin: Callable[[int], Any] = field(default=lambda used: None)
    push: float = 0.0
    finite = False
    _allowed: dict[ReadState, Tensor] = field(default_factory=dict[ReadState, Tensor], repr=False)

    def start_state(self) -> ThoughtState:
        read = self.reader.start_state()
        return ThoughtState(read, None if read.thinks else self.begin(0))

    def next_state(self, state: ThoughtState, token: int) -> ThoughtState:
        """Advance the state by one token of the answer.

        Args:
            state: State behind the tokens so far.
            token: Token id that follows.

        Returns:
            The state behind the longer text.
        """
        if self._over(state):
            return DEAD
        used = state.used + 1
        # Once the budget is spent, only the closing tokens are followed.
        forced = self._forced_at(state)
        if forced is not None:
            return self._closed(state, forced, token)
        if token in self.ends:
            return DEAD
        text = self._piece(token)
        # No mark can come any more: the language of the answer alone decides.
        if state.read is None:
            return replace(state, answer=self._stepped(state.answer, token), used=used)
        read, said = self._read(state.read, text)
        if state.read.thinks:
            return self._thought(state, read, said, used)
        # Without a constraint the reader only counts what is thinking.
        if self.inner is None:
            return ThoughtState(read, None, used, state.thought)
        # The token belongs to the answer: from now on no mark may come.
        if said or not self._may_be_mark(state.read, text):
            return replace(state, read=None, answer=self._stepped(state.answer, token), used=used)
        return self._before_answer(state, read, token)

    def allows_token(self, state: ThoughtState, token: int) -> bool:
        """Tell whether a token may follow, or end the answer.

        Args:
            state: State behind the tokens so far.
            token: Token id.

        Returns:
            True where it may.
        """
        if self._over(state):
            return False
        forced = self._forced_at(state)
        if forced is not None:
            return token == self.closing[forced]
        if self.inner is None:
            return True
        # The text may end where the answer may, and never inside the thinking.
        if token in self.ends:
            return state.answer is not None and self.inner.allows_token(state.answer, token)
        return not self._over(self.next_state(state, token))

    def token_mask(self, state: ThoughtState) -> Tensor:
        if self._over(state):
            return torch.zeros(len(self.pieces), dtype=torch.bool)
        forced = self._forced_at(state)
        if forced is not None:
            mask_V = torch.zeros(len(self.pieces), dtype=torch.bool)
            mask_V[self.closing[forced]] = True
            return mask_V
        if self.inner is None:
            return torch.ones(len(self.pieces), dtype=torch.bool)
        if state.read is None:
            return self.inner.token_mask(state.answer)
        mask_V = self._marks_allowed(state.read)
        # Before the answer: tokens towards a mark, or tokens that begin the answer.
        if state.answer is None:
            return mask_V
        return mask_V | self.inner.token_mask(state.answer)

    def token_lean(self, state: ThoughtState) -> Mapping[int, float]:
        """What is added to the log-weights of tokens: that of the soft end, as it comes near.

        Args:
            state: State behind the tokens so far.

        Returns:
            Log-weights by token; none where nothing is pushed.
        """
        read = state.read
        if not self.push or self.budget is None or read is None or not read.thinks:
            return {}
        late = state.thought - SOFT * self.budget
        if late <= 0.0 or self._forced_at(state) is not None:
            return {}
        held = read.held.lstrip()  # the model may have begun the mark itself
        return {self.closing[self._begun.get(held, 0)]: self.push * late}

    def forced_bytes(self, state: ThoughtState) -> bytes:
        # Bytes are forced inside the answer only: before it a mark may come as well.
        if self.inner is None or state.read is not None or state.answer is None:
            return b""
        return self.inner.forced_bytes(state.answer)

    def thought_tokens(self, tokens: Sequence[int]) -> int:
        """How many of these tokens of an answer are thinking, the marks aside."""
        state = ThoughtState(self.reader.start_state())
        for token in tokens:
            if state.read is None or token in self.ends:
                break
            read = self.reader.read_piece(state.read, self._piece(token))[0]
            # The token that ends the thinking is part of the mark, and is not counted.
            state = ThoughtState(read, thought=state.thought + (state.read.thinks and read.thinks))
        return state.thought

    def before_answer(self, tokens: Sequence[int]) -> int:
        """How many of these tokens of an answer stand before what is answered."""
        read = self.reader.start_state()
        before = 0
        for at, token in enumerate(tokens, 1):
            read = self.reader.read_piece(read, self._piece(token))[0]
            if read.phase is ThinkingPhase.ANSWER:
                break
            # What stands up to a mark is not answered; white space behind it may be.
            if read.phase is ThinkingPhase.BEHIND:
                before = at
        return before

    # ---- steps ----

    def _over(self, state: ThoughtState) -> bool:
        """Whether nothing can follow."""
        if state is DEAD:
            return True
        return self.inner is not None and state.read is None and state.answer is None

    def _forced_at(self, state: ThoughtState) -> int | None:
        """Which token of the end must come; None: none of them must."""
        if state.closing is not None:
            return state.closing
        if state.read is None or not state.read.thinks or self.budget is None:
            return None
        if state.thought < self.budget:
            return None
        held = state.read.held.lstrip()  # the model may have begun the mark itself
        return self._begun.get(held, 0)

    @cached_property
    def _begun(self) -> Mapping[str, int]:
        """How many tokens of the end make up each of its beginnings."""
        # Where the model has begun the mark itself, the forced end goes on from there.
        texts = ["".join(map(self._piece, self.closing[:n])) for n in range(len(self.closing))]
        return {text: n for n, text in enumerate(texts) if text}

    def _closed(self, state: ThoughtState, at: int, token: int) -> ThoughtState:
        """One more token of the end that is forced."""
        assert state.read is not None
        if token != self.closing[at]:
            return DEAD
        read = self.reader.read_piece(state.read, self._piece(token))[0]
        used = state.used + 1
        last = at + 1 == len(self.closing)
        # The last token of the end begins the answer.
        answer = self.begin(used) if last else None
        return ThoughtState(read, answer, used, state.thought, None if last else at + 1)

    def _read(self, read: ReadState, text: str) -> tuple[ReadState, bool]:
        """The state behind a text, and whether some of it is an answer, or may become one."""
        after, segments = self.reader.read_piece(read, text)
        said = after.phase is ThinkingPhase.ANSWER or any(
            kind is ThinkingSegmentKind.ANSWER for kind, _ in segments
        )
        return after, said

    def _thought(self, state: ThoughtState, read: ReadState, said: bool, used: int) -> ThoughtState:
        """One more token of the thinking, or the one that ends it."""
        if self.inner is not None and (said or (not read.thinks and read.held.strip())):
            return DEAD  # the token would begin an answer that nothing has looked at
        # The thinking goes on: the budget counts this token.
        if read.thinks:
            return ThoughtState(read, None, used, state.thought + 1)
        return ThoughtState(read, self.begin(used), used, state.thought)

    def _before_answer(self, state: ThoughtState, read: ReadState, token: int) -> ThoughtState:
        """One more token that leads towards a mark, before the answer; read: behind it."""
        used = state.used + 1
        answer = self._stepped(state.answer, token)
        if read.thinks:
            return ThoughtState(read, None, used, state.thought)
        # Held text that may still become a mark is no answer yet.
        behind = read.phase is ThinkingPhase.BEHIND and not read.held.strip()
        if answer is None and behind:  # a mark, or white space behind one
            answer = self.begin(used)
        return ThoughtState(read, answer, used, state.thought)

    def _stepped(self, answer: Any, token: int) -> Any:
        """The answer with one more token; None where it is no beginning of one."""
        if self.inner is None or answer is None or not self.inner.allows_token(answer, token):
            return None
        return self.inner.next_state(answer, token)

    @staticmethod
    def _may_be_mark(before: ReadState, text: str) -> bool:
        """Whether a token that says nothing leads towards a mark, or is the one token of white
        space beside one.
        """
        return bool(text.strip()) or (bool(text) and not before.held)

    # ---- masks ----

    def _marks_allowed(self, read: ReadState) -> Tensor:
        """Tokens that may come before an answer, and are none of it: bool, V."""
        if read not in self._allowed:
            if len(self._allowed) >= 256:  # as many as there are beginnings of marks, in practice
                self._allowed.clear()
            if read.thinks:
                self._allowed[read] = self._inside(read)
            else:
                self._allowed[read] = self._toward(read)
        return self._allowed[read]

    def _toward(self, read: ReadState) -> Tensor:
        """Tokens that lead towards a mark."""
        mask_V = torch.zeros(len(self.pieces), dtype=torch.bool)
        held = read.held.lstrip()
        marks = self.reader.marks.texts
        # The characters with which some mark goes on behind what is held of it.
        following = {m[len(held)] for m in marks if m.startswith(held) and len(m) > len(held)}
        for character in following | (set() if read.held else set(" \t\r\n")):
            for token in self._by_first.get(character, ()):
                text = self._piece(token)
                _, said = self._read(read, text)
                mask_V[token] = not said and self._may_be_mark(read, text)
        return mask_V

    def _inside(self, read: ReadState) -> Tensor:
        """Tokens of the thinking: all but those that end the text, or would begin the answer in
        one with the mark.
        """
        mask_V = torch.ones(len(self.pieces), dtype=torch.bool)
        mask_V[[end for end in self.ends if end < len(self.pieces)]] = False
        for token in self._closers(read.held):
            # One token may hold the end of the mark and the beginning of an answer: that is not
            # allowed.
            after, said = self._read(read, self._piece(token))
            if said or (not after.thinks and after.held.strip()):
                mask_V[token] = False
        return mask_V

    def _closers(self, held: str) -> Iterator[int]:
        """Tokens that may hold the end of a closing mark."""
        yield from self._with_marks
        # A mark may have begun in the held text: its next characters are looked for at the
        # beginning of tokens.
        for mark in self.reader.marks.closes:
            for size in range(1, len(mark)):
                if held.endswith(mark[:size]):
                    yield from self._by_first.get(mark[size], ())

    @cached_property
    def _with_marks(self) -> tuple[int, ...]:
        """Tokens that hold a whole closing mark."""
        closes = self.reader.marks.closes
        return tuple(
            at for at, text in enumerate(self.pieces) if text and any(m in text for m in closes)
        )

    @cached_property
    def _by_first(self) -> Mapping[str, Sequence[int]]:
        return _first_characters(self.pieces)

    def _piece(self, token: int) -> str:
        return (self.pieces[token] if token < len(self.pieces) else None) or ""


@lru_cache(maxsize=16)
def _first_characters(pieces: tuple[str | None, ...]) -> dict[str, list[int]]:
    """Tokens by the first character of what they write."""
    out = dict[str, list[int]]()
    for token, text in enumerate(pieces):
        if text:
            out.setdefault(text[0], []).append(token)
    return out


@lru_cache(maxsize=16)
def _spelled(
    words: TokenCodec, size: int, names: tuple[tuple[int, str], ...]
) -> tuple[str | None, ...]:
    known = [None if p is None else p.decode("latin-1") for p in words.pieces[:size]]
    out = [*known, *[None] * (size - len(known))]
    for token, name in names:
        if token < size:
            out[token] = bytes_as_latin1(name)
    return tuple(out)


def after_thinking(
    inner: TokenLanguage[Any] | None,
    vocab: TokenVocabulary,
    ends: frozenset[int],
    reader: ThinkingReader,
    names: Mapping[int, str],
    *,
    budget: int | None = None,
    begin: Callable[[int], Any] | None = None,
    push: float = 0.0,
) -> AfterThinkingLanguage:
    """Make the language of answers behind thinking.

    Args:
        inner: Language of the answers; None: any text.
        vocab: The vocabulary, with its tokenizer.
        ends: Token ids that end a text.
        reader: Reads the model's marks.
        names: Text of each control token that is part of a mark, by id.
        budget: Most tokens of thinking, 0 or more. None: no bound.
        begin: Gives the state of `inner` at an answer before which so many tokens stand. None: its
            start.
        push: Log-weight, 0 or more, that each token beyond nine tenths of the budget adds to the
            token that ends the thinking. Default 0: the end is hard alone.

    Returns:
        The language.

    Raises:
        RequestError: A budget is given, and the tokenizer cannot spell what ends the thinking.
    """
    assert vocab.words is not None
    marks = reader.marks.as_bytes()
    pieces = _spelled(vocab.words, vocab.size, tuple(sorted(names.items())))
    closing = tuple[int, ...]()
    if budget is not None:
        closing = vocab.words.encode(reader.marks.end_text, special=False)
        # The closing mark must be in what the tokens write, or the thinking would never end.
        written = "".join((pieces[x] if x < len(pieces) else None) or "" for x in closing)
        if marks.closes[0] not in written:
            raise RequestError(
                f"reasoning_budget is {budget}: this model's tokenizer cannot spell what ends the thinking "
                f"({reader.marks.end_text}), so leave it out"
            )
    # Without a constraint the state of the answer is nothing.
    if inner is None:
        start = None
    else:
        start = inner.start_state

    def usual_state(used: int) -> Any:
        if start is None:
            return None
        return start()

    return AfterThinkingLanguage(
        inner,
        ThinkingReader(marks, reader.opened),
        pieces,
        ends,
        closing,
        budget,
        usual_state if begin is None else begin,
        push,
    )

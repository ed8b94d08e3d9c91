"""What is asked and what comes back."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


class Writer(Protocol):
    """Turns the tokens of one answer into text. Made anew for each choice; the only role that may keep state inside."""
    def push(self, token: int) -> str:
        """The text that this token makes certain (it may be empty: half a character, half a stop string)."""
        ...

    def end(self) -> str:
        """What was held back; nothing may be pushed after it."""
        ...

    @property
    def stopped(self) -> bool:
        """Whether a stop string is complete; the text then ends before it."""
        ...


class Mute:
    """The writer of a request that asks for token ids only."""
    stopped = False

    def push(self, token: int) -> str:
        return ""

    def end(self) -> str:
        return ""


class Guard(Protocol):
    """What a text may not hold. States are values."""
    def start(self, prompt: Sequence[int]) -> Any: ...
    def step(self, states: Any, token: int) -> Any:
        """The state after one more token of the answer. Raises ValueError where it must not be written."""
        ...


@dataclass(frozen=True)
class Request:
    """One choice of one request, in token ids.

    prompt: at least one token; max_tokens: at least 1, EOS included; stop_ids end the answer like EOS; ignore_eos: the
    vocabulary's own EOS ids do not; seed and choice name the randomness; logprobs: None, or how many alternatives to
    report (0 to 64) beside each token; writer: makes text and finds stop strings; guard: ends a text that cannot go on.
    """
    prompt: tuple[int, ...]
    max_tokens: int = 128
    stop_ids: frozenset[int] = field(default_factory=frozenset[int])
    ignore_eos: bool = False
    seed: int = 0
    choice: int = 0
    logprobs: int | None = None
    writer: Callable[[], Writer] = Mute
    guard: Guard | None = None

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ValueError("prompt is empty: at least one token (such as BOS) is needed")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}: it must be at least 1")
        if self.logprobs is not None and not 0 <= self.logprobs <= 64:
            raise ValueError(f"logprobs is {self.logprobs}: it must lie in 0 to 64")


@dataclass(frozen=True)
class TokenLogprob:
    """A token's log-probability under the shaped law and under the model, and the model's likeliest (token, logp)."""
    token: int
    logp: float
    model_logp: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Stats:
    """passes: scores of the target; drafts: those with a draft; drafted and accepted: nodes, bonus tokens left out;
    accepted_at[d]: drafts of which at least d + 1 levels were accepted; tried_at[d]: drafts that had such a level;
    first: tokens that the first pass gave; expected: nodes that the proposers thought would be accepted, where all of them
    said their chances."""
    passes: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_at: tuple[int, ...] = ()
    tried_at: tuple[int, ...] = ()
    first: int = 0
    expected: float | None = field(default=0.0, compare=False)


@dataclass(frozen=True)
class Result:
    """token_ids: EOS or stop id included; text: without it, and cut before a stop string; finish_reason: "stop" or
    "length"."""
    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    logprobs: tuple[TokenLogprob, ...] | None
    stats: Stats


class Output:
    """The answer being written: where it ends is decided here and nowhere else."""
    def __init__(self, request: Request, eos: frozenset[int]) -> None:
        self._limit, self.ends = request.max_tokens, (frozenset[int]() if request.ignore_eos else eos) | request.stop_ids
        self._writer, self._guard = request.writer(), request.guard
        self._held = None if self._guard is None else self._guard.start(request.prompt)
        self.tokens: list[int] = []
        self._text: list[str] = []
        self.finish_reason: str | None = None

    @property
    def room(self) -> int:
        return self._limit - len(self.tokens)

    @property
    def text(self) -> str:
        return "".join(self._text)

    def append(self, tokens: Sequence[int]) -> tuple[str, ...]:
        """Take tokens up to and including the one that ends the answer; the text that each one adds."""
        pieces: list[str] = []
        for x in tokens:
            if self._guard is not None:
                self._held = self._guard.step(self._held, x)
            self.tokens.append(x)
            pieces.append("" if x in self.ends else self._writer.push(x))
            if x in self.ends or self._writer.stopped:
                self.finish_reason = "stop"
            elif not self.room:
                self.finish_reason = "length"
            if self.finish_reason is not None:
                pieces[-1] += self._writer.end()
                break
        self._text += pieces
        return tuple(pieces)

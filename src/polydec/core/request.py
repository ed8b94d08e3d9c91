"""What is asked and what comes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self

from polydec.base.errors import RequestError

if TYPE_CHECKING:
    from torch import Tensor


class TextWriter(Protocol):
    """Turns the tokens of one answer into text. Made anew for each choice; the only role that may keep state inside."""

    def push(self, token: int) -> str:
        """The text that this token makes certain (it may be empty: half a character, half a stop string)."""
        ...

    def end(self) -> str:
        """What was held back; nothing may be pushed after it."""
        ...

    def fork(self) -> TextWriter:
        """An independent writer that has seen the same tokens."""
        ...

    @property
    def stopped(self) -> bool:
        """Whether a stop string is complete; the text then ends before it."""
        ...


class SilentWriter:
    """The writer of a request that asks for token ids only."""

    stopped = False

    def push(self, token: int) -> str:
        return ""

    def end(self) -> str:
        return ""

    def fork(self) -> SilentWriter:
        return self


class TextGuard(Protocol):
    """What a text may not hold. States are values."""

    def start(self, prompt: Sequence[int]) -> Any: ...
    def step(self, states: Any, token: int) -> Any:
        """The state after one more token of the answer. Raises RequestError where it must not be written."""
        ...

    def kept(self, states: Any, logp_V: Tensor) -> float:
        """The log-probability, at most 0, that a law gives to all tokens together that may be written next."""
        ...

    def single(self, states: Any, logp_V: Tensor) -> bool:
        """Whether a single token may be written next, of those to which a law gives anything."""
        ...


@dataclass(frozen=True)
class Request:
    """One request in token ids; it asks for `n` answers to one prompt.

    prompt: at least one token; max_tokens: of each answer, at least 1, EOS included; stop_ids end an answer like EOS;
    ignore_eos: the vocabulary's own EOS ids do not; seed and a choice's number name its randomness; choice: the number of the
    first answer, 0 or more; n: how many answers, at least 1; logprobs: None, or how many alternatives to report (0 to 64)
    beside each token; prompt_logprobs: the same of the prompt's tokens; writer: makes text and finds stop strings; guard: ends
    a text that cannot go on, with an error; given: what is known of the answer, None for a gap, max_tokens of them (empty:
    nothing is; only canvases can have some).
    """

    prompt: tuple[int, ...]
    max_tokens: int = 128
    stop_ids: frozenset[int] = field(default_factory=frozenset[int])
    ignore_eos: bool = False
    seed: int = 0
    choice: int = 0
    logprobs: int | None = None
    writer: Callable[[], TextWriter] = SilentWriter
    n: int = 1
    guard: TextGuard | None = None
    given: tuple[int | None, ...] = ()
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        if not self.prompt:
            raise RequestError("prompt is empty: at least one token (such as BOS) is needed")
        if self.max_tokens < 1:
            raise RequestError(f"max_tokens is {self.max_tokens}: it must be at least 1")
        if self.n < 1:
            raise RequestError(f"n is {self.n}: it must be at least 1")
        for name, count in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if count is not None and not 0 <= count <= 64:
                raise RequestError(f"{name} is {count}: it must lie in 0 to 64")
        if self.given and len(self.given) != self.max_tokens:
            raise RequestError(
                f"given has {len(self.given)} positions: max_tokens is {self.max_tokens}"
            )

    @property
    def choices(self) -> range:
        """The numbers of the answers."""
        return range(self.choice, self.choice + self.n)


@dataclass(frozen=True)
class TokenLogprob:
    """A token's log-probability under the shaped law and under the model, and the model's likeliest (token, logp)."""

    token: int
    logp: float
    model_logp: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class PromptLogprob:
    """A token of the prompt: its log-probability under the model behind the tokens before it, its rank there (1: the
    likeliest), and the model's likeliest (token, logp). The first token follows no other: nothing is known of it (None)."""

    token: int
    model_logp: float | None = None
    rank: int | None = None
    top: tuple[tuple[int, float], ...] = ()


class AnswerStats(Protocol):
    """What a method counts while it writes one answer. Every family has its own kind; they add up, and they name the
    figures that they have beside those of all methods, so that nobody who reports them needs to know the family."""

    @property
    def passes(self) -> int:
        """Passes of the target that this answer took part in."""
        ...

    @property
    def first(self) -> int:
        """Tokens that were there after the first pass: decoding is timed without them."""
        ...

    def plus(self, other: Self) -> Self:
        """Both together: of two answers, or of two parts of one."""
        ...

    def metrics(self) -> Mapping[str, Any]:
        """The family's own figures by name."""
        ...


@dataclass(frozen=True)
class Result:
    """One answer. token_ids: EOS or stop id included; text: without it, and cut before a stop string; finish_reason: "stop" or
    "length"; logprobs: of each token where they were asked for; stats: what its family counts; score: what a search ranked it
    by, None where nothing was ranked; choice: its number."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    logprobs: tuple[TokenLogprob, ...] | None
    stats: AnswerStats
    score: float | None = None
    choice: int = 0

"""What is asked and what comes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self

from polydec.base.errors import RequestError
from polydec.core.types import RowDetail

if TYPE_CHECKING:
    from torch import Tensor


class TextWriter(Protocol):
    """Turns the tokens of one answer into text. Made anew for each choice; the only role that may
    keep state inside.
    """

    def push_token(self, token: int) -> str:
        """The text that this token makes certain (it may be empty: half a character, half a stop
        string).
        """
        ...

    def end_text(self) -> str:
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

    def push_token(self, token: int) -> str:
        return ""

    def end_text(self) -> str:
        return ""

    def fork(self) -> SilentWriter:
        return self


class TextGuard(Protocol):
    """What a text may not hold. States are values."""

    def start_state(self, prompt: Sequence[int]) -> Any: ...
    def next_states(self, states: Any, token: int) -> Any:
        """Advance the state by one token of the answer.

        Args:
            states: The state behind the answer so far.
            token: Token id that follows.

        Returns:
            The state behind the longer answer.

        Raises:
            RequestError: The token must not be written here.
        """
        ...

    def kept_probability(self, states: Any, logp_V: Tensor) -> float:
        """Sum the probability of all tokens that may be written next.

        Args:
            states: The state behind the answer so far.
            logp_V: Log-probabilities of the next token, shape ``[V]``.

        Returns:
            The log-probability of all allowed tokens together, at most 0.
        """
        ...

    def leaves_single_token(self, states: Any, logp_V: Tensor) -> bool:
        """Tell whether exactly one token may be written next.

        Args:
            states: The state behind the answer so far.
            logp_V: Log-probabilities of the next token, shape ``[V]``; tokens without weight do not
                count.

        Returns:
            True where one token alone is allowed and has weight.
        """
        ...


class AnswerRules(Protocol):
    """What functions of the user's say of an answer as it is written."""

    def check_text(self, prompt: Sequence[int], tokens: Sequence[int]) -> None:
        """Look at a text behind which a token is to be written.

        Args:
            prompt: Token ids of the prompt.
            tokens: Token ids of the answer so far.

        Raises:
            RequestError: The law behind this text is none.
        """
        ...

    def ends_answer(self, tokens: Sequence[int], text: str) -> bool:
        """Tell whether an answer is over.

        Args:
            tokens: Its token ids so far, at least one.
            text: What it reads as, as far as that is certain.

        Returns:
            True where nothing follows.

        Raises:
            RequestError: It cannot be told.
        """
        ...


@dataclass(frozen=True)
class Request:
    """One request in token ids; it asks for `n` answers to one prompt.

    Attributes:
        prompt: Token ids of the prompt, at least one.
        max_tokens: Most tokens of each answer, at least 1, EOS included. Default 128.
        stop_ids: Token ids that end an answer, like EOS. Default: none.
        ignore_eos: Whether the vocabulary's own EOS ids do not end an answer. Default False.
        seed: Names the randomness, together with the number of a choice. Default 0.
        choice: Number of the first answer, 0 or more. Default 0.
        logprobs: How many alternatives to report with each token, 0 to 64; None: no
            log-probabilities.
        writer: Makes the writer of one answer, which turns tokens into text and finds stop strings.
            Default: one that writes nothing.
        n: How many answers, at least 1. Default 1.
        guard: Ends a text that breaks its rules with an error. None: there are no such rules.
        given: What is known of the answer, by position, None for a gap; `max_tokens` entries, or
            empty where nothing is known. What fills canvases reads it, and what fills gaps one by one.
        prompt_logprobs: The same as `logprobs`, of the prompt's tokens. None: nothing of them.
        rules: Functions that are asked about each token that is written. None: there are none.
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
    rules: AnswerRules | None = None

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
        # A canvas has an entry for every position of the answer.
        if self.given and len(self.given) != self.max_tokens:
            raise RequestError(
                f"given has {len(self.given)} positions: max_tokens is {self.max_tokens}"
            )

    @property
    def choices(self) -> range:
        """The numbers of the answers."""
        return range(self.choice, self.choice + self.n)

    @property
    def base_detail(self) -> RowDetail:
        """What is read of the model's own rows, before shaping, for the answer's log-probabilities."""
        if self.logprobs is None:
            return RowDetail.NOTHING
        return RowDetail.ROW


@dataclass(frozen=True)
class TokenLogprob:
    """A token of an answer with its log-probabilities.

    Attributes:
        token: Token id.
        logp: Its log-probability under the shaped law.
        model_logp: Its log-probability under the model, before any shaping.
        top: The likeliest tokens of the model as (token, log-probability), best first.
        text: What the token reads as by itself; "" where nobody has spelled it.
        top_text: The same of each of the likeliest tokens.
    """

    token: int
    logp: float
    model_logp: float
    top: tuple[tuple[int, float], ...]
    text: str = field(default="", compare=False)
    top_text: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class PromptLogprob:
    """A token of the prompt with its log-probability. The first token follows no other, so nothing
    is known of it (None).

    Attributes:
        token: Token id.
        model_logp: Its log-probability under the model, given the tokens before it.
        rank: Its rank there; 1 is the likeliest.
        top: The likeliest tokens of the model at this place as (token, log-probability), best
            first.
        text: What the token reads as by itself; "" where nobody has spelled it.
        top_text: The same of each of the likeliest tokens.
    """

    token: int
    model_logp: float | None = None
    rank: int | None = None
    top: tuple[tuple[int, float], ...] = ()
    text: str = field(default="", compare=False)
    top_text: tuple[str, ...] = field(default=(), compare=False)


class AnswerStats(Protocol):
    """What a method counts while it writes one answer. Every family has its own kind; they add up,
    and they name the figures that they have beside those of all methods, so that nobody who reports
    them needs to know the family.
    """

    @property
    def passes(self) -> int:
        """Passes of the target that this answer took part in."""
        ...

    @property
    def first(self) -> int:
        """Tokens that were there after the first pass: decoding is timed without them."""
        ...

    def plus_stats(self, other: Self) -> Self:
        """Both together: of two answers, or of two parts of one."""
        ...

    def metrics(self) -> Mapping[str, Any]:
        """The family's own figures by name."""
        ...


@dataclass(frozen=True, eq=False)
class ImageMask:
    """The part of an image that a token of an answer stands for, patch by patch.

    Attributes:
        place: Number of the token in the answer, from 0.
        logit_HW: Of each patch a logit, above 0 where it belongs to that part, ``[rows, columns]``.
        patch: Pixels of a patch's side, as the model reads the image.
    """

    place: int
    logit_HW: Tensor
    patch: int


@dataclass(frozen=True, eq=False)
class ReferenceState:
    """A reference of an answer to something that its prompt shows, with what the model thinks there.

    Attributes:
        place: Number of the token of the answer with which the reference is complete, from 0.
        name: What is referred to.
        unit: What a decoder makes of it, such as "box".
        index: Number of the reference among those of its name, from 0.
        state_H: The model's state where it reads that token, behind its final norm, ``[H]``.
        box: Where it lies in the prompt's last image: left, upper, right and lower side in pixels, as the model
            reads the image. None: nothing has decoded it.
    """

    place: int
    name: str
    unit: str
    index: int
    state_H: Tensor
    box: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Result:
    """One answer.

    Attributes:
        token_ids: Token ids, EOS or stop id included.
        text: The text, without EOS and stop id, and cut before a stop string.
        finish_reason: "stop", "length", or "stop_when" where the request's rules ended it.
        logprobs: One entry for each token; None where they were not asked for.
        stats: What the family of the method counts.
        score: What a search ranked the answer by; None where nothing was ranked.
        choice: Number of the answer.
        masks: Parts of an image that its tokens stand for, in the order of these.
        references: What it refers to, in the order of the tokens.
    """

    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    logprobs: tuple[TokenLogprob, ...] | None
    stats: AnswerStats
    score: float | None = None
    choice: int = 0
    masks: tuple[ImageMask, ...] = field(default=(), compare=False)
    references: tuple[ReferenceState, ...] = field(default=(), compare=False)

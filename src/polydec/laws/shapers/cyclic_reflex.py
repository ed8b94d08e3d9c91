"""CyclicReflex: words of reflection get likelier and less likely in turns while a model thinks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

from torch import Tensor

from polydec.base.errors import PolydecError, RequestError
from polydec.base.options import AtLeast, InRange, ValueNote, convert_annotated_value
from polydec.core.types import RowDetail, TokenCodec
from polydec.laws.shapers._rows import token_id_array, token_id_index
from polydec.laws.shapers._rule import SamplingRule, SamplingRuleContext

WORDS = ("wait", "Wait", "but", "But", "Alternatively")
END = b"</think>"

Amplitude = Annotated[
    float,
    InRange(-100, 100),
    ValueNote("0 changes nothing, 5 is published"),
    "CyclicReflex: what is added at most to the logits of words of reflection",
]
Period = Annotated[int, AtLeast(1), "CyclicReflex: tokens of a period"]
Shift = Annotated[float, InRange(0, 1), "CyclicReflex: where in the period an answer begins"]
Until = Annotated[
    int, AtLeast(0), "CyclicReflex: tokens of the answer behind which nothing is added"
]
Tokens = Annotated[
    tuple[int, ...] | None,
    AtLeast(0),
    ValueNote("none: wait, but and alternatively, as the tokenizer spells them"),
    "CyclicReflex: the words of reflection",
]
Ends = Annotated[
    tuple[int, ...] | None,
    AtLeast(0),
    ValueNote("none: whatever spells </think>, one token or several"),
    "CyclicReflex: tokens behind which the model no longer thinks",
]

State = tuple[int, bool, bytes]
"""Tokens of the answer; whether the thinking is over; the last bytes, which may begin its end."""


@dataclass(frozen=True)
class CyclicReflexRule:
    """w + delta(u) for `tokens` while the thinking has not ended in the answer, u = frac(n / period
    + shift) at token n of it (0 is the first). delta is a triangle wave: 0 at 0, amplitude at 1/4,
    0 at 1/2, -amplitude at 3/4.

    amplitude: -100 to 100; period: tokens, at least 1; shift: 0 to 1; until: from this token on
    nothing is added; ends: any of these tokens ends the thinking; mark: so does this text, however
    many tokens write it (empty: none does); pieces: what each token writes, for `mark`.
    Reduces to: the identity at amplitude 0. Raises RequestError outside the ranges.
    Source: "CyclicReflex: improving reasoning models via cyclical reflection token scheduling",
    2025.
    """

    amplitude: float
    tokens: tuple[int, ...]
    period: int = 1200
    shift: float = 0.0
    until: int = 8192
    ends: tuple[int, ...] = ()
    mark: bytes = b""
    pieces: Sequence[bytes | None] = field(default=(), repr=False, compare=False)
    reads: ClassVar[RowDetail] = RowDetail.ROW
    keeps_argmax: ClassVar[bool] = False

    def __post_init__(self) -> None:
        convert_annotated_value("reflex_amplitude", self.amplitude, Amplitude)
        convert_annotated_value("reflex_period", self.period, Period)
        convert_annotated_value("reflex_shift", self.shift, Shift)
        convert_annotated_value("reflex_until", self.until, Until)

    def start_state(self, prompt: Sequence[int]) -> State:
        return 0, False, b""

    def next_state(self, state: State, token: int) -> State:
        """Count one more token, and note whether the thinking is over.

        Args:
            state: Tokens of the answer so far, whether an end of thinking stands among them, and
                their last bytes.
            token: Token id that follows.

        Returns:
            The state behind it.
        """
        n, over, tail = state
        if over or token in self.ends:
            return n + 1, True, b""
        if not self.mark:
            return n + 1, False, b""
        # A mark may be spelled by several tokens, which may write more than the mark.
        text = tail + (self.pieces[token] or b"")
        if self.mark in text:
            return n + 1, True, b""
        return n + 1, False, text[max(0, len(text) - len(self.mark) + 1) :]

    def shape_law(self, state: State, logw_V: Tensor) -> Tensor:
        """Add the bias of this place to the words of reflection.

        Args:
            state: Tokens of the answer so far, whether the thinking is over, and its last bytes.
            logw_V: Log-weights, shape ``[V]``; not written to.

        Returns:
            Log-weights, shape ``[V]``; the row itself where nothing is added any more.
        """
        n, over, _ = state
        # Behind the thinking, and after `until` tokens, nothing is added.
        if over or n >= self.until:
            return logw_V
        at = token_id_index(token_id_array(self.tokens), logw_V)
        out_V = logw_V.clone()
        out_V[at] = logw_V[at] + self.token_bias(n)
        return out_V

    def token_bias(self, n: int) -> float:
        """What is added at token n of the answer."""
        # A triangle wave of u in [0, 1): up to 1/4, down to 3/4, up to 1.
        u = (n / self.period + self.shift) % 1.0
        return 4.0 * self.amplitude * (u if u <= 0.25 else 0.5 - u if u <= 0.75 else u - 1.0)


def reflection_word_ids(words: TokenCodec | None, wanted: Sequence[str]) -> tuple[int, ...]:
    """Find the ids of words that are one token, alone or with a space before them.

    What counts is how a token reads, not what was encoded: where a tokenizer puts a space before
    every text, the token of a bare word has one, and the bare word itself is found after a line
    break.

    Args:
        words: The tokenizer; None where there is none.
        wanted: The words.

    Returns:
        Token ids, each once, in the order found; none without a tokenizer.
    """
    ids = dict[int, None]()
    if words is None:
        return ()
    for word in wanted:
        # A token is taken if it reads as the word with or without a space before it.
        reads = (word.encode(), f" {word}".encode())
        # The last token of each spelling is looked at; what comes before it only separates.
        for text in (word, f" {word}", f"\n{word}"):
            try:
                last = words.encode(text, special=False)[-1:]
            except PolydecError:  # this tokenizer cannot spell it
                continue
            ids |= {x: None for x in last if words.pieces[x] in reads}
    return tuple(ids)


def thinking_end_ids(words: TokenCodec | None) -> tuple[int, ...]:
    """The id of </think> where that is one token, which may be one that writes no text."""
    try:
        if words is None:
            tokens = ()
        else:
            tokens = words.encode(END.decode(), special=False)
    except PolydecError:
        return ()
    # Where several tokens spell the mark, no single id says that the thinking is over.
    if len(tokens) == 1:
        return tuple(tokens)
    return ()


def has_words(shaper: CyclicReflexRule, setting: SamplingRuleContext) -> None:
    """Check that a word of reflection is known.

    Args:
        shaper: The rule.
        setting: What is known of the target; not read.

    Raises:
        RequestError: The rule has no token to act on.
    """
    # Without such a token the rule would do nothing, and nobody would notice.
    if not shaper.tokens:
        raise RequestError(
            "reflex_token_ids is none: this tokenizer has none of wait, but and alternatively as one token, so "
            "give the ids of the words of reflection"
        )


def make_cyclic_reflex_rule(
    setting: SamplingRuleContext,
    *,
    reflex_amplitude: Amplitude = 0.0,
    reflex_period: Period = 1200,
    reflex_shift: Shift = 0.0,
    reflex_until: Until = 8192,
    reflex_token_ids: Tokens = None,
    reflex_end_ids: Ends = None,
) -> CyclicReflexRule | None:
    """Make the rule.

    Args:
        setting: What the rule may know of the target and the request: the tokenizer finds the
            words.
        reflex_amplitude: Most that is added to the logits, -100 to 100; 0 turns the rule off.
            Default 0.
        reflex_period: Tokens of a period, at least 1. Default 1,200.
        reflex_shift: Where in the period an answer begins, 0 to 1. Default 0.
        reflex_until: Tokens of the answer after which nothing is added. Default 8,192.
        reflex_token_ids: Ids of the words of reflection; None: wait, but and alternatively, as the
            tokenizer spells them.
        reflex_end_ids: Ids after which the model no longer thinks; None: whatever spells </think>,
            one token or several.

    Returns:
        The rule, or None where it is off.
    """
    if not reflex_amplitude:
        return None
    if reflex_token_ids is None:
        tokens = reflection_word_ids(setting.words, WORDS)
    else:
        tokens = reflex_token_ids
    rule = CyclicReflexRule(
        reflex_amplitude,
        tokens,
        reflex_period,
        reflex_shift,
        reflex_until,
        reflex_end_ids or (),
    )
    if reflex_end_ids is None and setting.words is not None:
        ends = thinking_end_ids(setting.words)
        return replace(rule, ends=ends, mark=END, pieces=setting.words.pieces)
    return rule


RULE = SamplingRule(
    "reflex",
    make_cyclic_reflex_rule,
    {"transformers": 11, "vllm": 41, "llamacpp": 41},
    always=True,
    token_ids=("reflex_token_ids", "reflex_end_ids"),
    counts=("reflex_amplitude",),
    check=has_words,
)

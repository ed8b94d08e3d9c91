"""Logits processor: whatever a function of the user's makes of each row."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from polydec.base.edge import user_function_errors
from polydec.base.errors import RequestError
from polydec.core.law import NEG_INF
from polydec.core.protocols import Shaper
from polydec.core.types import RowDetail
from polydec.laws.shapers._rule import LogitsFunction, SamplingRule, SamplingRuleContext

FAILURES = 1024
"""Most rows of which it is known that the function failed there; the oldest is forgotten first."""

Text = tuple[int, ...]


@dataclass(frozen=True)
class LogitsProcessorRule:
    """Whatever `function` makes of a row. What an earlier rule has banned stays banned.

    A function may fail at a text that is only a guess: it has banned the guess itself, or it was
    never written for such a text. So a row at which it fails stays as it was and the failure is
    noted, and raised when a token is really written there.

    Exact: the law is the definition that lossless methods reproduce, where the function gives equal
    rows for equal arguments.
    Reduces to: the identity where the function returns the row that it is given.
    Source: the `logits_processor` of transformers, `LogitsProcessor` of vLLM.

    function: takes the token ids of prompt and answer so far, and the row as logits, shape
    ``[V]``, which it may write to; returns the row that takes its place. failures: what went wrong,
    by the text behind which it did; the oldest first.
    """

    function: LogitsFunction
    failures: OrderedDict[Text, RequestError] = field(
        default_factory=OrderedDict[Text, RequestError], compare=False, repr=False
    )
    reads: ClassVar[RowDetail] = RowDetail.ROW
    keeps_argmax: ClassVar[bool] = False

    def start_state(self, prompt: Sequence[int]) -> Text:
        return tuple(prompt)

    def next_state(self, state: Text, token: int) -> Text:
        """Append the token to the text that the function is shown.

        Args:
            state: Token ids of prompt and answer so far.
            token: Token id that follows.

        Returns:
            The longer text.
        """
        return (*state, token)

    def shape_law(self, state: Text, logw_V: Tensor) -> Tensor:
        """Have the function bend one row.

        Args:
            state: Token ids of prompt and answer so far.
            logw_V: Log-weights, shape ``[V]``; not written to.

        Returns:
            Log-weights, shape ``[V]``; the row as it was where the function fails.
        """
        try:
            return self._bent_row(state, logw_V)
        except RequestError as failure:
            self.failures[state] = failure
            if len(self.failures) > FAILURES:
                self.failures.popitem(last=False)
            return logw_V

    def raise_failure(self, state: Text) -> None:
        """Raise the RequestError of the row behind a text, where the function failed there."""
        failure = self.failures.get(state)
        if failure is not None:
            raise failure

    def for_draft(self) -> LogitsProcessorRule:
        """The same for the draft's law: a function that fails at a row of the draft may be right about the model's."""
        return LogitsProcessorRule(self.function)

    def _bent_row(self, state: Text, logw_V: Tensor) -> Tensor:
        # Most such functions write to the row that they are given, so they get one of their own.
        with user_function_errors("logits_processor", f"behind {len(state)} tokens"):
            given = self.function(state, logw_V.clone())
        return _checked_row(given, state, logw_V)


def _checked_row(given: Any, state: Text, logw_V: Tensor) -> Tensor:
    """What a function returned, as log-weights. Raises RequestError where it is no row of a law."""
    behind = f"behind {len(state)} tokens"
    if given is None:
        raise RequestError(
            f"logits_processor returned None {behind}: it must return the row, also where it only writes to it"
        )
    try:
        row = torch.as_tensor(given)
    except Exception:
        kind = type(given).__name__
        raise RequestError(
            f"logits_processor returned a {kind} {behind}: it must return a tensor of {len(logw_V)} logits"
        ) from None
    if row.shape != logw_V.shape:
        raise RequestError(
            f"logits_processor returned shape {list(row.shape)} {behind}: it must be [{len(logw_V)}], "
            "one logit for each token"
        )
    if row.is_complex():
        raise RequestError(f"logits_processor returned complex numbers {behind}: they must be real")
    row_V = row.detach().to(logw_V)
    if bool(row_V.isnan().any()) or bool((row_V == -NEG_INF).any()):
        raise RequestError(
            f"logits_processor returned NaN or +inf {behind}: logits are finite, and -inf bans a token"
        )
    # A function may write over what an earlier rule has banned, and cannot know which rules there are.
    row_V = row_V.masked_fill(logw_V == NEG_INF, NEG_INF)
    if not bool(row_V.isfinite().any()):
        raise RequestError(
            f"logits_processor left no token {behind}: at least one must keep a finite logit"
        )
    return row_V


def make_logits_processor_rule(setting: SamplingRuleContext) -> Shaper[Any] | None:
    return setting.processor


RULE = SamplingRule(
    "logits_processor",
    make_logits_processor_rule,
    # A constraint comes after it everywhere but in transformers: what it bans stays banned anyway.
    {"transformers": 97, "vllm": 1, "llamacpp": 1},
    always=True,
)

"""How the thinking of a request's answers is parted from what they say, and bounded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from polydec.base.errors import RequestError
from polydec.laws.constraints.after_thinking import AfterThinkingLanguage, after_thinking
from polydec.laws.constraints.in_time import DeadlineLanguage
from polydec.laws.constraints.protocols import TokenLanguage
from polydec.models.formats.thinking_marks import ThinkingReader
from polydec.models.sessions.checkpoint import ModelBundle
from polydec.request.fields import Ask

ROOM = 32
"""Tokens that an answer which must end in time has beside its shortest text, a quarter of all at
most."""

SWITCHES = ("enable_thinking", "thinking")
"""What templates call the switch that lets a model think."""

TAIL = 64
"""Tokens of a prompt's end in which an opening mark is looked for."""


@dataclass(frozen=True)
class ThinkingSettings:
    """How a model's thinking is read. reader: of the marks in its texts; names: control tokens
    among the marks, by their ids; shown_apart: whether answers are parted; budget: tokens of
    thinking at most, None: no bound; push: what each token of its last tenth adds to the log-weight
    of the mark that ends it; track: where in an answer's tokens the thinking is; wished:
    the request asks for thinking, so that there may be some before an answer that is bound."""

    reader: ThinkingReader
    names: Mapping[int, str]
    shown_apart: bool
    budget: int | None
    track: AfterThinkingLanguage
    wished: bool = False
    push: float = 0.0

    @property
    def writes_marks(self) -> ThinkingReader | None:
        """What texts are written with, where marks stay in them to be read again."""
        if self.shown_apart:
            return self.reader
        return None

    def answer_language(
        self, point: ModelBundle, inner: TokenLanguage[Any] | None, ends: frozenset[int]
    ) -> AfterThinkingLanguage | None:
        """Which answers are allowed where thinking stands before them.

        Args:
            point: The model.
            inner: What binds the answer alone. None: nothing does.
            ends: The ids that end an answer.

        Returns:
            What `inner` becomes, and what a budget allows. None: neither is asked for.

        Raises:
            RequestError: The budget cannot be kept.
        """
        if not self.shown_apart and inner is not None and self.budget is not None:
            raise RequestError(
                f"reasoning_budget is {self.budget} beside a constraint of the whole text (reasoning_format none): let the "
                "thinking be parted (reasoning_format auto), or leave one of them out"
            )
        spelled = inner is not None and self._spelled_by(inner)
        if self.budget is None and (inner is None or spelled or not self.shown_apart):
            return None
        if spelled:
            raise RequestError(
                f"reasoning_budget is {self.budget} beside a constraint that spells the thinking itself: leave one of them out"
            )
        reader = self.reader
        budget = self.budget
        begin = None
        if inner is not None and not (reader.opened or self.wished):
            if not reader.marks.around:
                return None
            # What stands around an answer may come, and no thinking.
            reader = replace(reader, marks=replace(reader.marks, opens=()))
        # What is thought leaves room for a whole answer.
        if isinstance(inner, DeadlineLanguage):
            begin = inner.state_after_thinking
            most = max(0, inner.most - len(inner.whole) - min(ROOM, inner.most // 4))
            if budget is None:
                budget = most
            else:
                budget = min(budget, most)
        return after_thinking(
            inner,
            point.lm.vocab,
            ends,
            reader,
            self.names,
            budget=budget,
            begin=begin,
            push=self.push,
        )

    def _spelled_by(self, inner: TokenLanguage[Any]) -> bool:
        """Whether all texts of a constraint hold the mark that comes next: then it binds the
        thinking, too."""
        certain = inner.forced_bytes(inner.start_state()).decode(errors="ignore")
        marks = self.reader.marks
        if self.reader.opened:
            return any(mark in certain for mark in marks.closes)
        return certain.lstrip().startswith(marks.opens)

    def split_answer(self, text: str, finish_reason: str) -> tuple[str | None, str]:
        """Split an answer into what was thought and what it says.

        Args:
            text: Of the answer.
            finish_reason: Why it ended; anything but "stop" may have cut a mark in two.

        Returns:
            What was thought, None where nothing is split off; and what it says.
        """
        if not self.shown_apart:
            return None, text
        thought, said = self.reader.separate_text(text, cut=finish_reason != "stop")
        return thought or None, said


def thinking_settings(
    point: ModelBundle, ask: Ask, ids: Sequence[int], begun: str | None = None
) -> ThinkingSettings | None:
    """How a request's thinking is read.

    Args:
        point: The model, with its tokenizer.
        ask: The request, with typed values.
        ids: Of its prompt.
        begun: What stands of the answer already. None: nothing does.

    Returns:
        None where nothing of it is asked for, or nothing is known of how this model thinks and no
        budget is given.

    Raises:
        RequestError: A budget cannot be kept.
    """
    shown_apart = ask.reasoning_format != "none"
    budget = ask.reasoning_budget
    if ask.reasoning_push and budget is None:
        raise RequestError(
            f"reasoning_push is {ask.reasoning_push:g}: it softens the end of a budget: give reasoning_budget, or leave it out"
        )
    if not shown_apart and budget is None:
        return None
    marks = point.text.thinking_marks
    if marks is None or point.lm.vocab.words is None:
        if budget is not None:
            raise RequestError(
                f"reasoning_budget is {budget}: neither the chat template nor the tokenizer of this model says how it thinks, "
                "so leave it out"
            )
        return None
    # The chat template may have opened the thinking already: the mark then stands at the prompt's end.
    tail = point.text.tokenizer.decode(list(ids[-TAIL:]), skip_special_tokens=False)
    opened = marks.opened_by(tail) or (begun is not None and marks.left_open(begun))
    reader = ThinkingReader(marks, opened)
    names = point.text.mark_names(marks)
    ends = point.lm.vocab.eos
    return ThinkingSettings(
        reader,
        names,
        shown_apart,
        budget,
        after_thinking(None, point.lm.vocab, ends, reader, names),
        bool(budget) or _wished(ask.template),
        ask.reasoning_push,
    )


def _wished(template: Mapping[str, Any]) -> bool:
    """Whether the chat template is told that the model shall think."""
    effort = template.get("reasoning_effort", "none")
    return effort != "none" or any(template.get(name) is True for name in SWITCHES)

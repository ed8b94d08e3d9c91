"""Answers as they are written: what stands, where it ends, what it reads as, and who is told of it.

A `Transcript` belongs to one request. It opens a `AnswerText` for each answer, and silent ones for
hypotheses of a search. Where an answer ends is decided in `AnswerText` and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polydec.base.errors import RequestError
from polydec.core.protocols import DraftScores
from polydec.core.request import (
    AnswerRules,
    AnswerStats,
    PromptLogprob,
    Request,
    Result,
    SilentWriter,
    TextWriter,
    TokenLogprob,
)
from polydec.core.trace import (
    BranchedEvent,
    EditedEvent,
    FinishedEvent,
    Observer,
    OpenedEvent,
    PrunedEvent,
    ScoredEvent,
    TraceEvent,
    TriedEvent,
    apply_edit,
    ignore_event,
)
from polydec.core.types import TextEdit


class Transcript:
    """The record of one request.

    `ends` holds the ids that end an answer: EOS unless the request ignores it, and the request's
    own stop ids. `prompt` holds a note of each of the prompt's tokens where they are asked for,
    once they are known; otherwise it is empty.

    Args:
        request: What was asked.
        eos: Token ids that end a text of this vocabulary. Default: none.
        on: Observer that receives every event. By default nobody watches.
    """

    def __init__(
        self, request: Request, eos: frozenset[int] = frozenset(), on: Observer = ignore_event
    ) -> None:
        self.request = request
        self.on = on
        self.ends = (frozenset[int]() if request.ignore_eos else eos) | request.stop_ids
        self.texts: dict[int, AnswerText] = {}  # of the answers that have begun
        self.prompt: tuple[PromptLogprob, ...] = ()
        self._branches = 0  # hypotheses so far

    def open_answer(self, choice: int) -> AnswerText:
        """The text of an answer; its observers are told that it begins."""
        self.on(OpenedEvent(choice, self.request.prompt))
        text = self.texts[choice] = AnswerText(self, choice, self.request.writer())
        return text

    def open_hypothesis(self, stops: bool = True) -> AnswerText:
        """Open a text that may become an answer. What is written to it stands in no answer yet.

        Args:
            stops: Whether the request's stop strings end it. Default True.

        Returns:
            The text.
        """
        # What is no answer, such as a reply to a question of the method's own, ends by itself.
        text = AnswerText(self, None, self.request.writer() if stops else SilentWriter())
        text.send_branch(-1)
        return text

    def branch_number(self) -> int:
        """Of a further branch."""
        self._branches += 1
        return self._branches - 1

    def is_observed(self, kind: type[TraceEvent]) -> bool:
        """Tell whether the observer wants events of this kind; where it does not, the work for them
        can be saved.
        """
        # An observer that names its kinds is spared all others.
        return self.on is not ignore_event and kind in getattr(self.on, "kinds", (kind,))


class AnswerText:
    """One answer being written, or a hypothesis of one (choice: None).

    `tokens` holds what is final, from the beginning without a gap. It ends at the first end (an EOS
    or stop id, a complete stop string, the last token that the request allows) and takes nothing
    after that. `notes` holds a log-probability of each, where the request asks for them. `score` is
    what a search ranks the text by. `branch` is the number of a hypothesis, -1 of an answer;
    `owner` is the answer that it may become, or is.

    Most methods append (`write_tokens`). One that fills a canvas places tokens in any order (`edit_tokens`); what
    follows a gap, or is not final yet, waits inside and may still be changed.
    """

    __slots__ = (
        "_ahead",
        "_asked",
        "_begin",
        "_guard",
        "_guarded",
        "_pieces",
        "_record",
        "_rules",
        "_score",
        "_spelled",
        "_writer",
        "branch",
        "choice",
        "ended_by_rule",
        "ends",
        "finish_reason",
        "limit",
        "notes",
        "owner",
        "tokens",
        "went_on",
    )

    def __init__(self, record: Transcript, choice: int | None, writer: TextWriter) -> None:
        request = record.request
        self._record = record
        self._writer = writer
        self.choice = choice
        # Hypotheses are numbered as they begin; an answer has no number.
        if choice is not None:
            self.branch = -1
        else:
            self.branch = record.branch_number()
        # A hypothesis belongs to the first answer until a fork says otherwise.
        if choice is None:
            self.owner = request.choices.start
        else:
            self.owner = choice
        self.went_on = False  # whether another text begins with this one
        self._begin = len(request.prompt)
        # Notes are made only where somebody asked for log-probabilities.
        self._asked = request.logprobs is not None
        self.ends = record.ends
        self.limit = request.max_tokens
        # A guard follows the text token by token, from the prompt on.
        self._guard = request.guard
        if request.guard is None:
            self._guarded = None
        else:
            self._guarded = request.guard.start_state(request.prompt)
        # What the functions of the request see: its text is put together for them alone.
        self._rules = request.rules
        self._spelled = ""
        self.ended_by_rule = False
        self.tokens: list[int] = []
        self.notes: list[TokenLogprob] = []
        self._score: float | None = None
        self.finish_reason: str | None = None
        self._pieces: list[str] = []
        self._ahead: list[int | None] = []  # what stands behind the final tokens; None is a gap

    @property
    def score(self) -> float | None:
        """What a search ranks the text by."""
        return self._score

    @score.setter
    def score(self, value: float | None) -> None:
        self._score = value
        if value is not None:
            self.send_rank(value)

    def send_branch(self, parent: int) -> None:
        """Send observers the event that this hypothesis begins, behind what it shares with
        `parent`.
        """
        self._told(BranchedEvent, parent, len(self.tokens))

    def send_rank(self, score: float) -> None:
        """Send observers the score that this hypothesis is ranked by as it stands."""
        self._told(ScoredEvent, float(score))

    def send_prune(self) -> None:
        """Send observers, once, the event that a hypothesis was given up.

        Nothing is sent where it has ended, or where another text goes on from it.
        """
        # Where another text goes on from it, or it has ended, it was not given up.
        if not self.went_on and self.finish_reason is None:
            self.went_on = True
            self._told(PrunedEvent)

    def _told(self, kind: Any, *fields: Any) -> None:
        """Observers are told this of a hypothesis, until the answer that it may become has ended:
        that is the last of it.
        """
        record = self._record
        answer = self._record.texts.get(self.owner)
        # The end of an answer is the last event of all that belongs to it.
        over = answer is not None and answer.finish_reason is not None
        if self.branch >= 0 and record.is_observed(kind) and not over:
            record.on(kind(self.owner, self.branch, *fields))

    @property
    def guarded(self) -> Any:
        """The state of the request's guard behind the tokens that are final; None where there is
        no guard.
        """
        return self._guarded

    @property
    def room(self) -> int:
        """How many tokens may still be added."""
        return self.limit - len(self.tokens)

    @property
    def position(self) -> int:
        """Where the next final token stands, counted from the prompt's start."""
        return self._begin + len(self.tokens)

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    @property
    def reported_reason(self) -> str | None:
        """`finish_reason`, and "stop_when" where a rule of the request ended the text: to a method
        that is an end like any other, and users are told which."""
        if self.ended_by_rule:
            return "stop_when"
        return self.finish_reason

    def write_tokens(
        self, tokens: Sequence[int], notes: Sequence[TokenLogprob] = (), accepted: int = 0
    ) -> int:
        """Append final tokens, up to and including the one that ends the answer.

        Args:
            tokens: Token ids. Those behind an end are not taken.
            notes: A log-probability entry for each token, where the request asks for them.
            accepted: How many of the tokens, from the first, were drafted. Default 0.

        Returns:
            How many tokens were taken.

        Raises:
            RequestError: The answer has ended, a canvas is open, or the request's guard forbids a
                token.
        """
        return self._append(tokens, notes, accepted, self._rules)

    def _append(
        self,
        tokens: Sequence[int],
        notes: Sequence[TokenLogprob],
        accepted: int,
        rules: AnswerRules | None,
    ) -> int:
        if self.finish_reason is not None:
            raise RequestError("the answer has ended: nothing can be written to it")
        if self._ahead:
            raise RequestError(
                "tokens stand behind a gap: edit the text instead of appending to it"
            )
        at = self._begin + len(self.tokens)
        pieces = self._take(tokens, notes, rules)
        # What stands behind an end has no piece: it was not taken.
        count = len(pieces)
        new = tuple(tokens[:count])
        self._tell(TextEdit(write=tuple(enumerate(new, at))), new, pieces, min(accepted, count))
        return count

    def edit_tokens(
        self,
        edit: TextEdit,
        *,
        final: int | None = None,
        notes: Mapping[int, TokenLogprob] | None = None,
        accepted: int = 0,
    ) -> int:
        """Change what is not final.

        Where a token that becomes final ends the answer, what stands behind it is erased.

        Args:
            edit: The change. Positions count from the prompt's start; a write beyond the end leaves
                gaps.
            final: Tokens before this position never change again. None: every token before the
                first gap.
            notes: Log-probability entries by position, of the positions that become final now.
                None: there are none.
            accepted: How many of the tokens that become final, from the first, were drafted.
                Default 0.

        Returns:
            How many tokens became final.

        Raises:
            RequestError: The answer has ended, a position is final already, or one lies beyond the
                request's room.
        """
        self._check(edit)
        apply_edit(edit, self._ahead, self.position)
        # The text may not grow beyond the request's limit, gaps counted.
        if len(self._ahead) > self.room:
            last = self.position + len(self._ahead) - 1
            raise RequestError(f"position {last} lies beyond the {self.limit} tokens of the answer")
        # Tokens become final in order, up to the first gap.
        ready = 0
        if final is None:
            stop = len(self._ahead)
        else:
            stop = min(len(self._ahead), max(0, final - self.position))
        # Only what has no gap before it is final.
        while ready < stop and self._ahead[ready] is not None:
            ready += 1
        at = self.position
        new = [x for x in self._ahead[:ready] if x is not None]
        if notes and self._asked:
            noted = [notes[p] for p in range(at, at + ready)]
        else:
            noted = ()
        pieces = self._take(new, noted, self._rules)
        # The writer may hold some tokens back, such as the beginning of a stop string.
        del self._ahead[: len(pieces)]
        self._tell(edit, tuple(new[: len(pieces)]), pieces, min(accepted, len(pieces)))
        return len(pieces)

    def fork(self, owner: int | None = None) -> AnswerText:
        """Make a hypothesis that has the same tokens, and a writer that has seen them.

        Args:
            owner: The answer that it may become. None: that of this text.

        Returns:
            The new text.
        """
        # The writer may hold half a character or half a stop string, so it is forked, too.
        twin = AnswerText(self._record, None, self._writer.fork())
        if owner is None:
            twin.owner = self.owner
        else:
            twin.owner = owner
        # Lists are copied, since both twins go on writing.
        twin.tokens = list(self.tokens)
        twin.notes = list(self.notes)
        twin._score = self.score
        twin._guarded = self._guarded
        twin.finish_reason = self.finish_reason
        twin.ended_by_rule = self.ended_by_rule
        twin._spelled = self._spelled
        twin._pieces = list(self._pieces)
        twin._ahead = list(self._ahead)
        self.went_on = True
        twin.send_branch(self.branch)
        return twin

    def follow_text(self, other: AnswerText, length: int | None = None) -> None:
        """Take over tokens of another text, which must begin with all tokens of this one.

        Args:
            other: The text to follow.
            length: How many tokens of it. None: all, and its score.

        Raises:
            RequestError: `other` begins otherwise.
        """
        have = len(self.tokens)
        if length is None:
            stop = len(other.tokens)
        else:
            stop = length
        if other.tokens[:have] != self.tokens:
            raise RequestError("the text to follow begins otherwise")
        # Of a part of the text the score says nothing.
        if length is None:
            self.score = other.score
        if stop > have:
            # The request's rules were asked when the other text was written: a function that looks
            # at the clock would end this one elsewhere.
            rules = None
            if other.ended_by_rule and stop == len(other.tokens):
                rules = _FollowedEnd(stop)
            self._append(other.tokens[have:stop], other.notes[have:stop], 0, rules)

    def finished_answer(self, stats: AnswerStats) -> Result:
        """The finished answer."""
        if self.finish_reason is None:
            raise RequestError("the answer has not ended")
        if self._asked:
            notes = tuple(self.notes)
        else:
            notes = None
        return Result(
            tuple(self.tokens),
            self.text,
            self.reported_reason or self.finish_reason,
            notes,
            stats,
            self.score,
            self.choice or 0,
        )

    def _take(
        self, tokens: Iterable[int], notes: Sequence[TokenLogprob], rules: AnswerRules | None
    ) -> tuple[str, ...]:
        """Make these final, up to the end; the text that each made certain."""
        pieces: list[str] = []
        # Each token passes the guard, the end ids and the writer, in this order.
        for x in tokens:
            if rules is not None:  # raises where a function failed at the law of this token
                rules.check_text(self._record.request.prompt, self.tokens)
            if self._guard is not None:  # raises where the request's rules forbid the token
                self._guarded = self._guard.next_states(self._guarded, x)
            self.tokens.append(x)
            ended = x in self.ends
            # An end id has no text of its own; the writer then gives what it held back.
            pieces.append("" if ended else self._writer.push_token(x))
            if self._rules is not None:
                self._spelled += pieces[-1]
            if ended or self._writer.stopped:
                self.finish_reason = "stop"
            elif rules is not None and rules.ends_answer(self.tokens, self._spelled):
                self.finish_reason = "stop"
                self.ended_by_rule = True
            elif len(self.tokens) == self.limit:
                self.finish_reason = "length"
            if self.finish_reason is not None:
                pieces[-1] += self._writer.end_text()
                break
        # Notes of tokens behind the end go with these.
        self.notes += notes[: len(pieces)]
        self._pieces += pieces
        return tuple(pieces)

    def _check(self, edit: TextEdit) -> None:
        if self.finish_reason is not None:
            raise RequestError("the answer has ended: it cannot be edited")
        first = self.position
        # What is final was sent to the user already.
        for at in (*edit.erase, *(p for p, _ in edit.insert), *(p for p, _ in edit.write)):
            if at < first:
                raise RequestError(f"position {at} is final: edits begin at {first}")

    def _tell(
        self, edit: TextEdit, new: tuple[int, ...], pieces: tuple[str, ...], accepted: int
    ) -> None:
        choice = self.choice
        on = self._record.on
        # Edits and an end are events of answers; a hypothesis has events of its branch.
        if choice is not None:
            on(EditedEvent(choice, edit, new, pieces, accepted))
        elif new:
            self._told(TriedEvent, new, pieces)
        if self.finish_reason is None:
            return
        # Tokens of the canvas behind the end are erased for observers as well.
        behind = tuple(range(self.position, self.position + len(self._ahead)))
        self._ahead = []  # the canvas behind the end is no part of the answer
        if choice is not None:
            if behind:
                on(EditedEvent(choice, TextEdit(erase=behind), (), (), 0))
            on(FinishedEvent(choice, self.reported_reason or self.finish_reason))


@dataclass(frozen=True)
class _FollowedEnd:
    """The rules of an answer that follows a hypothesis, which ended by rules behind `length` tokens."""

    length: int

    def check_text(self, prompt: Sequence[int], tokens: Sequence[int]) -> None:
        """Accept what the hypothesis was allowed to write.

        Args:
            prompt: Not read.
            tokens: Not read.
        """

    def ends_answer(self, tokens: Sequence[int], text: str) -> bool:
        """Tell whether the hypothesis had ended here.

        Args:
            tokens: Token ids of the answer so far.
            text: Not read.

        Returns:
            True where it had.
        """
        return len(tokens) == self.length


def common_prefix_tokens(texts: Iterable[AnswerText]) -> list[int]:
    """The tokens that all of these texts begin with: what is certain of a search's answer while
    they are all that is left.
    """
    every = [t.tokens for t in texts]
    if not every:
        return []
    # The prefix of the smallest and the largest text in lexical order is the prefix of all.
    low = min(every)
    high = max(every)
    same = next((i for i, (x, y) in enumerate(zip(low, high)) if x != y), min(len(low), len(high)))
    return low[:same]


def logprobs_at_nodes(
    scores: DraftScores, nodes: Sequence[int], tokens: Sequence[int], k: int | None
) -> list[TokenLogprob]:
    """Note the log-probabilities of tokens that follow nodes of a draft.

    Args:
        scores: Laws at the nodes of the draft.
        nodes: The node that each token follows.
        tokens: Token ids; where there are more nodes than tokens, the last nodes are left out.
        k: How many of the model's likeliest tokens to report with each, 0 or more. None: nothing is
            noted.

    Returns:
        One entry for each token; none at all for k = None.
    """
    out: list[TokenLogprob] = []
    if k is None:
        return out
    for node, x in zip(nodes, tokens, strict=False):
        if k:
            top = zip(*scores.base.likeliest_tokens(node, k), strict=True)
        else:
            top = ()
        out.append(
            TokenLogprob(
                x,
                scores.token_logprobs(node, (x,))[0],
                scores.base.token_logprobs(node, (x,))[0],
                tuple(top),
            )
        )
    return out

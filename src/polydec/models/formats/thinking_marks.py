"""How models separate what they think from what they answer: the marks of each family as data, and
one reader for all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum


@dataclass(frozen=True)
class ThinkingMarks:
    """How a family of models writes its thinking.

    Attributes:
        name: Of the family.
        opens: Texts that begin it; the first is the usual one.
        closes: Texts that end it; the first is the usual one.
        around: Texts around the answer that are no part of it.
        ending: What ends the thinking for good where a budget is used up; "": the usual closing
            mark.
        anywhere: Whether control tokens open thinking wherever they stand, and not only where an
            answer begins.
        known_by: Texts that the chat template of such a model holds; none: the usual two marks.
    """

    name: str
    opens: tuple[str, ...]
    closes: tuple[str, ...]
    around: tuple[str, ...] = ()
    ending: str = ""
    anywhere: bool = False
    known_by: tuple[str, ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        """All of its marks."""
        return (*self.opens, *self.closes, *self.around)

    @property
    def end_text(self) -> str:
        """What ends the thinking for good."""
        return self.ending or self.closes[0]

    def in_template(self, source: str) -> bool:
        """Whether a chat template speaks of these marks."""
        return all(text in source for text in self.known_by or (self.opens[0], self.closes[0]))

    def left_open(self, text: str) -> bool:
        """Whether a text ends inside of thinking."""
        return max(map(text.rfind, self.opens)) > max(map(text.rfind, self.closes))

    def opened_by(self, prompt: str) -> bool:
        """Whether a prompt ends with an opening mark and at most white space, so that the answer
        begins inside of the thinking."""
        return prompt.rstrip().endswith(tuple(mark.rstrip() for mark in self.opens))

    def as_bytes(self) -> ThinkingMarks:
        """The same with a character for each byte, for texts that may end inside of a character."""
        spelled = {
            field: tuple(bytes_as_latin1(text) for text in getattr(self, field))
            for field in ("opens", "closes", "around", "known_by")
        }
        return replace(self, ending=bytes_as_latin1(self.ending), **spelled)


def bytes_as_latin1(text: str) -> str:
    """A text with a character for each of its bytes."""
    return text.encode().decode("latin-1")


FAMILIES = (
    ThinkingMarks(
        "gpt-oss",
        ("<|channel|>analysis<|message|>",),
        ("<|end|>",),
        (
            "<|start|>assistant",
            "<|channel|>final<|message|>",
            "<|channel|>commentary<|message|>",
            "<|end|>",
        ),
        "<|end|><|start|>assistant<|channel|>final<|message|>",
        anywhere=True,
    ),
    ThinkingMarks(
        "gemma-4",
        ("<|channel>thought\n",),
        ("<channel|>",),
        anywhere=True,
        known_by=("<|channel>", "<channel|>"),
    ),
    ThinkingMarks("magistral", ("[THINK]",), ("[/THINK]",)),
    ThinkingMarks("seed-oss", ("<seed:think>",), ("</seed:think>",)),
    ThinkingMarks("minimax-m3", ("<mm:think>",), ("</mm:think>",)),
    ThinkingMarks(
        "command-a",
        ("<|START_THINKING|>",),
        ("<|END_THINKING|>",),
        ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    ),
    ThinkingMarks("apertus", ("<|inner_prefix|>",), ("<|inner_suffix|>",)),
    ThinkingMarks("kimi-vl", ("◁think▷",), ("◁/think▷",)),
    ThinkingMarks("exaone-deep", ("<thought>",), ("</thought>",)),
    ThinkingMarks("reka-flash", ("<reasoning>",), ("</reasoning>",)),
    ThinkingMarks(
        "granite-3",
        ("Here is my thought process:", "Here's my thought process:"),
        ("Here is my response:", "Here's my response:"),
        known_by=("my thought process:", "my response:"),
    ),
    ThinkingMarks(
        "hunyuan-a13b",
        ("<think>",),
        ("</think>",),
        ("<answer>", "</answer>"),
        known_by=("<think>", "</think>", "<answer>", "</answer>"),
    ),
    ThinkingMarks("think", ("<think>",), ("</think>",)),
)
"""What is in use. The first family that a chat template speaks of is the model's."""


def marks_of(template: str, tokens: Iterable[str]) -> ThinkingMarks | None:
    """The marks of a model.

    Args:
        template: Source of its chat template.
        tokens: Those of its tokenizer that are no ordinary text.

    Returns:
        The marks; None where nothing is known of its thinking.
    """
    known = frozenset(tokens)
    # A template decides. Without one, a tokenizer that has both usual marks as tokens of their own
    # does.
    spoken_of = (marks for marks in FAMILIES if marks.in_template(template))
    usual = (marks for marks in FAMILIES if not marks.known_by)
    single = (marks for marks in usual if {marks.opens[0], marks.closes[0]} <= known)
    return next(spoken_of, None) or next(single, None)


class ThinkingSegmentKind(Enum):
    """What a part of a text is. MARK: a mark, or white space next to one."""

    MARK = "mark"
    THINKING = "thinking"
    ANSWER = "answer"


Segment = tuple[ThinkingSegmentKind, str]


class ThinkingPhase(Enum):
    """Where a text stands. FIRST: nothing was written yet; BEGUN: nothing of the thinking was;
    BEHIND: nothing was written after a mark."""

    FIRST = "first"
    BEGUN = "begun"
    THINKING = "thinking"
    BEHIND = "behind"
    ANSWER = "answer"


@dataclass(frozen=True)
class ReadState:
    """Where a reader stands in a text.

    Attributes:
        phase: What comes next.
        held: What was read and may become a mark, or is white space that may stand next to one.
    """

    phase: ThinkingPhase
    held: str = ""

    @property
    def thinks(self) -> bool:
        """Whether it stands inside of the thinking."""
        return self.phase in (ThinkingPhase.BEGUN, ThinkingPhase.THINKING)


@dataclass(frozen=True)
class ThinkingReader:
    """Separates a text that comes in pieces into what was thought, what is answered, and marks.

    Nothing is lost: the segments, in their order, add up to the text. Where the pieces are cut
    makes no difference to that. White space at both ends of the thinking, and between a mark and
    the answer, counts as a part of the mark. States are values: a step changes none.

    Attributes:
        marks: The marks of the model's family.
        opened: Whether the text begins inside of the thinking.
    """

    marks: ThinkingMarks
    opened: bool = False

    def start_state(self) -> ReadState:
        """The state before the first piece."""
        return ReadState(ThinkingPhase.BEGUN if self.opened else ThinkingPhase.FIRST)

    def read_piece(self, state: ReadState, text: str) -> tuple[ReadState, list[Segment]]:
        """Read one more piece.

        Args:
            state: The state before it.
            text: The piece.

        Returns:
            The state after it, and the segments that became certain.
        """
        out = list[Segment]()
        phase = state.phase
        rest = state.held + text
        # Each turn handles one phase; a mark in the text leads to another one.
        while True:
            if phase in (ThinkingPhase.FIRST, ThinkingPhase.BEHIND):
                phase, segments, rest, more = self._beginning(phase, rest)
            elif phase is ThinkingPhase.ANSWER:
                phase, segments, rest, more = self._answer(rest)
            else:
                phase, segments, rest, more = self._inside(phase, rest)
            out += [segment for segment in segments if segment[1]]
            if not more:
                return ReadState(phase, rest), out

    def end_text(self, state: ReadState, cut: bool) -> list[Segment]:
        """End the text.

        Args:
            state: The state after the last piece.
            cut: Whether the text stops where it would have gone on, so that the beginning of a mark
                counts as one.

        Returns:
            Segments of what was held back.
        """
        held = state.held
        if cut:
            # A text that is cut off may end within a mark, which is then no text.
            begun = _begun(held, self._awaited(state.phase))
        else:
            begun = 0
        said = held[: len(held) - begun]
        marked = held[len(held) - begun :]
        segments = [(ThinkingSegmentKind.ANSWER, said), (ThinkingSegmentKind.MARK, marked)]
        # White space next to a mark is part of it: at the end of the thinking, or before the
        # answer.
        if state.thinks:
            # White space before the mark belongs to the mark, not to the thought.
            body = said.rstrip()
            segments = [
                (ThinkingSegmentKind.THINKING, body),
                (ThinkingSegmentKind.MARK, said[len(body) :] + marked),
            ]
        # White space between the thought and the answer is no answer.
        elif state.phase is ThinkingPhase.BEHIND or (state.phase is ThinkingPhase.FIRST and begun):
            body = said.lstrip()
            white = (ThinkingSegmentKind.MARK, said[: len(said) - len(body)])
            segments = [
                white,
                (ThinkingSegmentKind.ANSWER, body),
                (ThinkingSegmentKind.MARK, marked),
            ]
        return [segment for segment in segments if segment[1]]

    def separate_text(self, text: str, cut: bool) -> tuple[str, str]:
        """Separate a complete text.

        Args:
            text: The text.
            cut: Whether it stops where it would have gone on; see `end_text`.

        Returns:
            What was thought, and what is answered.
        """
        state, segments = self.read_piece(self.start_state(), text)
        segments += self.end_text(state, cut)
        thought, answer = (
            "".join(part for kind, part in segments if kind is wanted)
            for wanted in (ThinkingSegmentKind.THINKING, ThinkingSegmentKind.ANSWER)
        )
        return thought, answer

    # ---- phases: each gives the next one, segments, what is left, and whether there is more ----

    def _awaited(self, phase: ThinkingPhase) -> tuple[str, ...]:
        """The marks that may come."""
        marks = self.marks
        if phase is ThinkingPhase.THINKING:
            return marks.closes
        if phase is ThinkingPhase.BEGUN:  # some models open again what the prompt has opened
            return (*marks.opens, *marks.closes)
        if phase is ThinkingPhase.FIRST or marks.anywhere:
            opens = marks.opens
        else:
            opens = ()
        return (*opens, *marks.around)

    def _beginning(
        self, phase: ThinkingPhase, text: str
    ) -> tuple[ThinkingPhase, list[Segment], str, bool]:
        """Nothing was said yet, or nothing after a mark."""
        said = text.lstrip()
        awaited = self._awaited(phase)
        mark = next((m for m in awaited if said.startswith(m)), None)
        if mark is not None:
            size = len(text) - len(said) + len(mark)
            inside = mark in self.marks.opens
            return (
                ThinkingPhase.BEGUN if inside else ThinkingPhase.BEHIND,
                [(ThinkingSegmentKind.MARK, text[:size])],
                text[size:],
                True,
            )
        # White space, or what may become a mark: wait for more.
        if not said or any(m.startswith(said) for m in awaited):
            return phase, [], text, False
        # After a mark white space belongs to the mark; at the very beginning it belongs to the
        # answer.
        if phase is ThinkingPhase.BEHIND:
            white = len(text) - len(said)
        else:
            white = 0
        return ThinkingPhase.ANSWER, [(ThinkingSegmentKind.MARK, text[:white])], text[white:], True

    def _inside(
        self, phase: ThinkingPhase, text: str
    ) -> tuple[ThinkingPhase, list[Segment], str, bool]:
        """What is thought."""
        segments = list[Segment]()
        if phase is ThinkingPhase.BEGUN:
            thought = text.lstrip()
            white = text[: len(text) - len(thought)]
            again = next((mark for mark in self.marks.opens if thought.startswith(mark)), "")
            # The model opens again what the prompt has opened: that mark is no thought.
            if again:
                return (
                    phase,
                    [(ThinkingSegmentKind.MARK, white + again)],
                    thought[len(again) :],
                    True,
                )
            awaited = self._awaited(phase)
            # What was read may become such a mark: wait for more.
            if any(mark.startswith(thought) and mark != thought for mark in awaited):
                return phase, [], text, False
            segments.append((ThinkingSegmentKind.MARK, white))
            text = thought
        at, mark = _first(text, self.marks.closes)
        if mark:
            thought = text[:at].rstrip()
            segments += [
                (ThinkingSegmentKind.THINKING, thought),
                (ThinkingSegmentKind.MARK, text[len(thought) : at + len(mark)]),
            ]
            return ThinkingPhase.BEHIND, segments, text[at + len(mark) :], True
        # Certain is all but what may begin a closing mark, and the white space before that.
        sure = text[: len(text) - _begun(text, self.marks.closes)].rstrip()
        return (
            ThinkingPhase.THINKING,
            [*segments, (ThinkingSegmentKind.THINKING, sure)],
            text[len(sure) :],
            False,
        )

    def _answer(self, text: str) -> tuple[ThinkingPhase, list[Segment], str, bool]:
        """What is answered."""
        # What nothing can end is given out at once.
        awaited = self._awaited(ThinkingPhase.ANSWER)
        if not awaited:
            return ThinkingPhase.ANSWER, [(ThinkingSegmentKind.ANSWER, text)], "", False
        at, mark = _first(text, awaited)
        if mark:
            said = text[:at].rstrip()
            segments = [
                (ThinkingSegmentKind.ANSWER, said),
                (ThinkingSegmentKind.MARK, text[len(said) : at + len(mark)]),
            ]
            if mark in self.marks.opens:
                following = ThinkingPhase.BEGUN
            else:
                following = ThinkingPhase.BEHIND
            return following, segments, text[at + len(mark) :], True
        # A beginning of a mark at the end is held back until more comes.
        sure = text[: len(text) - _begun(text, awaited)].rstrip()
        return ThinkingPhase.ANSWER, [(ThinkingSegmentKind.ANSWER, sure)], text[len(sure) :], False


def _begun(text: str, marks: Sequence[str]) -> int:
    """How many characters at the end of a text may be the beginning of a mark."""
    longest = max((len(mark) for mark in marks), default=1) - 1
    sizes = range(min(longest, len(text)), 0, -1)
    return next((n for n in sizes if any(m.startswith(text[-n:]) for m in marks)), 0)


def _first(text: str, marks: Sequence[str]) -> tuple[int, str]:
    """Where the first of these marks stands in a text, and which; "" where none does."""
    # Of marks at one place the longest counts.
    found = [(at, -len(mark), mark) for mark in marks if (at := text.find(mark)) >= 0]
    at, _, mark = min(found, default=(len(text), 0, ""))
    return at, mark

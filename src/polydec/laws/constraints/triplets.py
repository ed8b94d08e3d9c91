"""Answers that point at parts of an image: a plan of concepts, then a text in which each of them has its references."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from polydec.base.errors import RequestError
from polydec.base.options import name_suggestion, short_repr
from polydec.core.types import TokenVocabulary
from polydec.laws.constraints import pieces
from polydec.laws.constraints.any_of import AnyOf
from polydec.laws.constraints.protocols import TokenLanguage
from polydec.laws.constraints.regex import Regex

UNITS = ("box", "mask", "keypoint", "depth", "point")
"""What may be decoded of a reference."""
MOST = 16
"""Concepts of a plan, and references of each, at most."""
KEPT = 256
"""Concepts whose groups are remembered."""
REFERENCE = "<REF>"
"""Its hidden state is what a decoder reads."""
PLAN_END = "</Task>"
NO_UNITS = f"<Task>\nUnit decode (False).\n{PLAN_END}"
"""The plan of an answer that points at nothing."""
PLAN_HEAD = "<Task>\nUnit decode (True). Class name, target unit and number:"

_NAME = r"[^<>\n ](?:[^<>\n]{0,58}[^<>\n ])?"
# 1 to MOST.
_COUNT = r"[1-9]|1[0-6]"
_GROUP = re.compile(
    rf"<Phrase> ?({_NAME})</Phrase>\(<Unit>([a-z]+)</Unit>((?:\[[0-9]+\]{REFERENCE})+)\)"
)


@dataclass(frozen=True)
class PlannedTriplet:
    """A concept of a plan.

    Attributes:
        name: What it is, 1 to 60 characters of one line.
        unit: What is decoded of it, one of UNITS.
        count: How many references it has, 1 to MOST.
    """

    name: str
    unit: str
    count: int

    @property
    def plan_line(self) -> str:
        """How a plan says it."""
        return f"\n- Name: {self.name} Unit: <Unit>{self.unit}</Unit> Num: {self.count}"

    @property
    def answer_group(self) -> str:
        """How an answer says it, with its references."""
        marks = "".join(f"[{at}]{REFERENCE}" for at in range(self.count))
        return f"<Phrase>{self.name}</Phrase>(<Unit>{self.unit}</Unit>{marks})"


def plan_text(planned: Sequence[PlannedTriplet]) -> str:
    """The plan of an answer with these concepts, in their order."""
    if not planned:
        return NO_UNITS
    return f"{PLAN_HEAD}{''.join(one.plan_line for one in planned)}\n{PLAN_END}"


def read_triplets(text: str) -> tuple[PlannedTriplet, ...]:
    """Read the concepts of an answer.

    Args:
        text: The whole answer.

    Returns:
        What was planned, which is what follows: the same names, units and references in one order.

    Raises:
        RequestError: The answer does not begin with a plan, it has marks at other places, or what follows
            is not what was planned.
    """
    plan, end, said = text.partition(PLAN_END)
    planned = _read_plan(plan + end, UNITS)
    if planned is None:
        raise RequestError(f"the answer begins with {short_repr(text)}: it must begin with a plan")
    # One space may stand before a name, as some tokenizers write words so.
    groups = [found[0].replace("<Phrase> ", "<Phrase>") for found in _GROUP.finditer(said)]
    if "<" in _GROUP.sub("", said) or groups != [one.answer_group for one in planned]:
        raise RequestError(
            f"the answer goes on with {short_repr(said)}: its plan has {short_repr(list(planned))}"
        )
    return planned


def reference_places(written: Sequence[bytes | None], tokens: Sequence[int]) -> tuple[int, ...]:
    """Find the references among the tokens of an answer.

    Args:
        written: The bytes of each token id; None: it writes nothing.
        tokens: Token ids of the answer.

    Returns:
        Numbers of the tokens with which references are complete, ascending.
    """
    mark = REFERENCE.encode()
    text = b""
    out = list[int]()
    for at, token in enumerate(tokens):
        before = text.count(mark)
        text += written[token] or b""
        # Of a token that completes several references each is its own.
        out += [at] * (text.count(mark) - before)
    return tuple(out)


@dataclass(frozen=True)
class TripletGrammar:
    """The answer is a plan of concepts, and a text in which they stand one after another, each with its references.

    A plan is ``<Task>``, a line that says whether units follow, of each concept a line with its name, its unit and
    its number, and ``</Task>``. The text behind it is free, without the character ``<``, but for a group of each
    concept in the order of the plan: ``<Phrase>NAME</Phrase>(<Unit>UNIT</Unit>[0]<REF>[1]<REF>…)``, with the
    plan's name and unit and as many references as its number. It ends where all of them have stood.

    Exact: law: what is not forbidden keeps its chances as with any other constraint.
    Reduces to: free text behind the plan that nothing is decoded, where that is what the model plans.
    Source: "REF-VLM: triplet-based referring paradigm for unified visual decoding" (2025), the format; that an
    automaton holds the answer to its plan is ours.

    Attributes:
        units: Which units may be planned, at least one of UNITS.
    """

    units: tuple[str, ...] = UNITS

    def __post_init__(self) -> None:
        if not self.units:
            raise RequestError(f"triplets names no unit: give some of {', '.join(UNITS)}")
        for unit in self.units:
            if unit not in UNITS:
                raise RequestError(
                    f"triplets names the unit {short_repr(unit)}: {name_suggestion(str(unit), UNITS, 'the units')}"
                )

    @staticmethod
    def of_value(value: object) -> TripletGrammar:
        """The grammar of a request's value: a text of units that commas separate, or a list of them.

        Raises:
            RequestError: It is neither, or names another unit.
        """
        if isinstance(value, str):
            return TripletGrammar(tuple(unit.strip() for unit in value.split(",")))
        if isinstance(value, (list, tuple)):
            return TripletGrammar(tuple(value))
        raise RequestError(
            f"triplets is {short_repr(value)}: it must be a list of units, such as box,mask"
        )

    def token_language(self, vocab: TokenVocabulary, ends: frozenset[int]) -> TripletLanguage:
        """Make the language of these answers for a vocabulary.

        Args:
            vocab: The vocabulary, with its tokenizer.
            ends: Token ids that may end an answer, at least one.

        Returns:
            The language.

        Raises:
            RequestError: No tokens of the vocabulary spell a plan or a group, or their bytes are not known.
            MissingError: llguidance is not installed.
        """
        free = Regex("[^<]*").token_language(vocab, ends)
        spelled = pieces.token_byte_pieces(vocab, ends)
        # What cannot be spelled behind a plan must not be planned.
        groups = GroupSpelling(vocab, ends, spelled)
        counts = "|".join(str(count) for count in range(1, groups.most_references(self.units) + 1))
        line = rf"\n- Name: {_NAME} Unit: <Unit>(?:{'|'.join(self.units)})</Unit> Num: (?:{counts})"
        head = f"{_literal(PLAN_HEAD)}(?:{line}){{1,{MOST}}}\n{PLAN_END}"
        plan = Regex(f"{_literal(NO_UNITS)}|{head}").token_language(vocab, ends)
        return TripletLanguage(plan, free, groups, self.units)


def _literal(text: str) -> str:
    """A text as an expression."""
    return re.sub(r"([().])", r"\\\1", text)


def _plainness(name: str) -> tuple[bool, int]:
    """By which names are ranked, plain and short ones first."""
    return not name.isalnum(), len(name)


def _read_plan(text: str, units: Sequence[str]) -> tuple[PlannedTriplet, ...] | None:
    """The concepts of a plan; None: it is none."""
    if text == NO_UNITS:
        return ()
    line = rf"\n- Name: ({_NAME}) Unit: <Unit>({'|'.join(units)})</Unit> Num: ({_COUNT})(?=\n)"
    body = text.removeprefix(PLAN_HEAD).removesuffix(f"\n{PLAN_END}")
    found = tuple(PlannedTriplet(n, u, int(k)) for n, u, k in re.findall(line, f"{body}\n"))
    # What is written anew must be the whole text: nothing else stands in it.
    if not 1 <= len(found) <= MOST or plan_text(found) != text:
        return None
    return found


@dataclass(frozen=True)
class TripletState:
    """The state behind some tokens of an answer.

    Attributes:
        part: Language of the part that is being written: the plan, free text, or a group. None: nothing is
            allowed.
        inner: State of that language.
        said: What is written of the plan or of the group; none of it of free text.
        left: Concepts that must still stand. None: they are not planned yet.
    """

    part: TokenLanguage[Any] | None
    inner: Any = None
    said: bytes = b""
    left: tuple[PlannedTriplet, ...] | None = None


DEAD = TripletState(None)


@dataclass(frozen=True, eq=False)
class TripletGroup:
    """What an answer writes of a concept.

    Attributes:
        texts: All ways to write it that tokens spell, those without a space first.
        language: Their language.
    """

    texts: tuple[bytes, ...]
    language: TokenLanguage[Any]


@dataclass(frozen=True, eq=False)
class GroupSpelling:
    """What the groups of concepts are to a vocabulary.

    Attributes:
        vocab: The vocabulary.
        ends: Token ids that end an answer.
        pieces: The bytes of every id; None: it writes nothing.
    """

    vocab: TokenVocabulary
    ends: frozenset[int]
    pieces: tuple[bytes | None, ...]
    _known: dict[PlannedTriplet, TripletGroup] = field(
        default_factory=dict[PlannedTriplet, TripletGroup], init=False, repr=False
    )

    @cached_property
    def short_name(self) -> str:
        """A name that a token writes, as short as there is."""
        # Tokens of half a character are no names.
        words = (piece.decode(errors="ignore").strip() for piece in self.pieces if piece)
        return min((x for x in words if re.fullmatch(_NAME, x)), key=_plainness, default="x")

    def most_references(self, units: Sequence[str]) -> int:
        """The most references of a concept that tokens spell, MOST where they spell any number.

        Args:
            units: Units that a concept may have.

        Returns:
            At least 1.

        Raises:
            RequestError: They do not spell one reference of each unit.
        """
        for unit in units:
            self.group_of(PlannedTriplet(self.short_name, unit, 1))
        # Larger numbers may have digits that no token spells.
        for count in range(2, MOST + 1):
            try:
                self.group_of(PlannedTriplet(self.short_name, units[0], count))
            except RequestError:
                return count - 1
        return MOST

    def group_of(self, planned: PlannedTriplet) -> TripletGroup:
        """What an answer writes of a concept. Raises RequestError where no tokens spell it."""
        if planned not in self._known:
            # Answers go forward: old concepts are not asked again.
            if len(self._known) >= KEPT:
                self._known.clear()
            self._known[planned] = self._spelled_group(planned)
        return self._known[planned]

    def _spelled_group(self, planned: PlannedTriplet) -> TripletGroup:
        named = planned.answer_group
        spaced = named.replace("<Phrase>", "<Phrase> ", 1)
        texts = list[str]()
        # A token may begin with the space before a mark, or before a name.
        for text in (named, spaced, f" {named}", f" {spaced}"):
            try:
                AnyOf((text,)).token_language(self.vocab, self.ends)
                texts.append(text)
            except RequestError:
                continue
        if not texts:
            raise RequestError(
                f"triplets cannot be kept: no tokens of this model spell {short_repr(named)}"
            )
        language = AnyOf(tuple(texts)).token_language(self.vocab, self.ends)
        return TripletGroup(tuple(text.encode() for text in texts), language)


@dataclass(frozen=True, eq=False)
class TripletLanguage:
    """The language of a `TripletGrammar`: languages of its parts, one behind another.

    No token reaches from one part into the next, but one space may lead into a group.

    Attributes:
        plan: Language of plans.
        free: Language of free text.
        groups: Languages of what follows a plan.
        units: Which units may be planned.
    """

    plan: TokenLanguage[Any]
    free: TokenLanguage[Any]
    groups: GroupSpelling
    units: tuple[str, ...]
    finite = False

    def start_state(self) -> TripletState:
        return TripletState(self.plan, self.plan.start_state())

    def next_state(self, state: TripletState, token: int) -> TripletState:
        """Advance the state by one token of the answer.

        Args:
            state: State behind the answer so far.
            token: Token id that follows.

        Returns:
            The state behind the longer answer; from the state behind a token that is not allowed,
            nothing is allowed.
        """
        piece = self.groups.pieces[token]
        if piece is None:
            return DEAD
        # Free text may go on, or a group may begin: no token does both.
        for at in (state, self._group_begun(state)):
            if at.part is not None and at.part.allows_token(at.inner, token):
                inner = at.part.next_state(at.inner, token)
                # Free text may be long, and nothing of it is read again.
                if at.part is self.free:
                    return replace(at, inner=inner)
                return self._behind_part(replace(at, inner=inner, said=at.said + piece))
        return DEAD

    def allows_token(self, state: TripletState, token: int) -> bool:
        """Tell whether a token may follow, or end the answer.

        Args:
            state: State behind the answer so far.
            token: Token id.

        Returns:
            True where it may.
        """
        if token in self.groups.ends:
            # Every concept of the plan has stood, and no character is half written.
            return state.part is self.free and not state.left and self._is_complete(state)
        return self.next_state(state, token) is not DEAD

    def token_mask(self, state: TripletState) -> Tensor:
        if state.part is None:
            # As long as any mask of this vocabulary, and nothing in it.
            return self.free.token_mask(self.free.start_state()) & False
        mask_V = state.part.token_mask(state.inner).clone()
        begun = self._group_begun(state)
        if begun.part is not None:
            mask_V |= begun.part.token_mask(begun.inner)
        # Parts end where their own languages end, but only the whole answer ends a text.
        for end in self.groups.ends:
            if 0 <= end < len(mask_V):
                mask_V[end] = self.allows_token(state, end)
        return mask_V

    def forced_bytes(self, state: TripletState) -> bytes:
        # Free text leaves a choice at each place.
        if state.part is None or state.part is self.free:
            return b""
        return state.part.forced_bytes(state.inner)

    def closing_bytes(self, state: TripletState) -> bytes:
        """Bytes that lead to an end of the answer, or nearer to one: a plan that is begun is closed, and
        each concept that it has stands behind it at once. None of them where the answer may end."""
        if state.part is self.plan:
            said = state.said.decode(errors="ignore")
            # The first that makes a plan of what is written is the shortest.
            ways = (x for x in self._closings if _read_plan(said + x, self.units) is not None)
            return next(ways, "").encode()
        if state.part is self.free:
            state = self._group_begun(state)
        if state.part is None or not state.left:
            return b""
        # Of the spellings of the group only those that begin as it was begun.
        texts = self.groups.group_of(state.left[0]).texts
        return next(x[len(state.said) :] for x in texts if x.startswith(state.said))

    @cached_property
    def _closings(self) -> tuple[str, ...]:
        """Ends of plans, short ones first."""
        # Each end of each plan: a plan that was begun anywhere may be closed by one of them.
        plans = [NO_UNITS] + [
            plan_text([PlannedTriplet(self.groups.short_name, unit, 1)]) for unit in self.units
        ]
        return tuple(sorted({x[at:] for x in plans for at in range(len(x))}, key=len))

    def _group_begun(self, state: TripletState) -> TripletState:
        """The state before the group that may follow free text; nothing is allowed there where none may."""
        # A group never begins inside a character.
        if state.part is not self.free or not state.left or not self._is_complete(state):
            return DEAD
        language = self.groups.group_of(state.left[0]).language
        return TripletState(language, language.start_state(), b"", state.left)

    def _behind_part(self, state: TripletState) -> TripletState:
        """The state behind a plan or a group where it is complete; else the state itself."""
        if not self._is_complete(state):
            return state
        # Behind the plan all its concepts are left; behind a group one less.
        if state.left is None:
            left = _read_plan(state.said.decode(), self.units)
        else:
            left = state.left[1:]
        return TripletState(self.free, self.free.start_state(), b"", left)

    def _is_complete(self, state: TripletState) -> bool:
        """Whether the part that is being written may end here."""
        part = state.part
        return part is not None and any(
            part.allows_token(state.inner, end) for end in self.groups.ends
        )

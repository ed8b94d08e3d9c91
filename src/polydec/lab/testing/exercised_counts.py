"""What a contract or an enumeration exercised: a check of something that never happened proves
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, fields
from typing import Any, ClassVar, Self

from polydec.core.trace import EditedEvent, PrunedEvent, TraceEvent
from polydec.core.types import Draft
from polydec.methods.diffusion.loop.events import RemaskedEvent
from polydec.methods.speculative.loop.events import ProposedEvent, VerifiedEvent
from polydec.methods.speculative.loop.types import Verdict

NONE_HAPPENED = (
    "{} does not exercise what it is there for: 0 {} (of {}); where that cannot be otherwise, "
    "`unexercised` of the class, or of a method's card, says why: {}"
)
REASONED_YET_HAPPENED = "{} counts {} {}, though it declares that there are none: {}"


class ContractCounts:
    """What a contract counted: the base of dataclasses whose fields are numbers, 0 or more. Counts
    of several checks add up.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __add__(self, other: Self) -> Self:
        """Both together."""
        return type(self)(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    @property
    def sentence(self) -> str:
        """Each number before the name of its field."""
        return ", ".join(
            f"{getattr(self, f.name)} {f.name.replace('_', ' ')}" for f in fields(self)
        )


@dataclass(frozen=True)
class ExercisedCounts(ContractCounts):
    """How often a check saw each thing happen.

    Attributes:
        drafted: Drafted tokens that could have been accepted: nodes of token trees without roots
            and probes, or tokens that a method without trees guessed. 0 or more, like all of these.
        accepted: Those that the verifier accepted.
        rejected: Those below the last accepted node of their tree: each was tested there, and none
            of them was accepted. What stands deeper, or beside an accepted node, is not counted.
        edited: Places of a text that edits wrote, inserted or erased.
        pruned: Branches of a search that were given up, and gaps of a canvas that a pass guessed
            and put back.
        cut: Accepted tokens that stood behind the end of the answer, and were dropped.
        laws: Laws that were enumerated.
    """

    drafted: int = 0
    accepted: int = 0
    rejected: int = 0
    edited: int = 0
    pruned: int = 0
    cut: int = 0
    laws: int = 0

    @property
    def tokens(self) -> str:
        """What became of tokens, in words; what never happened is left out behind the first three."""
        more = [f"{n} {name}" for name in ("edited", "pruned", "cut") if (n := getattr(self, name))]
        first = f"{self.drafted} tokens drafted, {self.accepted} accepted, {self.rejected} rejected"
        return ", ".join([first, *more])

    @property
    def sentence(self) -> str:
        """All of it in words."""
        return f"{self.laws} laws enumerated, {self.tokens}"


@dataclass
class ExercisedCollector:
    """An observer that counts. It may watch many answers, one after the other.

    Attributes:
        counts: What was counted so far.
    """

    kinds: ClassVar[tuple[type[TraceEvent], ...]] = (
        ProposedEvent,
        VerifiedEvent,
        EditedEvent,
        PrunedEvent,
        RemaskedEvent,
    )
    counts: ExercisedCounts = ExercisedCounts()

    def __post_init__(self) -> None:
        self._proposed: dict[int, ProposedEvent] = {}
        self._verified: dict[int, VerifiedEvent] = {}

    def __call__(self, event: TraceEvent) -> None:
        """Count one event of a request.

        Args:
            event: Of any kind; those that say nothing of what is counted are ignored.
        """
        match event:
            case ProposedEvent():
                self._proposed[event.choice] = event
            case VerifiedEvent():
                self._verified[event.choice] = event
            case EditedEvent():
                self._edited(event)
            case PrunedEvent():
                self.counts += ExercisedCounts(pruned=1)
            case RemaskedEvent():
                self.counts += ExercisedCounts(pruned=len(event.position))
            case _:
                pass

    def count_round(self, draft: Draft, verdict: Verdict) -> None:
        """Count a round of a contract that runs a drafter or a verifier by itself, where no event
        is told.

        Args:
            draft: What was verified.
            verdict: What became of it.
        """
        self._round(draft.parent, draft.probes, verdict.path)

    def _edited(self, event: EditedEvent) -> None:
        edit = event.edit
        changed = len(edit.write) + len(edit.insert) + len(edit.erase)
        self.counts += ExercisedCounts(edited=changed)
        # An edit ends the round of its choice: what was proposed and verified before it belongs to
        # it.
        proposed = self._proposed.pop(event.choice, None)
        verified = self._verified.pop(event.choice, None)
        if proposed is None or verified is None:
            return
        path = verified.path
        # Some verifiers take their bonus from the draft: it counts as accepted, though it is not in
        # the path.
        if event.accepted > len(
            path
        ):  # all was accepted, and the token that ends the round as well
            path = (*path, _child(proposed, path[-1] if path else 0, verified.bonus))
        self._round(proposed.parent, proposed.probes, path)
        self.counts += ExercisedCounts(cut=max(0, len(path) - len(event.tokens)))

    def _round(
        self, parent: tuple[int, ...], probes: tuple[int, ...], path: tuple[int, ...]
    ) -> None:
        nodes = [i for i in range(1, len(parent)) if i not in probes]
        # Only children of the last accepted node were tested and found wrong.
        last = path[-1] if path else 0
        refused = sum(parent[i] == last for i in nodes)
        self.counts += ExercisedCounts(len(nodes), len(path), refused)


def _child(proposed: ProposedEvent, parent: int, token: int) -> int:
    """The node below this one that holds the token."""
    pairs = zip(proposed.parent, proposed.token, strict=True)
    return next(i for i, pair in enumerate(pairs) if pair == (parent, token))


DRAFT_KINDS = ("drafted", "accepted", "rejected")
"""What an enumeration of draft and verify must have seen."""


def missing_kinds(
    counts: ContractCounts,
    wanted: Iterable[str] = DRAFT_KINDS,
    reasons: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    """Which of these counts are 0 and have no reason to be.

    Args:
        counts: Of the check so far.
        wanted: Names of counts that must not be 0.
        reasons: By the name of a count, one sentence that says why it is 0.

    Returns:
        Their names, in the order wanted.
    """
    known = {} if reasons is None else reasons
    return tuple(name for name in wanted if not getattr(counts, name) and not known.get(name))


def declared_unexercised(checked: object) -> Mapping[str, str]:
    """What a mechanism says a contract never sees of it.

    Args:
        checked: A drafter, a tree, a verifier, a policy, a target, a shaper, a contrast, a press,
            an unmasker or a decoder.

    Returns:
        Its `unexercised`, most often an attribute of its class: by the name of a count, one
        sentence that says why it stays 0. Nothing where it has none.
    """
    return getattr(checked, "unexercised", {})


def _in_words(names: Iterable[str]) -> str:
    """What never happened, as a sentence goes on behind its first 0."""
    return " and 0 ".join(name.replace("_", " ") for name in names)


def require_exercised(
    counts: ContractCounts,
    of: str,
    wanted: Iterable[str] = DRAFT_KINDS,
    reasons: Mapping[str, str] | None = None,
) -> None:
    """Raise AssertionError where a check never saw what it is there for.

    Args:
        counts: Of the whole check.
        of: What was checked, for the sentence of a failure.
        wanted: Names of counts that must not be 0.
        reasons: By the name of a count, one sentence that says why it is 0 here. Such a count must
            be 0 then.

    Raises:
        AssertionError: A wanted count is 0 without a reason, or one with a reason is not 0.
    """
    missing = missing_kinds(counts, wanted, reasons)
    declared = dict.fromkeys(missing, "one sentence")
    assert not missing, NONE_HAPPENED.format(of, _in_words(missing), counts.sentence, declared)
    for name, why in ({} if reasons is None else reasons).items():
        count = getattr(counts, name)
        assert not (count and why), REASONED_YET_HAPPENED.format(
            of, count, name.replace("_", " "), why
        )


def require_mechanism_exercised(
    counts: ContractCounts, checked: object, wanted: Iterable[str] | None = None
) -> None:
    """Raise AssertionError where the contract of a mechanism never saw what it is there for, unless
    its class says why.

    Args:
        counts: Of the whole check.
        checked: The mechanism; what it declares is read from its `unexercised`, which may name
            counts of other contracts too.
        wanted: Names of counts that must not be 0; None: all of them.

    Raises:
        AssertionError: As `require_exercised`.
    """
    if wanted is None:
        names = [f.name for f in fields(counts)]
    else:
        names = wanted
    declared = declared_unexercised(checked).items()
    # A mechanism may declare counts of several contracts in one mapping: those of another one are
    # left out.
    reasons = {name: why for name, why in declared if hasattr(counts, name)}
    require_exercised(counts, type(checked).__name__, names, reasons)

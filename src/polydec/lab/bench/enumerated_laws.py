"""The output law of a method on toy models, with every draw enumerated: exact to rounding, where
samples only bound."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from itertools import islice
from typing import Any

from polydec.base.errors import PolydecError
from polydec.core.decoder import Decoder, answer_one
from polydec.core.law import exclude_token, float64_probabilities
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.trace import Observer, ignore_event
from polydec.core.types import Draft, DrawKind
from polydec.lab.testing.check_inserting import law_with_ends, posterior_inserter, some_law
from polydec.lab.testing.enumerate import (
    DrawnTwice,
    Law,
    NoiseSize,
    TooManyWays,
    counted_law,
    enumerate_executions,
    text_law_distance,
)
from polydec.lab.testing.examples import example_artefacts, example_decoder
from polydec.lab.testing.exercised_counts import (
    DRAFT_KINDS,
    ExercisedCollector,
    ExercisedCounts,
    missing_kinds,
)
from polydec.lab.testing.toy_canvas import MarkovChainNetwork, ToyDenoiser
from polydec.lab.testing.toy_laws import FURTHER_LAWS, ToyLaw, toy_laws
from polydec.methods.insertion.loop.inserting import InsertionDecoder
from polydec.methods.registry import registry
from polydec.methods.registry.kit import PATCHES, Kit
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.match import MatchVerifier

LAWS = 8
"""Random laws that are enumerated at least, bare and under sampling rules: of twelve those of four
tokens may be left out."""
LENGTH = 2
"""Tokens of an answer. The first two laws, which cost the most, have a token more: there a pass
accepts two drafts."""
TOLERANCE = 1e-9
"""Total variation that rounding may leave."""
MOST = 2_000
"""Ways for draws to fall that are followed in one law: some seconds of a core. A law with more of
them is left out."""
RULES = {"plain": "without rules", "shaped": "under penalties, a temperature and top-p"}
"""Which of the examples' shapings are enumerated, in words."""
PROMPT = (0, 1, 0)
CANVAS = 3
"""Tokens of a canvas."""
GROWN = 4
"""Tokens of an answer that grows anywhere: its toys have texts of three at most, and an end."""


@dataclass(frozen=True)
class LawEnumeration:
    """What an enumeration of every draw has found.

    Attributes:
        laws: Random laws whose every draw was followed.
        ways: In how many ways the draws fell, over all laws.
        apart: The largest total variation between what the method writes and the law it promises, 0
            to 1.
        place: The first law that is off, and where, in words; "" where none is.
        unknown: Why nothing could be enumerated; "" where it was.
        exercised: What happened in all of the runs, counted.
        missing: What never happened and should have ("drafted", "accepted", "rejected", of a canvas
            or of a text that grows anywhere "edited"): without it the rest shows nothing.
    """

    laws: int = 0
    ways: int = 0
    apart: float = 0.0
    place: str = ""
    unknown: str = ""
    exercised: ExercisedCounts = field(default_factory=ExercisedCounts)
    missing: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        if self.place:
            return "fault"
        if self.laws and not self.missing:
            return "keeps it"
        return "not shown"

    @property
    def why(self) -> str:
        """Why nothing is shown, "" where something is."""
        if self.verdict != "not shown":
            return ""
        if not self.laws:
            return f"no law was enumerated: {self.unknown}"
        # Where nothing was drafted, nothing could be accepted or rejected either.
        if "drafted" in self.missing:
            never = self.missing[:1]
        else:
            never = self.missing
        return f"in {self.laws} enumerated laws nothing was {' and nothing was '.join(never)}"

    def to_json(self) -> dict[str, Any]:
        return {"verdict": self.verdict, **asdict(self)}


@dataclass(frozen=True)
class ToyCase:
    """One toy law and a decoder over it.

    Attributes:
        number: The number of the law: the same law in longer answers has the same one.
        called: Its name in messages.
        decoder: The decoder under test.
        request: What is asked of the decoder.
        law: The law of answers that the decoder must have.
    """

    number: int
    called: str
    decoder: Decoder
    request: Request
    law: Law


Growing = Iterator[ToyCase]
"""One law in answers of growing length: the next one is for methods that have drafted nothing in
those before."""


@dataclass(frozen=True)
class ToyFamily:
    """What enumerations run over for one family of models.

    Attributes:
        groups: Each makes the laws of a group, one after the other, for a method and its options.
            The next group follows where the ones before have not brought about all that is wanted.
        wanted: Names of counts that must not be 0.
        grows: The count that ends the growing of an answer once it is not 0.
    """

    groups: Sequence[Callable[[str, Mapping[str, Any]], Iterator[Growing]]]
    wanted: tuple[str, ...]
    grows: str


def enumerate_output_laws(
    method: str, options: Mapping[str, Any], family: str = "ar"
) -> LawEnumeration:
    """Compare the exact output law of a method with the law that it promises, on random toy laws of
    three or four tokens.

    Args:
        method: Name of a method that promises a law.
        options: Its options, as a request has them.
        family: Family of models that it decodes, a key of `FAMILIES`: "ar", "diffusion" or
            "insertion".

    Returns:
        What was found; the enumeration ends at the first law that is off.
    """
    card = registry.get_recipe_module(method).CARD
    reasons = card.unexercised
    if PATCHES in card.needs:
        return LawEnumeration(unknown="it draws vectors, which have densities and no probabilities")
    toys = FAMILIES[family]
    found = LawEnumeration(missing=toys.wanted)
    numbers = set[int]()
    try:
        for group in toys.groups:
            for growing in group(method, options):
                # The card gives a reason why the method never drafts: growing its answers would not
                # change that.
                if toys.grows in reasons:
                    some = islice(growing, 1)
                else:
                    some = growing
                found = _grown(found, some, toys.grows, numbers)
                if found.place:
                    return found
            missing = missing_kinds(found.exercised, toys.wanted, reasons)
            found = replace(found, missing=missing)
            # Further groups are for methods that the usual laws do not exercise.
            if not missing:
                break
    except PolydecError as error:
        return replace(found, unknown=str(error))
    if len(numbers) < LAWS:
        # Some laws were left out: the rest may be too few.
        few = f"its draws fall in over {MOST} ways"
    else:
        few = ""
    return replace(found, unknown=few)


def _grown(
    found: LawEnumeration, growing: Growing, grows: str, numbers: set[int]
) -> LawEnumeration:
    """What is found with one law more, in answers that grow until there is something of what is
    wanted first."""
    for toy in growing:
        collector = ExercisedCollector()
        try:
            law, ways = _law(toy, on=collector)
        except (NoiseSize, TooManyWays):  # noise can be enumerated over three tokens only
            return found
        except DrawnTwice as error:
            return replace(found, place=f"randomness: {toy.called}: {error}")
        # A law counts once, however many lengths of its answers are enumerated.
        numbers.add(toy.number)
        off = text_law_distance(law, toy.law)
        exercised = found.exercised + collector.counts + ExercisedCounts(laws=1)
        # A further toy joins what was found so far.
        found = replace(
            found,
            laws=len(numbers),
            ways=found.ways + ways,
            apart=max(found.apart, off),
            exercised=exercised,
            place=f"{_part(toy)}: {_where(toy, law)}" if off > TOLERANCE else "",
        )
        # One fault is enough, and so is one toy in which the mechanism acted.
        if found.place or getattr(collector.counts, grows):
            return found
    return found


def _usual_texts(method: str, options: Mapping[str, Any]) -> Iterator[Growing]:
    """Toys that continue a text, with a draft that resembles them in every second one."""
    laws = toy_laws(LAWS + LAWS // 2, LENGTH, tuple(RULES), longer=2)
    return _texts(laws, method, options)


def _texts(laws: Iterable[ToyLaw], method: str, options: Mapping[str, Any]) -> Iterator[Growing]:
    for one in laws:
        # One decoder serves all lengths of a law: only the request and the expected law change.
        made = example_decoder(method, one.target, one.draft, options)
        yield (
            ToyCase(one.number, one.called, made, one.toy_request(length), one.answer_law(length))
            for length in one.lengths
        )


def _further_texts(
    laws: Callable[[Sequence[str]], Iterable[ToyLaw]],
) -> Callable[[str, Mapping[str, Any]], Iterator[Growing]]:
    return lambda method, options: _texts(laws(tuple(RULES)), method, options)


def _canvases(method: str, options: Mapping[str, Any]) -> Iterator[Growing]:
    """Toys that fill a canvas, whose conditionals agree; in every second one a token ends the
    answer."""
    for seed in range(LAWS):
        chain = MarkovChainNetwork(seed)
        # -1 is no token: the answers of every second law never end early.
        eos = 2 if seed % 2 else -1
        denoiser: Any = ToyDenoiser(chain, eos)
        kit = Kit(denoiser, None, example_artefacts(denoiser.vocab))
        made, _ = registry.build(method, kit, options)
        law = chain.joint_law(PROMPT, CANVAS, denoiser.vocab.eos)
        called = f"toy law {seed + 1}"
        yield iter([ToyCase(seed, called, made, Request(PROMPT, max_tokens=CANVAS), law)])


def _insertions(method: str, options: Mapping[str, Any]) -> Iterator[Growing]:
    """Toys that know what is missing in every text: drawn from their own process, texts have the law
    of which the toy was made."""
    for seed in range(LAWS):
        inserter: Any = posterior_inserter(seed)
        made, _ = registry.build(
            method, Kit(inserter, None, example_artefacts(inserter.vocab)), options
        )
        law = law_with_ends(some_law(seed))
        yield iter(
            [ToyCase(seed, f"toy law {seed + 1}", made, Request((0,), max_tokens=GROWN), law)]
        )


FAMILIES = {
    "ar": ToyFamily(
        (_usual_texts, *(_further_texts(laws) for laws in FURTHER_LAWS)), DRAFT_KINDS, "drafted"
    ),
    "diffusion": ToyFamily((_canvases,), ("edited",), "edited"),
    "insertion": ToyFamily((_insertions,), ("edited",), "edited"),
}
"""Toys by family of models."""


def _law(toy: ToyCase, made: Decoder | None = None, on: Observer = ignore_event) -> tuple[Law, int]:
    """The law of the answers, and in how many ways the draws fell."""
    return counted_law(lambda rng: answer_one(made or toy.decoder, toy.request, rng, on), MOST)


def _where(toy: ToyCase, law: Law) -> str:
    """Which token of the answer is off first, by how much, and where most."""
    for length in range(1, toy.request.max_tokens + 1):
        ours, right = (_beginnings(chances, length) for chances in (law, toy.law))
        # The marginal law of the first `length` tokens: the shortest beginning that differs names
        # the token that is off.
        off = text_law_distance(ours, right)
        if off > TOLERANCE:
            worst = max(
                ours.keys() | right.keys(), key=lambda k: abs(ours.get(k, 0.0) - right.get(k, 0.0))
            )
            return (
                f"{toy.called}, token {length - 1} of the answer: off by {off:.2g} (total variation), most at "
                f"{list(worst)}, {ours.get(worst, 0.0):.3f} in place of {right.get(worst, 0.0):.3f}"
            )
    return toy.called


def _beginnings(law: Law, length: int) -> Law:
    out: Law = defaultdict(float)
    for text, p in law.items():
        out[text[:length]] += p
    return out


# Whether it is the draft that says a law other than the one it draws from, or the verdict


@dataclass(frozen=True)
class WatchedVerifier:
    """A verifier that notes the first draft of an answer."""

    verifier: Any
    first: list[Draft]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.verifier, name)

    def verify_draft(self, draft: Draft, *rest: Any) -> Any:
        """Note the draft if it is the answer's first, then verify it.

        Args:
            draft: The draft of this round, as the wrapped verifier takes it.
            rest: The verifier's further arguments, passed on unchanged.

        Returns:
            What the wrapped verifier returns.
        """
        if not self.first:
            self.first.append(draft)
        return self.verifier.verify_draft(draft, *rest)


def _part(toy: ToyCase) -> str:
    """Which part of the method is off: "law" where plain decoding of the same is off as well,
    "draft" where nodes are drawn from other laws than they say, else "verdict"; of a canvas
    "unmasking", of a text that grows anywhere "insertion"."""
    owner: Any = toy.decoder
    if hasattr(owner, "unmasker"):
        return "unmasking"
    if isinstance(owner, InsertionDecoder):
        return "insertion"
    # Plain decoding under the same rules: where it is off too, the rules are what is wrong, not the
    # method.
    plain = SpeculativeDecoder(owner.target, NothingDrafter(), MatchVerifier(), FixedPolicy(0))
    if text_law_distance(_law(toy, plain)[0], toy.law) > TOLERANCE:
        return "law"
    if not _verifies(owner):
        return "verdict"
    # All executions again, each with its probability p, now with the first draft of each noted.
    first = list[Draft]()
    made: Any = replace(owner, verifier=WatchedVerifier(owner.verifier, first))
    seen = defaultdict[Any, defaultdict[int, float]](lambda: defaultdict(float))
    laws = dict[Any, Any]()
    for _, p in enumerate_executions(
        lambda rng: run_coroutines([answer_one(made, toy.request, rng)])[0]
    ):
        if first:
            _noted(first.pop(), p, seen, laws)
    # A draft that draws as it says leaves only the verifier's decision to blame.
    if any(_off(got, laws[key], key[1]) for key, got in seen.items()):
        return "draft"
    return "verdict"


def _verifies(decoder: Any) -> bool:
    """Whether a decoder has a verifier that can be watched."""
    # `replace` below needs a dataclass with that field.
    return is_dataclass(decoder) and "verifier" in {f.name for f in fields(decoder)}


def _noted(draft: Draft, p: float, seen: Any, laws: dict[Any, Any]) -> None:
    """Add what was drawn below every node, and what the node's law says of it."""
    for node, children in enumerate(draft.children):
        path = tuple(draft.token[i] for i in draft.path_to(node))
        before = tuple[int, ...]()
        for c in children:
            law_V = draft.law[c]
            if law_V is None:
                continue
            # Siblings that are drawn without replacement have a law that depends on the siblings
            # before.
            if draft.draw[c] is DrawKind.WITHOUT:
                known = before
            else:
                known = ()
            key = path, known, len(before)
            laws[key] = law_V
            seen[key][draft.token[c]] += p
            before = (*before, draft.token[c])


def _off(got: Mapping[int, float], law_V: Any, before: tuple[int, ...]) -> bool:
    want_V = float64_probabilities(law_V)
    # The law of a later sibling: the node's law without the earlier ones, normalised again.
    for x in before:
        want_V = exclude_token(want_V, x)
    total = sum(got.values())
    return any(abs(got.get(x, 0.0) / total - float(q)) > 1e-6 for x, q in enumerate(want_V))

"""The output law of a method on toy models, with every draw enumerated: exact to rounding, where samples only bound."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from typing import Any

from polydec.base.errors import PolydecError
from polydec.core.decoder import Decoder, answer_one
from polydec.core.law import probs, without
from polydec.core.request import Request
from polydec.core.scheduler import run
from polydec.core.types import Draft, Draw
from polydec.drafters.nothing import Nothing
from polydec.families.ar.speculative import Speculative
from polydec.methods import registry
from polydec.methods.kit import Kit
from polydec.policies.fixed import Fixed
from polydec.testing.enumerate import DrawnTwice, Law, NoiseSize, distance, executions, target_law
from polydec.testing.examples import SHAPERS, artefacts, bend, decoder, pairs
from polydec.testing.toy_canvas import Chain, ToyDenoiser
from polydec.verifiers.match import Match

LAWS = 8
"""Random laws that are enumerated at least, bare and under sampling rules: of twelve those of four tokens may be left out."""
LENGTH, LONGER = 2, 3
"""Tokens of an answer; and of the first two laws, which cost the most: there a pass accepts two drafts."""
TOLERANCE = 1e-9
"""Total variation that rounding may leave."""
MOST = 2_000
"""Ways for draws to fall that are followed in one law: some seconds of a core. A law with more of them is left out."""
RULES = {"plain": "without rules", "shaped": "under penalties, a temperature and top-p"}
"""Which of the examples' shapings are enumerated, in words."""
PROMPT = (0, 1, 0)


@dataclass(frozen=True)
class Enumerated:
    """laws: random laws whose every draw was followed; ways: in how many ways these fell, together; apart: the largest total
    variation between what a method writes and the law; place: of the first law that is off; unknown: why nothing could be
    enumerated, "" where it was."""

    laws: int
    ways: int
    apart: float
    place: str = ""
    unknown: str = ""

    @property
    def verdict(self) -> str:
        return "fault" if self.place else "keeps it"

    def to_json(self) -> dict[str, Any]:
        return {"verdict": self.verdict, **asdict(self)}


@dataclass(frozen=True)
class Toy:
    """One law: its number, what it is called, the decoder over it, what is asked, and what an answer's law must be."""

    number: int
    called: str
    decoder: Decoder
    request: Request
    law: Law


class TooMany(Exception):
    """More ways than are followed."""


def enumerated(method: str, options: Mapping[str, Any], family: str = "ar") -> Enumerated:
    """Of a method that promises a law, with these options: its output over random laws of three or four tokens."""
    laws, ways, furthest = set[int](), 0, 0.0
    try:
        for toy in TOYS[family](method, options):
            try:
                law, count = _law(toy)
            except (NoiseSize, TooMany):  # noise can be enumerated over three tokens only
                continue
            except DrawnTwice as error:
                what = f"randomness: {toy.called}: {error}"
                return Enumerated(len(laws), ways, furthest, what)
            laws, ways = laws | {toy.number}, ways + count
            off = distance(law, toy.law)
            furthest = max(furthest, off)
            if off > TOLERANCE:
                return Enumerated(len(laws), ways, furthest, f"{_part(toy)}: {_where(toy, law)}")
    except PolydecError as error:
        return Enumerated(len(laws), ways, furthest, unknown=str(error))
    few = f"its draws fall in over {MOST} ways" if len(laws) < LAWS else ""
    return Enumerated(len(laws), ways, furthest, unknown=few)


def _texts(method: str, options: Mapping[str, Any]) -> list[Toy]:
    """Toys that continue a text, with a draft that resembles them in every second one."""
    out = list[Toy]()
    for i, (target, draft) in enumerate(pairs(LAWS + LAWS // 2), 1):
        length = LONGER if i <= 2 else LENGTH
        for name, rule in RULES.items():
            shapers = SHAPERS[name]
            made = decoder(method, bend(target, shapers), bend(draft, shapers), options)
            law = target_law(target, PROMPT, length, shapers)
            called = f"toy law {i}, {rule}"
            out.append(Toy(i, called, made, Request(PROMPT, max_tokens=length), law))
    return out


def _canvases(method: str, options: Mapping[str, Any]) -> list[Toy]:
    """Toys that fill a canvas, whose conditionals agree; in every second one a token ends the answer."""
    out = list[Toy]()
    for seed in range(LAWS):
        chain, eos = Chain(seed), 2 if seed % 2 else -1
        denoiser: Any = ToyDenoiser(chain, eos)
        kit = Kit(denoiser, None, artefacts(denoiser.vocab))
        made, _ = registry.build(method, kit, options)
        length = LONGER
        law = chain.joint(PROMPT, length, denoiser.vocab.eos)
        called = f"toy law {seed + 1}"
        out.append(Toy(seed, called, made, Request(PROMPT, max_tokens=length), law))
    return out


TOYS: Mapping[str, Callable[[str, Mapping[str, Any]], list[Toy]]] = {
    "ar": _texts,
    "diffusion": _canvases,
}
"""Toys by family of models."""


def _law(toy: Toy, made: Decoder | None = None) -> tuple[Law, int]:
    """The law of the answers, and in how many ways the draws fell."""
    law: Law = defaultdict(float)
    ways = 0
    for result, p in executions(
        lambda rng: run([answer_one(made or toy.decoder, toy.request, rng)])[0]
    ):
        ways += 1
        if ways > MOST:
            raise TooMany
        law[result.token_ids] += p
    return dict(law), ways


def _where(toy: Toy, law: Law) -> str:
    """Which token of the answer is off first, by how much, and where most."""
    for length in range(1, toy.request.max_tokens + 1):
        ours, right = (_beginnings(chances, length) for chances in (law, toy.law))
        off = distance(ours, right)
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
class Watched:
    """A verifier that notes the first draft of an answer."""

    verifier: Any
    first: list[Draft]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.verifier, name)

    def verify(self, draft: Draft, *rest: Any) -> Any:
        if not self.first:
            self.first.append(draft)
        return self.verifier.verify(draft, *rest)


def _part(toy: Toy) -> str:
    """Which part of the method is off: "law" where plain decoding of the same is off as well, "draft" where nodes are drawn
    from other laws than they say, else "verdict"; of a canvas "unmasking"."""
    owner: Any = toy.decoder
    if hasattr(owner, "unmasker"):
        return "unmasking"
    plain = Speculative(owner.target, Nothing(), Match(), Fixed(0))
    if distance(_law(toy, plain)[0], toy.law) > TOLERANCE:
        return "law"
    if not _verifies(owner):
        return "verdict"
    first = list[Draft]()
    made: Any = replace(owner, verifier=Watched(owner.verifier, first))
    seen = defaultdict[Any, defaultdict[int, float]](lambda: defaultdict(float))
    laws = dict[Any, Any]()
    for _, p in executions(lambda rng: run([answer_one(made, toy.request, rng)])[0]):
        if first:
            _noted(first.pop(), p, seen, laws)
    return "draft" if any(_off(got, laws[key], key[1]) for key, got in seen.items()) else "verdict"


def _verifies(decoder: Any) -> bool:
    """Whether a decoder has a verifier that can be watched."""
    return is_dataclass(decoder) and "verifier" in {f.name for f in fields(decoder)}


def _noted(draft: Draft, p: float, seen: Any, laws: dict[Any, Any]) -> None:
    """Add what was drawn below every node, and what the node's law says of it."""
    for node, children in enumerate(draft.children):
        path, before = tuple(draft.token[i] for i in draft.path_to(node)), tuple[int, ...]()
        for c in children:
            law_V = draft.law[c]
            if law_V is None:
                continue
            known = before if draft.draw[c] is Draw.WITHOUT else ()
            key = path, known, len(before)
            laws[key] = law_V
            seen[key][draft.token[c]] += p
            before = (*before, draft.token[c])


def _off(got: Mapping[int, float], law_V: Any, before: tuple[int, ...]) -> bool:
    want_V = probs(law_V)
    for x in before:
        want_V = without(want_V, x)
    total = sum(got.values())
    return any(abs(got.get(x, 0.0) / total - float(q)) > 1e-6 for x, q in enumerate(want_V))

"""Small instances of everything, for the contracts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, get_type_hints

from polydec.core.canvas_law import Denoiser
from polydec.core.decoder import Decoder
from polydec.core.protocols import Scores, Session, Shaper, Target
from polydec.core.rng import Rng
from polydec.core.types import Draft, Draw, Reads, Vocab, Want
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy import toy
from polydec.lab.testing.toy_canvas import Chain as MarkovChain
from polydec.lab.testing.toy_canvas import ToyDenoiser
from polydec.laws.shapers.greedy import Greedy
from polydec.laws.shapers.presence import Presence
from polydec.laws.shapers.repetition import Repetition
from polydec.laws.shapers.temperature import Temperature
from polydec.laws.shapers.top_p import TopP
from polydec.laws.targets.shaped import Shaped
from polydec.methods.diffusion.loop.protocols import Unmasker
from polydec.methods.diffusion.unmaskers.confidence import Confidence
from polydec.methods.economics.costs import Costs
from polydec.methods.registry import registry
from polydec.methods.registry.kit import MASKED_DRAFT, Artefact
from polydec.methods.speculative.drafters.eagle import Layered
from polydec.methods.speculative.drafters.heads import Stepped
from polydec.methods.speculative.drafters.lookup import Lookup
from polydec.methods.speculative.drafters.model import FromModel
from polydec.methods.speculative.drafters.recycling import Recycling
from polydec.methods.speculative.drafters.suffix import Suffix
from polydec.methods.speculative.loop.protocols import Drafter, Guess, Tree, Verifier
from polydec.methods.speculative.loop.types import Budget, Verdict
from polydec.methods.speculative.trees.chain import Chain
from polydec.methods.speculative.verifiers.match import Match
from polydec.models.learned.artefacts import MODULES
from polydec.models.learned.kinds import ngrams as ngram_tables
from polydec.models.learned.kinds import stop_head
from polydec.models.learned.kinds.eagle import Eagle
from polydec.models.learned.kinds.heads import Heads
from polydec.models.learned.kinds.ngrams import NGrams
from polydec.models.learned.kinds.stop_head import StopHead
from polydec.models.sessions.lm import LM

SHAPERS: dict[str, tuple[Shaper[Any], ...]] = {
    "plain": (),
    "shaped": (Repetition(1.3), Presence(0.4), Temperature(0.8), TopP(0.9)),
    "greedy": (Greedy(),),
}
"""The laws of the enumeration: the model's own, one with state and cuts, and one without chance."""


def pairs(count: int = 8) -> list[tuple[LM, LM]]:
    """Random (target, draft) laws: three tokens, every fourth one four; the draft resembles the target in half of them."""
    sizes = [4 if i % 4 == 3 else 3 for i in range(count)]
    return [
        (toy(i + 1, v), toy(i + 1 if i % 2 else i + 101, v, sharp=0.7 if i % 2 else 1.2, cost=0.1))
        for i, v in enumerate(sizes)
    ]


def bend(target: Target, shapers: Sequence[Shaper[Any]]) -> Target:
    """The target under these shapers."""
    return Shaped(target, *shapers) if shapers else target


def head(width: int = 4) -> StopHead:
    """A random stop head for states of this width, at least 4, which is a toy's."""
    return stop_head.examples(toy(1).vocab, width, width)[0]


def ngrams(vocab: Vocab) -> NGrams:
    """A table over a few tokens."""
    return ngram_tables.examples(vocab, 4, 4)[0]


def artefacts(vocab: Vocab, width: int = 4, draft_width: int | None = None) -> tuple[Artefact, ...]:
    """Some of each kind, for a target of this vocabulary and states of this width, and a draft's (None: the same)."""
    wide = width if draft_width is None else draft_width
    return tuple(one for module in MODULES.values() for one in module.examples(vocab, width, wide))


def decoder(
    name: str,
    target: Target,
    draft: Target | None = None,
    options: Mapping[str, Any] | None = None,
) -> Decoder:
    """A recipe with what it needs, its options at their defaults unless given; in the place of a draft model one that fills
    canvases, where it needs such a one."""
    if MASKED_DRAFT in registry.get(name).CARD.needs:
        draft = masked_draft(target.vocab)
    return build(name, target, draft, options, artefacts=artefacts(target.vocab))[0]


def masked_draft(vocab: Vocab) -> Any:
    """A toy that fills canvases, of a toy target's vocabulary."""
    return ToyDenoiser(
        MarkovChain(5, vocab.size, context=256), max(vocab.eos, default=-1), masked=False
    )


def example(kind: type) -> Any:
    """An instance of a mechanism: its defaults, and a toy, a chain or simple drafters where it asks for such."""
    hints = get_type_hints(kind)
    fill: dict[Any, Any] = {
        Target: lambda: toy(91, cost=0.1),
        Tree: Chain,
        Vocab: lambda: toy(1).vocab,
        Drafter: lambda: Recycling(2, 6),
        Verifier: Match,
        Costs: Costs,
        Suffix: Suffix,
        Drafter | None: lambda: FromModel(toy(91, cost=0.1), Chain()),
        Unmasker[Any]: Confidence,
        tuple[tuple[int, int], ...]: lambda: ((1, 4), (4, 2)),
        Denoiser: lambda: masked_draft(toy(91).vocab),
        tuple[Drafter, ...]: lambda: (Lookup(3, 2), Recycling(2, 6)),
    }
    fill |= {type(one): lambda one=one: one for one in artefacts(toy(1).vocab)}
    fill |= {Stepped: fill[Heads], Layered: fill[Eagle]}
    return kind(
        **{
            f.name: fill[hints[f.name]]()
            for f in fields(kind)
            if f.default is MISSING and f.default_factory is MISSING
        }
    )


@dataclass(frozen=True)
class Siblings:
    """A drafter for tests of verifiers: below every node down to `depth`, children of several sources in the order given.

    sources: (how, seed, count): `count` children drawn from the toy of that seed, or, where certain, the tokens seed,
    seed + 1, … modulo the size. Tokens of certain children that stand there already are left out.
    """

    size: int
    sources: tuple[tuple[Draw, int, int], ...]
    depth: int = 1
    probe: bool = False

    def open(self, prompt: Sequence[int], session: Session) -> SiblingsGuess:
        return SiblingsGuess(
            self, tuple(toy(seed, self.size, cost=0.1).open(prompt) for _, seed, _ in self.sources)
        )


@dataclass(frozen=True)
class SiblingsGuess(Guess):
    """One session of each source's toy."""

    config: Siblings
    sessions: tuple[Session, ...]

    @property
    def want(self) -> Want:
        return Want(law=Reads.NOTHING)

    async def propose(self, root: int, position: int, budget: Budget, rng: Rng) -> Draft:
        draft, tips = Draft.chain(root), [0]
        for _ in range(min(self.config.depth, budget.depth)):
            laws = [await s.score(draft, Want()) for s in self.sessions]
            known = len(draft)
            for node in tips:
                for j, (how, seed, count) in enumerate(self.config.sources):
                    row_V, here = laws[j].row(node), rng.at("draft", position, node, j)
                    if how is Draw.CERTAIN:
                        stand = {draft.token[c] for c in draft.children[node]}
                        tokens = [
                            x
                            for i in range(count)
                            if (x := (seed + i) % self.config.size) not in stand
                        ]
                    elif how is Draw.INDEPENDENT:
                        tokens = [here.at(i).categorical(row_V.exp()) for i in range(count)]
                    else:
                        tokens = list(here.without_replacement(row_V.exp(), count))
                    for x in tokens:
                        draft = draft.grown(x, node, how, None if how is Draw.CERTAIN else row_V)
            tips = list(range(known, len(draft)))
        if (
            self.config.probe
        ):  # a node that is fed and must never be accepted, first among its siblings
            tokens = (draft.token[0], self.config.size - 1, *draft.token[1:])
            parent = (-1, 0, *(p + (p > 0) for p in draft.parent[1:]))
            draft = Draft(
                tokens,
                parent,
                (Draw.CERTAIN, Draw.CERTAIN, *draft.draw[1:]),
                (None, None, *draft.law[1:]),
                (False, True, *[False] * (len(draft) - 1)),
            )
        return draft

    def learn(self, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        for s in self.sessions:
            s.commit(verdict.committed(draft))

    def fork(self, session: Session, choice: int | None = None) -> SiblingsGuess:
        return SiblingsGuess(self.config, tuple(s.fork(choice) for s in self.sessions))

    def close(self) -> None:
        for s in self.sessions:
            s.close()

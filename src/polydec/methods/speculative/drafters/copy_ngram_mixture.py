"""Copy from the text or take what a table says: one distribution of the next token at every node of a draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polydec.base.errors import RequestError
from polydec.core.protocols import DraftScores, Session
from polydec.core.rng import Rng
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.methods.speculative.drafters._walk import likeliest_first
from polydec.methods.speculative.drafters.suffix import PRIOR, SuffixDrafter, SuffixGuess
from polydec.methods.speculative.loop.protocols import DraftGuess
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.models.learned.kinds.ngrams import NGrams
from polydec.models.native.copies import NativeCopyDrafter

Place = tuple[int, int, list[int]]
"""Of a node: state and length of its match in the text, and the last tokens."""


@dataclass(frozen=True)
class CopyNGramMixtureDrafter:
    """With the chance that the suffix automaton gives its continuations the next token is a copy, else one of the table's:
    p(x) = copy(x) + (1 - sum of copies) · table(x), at every node, whichever of the two proposed the way there.

    Nodes are taken in order of the product along their path until it falls below `floor` or the budget is full.

    copy: how copies are found and judged (its own floor is not looked at); table: counted in other texts of the same
    tokenizer; floor: 0 to 1; width: 1 to 16 children a node.

    Exact: law, under any exact verifier: candidates are certain.
    Reduces to: `suffix` with a table that knows nothing; `backoff` in a text where nothing comes back; `nothing` with floor 1.
    Source: composition. The mixture is that of a cache language model (Kuhn and De Mori, 1990).
    """

    copy: SuffixDrafter
    table: NGrams
    floor: float = 0.05
    width: int = 3

    def __post_init__(self) -> None:
        if not 0.0 <= self.floor <= 1.0:
            raise RequestError(f"floor is {self.floor}: it must lie in 0 to 1")
        if not 1 <= self.width <= 16:
            raise RequestError(f"width is {self.width}: it must lie in 1 to 16")

    def open(self, prompt: Sequence[int], session: Session) -> DraftGuess:
        compiled = self.table.compiled
        copy = self.copy
        if compiled is None or copy.store is not None:
            return CopyNGramMixtureGuess(self, copy.open(prompt, session))
        copies = NativeCopyDrafter.of(
            compiled,
            trust=copy.trust,
            prior=PRIOR,
            min_match=copy.min_match,
            copies=copy.width,
            width=self.width,
        )
        copies.read(prompt)
        return CompiledGuess(self, copies)


@dataclass(frozen=True)
class CopyNGramMixtureGuess:
    """copier: the copying side, which holds the text."""

    config: CopyNGramMixtureDrafter
    copier: SuffixGuess

    @property
    def price(self) -> float:
        return self.copier.price

    @property
    def want(self) -> ScoreRequest:
        return self.copier.want

    async def propose(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        config = self.config
        copier = self.copier
        order = self.config.table.order
        automaton, first, matched = copier.match()
        floor = max(config.floor, budget.floor)

        def after(at: Place, product: float) -> list[tuple[float, int, Place]]:
            state, length, tail = at
            state, length = automaton.resumed(state, length)
            chance_of = dict[int, float]()
            match_of = dict[int, tuple[int, int]]()
            left = 1.0
            for p, x, to in copier.after(automaton, state, length):
                chance_of[x], match_of[x] = p, to
                left -= p
            # Else nothing that only the table says can be likely enough.
            if product * left >= floor:
                for p, x in config.table.after(tail):
                    chance_of[x] = chance_of.get(x, 0.0) + left * p
            likely = [(p, x) for x, p in chance_of.items() if product * p >= floor]
            if len(likely) > 1:
                likely = sorted(likely, key=_likelier)[: config.width]
            out = list[tuple[float, int, Place]]()
            # What only the table says may stand in the text as well, after less.
            for p, x in likely:
                match = match_of.get(x) or automaton.step(state, length, x)
                out.append((p, x, (*match, [*tail, x][-order:])))
            return out

        return likeliest_first(root, (first, matched, copier.text[-order:]), after, floor, budget)

    def learn(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        self.copier.learn(draft, scores, verdict)

    def fork(self, session: Session, choice: int | None = None) -> CopyNGramMixtureGuess:
        return CopyNGramMixtureGuess(self.config, self.copier.fork(session, choice))

    def close(self) -> None:
        self.copier.close()


@dataclass(frozen=True)
class CompiledGuess(DraftGuess):
    """The same by the compiled library, to the bit, where nothing outlives the request. copies: the text, and what is known."""

    config: CopyNGramMixtureDrafter
    copies: NativeCopyDrafter

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(law=RowDetail.NOTHING)

    async def propose(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        return self.copies.propose(
            root, budget.depth, budget.nodes, max(self.config.floor, budget.floor)
        )

    def learn(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        self.copies.learn(verdict.tokens(draft))

    def fork(self, session: Session, choice: int | None = None) -> CompiledGuess:
        return CompiledGuess(self.config, self.copies.copy())

    def close(self) -> None:
        pass


def _likelier(continuation: tuple[float, int]) -> tuple[float, int]:
    return -continuation[0], continuation[1]

"""Copy from the text or take what a table says: one distribution of the next token at every node of a draft."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from polydec.core.protocols import Scores, Session
from polydec.core.rng import Rng
from polydec.core.types import Budget, Draft, Verdict, Want
from polydec.drafters.suffix import Suffix, SuffixGuess
from polydec.models.ngrams import NGrams


@dataclass(frozen=True)
class Blended:
    """With the chance that the suffix automaton gives its continuations the next token is a copy, else one of the table's:
    p(x) = copy(x) + (1 - sum of copies) · table(x), at every node, whichever of the two proposed the way there.

    Nodes are taken in order of the product along their path until it falls below `floor` or the budget is full.

    copy: how copies are found and judged (its own floor is not looked at); table: counted in other texts of the same
    tokenizer; floor: 0 to 1; width: 1 to 16 children a node.

    Exact: law, under any exact verifier: candidates are certain.
    Reduces to: `suffix` with a table that knows nothing; `backoff` in a text where nothing comes back; `nothing` with floor 1.
    Source: composition. The mixture is that of a cache language model (Kuhn and De Mori, 1990).
    """
    copy: Suffix
    table: NGrams
    floor: float = 0.05
    width: int = 3

    def __post_init__(self) -> None:
        if not 0.0 <= self.floor <= 1.0:
            raise ValueError(f"floor is {self.floor}: it must lie in 0 to 1")
        if not 1 <= self.width <= 16:
            raise ValueError(f"width is {self.width}: it must lie in 1 to 16")

    def open(self, prompt: Sequence[int], session: Session) -> BlendedGuess:
        return BlendedGuess(self, self.copy.open(prompt, session))


@dataclass(frozen=True)
class BlendedGuess:
    """seen: the copying side, which holds the text."""
    how: Blended
    seen: SuffixGuess

    @property
    def want(self) -> Want:
        return self.seen.want

    async def propose(self, root: int, position: int, budget: Budget, rng: Rng) -> Draft:
        how, seen, after = self.how, self.seen, self.how.table.after
        floor, order, most = max(how.floor, budget.floor), how.table.order, budget.depth
        automaton, state, length = seen.match()
        token, parent, chance, depth, tails = [root], [-1], [1.0], [0], [seen.text[-order:]]
        heap = list[tuple[float, int, int, float, int, int, int]]()
        node, product, count = 0, 1.0, 0
        while True:
            if depth[node] < most:
                if state == automaton.tip:        # the end of the text: go on from where its suffix stood before
                    state, length = automaton.match
                said, there, left = dict[int, float](), dict[int, int](), 1.0
                for p, x, to in seen.after(automaton, state, length):
                    said[x], there[x] = p, to
                    left -= p
                if product * left >= floor:       # else nothing that only the table says can be likely enough
                    for p, x in after(tails[node]):
                        said[x] = said.get(x, 0.0) + left * p
                some = [(p, x) for x, p in said.items() if product * p >= floor]
                if len(some) > 1:
                    some = sorted(some, key=_likelier)[:how.width]
                for p, x in some:
                    to, n = (there[x], length + 1) if x in there else automaton.step(state, length, x)
                    count += 1
                    heappush(heap, (-product * p, count, node, p, x, to, n))
            if not heap or len(token) > budget.nodes:
                return Draft.certain(token, parent, chance)
            product, _, above, p, x, state, length = heappop(heap)
            product, node = -product, len(token)
            token.append(x)
            parent.append(above)
            chance.append(min(p, 1.0))
            depth.append(depth[above] + 1)
            tails.append([*tails[above], x][-order:])

    def learn(self, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        self.seen.learn(draft, scores, verdict)

    def fork(self) -> BlendedGuess:
        return BlendedGuess(self.how, self.seen.fork())

    def close(self) -> None:
        self.seen.close()


def _likelier(one: tuple[float, int]) -> tuple[float, int]:
    return -one[0], one[1]

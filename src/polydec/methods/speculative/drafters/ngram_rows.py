"""Average the target's rows after each n-gram, and draw a tree from these averages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.law import NEG_INF
from polydec.core.protocols import DraftScores, Session
from polydec.core.rng import Rng
from polydec.core.types import Draft, DrawKind, RowDetail, ScoreRequest
from polydec.methods.economics.tree_builder import TreeBuilder
from polydec.methods.speculative.drafters._shape import Template, of_counts
from polydec.methods.speculative.loop.protocols import DraftGuess
from polydec.methods.speculative.loop.types import DraftBudget, Verdict

Row = tuple[int, tuple[int, ...], tuple[float, ...]]
"""How many rows were averaged, and of the likeliest tokens id and probability, best first."""


@dataclass(frozen=True)
class NgramRowStore:
    """after[n-gram]: the average of the target's rows after it, the least recently written first. Given to a drafter it
    outlives a request: drafts made from it show what other requests wrote, and move the draws of later ones."""

    after: dict[tuple[int, ...], Row] = field(default_factory=dict[tuple[int, ...], Row])

    @property
    def nbytes(self) -> int:
        """What the rows hold: 4 bytes a token of a key, 8 a stored pair, 4 a count."""
        return sum(4 * len(key) + 8 * len(row[1]) + 4 for key, row in self.after.items())


@dataclass(frozen=True)
class NgramRowsDrafter:
    """Back off from the last `longest` tokens to the last `shortest`: the first n-gram that was seen gives the law of the
    next token, the average of the target's rows after it, cut to the `keep` likeliest tokens. A tree of fixed shape is
    drawn from these laws, siblings without replacement in the order drawn; where the target is greedy, or with `draws`
    off, the likeliest tokens are taken with certainty.

    shape: child counts of the nodes, breadth first; longest: 1 to 16; shortest: 1 to longest; keep: 1 to 64; most: at
    least 1, rows kept, the least recently written going first; store: rows that outlive the request, None: none at first;
    shared: the choices of a request write into the same rows, from which each drafts what the others found.

    Exact: law, under the `exact` verifier: every drawn node carries the law that it was drawn from, as it was then. With
    a store that outlives requests the text of a seed depends on what was asked before, its law does not; with shared rows on
    how far the other choices were, which other requests may move. Choices stay independent: whatever the others wrote,
    each token has the target's law.
    Reduces to: `nothing` while no n-gram comes back.
    Source: STAND, "Accelerated test-time scaling with model-free speculative sampling" (2025).
    """

    shape: tuple[int, ...] = (3, 2, 1, 1, 1, 1, 0, 1)
    longest: int = 4
    shortest: int = 2
    keep: int = 10
    draws: bool = True
    most: int = 65536
    store: NgramRowStore | None = None
    shared: bool = False

    def __post_init__(self) -> None:
        of_counts(self.shape)
        if not 1 <= self.longest <= 16:
            raise RequestError(f"longest is {self.longest}: it must lie in 1 to 16")
        if not 1 <= self.shortest <= self.longest:
            raise RequestError(
                f"shortest is {self.shortest}: it must lie in 1 to longest, which is {self.longest}"
            )
        if not 1 <= self.keep <= 64:
            raise RequestError(f"keep is {self.keep}: it must lie in 1 to 64")
        if self.most < 1:
            raise RequestError(f"most is {self.most}: it must be at least 1")

    @cached_property
    def template(self) -> Template:
        return of_counts(self.shape)

    def open(self, prompt: Sequence[int], session: Session) -> NgramRowsGuess:
        return NgramRowsGuess(
            self, NgramRowStore() if self.store is None else self.store, list(prompt), []
        )


@dataclass(frozen=True)
class NgramRowsGuess(DraftGuess):
    """text: everything so far, the pending root included; like: a row of the target, empty where it is greedy."""

    config: NgramRowsDrafter
    store: NgramRowStore
    text: list[int]
    like: list[Tensor]

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(law=RowDetail.NOTHING, base=RowDetail.TOPK)

    def find(self, context: Sequence[int]) -> Row | None:
        """The row of the longest n-gram at the end of this context."""
        for n in range(min(self.config.longest, len(context)), self.config.shortest - 1, -1):
            row = self.store.after.get(tuple(context[-n:]))
            if row is not None:
                return row
        return None

    async def propose(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        # Of each node of the template its node in the draft.
        tree, place = (TreeBuilder(root), list[int | None]([0]))
        context = [tuple(self.text[-self.config.longest :])]
        counts = [
            sum(above == i for above, _ in self.config.template)
            for i in range(len(self.config.template) + 1)
        ]
        for at, count in enumerate(counts):
            node = place[at]
            if node is None or tree.depth[node] >= budget.depth:
                row = None
            else:
                row = self.find(context[node])
            most = min(count, budget.nodes + 1 - len(tree))
            if row and most > 0:
                tokens, law_V = self._children(row, most, rng.at("draft", position, at))
            else:
                tokens, law_V = ((), None)
            place += [len(tree) + i if i < len(tokens) else None for i in range(count)]
            for x in tokens:
                assert node is not None and row is not None
                context.append((*context[node], x)[-self.config.longest :])
                tree.add(
                    node,
                    x,
                    row[2][row[1].index(x)],
                    DrawKind.CERTAIN if law_V is None else DrawKind.WITHOUT,
                    law_V,
                )
        return tree.draft()

    def _children(self, row: Row, count: int, rng: Rng) -> tuple[tuple[int, ...], Tensor | None]:
        _, tokens, p = row
        if not self.like or not self.config.draws:
            return tokens[:count], None
        p_K = torch.tensor(p, dtype=torch.float64)
        law_V = torch.full_like(self.like[0], NEG_INF)
        law_V[list(tokens)] = (p_K / p_K.sum()).log().to(law_V.dtype)
        return tuple(
            tokens[i] for i in rng.without_replacement(law_V[list(tokens)].double().exp(), count)
        ), law_V

    def learn(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        self.like.clear()
        for node in (0, *verdict.path):
            if node:
                self.text.append(draft.token[node])
            if scores.certain(node) is None:
                self.like[:] = [scores.row(node)]
                tokens, logp = scores.topk(node, self.config.keep)
            else:
                tokens, logp = scores.base.topk(node, self.config.keep)
            p = torch.tensor(logp, dtype=torch.float64).exp().tolist()
            new = {x: y for x, y in zip(tokens, p, strict=True) if y > 0.0}
            for n in range(self.config.shortest, min(self.config.longest, len(self.text)) + 1):
                self.write(tuple(self.text[-n:]), new)
        self.text.append(verdict.bonus)

    def write(self, key: tuple[int, ...], new: dict[int, float]) -> None:
        """Average one more row into that of an n-gram."""
        count, tokens, p = self.store.after.pop(key, (0, (), ()))
        mean = {x: y * count / (count + 1) for x, y in zip(tokens, p, strict=True)}
        for x, y in new.items():
            mean[x] = mean.get(x, 0.0) + y / (count + 1)
        best = sorted(mean.items(), key=lambda item: (-item[1], item[0]))[: self.config.keep]
        self.store.after[key] = (count + 1, tuple(x for x, _ in best), tuple(y for _, y in best))
        while len(self.store.after) > self.config.most:
            del self.store.after[next(iter(self.store.after))]

    def fork(self, session: Session, choice: int | None = None) -> NgramRowsGuess:
        common = self.config.shared or self.config.store is not None
        if common:
            store = self.store
        else:
            store = NgramRowStore(dict(self.store.after))
        return NgramRowsGuess(self.config, store, list(self.text), list(self.like))

    def close(self) -> None:
        pass

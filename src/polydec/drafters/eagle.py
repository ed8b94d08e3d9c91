"""A small network with a cache of its own, fed by the target's states, drafts."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from polydec.core.effects import Forward
from polydec.core.protocols import Scores, Session
from polydec.core.rng import Rng
from polydec.core.types import Draft, Reads, Want
from polydec.drafters._states import StateLaws, state_after
from polydec.families.ar.protocols import Tree
from polydec.families.ar.types import Budget, Verdict
from polydec.models.eagle import Eagle
from polydec.models.query import Query

STATES = Want(law=Reads.NOTHING, hidden=True)


@dataclass(frozen=True)
class FromEagle:
    """Grows a tree from the states that `eagle` makes of the target's: a node's from its token and its parent's state. What is
    kept between rounds was computed from true states alone. prompt: the prompt's states are read too, and a cached prefix is
    computed again for them; else the last one's only.

    Exact: law, under any exact verifier.
    Reduces to: `nothing` at depth 0, and behind a prompt of one token in the first round.
    Source: EAGLE (Li et al., 2024).
    """
    eagle: Eagle
    tree: Tree
    prompt: bool = True

    def open(self, prompt: Sequence[int], session: Session) -> EagleGuess:
        return EagleGuess(self, session, self.eagle.network.new_cache())


@dataclass
class EagleGuess:
    """session: the target's own. pending: of tokens that are not in the cache yet, and the true states before them; state_H:
    what the network makes of the last token that is in it."""
    config: FromEagle
    session: Session
    cache: Any
    pending: list[tuple[int, Tensor]] = field(default_factory=list[tuple[int, Tensor]])
    state_H: Tensor | None = None
    price = 0.0

    @property
    def want(self) -> Want:
        return Want(law=Reads.NOTHING, hidden=True, prompt=self.config.prompt, last=not self.config.prompt)

    async def propose(self, root: int, position: int, budget: Budget, rng: Rng) -> Draft:
        if budget.depth < 1 or (self.state_H is None and not self.pending):
            return Draft.chain(root)
        laws = EagleLaws(self.config.eagle, self.cache, self.session)
        if self.pending:
            tokens, states = zip(*self.pending, strict=True)
            self.pending = []
            first = self.cache.stage(range(-1, len(tokens) - 1))
            self.cache.commit(range(len(tokens)))
            self.state_H = (await laws.feed(first, tokens, torch.stack(states), (len(tokens) - 1,)))[0]
        laws.put([0], self.state_H[None])                        # pyright: ignore[reportOptionalSubscript]
        draft = await self.config.tree.grow(laws, root, position, budget, rng)  # pyright: ignore[reportArgumentType]
        self.cache.truncate(self.cache.length)    # what was drafted is forgotten
        return draft

    def learn(self, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        for node, token in zip((0, *verdict.path), verdict.tokens(draft), strict=True):
            self.pending.append((token, state_after(scores, node)))

    def fork(self, session: Session, choice: int | None = None) -> EagleGuess:
        return EagleGuess(self.config, session, self.cache.fork(), list(self.pending), self.state_H)

    def close(self) -> None:
        self.cache = self.cache.fork(0)           # what nobody else reads is given back


class EagleLaws:
    """What a tree asks: the laws at the nodes of a draft, of which each one extends the last."""
    def __init__(self, eagle: Eagle, cache: Any, session: Session) -> None:
        self._eagle, self._cache, self._laws, self._states = eagle, cache, StateLaws(session), dict[int, Tensor]()

    async def feed(self, first: int, tokens: Sequence[int], state_NH: Tensor, rows: Sequence[int]) -> Tensor:
        """States of these rows, of tokens that have their slots and the states before them."""
        embed = self._eagle.enter(self._laws.session.embed(tokens), state_NH)
        return (await Forward(self._eagle.network, Query(self._cache, first, (), rows, STATES, embed), len(tokens))).hidden_RH

    def put(self, nodes: Sequence[int], state_NH: Tensor) -> None:
        self._states |= dict(zip(nodes, state_NH, strict=True))
        self._laws.add(nodes, state_NH)

    async def score(self, draft: Draft, want: Want) -> Scores:
        while new := self._laws.new(draft):       # a level at a time: a node needs its parent's state
            level = [i for i in new if draft.parent[i] < new[0]]
            first = self._cache.stage([draft.parent[i] - 1 for i in level])       # node 0 is the last committed entry
            above = torch.stack([self._states[draft.parent[i]] for i in level])
            self.put(level, await self.feed(first, [draft.token[i] for i in level], above, range(len(level))))
        return self._laws.scores(draft)

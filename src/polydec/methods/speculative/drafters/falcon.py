"""A network that guesses a block of states a pass drafts: levels of the tree are grown a block at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polydec.core.protocols import DraftScores, Session
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.methods.speculative.drafters._states import StateGuess, StateLaws, at_work
from polydec.methods.speculative.loop.protocols import TreeGrower
from polydec.models.learned.kinds.falcon import FalconModel


@dataclass(frozen=True)
class FalconDrafter:
    """Grows a tree from blocks of guessed states: one pass of `weights` behind the last true states gives the laws of `block`
    levels, each further one behind the nodes that many levels below the root gives those of the next `block`. Tokens of a
    block are chosen without regard to one another. prompt, bent: as for `eagle`.

    Exact: law, under any exact verifier.
    Reduces to: `nothing` at depth 0, and behind a prompt of one token in the first round.
    Source: Falcon (Gao et al., 2024).
    """

    weights: FalconModel
    tree: TreeGrower
    prompt: bool = True
    bent: bool = True

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(
            law=RowDetail.NOTHING, hidden=True, prompt=self.prompt, last=not self.prompt
        )

    def open(self, prompt: Sequence[int], session: Session) -> StateGuess:
        return at_work(self, session)

    def laws(self, known: StateGuess) -> BlockLaws:
        return BlockLaws(self.weights, known)


class BlockLaws:
    """The laws at the nodes of a draft. A node that is a multiple of `block` levels below the root ends a block: its states are
    those of the next `block` levels below it. fed: the nodes below this one have entries in the cache."""

    def __init__(self, weights: FalconModel, known: StateGuess) -> None:
        self._weights = weights
        self._known = known
        self._laws = StateLaws(known.session, known.bent)
        self._fed = 1
        assert known.tip is not None, "a draft is asked for before the target has read the prompt"
        self._states = {0: self._blocks(known.tip.hidden_RH)[0]}

    def _blocks(self, hidden_RS: Tensor | None) -> Tensor:
        """[R, block, H]."""
        assert hidden_RS is not None
        return hidden_RS.unflatten(1, (self._weights.block, -1))

    async def score(self, draft: Draft, want: ScoreRequest) -> DraftScores:
        laws = self._laws
        block = self._weights.block
        new = laws.new(draft)
        for depth in sorted({draft.depth[i] for i in new}):
            level = [i for i in new if draft.depth[i] == depth]
            if depth and depth % block == 0:
                await self._feed(draft, level)
            # Nodes below the end of one block share a law.
            of = dict[int, list[int]]()
            for i in level:
                of.setdefault(self._end(draft, i), []).append(i)
            for end, nodes in of.items():
                laws.add(nodes, self._states[end][depth % block][None])
        return laws.scores(draft)

    def _end(self, draft: Draft, node: int) -> int:
        """The node that ends the last whole block above a node, or itself."""
        for _ in range(draft.depth[node] % self._weights.block):
            node = draft.parent[node]
        return node

    async def _feed(self, draft: Draft, ends: Sequence[int]) -> None:
        """Entries of all nodes that have none yet, and the states that the blocks ending with these guess."""
        known = self._known
        nodes = range(self._fed, max(ends) + 1)
        state_NH = torch.stack([self._guess_of(draft, i) for i in nodes])
        rows = self._weights.enter(known.embed([(draft.token[i],) for i in nodes]), state_NH)
        # Node 0 is the last committed entry.
        first = known.cache.stage([draft.parent[i] - 1 for i in nodes])
        answer = await known.feed(first, rows, [i - self._fed for i in ends])
        self._states |= dict(zip(ends, self._blocks(answer.hidden_RH), strict=True))
        self._fed = max(ends) + 1

    def _guess_of(self, draft: Draft, node: int) -> Tensor:
        """The state before a node's token, as it was guessed."""
        above = draft.parent[node]
        return self._states[self._end(draft, above)][draft.depth[above] % self._weights.block]

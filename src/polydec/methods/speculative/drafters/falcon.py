"""A network that guesses a block of states a pass drafts.

Levels of the tree are grown one block at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from polydec.core.protocols import DraftScores, Session
from polydec.core.row_scores import PickedScores
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.methods.speculative.drafters._states import (
    StateDraftWeights,
    StateGuess,
    at_work,
)
from polydec.methods.speculative.loop.protocols import TreeGrower


class BlockDraftWeights(StateDraftWeights, Protocol):
    """A network that guesses a block of states a pass: see models/learned/kinds/falcon.py."""

    @property
    def block(self) -> int:
        """States of a block."""
        ...


@dataclass(frozen=True)
class FalconDrafter:
    """Grow a tree from blocks of guessed states.

    One pass of `weights` after the last true states gives the laws of `block` levels; each further
    one, over the nodes that many levels below the root, gives those of the next `block`. Tokens of
    a block are chosen without regard to one another.

    Attributes:
        weights: The trained network.
        tree: Which nodes are drawn of its laws.
        prompt: Whether the prompt's states are read too, for which a cached prefix is computed
            again; else the last one's only. Default: they are.
        bent: Whether laws are shaped as the target's are. Default: they are.

    Exact: law, under any exact verifier.
    Reduces to: `nothing` at depth 0, and behind a prompt of one token in the first round.
    Source: Falcon (Gao et al., 2024).
    """

    weights: BlockDraftWeights
    tree: TreeGrower
    prompt: bool = True
    bent: bool = True

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(
            law=RowDetail.NOTHING, hidden=True, prompt=self.prompt, last=not self.prompt
        )

    def open_guess(self, prompt: Sequence[int], session: Session) -> StateGuess:
        """Begin a sequence.

        Args:
            prompt: Token ids of the prompt. The last one is the first root.
            session: The target's session on this prompt.

        Returns:
            The guess.
        """
        return at_work(self, session)

    def draft_laws(self, known: StateGuess) -> BlockLaws:
        return BlockLaws(self.weights, known)


class BlockLaws:
    """The laws at the nodes of a draft, one block of levels at a time.

    A node whose depth is a multiple of `block` ends a block: its states are those of the next
    `block` levels below it. Nodes of smaller index than `_fed` have entries in the cache.
    """

    def __init__(self, weights: BlockDraftWeights, known: StateGuess) -> None:
        self._weights = weights
        self._known = known
        self._fed = 1
        # Of each node the end of a block whose states give its law.
        self._ends = list[int]()
        assert known.tip is not None, "a draft is asked for before the target has read the prompt"
        # Of each end the states that it guesses, and their laws: the rows from a first one on.
        self._states = dict[int, Tensor]()
        self._laws = dict[int, tuple[DraftScores, int]]()
        # The root ends a block: what the network made of the last true state is its guess of the
        # first levels.
        self._take_blocks([0], known.tip.hidden_RH)

    async def score_draft(self, draft: Draft, want: ScoreRequest) -> DraftScores:
        """Give laws to new nodes, with a pass of the network wherever a block ends.

        Args:
            draft: Token tree whose nodes get a row, the root first.
            want: What the caller reads of the result.

        Returns:
            The laws at all nodes.
        """
        block = self._weights.block
        new = range(len(self._ends), len(draft))
        # A node whose depth is a multiple of the block ends one; others stand below one that did.
        for i in new:
            ends = draft.depth[i] % block == 0
            self._ends.append(i if ends else self._ends[draft.parent[i]])
        # Level by level, as a block's entries need the guesses of the block above.
        for depth in sorted({draft.depth[i] for i in new}):
            if depth and depth % block == 0:
                await self._feed(draft, [i for i in new if draft.depth[i] == depth])
        # Nodes of a level below one end share a law: it was guessed before their tokens.
        laws = [self._laws[end] for end in self._ends]
        rows = [first + depth % block for (_, first), depth in zip(laws, draft.depth, strict=True)]
        scores = PickedScores([scores for scores, _ in laws], rows)
        known = self._known
        return known.session.bend_scores(draft, scores) if known.bent else scores

    def _take_blocks(self, ends: Sequence[int], hidden_RS: Tensor | None) -> None:
        """Keep the states that the network guessed behind some nodes, and the laws of all of them."""
        assert hidden_RS is not None, "states are asked for"
        states_RKH = hidden_RS.unflatten(1, (self._weights.block, -1))
        # All at once: a head reads its matrix once for many rows.
        scores = self._known.session.score_states(states_RKH.flatten(0, 1))
        for row, end in enumerate(ends):
            self._states[end] = states_RKH[row]
            self._laws[end] = (scores, row * self._weights.block)

    async def _feed(self, draft: Draft, ends: Sequence[int]) -> None:
        """Make entries of all nodes that have none yet.

        The states that the blocks after `ends` guess are stored.
        """
        known = self._known
        nodes = range(self._fed, max(ends) + 1)
        state_NH = torch.stack([self._guess_of(draft, i) for i in nodes])
        rows = self._weights.layer_inputs(
            known.embed_windows([(draft.token[i],) for i in nodes]), state_NH
        )
        # The root's entry is committed already, so parents count from -1, which is the last
        # committed entry.
        first = known.cache.stage_slots([draft.parent[i] - 1 for i in nodes])
        answer = await known.feed_entries(first, rows, [i - self._fed for i in ends])
        self._take_blocks(ends, answer.hidden_RH)
        self._fed = max(ends) + 1

    def _guess_of(self, draft: Draft, node: int) -> Tensor:
        """The state before a node's token, as it was guessed."""
        # The state that gave the token's law: of the block that ends at or above its parent.
        above = draft.parent[node]
        return self._states[self._ends[above]][draft.depth[above] % self._weights.block]

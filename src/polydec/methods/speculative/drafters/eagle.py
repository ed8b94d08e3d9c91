"""A small network with a cache of its own, fed by the target's states, drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from polydec.core.protocols import DraftScores, Session
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.methods.speculative.drafters._states import (
    StateDraftWeights,
    StateGuess,
    StateLaws,
    at_work,
    pad_last_tokens,
)
from polydec.methods.speculative.loop.protocols import TreeGrower
from polydec.models.nets.query import NetworkAnswer


class EagleDraftWeights(StateDraftWeights, Protocol):
    """A layer that reads true states and then drafted tokens: see models/learned/kinds/eagle.py."""

    @property
    def depths(self) -> tuple[int, ...]: ...
    def drafted_inputs(self, embed_NWH: Tensor, above_NH: Tensor, /) -> Tensor:
        """What enters the layer for drafted tokens.

        Args:
            embed_NWH: Embeddings of the tokens up to each node, shape ``[N, window, H]``.
            above_NH: What `read_states` made at each node's parent, shape ``[N, H]``.

        Returns:
            Rows for the layer, one a node.
        """
        ...

    def read_states(self, k: int, true_H: Tensor, out_NS: Tensor) -> tuple[Tensor, Tensor | None]:
        """What the layer's output means at nodes of one level.

        Args:
            k: Depth of the nodes, 0 for the root.
            true_H: The last true state, shape ``[H]``.
            out_NS: What the layer answered, one row a node.

        Returns:
            What `drafted_inputs` needs at the children, and the states whose laws the target's head gives.
            None in place of these where the layer has a head of its own.
        """
        ...


@dataclass(frozen=True)
class EagleDrafter:
    """Grow a tree from what a trained layer makes of the target's states.

    A node's entry is made of its token and what was made at its parent. What is held between rounds
    was computed from true states alone.

    Attributes:
        weights: The trained layer.
        tree: Which nodes are drawn of its laws.
        prompt: Whether the prompt's states are read too, for which a cached prefix is computed
            again; else the last one's only. Default: they are.
        bent: Whether the layer's laws are shaped as the target's are; else they stay as they are,
            which one call of the compiled step grows whatever shapes the target. Default: they are.

    Exact: law, under any exact verifier.
    Reduces to: `nothing` at depth 0, and behind a prompt of one token in the first round.
    Source: EAGLE (Li et al., 2024); EAGLE-3 (Li et al., 2025); Chimera (Zeng et al., 2024).
    """

    weights: EagleDraftWeights
    tree: TreeGrower
    prompt: bool = True
    bent: bool = True

    @property
    def want(self) -> ScoreRequest:
        # Weights of several depths (EAGLE-3) read states after those layers, in place of the last
        # one's.
        depths = self.weights.depths
        return ScoreRequest(
            law=RowDetail.NOTHING,
            hidden=not depths,
            exits=depths,
            prompt=self.prompt,
            last=not self.prompt,
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

    def draft_laws(self, known: StateGuess) -> LayerLaws:
        return LayerLaws(self.weights, known)


class LayerLaws:
    """The laws at the nodes of a draft, level by level.

    A node needs what was made at its parent.
    """

    def __init__(self, weights: EagleDraftWeights, known: StateGuess) -> None:
        self._weights = weights
        self._known = known
        self._laws = StateLaws(known.session, known.bent)
        self._above = dict[int, Tensor]()
        # The root's law comes from the last true state: it is known before any node is fed.
        if known.tip is not None:
            self._put([0], 0, known.tip)

    def _put(self, nodes: Sequence[int], k: int, answer: NetworkAnswer) -> None:
        above_NH, state_NH = self._weights.read_states(k, self._known.true_H, answer.hidden_RH)  # pyright: ignore[reportArgumentType]
        self._above |= dict(zip(nodes, above_NH, strict=True))
        # Without states the layer has answered with logits of its own head.
        if state_NH is None:
            self._laws.set_laws(nodes, answer.logits_RV, answer.argmax)  # pyright: ignore[reportArgumentType]
        elif self._weights.normed:
            self._laws.add_normed(nodes, state_NH)
        else:
            self._laws.add_states(nodes, state_NH)

    async def score_draft(self, draft: Draft, want: ScoreRequest) -> DraftScores:
        """Run the layer over the nodes that have no law yet, level by level.

        Args:
            draft: Token tree whose nodes get a row, the root first.
            want: What the caller reads of the result.

        Returns:
            The laws at all nodes.
        """
        known = self._known
        weights = self._weights
        while new := self._laws.new_nodes(draft):
            # New nodes whose parents are not new: their entries can be made now.
            level = [i for i in new if draft.parent[i] < new[0]]
            # The root's entry is committed already, so parents count from -1, which is the last
            # committed entry.
            slots = known.cache.stage_slots([draft.parent[i] - 1 for i in level])
            # Tokens on the way to each node, for layers that read a window of them.
            paths = [(*known.text, *[draft.token[j] for j in draft.path_to(i)]) for i in level]
            above_NH = torch.stack([self._above[draft.parent[i]] for i in level])
            entering = weights.drafted_inputs(
                known.embed_windows([pad_last_tokens(path, weights.window) for path in paths]),
                above_NH,
            )
            self._put(
                level,
                draft.depth[level[0]],
                await known.feed_entries(slots, entering, range(len(level))),
            )
        return self._laws.score_draft_tree(draft)

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
    def below(self, embed_NWH: Tensor, above_NH: Tensor, /) -> Tensor: ...
    def read(self, k: int, true_H: Tensor, out_NS: Tensor) -> tuple[Tensor, Tensor | None]: ...


@dataclass(frozen=True)
class EagleDrafter:
    """Grows a tree from what `weights` make of the target's states: a node's entry is made of its token and what was made at
    its parent. What is kept between rounds was computed from true states alone. prompt: the prompt's states are read too, and
    a cached prefix is computed again for them; else the last one's only. bent: the layer's laws are shaped as the target's are;
    else they stay as they are, which one call of the compiled step grows whatever shapes the target.

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
        depths = self.weights.depths
        return ScoreRequest(
            law=RowDetail.NOTHING,
            hidden=not depths,
            exits=depths,
            prompt=self.prompt,
            last=not self.prompt,
        )

    def open(self, prompt: Sequence[int], session: Session) -> StateGuess:
        return at_work(self, session)

    def laws(self, known: StateGuess) -> LayerLaws:
        return LayerLaws(self.weights, known)


class LayerLaws:
    """The laws at the nodes of a draft, a level at a time: a node needs what was made at its parent."""

    def __init__(self, weights: EagleDraftWeights, known: StateGuess) -> None:
        self._weights = weights
        self._known = known
        self._laws = StateLaws(known.session, known.bent)
        self._above = dict[int, Tensor]()
        if known.tip is not None:
            self._put([0], 0, known.tip)

    def _put(self, nodes: Sequence[int], k: int, answer: NetworkAnswer) -> None:
        above_NH, state_NH = self._weights.read(k, self._known.true_H, answer.hidden_RH)  # pyright: ignore[reportArgumentType]
        self._above |= dict(zip(nodes, above_NH, strict=True))
        # The layer has a head of its own.
        if state_NH is None:
            self._laws.put(nodes, answer.logits_RV, answer.argmax)  # pyright: ignore[reportArgumentType]
        elif self._weights.normed:
            self._laws.add_normed(nodes, state_NH)
        else:
            self._laws.add(nodes, state_NH)

    async def score(self, draft: Draft, want: ScoreRequest) -> DraftScores:
        known = self._known
        weights = self._weights
        while new := self._laws.new(draft):
            level = [i for i in new if draft.parent[i] < new[0]]
            # Node 0 is the last committed entry.
            slots = known.cache.stage([draft.parent[i] - 1 for i in level])
            paths = [(*known.text, *[draft.token[j] for j in draft.path_to(i)]) for i in level]
            above_NH = torch.stack([self._above[draft.parent[i]] for i in level])
            entering = weights.below(
                known.embed([pad_last_tokens(path, weights.window) for path in paths]), above_NH
            )
            self._put(
                level, draft.depth[level[0]], await known.feed(slots, entering, range(len(level)))
            )
        return self._laws.scores(draft)

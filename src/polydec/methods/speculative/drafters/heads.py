"""Small trained heads on the target's last hidden state draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear

from polydec.core.effects import ForwardQuery
from polydec.core.protocols import BatchedModel, DraftScores, Session
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.methods.speculative.drafters._states import (
    StateDraftWeights,
    StateGuess,
    StateLaws,
    at_work,
)
from polydec.methods.speculative.loop.protocols import TreeGrower


class HeadDraftWeights(StateDraftWeights, BatchedModel, Protocol):
    """Heads of which each goes on where the one before it stopped.

    See models/learned/kinds/heads.py.
    """

    @property
    def reads(self) -> bool: ...
    def level_head(self, k: int) -> Tensor | None: ...
    def start_levels(self, state_NH: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class HeadsDrafter:
    """Grow a tree from the laws of trained heads on the target's last known state.

    That state is the one before the root: head k gives the laws of nodes k + 1 levels below the
    root. Heads that read tokens know the path to a node. Norm, head and embeddings are the target's
    own, and so are the shapers; heads in the published form bring matrices of their own (`head`)
    and read what the target's final norm leaves (`normed`).

    Attributes:
        weights: Heads, or what goes on like them.
        tree: Which nodes are drawn of their laws.
        prompt: Where a layer reads all states first: whether the prompt's are read too, for which a
            cached prefix is computed again; else the last one's only. Default: they are.
        bent: Whether laws are shaped as the target's are. Default: they are.

    Exact: law, under any exact verifier.
    Reduces to: `nothing` at depth 0, and behind a prompt of one token in the first round.
    Source: Medusa (Cai et al., 2024); Hydra (Ankner et al., 2024); Clover (Xiao et al., 2024).
    """

    weights: HeadDraftWeights
    tree: TreeGrower
    prompt: bool = True
    bent: bool = True

    @property
    def want(self) -> ScoreRequest:
        # Heads without a layer read the last state alone, so nothing of the prompt need be computed
        # again.
        whole = self.prompt and self.weights.network is not None
        return ScoreRequest(law=RowDetail.NOTHING, hidden=True, prompt=whole, last=not whole)

    def open_guess(self, prompt: Sequence[int], session: Session) -> StateGuess:
        """Begin a sequence.

        Args:
            prompt: Token ids of the prompt. The last one is the first root.
            session: The target's session on this prompt.

        Returns:
            The guess.
        """
        return at_work(self, session)

    def draft_laws(self, known: StateGuess) -> HeadLaws:
        return HeadLaws(self.weights, known)


class HeadLaws:
    """The laws at the nodes of a draft. Where heads read no tokens, nodes of a level share one."""

    def __init__(self, weights: HeadDraftWeights, known: StateGuess) -> None:
        # With a layer, what it made of the last true state; else that state itself.
        if known.tip is not None:
            state = known.tip.hidden_RH
        elif known.true_H is None:
            state = None
        else:
            state = known.true_H[None]
        assert state is not None, "a draft is asked for before the target has read the prompt"
        # Heads in the published form read normed states. What a layer made of them is used as it
        # is.
        if weights.normed and known.tip is None:
            state = known.session.normed_states(state)
        self._weights = weights
        self._laws = StateLaws(known.session, known.bent)
        # What each node passes on to its children; -1 stands above the root.
        self._carry = {-1: weights.start_levels(state)[0]}

    async def score_draft(self, draft: Draft, want: ScoreRequest) -> DraftScores:
        """Run the heads over the nodes that have no law yet, level by level.

        Args:
            draft: Token tree whose nodes get a row, the root first.
            want: What the caller reads of the result.

        Returns:
            The laws at all nodes.
        """
        laws = self._laws
        for k in sorted({draft.depth[i] for i in laws.new_nodes(draft)}):
            nodes = [i for i in laws.new_nodes(draft) if draft.depth[i] == k]
            # Heads that read no tokens give one law to all nodes of a level: one row is computed
            # for them.
            if self._weights.reads:
                computed = nodes
            else:
                computed = nodes[:1]
            carry = torch.stack([self._carry[draft.parent[i]] for i in computed])
            embed = laws.session.embed_tokens([draft.token[i] for i in computed])
            below, state = await ForwardQuery(self._weights, (k, carry, embed), len(computed))
            self._carry |= dict(
                zip(
                    nodes,
                    below if len(computed) == len(nodes) else [below[0]] * len(nodes),
                    strict=True,
                )
            )
            if (own_VH := self._weights.level_head(k)) is None:
                laws.add_states(nodes, state)
            else:
                # As exact as the target's own laws, which are of float64 in toys.
                exact = torch.promote_types(embed.dtype, torch.float32)
                laws.set_laws(nodes, linear(state, own_VH.detach()).to(exact))
        return laws.score_draft_tree(draft)

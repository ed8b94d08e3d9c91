"""Masks with a gated adapter run in the target's own pass, and a small sampler drafts from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from polydec.core.effects import ForwardQuery
from polydec.core.protocols import DraftScores, Session
from polydec.core.rng import Rng
from polydec.core.types import Draft, DrawKind, RowDetail, ScoreRequest
from polydec.methods.speculative.drafters._states import StateLaws
from polydec.methods.speculative.drafters.probes import LevelLaws, states_behind
from polydec.methods.speculative.loop.protocols import TreeGrower
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.models.learned.kinds.mtp import MtpModel


@dataclass(frozen=True)
class MtpDrafter:
    """Draft from masks that follow drafted tokens, and run with matrices that no token sees.

    The masks after the token that was accepted last give the next draft, one a level. Of a budget,
    nodes are tokens and masks together.

    Attributes:
        mtp: The trained masks, matrices and sampler.
        tree: Which nodes are drawn of their laws.
        quadratic: Whether a block of masks follows the root and every drafted token, so that there
            is a draft whatever is accepted. Else masks follow the drafted tokens without children
            alone: where one of these is not accepted, the next draft is empty and masks follow its
            root. Default: every token.
        sampler: Whether a guess depends on the token before it; else the target's head reads the
            masks' states. Default: it does.

    Exact: law, under any exact verifier.
    Reduces to: `nothing` in the first round, and where the budget has no room for one token and its
    masks.
    Source: Samragh et al. (2025).
    """

    mtp: MtpModel
    tree: TreeGrower
    quadratic: bool = True
    sampler: bool = True

    def open_guess(self, prompt: Sequence[int], session: Session) -> MtpGuess:
        """Begin a sequence.

        Args:
            prompt: Token ids of the prompt. The last one is the first root.
            session: The target's session on this prompt.

        Returns:
            The guess.
        """
        return MtpGuess(self, session)

    def token_room(self, nodes: int) -> int:
        """Tokens for which a budget of so many nodes has room, their masks counted."""
        k = len(self.mtp)
        # The root and each token bring their masks along, or the last token alone does.
        return max(0, (nodes + 1) // (1 + k) - 1 if self.quadratic else nodes - k)


@dataclass
class MtpGuess:
    """The drafter at work on one sequence.

    Attributes:
        config: The configuration.
        session: The target's own session.
        state_KH: Output states of the masks after the last accepted token, shape ``[K, H]``. None:
            there were none.
        price: 0: no pass but the target's runs.
    """

    config: MtpDrafter
    session: Session
    state_KH: Tensor | None = None
    price = 0.0

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(law=RowDetail.NOTHING, hidden=True)

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        """Grow a tree from the masks' states, and put masks after its nodes.

        Args:
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Random stream of the text.

        Returns:
            The tree, with its masks as probes.
        """
        config = self.config
        draft = Draft.chain_draft(root)
        known = self.state_KH
        if budget.depth < 1:
            return draft
        if known is not None and (most := config.token_room(budget.nodes)):
            if config.sampler:
                laws = SampledLaws(known, self.session, config.mtp)
            else:
                laws = LevelLaws(known[:, None], self.session)
            # Each mask's state gives one level of the tree.
            room = replace(budget, depth=min(budget.depth, len(known)), nodes=most)
            draft = await config.tree.grow_tree(laws, root, position, room, rng)
        return self._with_masks(draft, budget)

    def _with_masks(self, draft: Draft, budget: DraftBudget) -> Draft:
        """The draft, followed by its masks."""
        mtp = self.config.mtp
        n = len(draft)
        parent = list(draft.parent)
        states = list[Tensor]()
        for node in range(n):
            # Without `quadratic`, only leaves have masks.
            if draft.children[node] and not self.config.quadratic:
                continue
            # No masks for levels that the budget does not have, nor more nodes than it has.
            count = min(len(mtp), budget.depth - draft.depth[node], budget.nodes + 1 - len(parent))
            for k in range(count):
                parent.append(len(parent) - 1 if k else node)
                states.append(mtp.mask_KH[k])
        more = len(states)
        if not more:
            return draft
        # Masks have the root's token id, which nobody reads: their state is fed in place of its
        # embedding.
        return Draft(
            (*draft.token, *[draft.token[0]] * more),
            tuple(parent),
            (*draft.draw, *[DrawKind.CERTAIN] * more),
            (*draft.law, *[None] * more),
            (*[False] * n, *[True] * more),
            (*(draft.chance or [1.0] * n), *[0.0] * more),
            (*[None] * n, *states),
            None,
            mtp.adapter,
        )

    def learn_round(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        """Take the states of the masks after the last accepted token.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            verdict: The accepted nodes and the token that follows them.
        """
        self.state_KH = states_behind(draft, scores, verdict)

    def fork_guess(self, session: Session, choice: int | None = None) -> MtpGuess:
        """A guess with the same states.

        Args:
            session: Fork of the target's session, for the copy to read.
            choice: Index of the choice that the copy drafts for. None: the same choice as before.

        Returns:
            The copy.
        """
        return MtpGuess(self.config, session, self.state_KH)

    def close(self) -> None:
        pass


class SampledLaws:
    """The laws at the nodes of a draft, each of its level's mask and of the node's token."""

    def __init__(self, state_KH: Tensor, session: Session, mtp: MtpModel) -> None:
        self._state_KH = state_KH
        self._mtp = mtp
        self._laws = StateLaws(session)

    async def score_draft(self, draft: Draft, want: ScoreRequest) -> DraftScores:
        """Run the sampler over the nodes that have no law yet.

        Args:
            draft: Token tree whose nodes get a row, the root first.
            want: What the caller reads of the result.

        Returns:
            The laws at all nodes.
        """
        new = self._laws.new_nodes(draft)
        if new:
            embed_NH = self._laws.session.embed_tokens([draft.token[i] for i in new])
            state_NH = torch.stack([self._state_KH[draft.depth[i]] for i in new])
            self._laws.add_states(
                new, await ForwardQuery(self._mtp, (state_NH, embed_NH), len(new))
            )
        return self._laws.score_draft_tree(draft)

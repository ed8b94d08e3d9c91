"""Small trained heads on the target's last hidden state draft."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from polydec.core.effects import Forward
from polydec.core.protocols import Scores, Session
from polydec.core.rng import Rng
from polydec.core.types import Draft, Reads, Want
from polydec.drafters._states import StateLaws, state_after
from polydec.families.ar.protocols import Tree
from polydec.families.ar.types import Budget, Verdict
from polydec.models.heads import Heads, even


@dataclass(frozen=True)
class FromHeads:
    """Grows a tree from the laws of `heads` on the last state that is known, which is the one before the root: head k gives the
    laws of nodes k + 1 levels below the root. Heads that read tokens know the path to a node. Norm, head and embeddings are
    the target's own, and so are the shapers.

    Exact: law, under any exact verifier.
    Reduces to: `nothing` at depth 0, and behind a prompt of one token in the first round.
    Source: Medusa (Cai et al., 2024); Hydra (Ankner et al., 2024).
    """
    heads: Heads
    tree: Tree

    def open(self, prompt: Sequence[int], session: Session) -> HeadsGuess:
        return HeadsGuess(self, session)


@dataclass
class HeadsGuess:
    """session: the target's own. state_H: after the last token before the root; None while none was seen."""
    config: FromHeads
    session: Session
    state_H: Tensor | None = None
    price = 0.0

    @property
    def want(self) -> Want:
        return Want(law=Reads.NOTHING, hidden=True, last=True)

    async def propose(self, root: int, position: int, budget: Budget, rng: Rng) -> Draft:
        depth = min(budget.depth, len(self.config.heads))
        if self.state_H is None or depth < 1:
            return Draft.chain(root)
        laws = HeadLaws(self.config.heads, self.state_H, self.session)
        budget = replace(budget, depth=depth)
        return await self.config.tree.grow(laws, root, position, budget, rng)  # pyright: ignore[reportArgumentType]

    def learn(self, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        self.state_H = state_after(scores, verdict.path[-1] if verdict.path else 0)

    def fork(self, session: Session, choice: int | None = None) -> HeadsGuess:
        return HeadsGuess(self.config, session, self.state_H)

    def close(self) -> None:
        pass


class HeadLaws:
    """What a tree asks: the laws at the nodes of a draft, of which each one extends the last. Where heads read no tokens, nodes
    of a level share one law."""
    def __init__(self, heads: Heads, state_H: Tensor, session: Session) -> None:
        self._heads, self._state_1H, self._laws = heads, even(state_H[None]), StateLaws(session)

    async def score(self, draft: Draft, want: Want) -> Scores:
        laws = self._laws
        for k in sorted({draft.depth[i] for i in laws.new(draft)}):
            nodes = [i for i in laws.new(draft) if draft.depth[i] == k]
            inputs = self._state_1H
            if self._heads.reads:
                paths = [(draft.token[0], *[draft.token[i] for i in draft.path_to(node)]) for node in nodes]
                embed_NE = even(laws.session.embed([x for path in paths for x in path])).reshape(len(nodes), -1)
                inputs = torch.cat([self._state_1H.expand(len(nodes), -1), embed_NE], 1)
            laws.add(nodes, await Forward(self._heads, (k, inputs), len(inputs)))
        return laws.scores(draft)

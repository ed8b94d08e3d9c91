"""The target's own layers draft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from polydec.base.errors import RequestError
from polydec.core.protocols import DraftScores, Session
from polydec.core.rng import Rng
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.methods.speculative.loop.protocols import DraftGuess, TreeGrower
from polydec.methods.speculative.loop.types import DraftBudget, Verdict


@dataclass(frozen=True)
class SelfSpeculativeDrafter:
    """Draw a tree from some of the target's own layers, over its own cache.

    Its final norm and head read what these layers give. The first layers alone are an early exit:
    what they computed stands, and verification goes on after them, so that every layer runs once
    for an accepted token. With others (layer skip), or without some of their halves, the keys and
    values after the first gap are wrong for the target, which computes all of its layers anew.

    Attributes:
        tree: Which nodes are drawn of these layers' laws.
        layers: Ascending indices of the layers that draft, at least one.
        without: Halves of these layers that do not run: 2 i is the attention of layer i, which then
            caches nothing, 2 i + 1 its MLP.

    Exact: law, under any exact verifier: every node carries the row that it was drawn from, shaped
    as the target's are.
    Reduces to: drafts that are always accepted with all layers, none halved; `nothing` at depth 0.
    Source: Elhoushi et al., LayerSkip (2024), for exits; Zhang et al., "Draft & verify" (2023), for
    skips.
    """

    unexercised: ClassVar[Mapping[str, str]] = {"learned": "its layers read the target's own cache"}
    tree: TreeGrower
    layers: tuple[int, ...] = (0,)
    without: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if not self.layers or list(self.layers) != sorted(set(self.layers)) or self.layers[0] < 0:
            raise RequestError(
                f"layers is {self.layers}: it must hold ascending indices, at least one"
            )
        if not {h // 2 for h in self.without} <= set(self.layers) or any(
            h ^ 1 in self.without for h in self.without
        ):
            raise RequestError(
                f"without is {sorted(self.without)}: it must hold 2 i (attention) or 2 i + 1 (MLP) of layers i "
                f"in {self.layers}, not both of one"
            )

    def open_guess(self, prompt: Sequence[int], session: Session) -> SelfSpeculativeGuess:
        """Begin a sequence.

        Args:
            prompt: Not used: the layers read the target's cache.
            session: The target's session on this prompt.

        Returns:
            The guess.

        Raises:
            PolydecError: The target's layers cannot run alone.
        """
        return SelfSpeculativeGuess(self, session.open_part(self.layers, self.without))


@dataclass(frozen=True)
class SelfSpeculativeGuess(DraftGuess):
    """The drafter at work on one sequence.

    Attributes:
        config: The configuration.
        session: A part of the decoder's own session, which the decoder commits.
    """

    config: SelfSpeculativeDrafter
    session: Session

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(law=RowDetail.NOTHING)

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        """Grow a tree from the layers.

        Args:
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Random stream of the text.

        Returns:
            The tree.
        """
        if budget.depth < 1:
            return Draft.chain_draft(root)
        # The part stages its nodes in the target's own cache; behind an exit the target's next
        # score goes on from there.
        return await self.config.tree.grow_tree(self.session, root, position, budget, rng)

    def learn_round(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        """Learn nothing: the layers read the target's own cache.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            verdict: The accepted nodes and the token that follows them.
        """

    def fork_guess(self, session: Session, choice: int | None = None) -> SelfSpeculativeGuess:
        """A guess on the same layers of another session.

        Args:
            session: Fork of the target's session, for the copy to read.
            choice: Index of the choice that the copy drafts for. None: the same choice as before.

        Returns:
            The copy.
        """
        return replace(self, session=session.open_part(self.config.layers, self.config.without))

    def close(self) -> None:
        pass

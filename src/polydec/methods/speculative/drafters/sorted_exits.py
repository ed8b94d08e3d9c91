"""A draft model of several depths: each token leaves it where it is sure enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

from polydec.base.errors import RequestError
from polydec.core.protocols import DraftScores, Session, Target
from polydec.core.rng import Rng
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.methods.speculative.loop.draws import categorical_pick, draw_draft_token
from polydec.methods.speculative.loop.protocols import DraftGuess
from polydec.methods.speculative.loop.types import DraftBudget, Verdict


@dataclass(frozen=True)
class SortedExitsDrafter:
    """Draw each token from the first exit of a draft model that is sure of its likeliest token.

    An exit is sure where its likeliest token has at least its threshold of probability (before
    shaping); the last exit always is. Tokens that left early have the state they left with; when a
    later token goes deeper, all of them pass the missing layers in one query first, which gives
    what running them at once would have given. One such draft serves several targets, each with
    thresholds of its own.

    Attributes:
        draft: A target whose layers can run alone, of the same vocabulary, best trained at these
            depths (`polydec train sorted`).
        exits: Ascending depths in layers; the last one is all of the draft's.
        thresholds: One for each exit but the last, at least 0; 0 is always sure, above 1 never.
        stop: Drafting ends where the exit's likeliest token has less than this probability, 0 to 1.
            Default 0.3.

    Exact: law, under any exact verifier: the exit follows from the text, and the node carries the
    exit's row.
    Reduces to: `model` with a chain at thresholds above 1 and stop 0; the first exit alone at
    threshold 0.
    Source: Kavehzadeh et al., "S2D: sorted speculative decoding" (2024).
    """

    draft: Target
    exits: tuple[int, ...] = (1, 2, 3)
    thresholds: tuple[float, ...] = (0.9, 0.8)
    stop: float = 0.3

    def __post_init__(self) -> None:
        if not self.exits or list(self.exits) != sorted(set(self.exits)) or self.exits[0] < 1:
            raise RequestError(
                f"exits is {self.exits}: it must hold ascending depths of 1 and more"
            )
        if len(self.thresholds) != len(self.exits) - 1 or not all(
            t >= 0.0 for t in self.thresholds
        ):
            raise RequestError(
                f"thresholds is {self.thresholds}: it must hold a number of at least 0 for each exit but the last"
            )
        if not 0.0 <= self.stop <= 1.0:
            raise RequestError(f"stop is {self.stop}: it must lie in 0 to 1")

    @staticmethod
    def of_exits(
        draft: Target, exits: Sequence[int], stop: float, **thresholds: float
    ) -> SortedExitsDrafter:
        """The drafter for exits that may coincide.

        Where depths coincide (a draft of few layers), or one of them is 0, the deeper exit's
        threshold counts.

        Args:
            draft: The draft model.
            exits: Depths in layers, the last one all of the draft's.
            stop: Probability below which drafting ends, 0 to 1.
            **thresholds: Thresholds of all exits but the last, in order, by the names of their
                options.

        Returns:
            The drafter.

        Raises:
            RequestError: A threshold is below 0; the message has its name.
        """
        bad = next((name for name, bar in thresholds.items() if not bar >= 0.0), None)
        if bad is not None:
            raise RequestError(f"{bad} is {thresholds[bad]}: it must be at least 0")
        # A later entry of the same depth replaces the earlier one.
        at = dict(zip(exits, (*thresholds.values(), 0.0), strict=True))
        # Depth 0 is no exit: it comes up where the draft has a single layer.
        at.pop(0, None)
        return SortedExitsDrafter(draft, tuple(at), tuple(at.values())[:-1], stop)

    def open_guess(self, prompt: Sequence[int], session: Session) -> SortedGuess:
        """Begin a sequence of the draft model.

        Args:
            prompt: Token ids of the prompt. The last one is the first root.
            session: Not used: the draft model has a session of its own.

        Returns:
            The guess.
        """
        return SortedGuess(self, self.draft.open_session(prompt))


@dataclass(frozen=True)
class SortedGuess(DraftGuess):
    """The draft model at work on one sequence.

    Attributes:
        config: The configuration.
        session: The draft's own session, which commits what the decoder commits.
    """

    config: SortedExitsDrafter
    session: Session

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(law=RowDetail.NOTHING)

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        """Draw a chain, each token from the first exit that is sure.

        Args:
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Random stream of the text. The token of each depth is drawn at
                ``rng.child_stream("draft", position, depth)``.

        Returns:
            The chain.
        """
        draft = Draft.chain_draft(root)
        most = min(budget.depth, budget.nodes)
        # The prompt is fed in chunks; from the second round on nothing is left to feed here.
        if most:
            await self.session.prefill_prompt(ScoreRequest(law=RowDetail.NOTHING))
        for depth in range(1, most + 1):
            scores, sure = await self._law(draft)
            # An unsure exit ends the draft before its token: the decision follows from the text,
            # not from a draw.
            if sure < self.config.stop:
                break
            token, draw, law_V, q = draw_draft_token(
                scores, depth - 1, categorical_pick(rng.child_stream("draft", position, depth))
            )
            # A certain token counts with the exit's probability before shaping.
            q = sure if law_V is None else q
            draft = draft.with_node(token, depth - 1, draw, law_V, q)
            if not budget.go_on(depth, q):
                break
        return draft

    async def _law(self, draft: Draft) -> tuple[DraftScores, float]:
        """The exit's scores, and how sure it is of the token after the draft's last."""
        bars = (*self.config.thresholds, 0.0)
        for exit, bar in zip(self.config.exits, bars, strict=True):
            # An exit that is never sure enough need not run its head.
            if bar > 1.0:
                continue
            # The part of fewer layers shares the session's cache, so a deeper exit goes on from
            # what this one computed.
            scores = await self.session.open_part(range(exit)).score_draft(
                draft, ScoreRequest(base=RowDetail.ROW)
            )
            sure = exp(scores.base.likeliest_tokens(len(draft) - 1, 1)[1][0])
            if sure >= bar:
                return scores, sure
        raise AssertionError("the last exit has no bar")

    def learn_round(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        """Commit what the decoder commits.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            verdict: The accepted nodes and the token that follows them.
        """
        self.session.commit_tokens(verdict.committed_tokens(draft))

    def fork_guess(self, session: Session, choice: int | None = None) -> SortedGuess:
        """A guess with a fork of the draft's session.

        Args:
            session: Fork of the target's session, for the copy to read.
            choice: Index of the choice that the copy drafts for. None: the same choice as before.

        Returns:
            The copy.
        """
        return SortedGuess(self.config, self.session.fork(choice))

    def close(self) -> None:
        self.session.close()

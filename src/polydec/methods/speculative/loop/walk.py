"""Draft and verify, one round at a time, on one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from torch import Tensor

from polydec.base.errors import RequestError
from polydec.base.values import fast_dataclass
from polydec.core.protocols import DraftScores, Session, Target
from polydec.core.rng import Rng
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.methods.speculative.loop.protocols import Drafter, DraftGuess, Policy, Verifier
from polydec.methods.speculative.loop.types import Verdict

NOBODY: frozenset[int] = frozenset()


class SpeculativeMethod(Protocol):
    """What a `SpeculativeDecoder` holds: target, drafter, verifier and policy."""

    @property
    def target(self) -> Target: ...
    @property
    def drafter(self) -> Drafter: ...
    @property
    def verifier(self) -> Verifier: ...
    @property
    def policy(self) -> Policy[Any]: ...


@fast_dataclass(eq=False, slots=True)
class WalkRound:
    """What one pass of the target gave.

    Attributes:
        position: Absolute position of the first new token.
        draft: The draft that was scored.
        scores: The target's laws at the nodes of the draft.
        verdict: What was accepted.
        tokens: Tokens that may stand, the accepted ones first.
    """

    position: int
    draft: Draft
    scores: DraftScores
    verdict: Verdict
    tokens: tuple[int, ...]

    @property
    def nodes(self) -> tuple[int, ...]:
        """The node that each of `tokens` follows."""
        return (0, *self.verdict.path)[: len(self.tokens)]


class Walk:
    """A text under a method: what is committed, and the drafter that guesses what comes next.

    `next_round` proposes, scores and verifies; nothing is committed by that. `commit_round` commits the round's
    tokens or the first of them, and the drafter learns; a caller that ends the text takes nothing.
    A fork goes its own way from here: the prompt and all that is committed are shared, and nothing
    is computed twice.

    Draws are made in the stream that `round` is given, keyed by absolute position: what is drafted
    moves no draw of the text.
    """

    __slots__ = ("_guess", "_method", "_open", "_session", "_state", "_want", "position", "root")

    def __init__(
        self,
        method: SpeculativeMethod,
        session: Session,
        guess: DraftGuess,
        root: int,
        position: int,
        base: RowDetail,
    ) -> None:
        self._method = method
        self._session = session
        self._guess = guess
        self._state = method.policy.start_state()
        # What is read of every later score: the law's rows always, and of the model's own rows the
        # most that the drafter or the caller reads. `prompt` and `last` concern the prefill alone.
        self._want = replace(
            guess.want, law=RowDetail.ROW, prompt=False, last=False, base=max(guess.want.base, base)
        )
        self.root = root
        self.position = position
        self._open = True

    @staticmethod
    async def open_walk(
        method: SpeculativeMethod,
        prompt: Sequence[int],
        *,
        base: RowDetail = RowDetail.NOTHING,
        whole: bool = False,
    ) -> Walk:
        """Open a session on a prompt, feed the prompt and begin.

        Args:
            method: Target, drafter, verifier and policy.
            prompt: Token ids, at least one. The last one is the first root.
            base: How much will be read of the model's own rows, before shaping. Default: nothing.
            whole: Whether all of the prompt is fed now, for a walk that will be forked. Default:
                the end of it may be fed with the first round.

        Returns:
            The walk. The caller closes it.
        """
        return await Walk.of_session(
            method, method.target.open_session(prompt), prompt, base=base, whole=whole
        )

    @staticmethod
    async def of_session(
        method: SpeculativeMethod,
        session: Session,
        text: Sequence[int],
        *,
        base: RowDetail = RowDetail.NOTHING,
        whole: bool = False,
    ) -> Walk:
        """Go on in a session that already holds a text.

        The walk owns the session from here, and closes it if this fails.

        Args:
            method: Target, drafter, verifier and policy.
            session: Session of the method's target on ``text``.
            text: Token ids, at least one. The last one is the pending root.
            base: How much will be read of the model's own rows, before shaping. Default: nothing.
            whole: Whether all of the text is fed now, for a walk that will be forked. Default: the
                end of it may be fed with the first round.

        Returns:
            The walk. The caller closes it.
        """
        guess: DraftGuess | None = None
        try:
            guess = method.drafter.open_guess(text, session)
            await prefill_for_guess(session, guess, text, whole)
        except BaseException:
            # Nothing is left open if the prefill fails or is given up.
            if guess is not None:
                guess.close()
            session.close()
            raise
        return Walk(method, session, guess, text[-1], len(text), base)

    async def next_round(self, rng: Rng, room: int, ends: frozenset[int] = NOBODY) -> WalkRound:
        """Propose, score and verify once: one pass of the target. Nothing is committed.

        Args:
            rng: Random stream of the text.
            room: How many tokens may still be added, at least 1.
            ends: Token ids that end the text.

        Returns:
            The round. At least one token may stand; an accepted end is the last one.
        """
        policy = self._method.policy
        position = self.position
        # Only policies that look at the number of sequences in the batch have `joined_width`.
        joined = getattr(policy, "joined_width", None)
        if joined is not None:
            self._state = joined(self._state, self._session.peers)
        budget = policy.draft_budget(self._state)
        # The verdict always adds one token of the target's own, so a draft may be one shorter than
        # the room.
        if budget.depth > room - 1:
            budget = replace(budget, depth=room - 1)
        # `cut_draft` cuts what can never become text, by what stands above a node alone: the law stays
        # exact.
        draft = (await self._guess.propose_draft(self.root, position, budget, rng)).cut_draft(
            room - 1, ends
        )
        scores = await self._session.score_draft(draft, self._want)
        verdict = self._method.verifier.verify_draft(draft, scores, rng, position)
        tokens = verdict.accepted_tokens(draft)
        # Nothing follows an accepted end: the bonus token is dropped there.
        if not (tokens and tokens[-1] in ends):
            tokens = (*tokens, verdict.bonus)
        return WalkRound(position, draft, scores, verdict, tokens)

    async def score_given_tokens(self, tokens: Sequence[int]) -> WalkRound:
        """Score tokens that somebody else wrote, as if all had been drafted and accepted.

        They stand whatever the law says of them.

        Args:
            tokens: Token ids, at least one.

        Returns:
            The round, in which all of them stand.
        """
        position = self.position
        # The last token is the next root: it is fed with the round after this one.
        draft = Draft.chain_draft(self.root, tokens[:-1])
        scores = await self._session.score_draft(draft, self._want)
        return WalkRound(
            position,
            draft,
            scores,
            Verdict(tuple(range(1, len(tokens))), tokens[-1]),
            tuple(tokens),
        )

    def commit_round(self, round: WalkRound, count: int | None = None) -> None:
        """Commit tokens of a round, and let the drafter and the policy learn from it.

        Args:
            round: The last round of this walk.
            count: How many of its tokens stand, from the first. None: all of them.
        """
        if count is None:
            tokens = round.tokens
        else:
            tokens = round.tokens[:count]
        if not tokens:
            return
        verdict = round.verdict
        # Where the text is cut inside the accepted path, the last token that stands plays the
        # bonus: the verdict is shortened so that drafter and policy learn what was written.
        if len(tokens) <= len(verdict.path):
            verdict = replace(verdict, path=verdict.path[: len(tokens) - 1], bonus=tokens[-1])
        # The last token stays out of the cache: it is the new root.
        self._session.commit_tokens((self.root, *tokens[:-1]))
        self._guess.learn_round(round.draft, round.scores, verdict)
        self._state = self._method.policy.observe_round(self._state, round.draft, verdict)
        self.root = tokens[-1]
        self.position = self.position + len(tokens)

    async def current_state(self) -> Tensor:
        """The hidden state after the text: what left the model's last layer, before the final norm.

        A learned reward reads it. The root is fed for that now, and not again with the next round.

        Returns:
            The state, shape ``[H]``.

        Raises:
            RequestError: The model has no such state.
        """
        # The root stays staged: the next round's draft begins with it, and feeds its new nodes
        # alone.
        scores = await self._session.score_draft(
            Draft.chain_draft(self.root), replace(self._want, hidden=True)
        )
        if scores.hidden_NH is None:
            raise RequestError("this model gives no hidden states, which a learned reward reads")
        return scores.hidden_NH[0]

    async def rerouted_logprobs(self, routing: tuple[tuple[float, ...], ...]) -> Tensor:
        """Log-probabilities of what follows the root, with a moved router.

        A mixture of experts then routes this one row otherwise (`ScoreRequest.routing`). Nothing of
        the pass stays in the cache.

        Args:
            routing: What is added to the router's scores of each layer and expert, in standard
                deviations of a row's scores.

        Returns:
            Log-probabilities, shape ``[V]``.
        """
        return (
            await self._session.score_draft(
                Draft.chain_draft(self.root), ScoreRequest(routing=routing)
            )
        ).logprob_row(0)

    def fork(self, choice: int | None = None) -> Walk:
        """A walk of its own from here.

        Args:
            choice: Index of the choice of the request that it writes (see `Session.fork`). None:
                the same choice as before.

        Returns:
            The copy. The caller closes it.
        """
        # The policy's state is shared, not begun anew as in the constructor: states are values.
        twin = object.__new__(Walk)
        twin._method = self._method
        twin._state = self._state
        twin._want = self._want
        twin.root = self.root
        twin.position = self.position
        # The target's session is forked first: the drafter's copy reads the new one.
        twin._session = self._session.fork(choice)
        twin._guess = self._guess.fork_guess(twin._session, choice)
        twin._open = True
        return twin

    def open_behind(self, text: Sequence[int]) -> Session:
        """A session of its own behind another length of the text.

        Args:
            text: All tokens that it has seen, from the prompt on: what is committed here begins with
                them, or they begin with it.

        Returns:
            The session; the walk goes on without it. The caller closes it.
        """
        session = self._session.fork()
        # All but the root, which waits for the next round.
        committed = self.position - 1
        if len(text) < committed:
            session.rewind_tokens(committed - len(text))
        else:
            session.commit_tokens(tuple(text[committed:]))
        return session

    def close(self) -> None:
        """Give everything back. A second call does nothing."""
        if self._open:
            self._open = False
            self._guess.close()
            self._session.close()


async def prefill_for_guess(
    session: Session, guess: DraftGuess, prompt: Sequence[int], whole: bool = False
) -> None:
    """Feed the prompt, and show the drafter what it wants to see of it.

    A drafter that wants the prompt's rows learns from it as from a chain that was accepted in full;
    one that wants the last row only, as from a chain of that token alone.

    Args:
        session: The target's session on the prompt.
        guess: The drafter's guess for this sequence.
        prompt: Token ids of the prompt. The last one is the pending root, which is not fed here.
        whole: Whether all of the prompt is fed now. Default: the end of it may be fed with the
            first pass.
    """
    # A drafter's `law` says nothing (see `DraftGuess.want`): of the prompt's law, as much detail is
    # requested as it reads of the model's own rows.
    want = replace(guess.want, law=guess.want.base)
    scores = await session.prefill_prompt(
        replace(want, last=True) if whole and not want.prompt else want
    )
    # A prompt of one token has no row before its root, so there is nothing to learn from.
    if (want.prompt or want.last) and len(prompt) > 1:
        if want.prompt:
            shown = prompt[:-1]
        else:
            shown = prompt[-2:-1]
        guess.learn_round(
            Draft.chain_draft(shown[0], shown[1:]),
            scores,
            Verdict(tuple(range(1, len(shown))), prompt[-1], prompt=True),
        )

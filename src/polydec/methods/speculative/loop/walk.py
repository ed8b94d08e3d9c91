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
    """Who guesses, who accepts, how much is guessed, and the law that is kept: what a Speculative decoder holds."""

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
    """What one pass of the target gave. position: of the first new token; tokens: those that may stand, the accepted ones
    first; scores: the laws at the nodes of the draft."""

    position: int
    draft: Draft
    scores: DraftScores
    verdict: Verdict
    tokens: tuple[int, ...]

    @property
    def nodes(self) -> tuple[int, ...]:
        """The node that each token follows."""
        return (0, *self.verdict.path)[: len(self.tokens)]


class Walk:
    """A text under a method: what is committed, and whoever guesses what comes next.

    `round` proposes, scores and verifies; nothing is committed by that. `take` commits the round's tokens or the first of
    them, and the drafter learns; whoever ends the text takes nothing. A fork goes its own way from here: the prompt and all
    that is committed are shared, and nothing is computed twice.

    Draws are made in the stream that `round` is given, keyed by absolute position: what is drafted moves no draw of the text.
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
        self._state = method.policy.start()
        self._want = replace(
            guess.want, law=RowDetail.ROW, prompt=False, last=False, base=max(guess.want.base, base)
        )
        self.root = root
        self.position = position
        self._open = True

    @staticmethod
    async def open(
        method: SpeculativeMethod,
        prompt: Sequence[int],
        *,
        base: RowDetail = RowDetail.NOTHING,
        whole: bool = False,
    ) -> Walk:
        """Feed a prompt of at least one token. base: what will be read of the model's own rows, before shaping; whole: all of
        the prompt, for a walk that will be forked (else the end of it may ride with the first round)."""
        return await Walk.behind(method, method.target.open(prompt), prompt, base=base, whole=whole)

    @staticmethod
    async def behind(
        method: SpeculativeMethod,
        session: Session,
        text: Sequence[int],
        *,
        base: RowDetail = RowDetail.NOTHING,
        whole: bool = False,
    ) -> Walk:
        """Go on in a session that stands behind `text`, whose last token is the pending root. The walk owns the session."""
        guess: DraftGuess | None = None
        try:
            guess = method.drafter.open(text, session)
            await prefill_for_guess(session, guess, text, whole)
        except BaseException:
            if guess is not None:
                guess.close()
            session.close()
            raise
        return Walk(method, session, guess, text[-1], len(text), base)

    async def round(self, rng: Rng, room: int, ends: frozenset[int] = NOBODY) -> WalkRound:
        """One pass of the target. room: how many tokens may be added, at least 1; ends: ids behind which nothing follows."""
        policy = self._method.policy
        position = self.position
        joined = getattr(policy, "joined", None)
        if joined is not None:
            self._state = joined(self._state, self._session.peers)
        budget = policy.budget(self._state)
        if budget.depth > room - 1:
            budget = replace(budget, depth=room - 1)
        draft = (await self._guess.propose(self.root, position, budget, rng)).fit(room - 1, ends)
        scores = await self._session.score(draft, self._want)
        verdict = self._method.verifier.verify(draft, scores, rng, position)
        tokens = verdict.accepted(draft)
        if not (tokens and tokens[-1] in ends):
            tokens = (*tokens, verdict.bonus)
        return WalkRound(position, draft, scores, verdict, tokens)

    async def given(self, tokens: Sequence[int]) -> WalkRound:
        """One pass of the target over tokens that somebody else wrote, at least one: as if all had been drafted and accepted,
        whatever the law says of them."""
        position = self.position
        draft = Draft.chain(self.root, tokens[:-1])
        scores = await self._session.score(draft, self._want)
        return WalkRound(
            position,
            draft,
            scores,
            Verdict(tuple(range(1, len(tokens))), tokens[-1]),
            tuple(tokens),
        )

    def take(self, round: WalkRound, count: int | None = None) -> None:
        """The first `count` tokens of the round stand (None: all of them)."""
        if count is None:
            tokens = round.tokens
        else:
            tokens = round.tokens[:count]
        if not tokens:
            return
        verdict = round.verdict
        # The last of them was drafted: it is what follows the others.
        if len(tokens) <= len(verdict.path):
            verdict = replace(verdict, path=verdict.path[: len(tokens) - 1], bonus=tokens[-1])
        self._session.commit((self.root, *tokens[:-1]))
        self._guess.learn(round.draft, round.scores, verdict)
        self._state = self._method.policy.observe(self._state, round.draft, verdict)
        self.root = tokens[-1]
        self.position = self.position + len(tokens)

    async def state(self) -> Tensor:
        """What left the model's last layer behind the text, before the final norm (H): for whoever judges it. The root is fed
        for that now, and not again with the next round. Raises RequestError where the model has no such state."""
        scores = await self._session.score(Draft.chain(self.root), replace(self._want, hidden=True))
        if scores.hidden_NH is None:
            raise RequestError("this model gives no hidden states, which a learned reward reads")
        return scores.hidden_NH[0]

    async def rerouted(self, routing: tuple[tuple[float, ...], ...]) -> Tensor:
        """Log-probabilities of what follows the root where a mixture's router is moved (Want.routing). Nothing of it stays."""
        return (
            await self._session.score(Draft.chain(self.root), ScoreRequest(routing=routing))
        ).row(0)

    def fork(self, choice: int | None = None) -> Walk:
        """A walk of its own from here. choice: it writes this choice of the request (see Session.fork)."""
        twin = object.__new__(Walk)
        twin._method = self._method
        twin._state = self._state
        twin._want = self._want
        twin.root = self.root
        twin.position = self.position
        twin._session = self._session.fork(choice)
        twin._guess = self._guess.fork(twin._session, choice)
        twin._open = True
        return twin

    def close(self) -> None:
        """Give everything back. A second call does nothing."""
        if self._open:
            self._open = False
            self._guess.close()
            self._session.close()


async def prefill_for_guess(
    session: Session, guess: DraftGuess, prompt: Sequence[int], whole: bool = False
) -> None:
    """Feed the prompt; where the drafter wants its rows, it learns from it as from a chain that was accepted whole, and where
    it wants the last one, as from a chain of that token alone. whole: no part of it is left to ride with the first pass."""
    want = replace(guess.want, law=guess.want.base)
    scores = await session.prefill(replace(want, last=True) if whole and not want.prompt else want)
    if (want.prompt or want.last) and len(prompt) > 1:
        if want.prompt:
            shown = prompt[:-1]
        else:
            shown = prompt[-2:-1]
        guess.learn(
            Draft.chain(shown[0], shown[1:]),
            scores,
            Verdict(tuple(range(1, len(shown))), prompt[-1], prompt=True),
        )

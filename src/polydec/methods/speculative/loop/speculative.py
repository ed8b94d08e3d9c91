"""The autoregressive loop: propose, score, verify, commit.

Plain decoding is the drafter that proposes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from polydec.core.decoder import Streams
from polydec.core.effects import gather_coroutines
from polydec.core.protocols import Session, Target
from polydec.core.request import Request, Result, TextGuard
from polydec.core.rng import Rng
from polydec.core.transcript import AnswerText, Transcript, logprobs_at_nodes
from polydec.core.types import Exactness, RowDetail, TokenCodec, TokenVocabulary
from polydec.methods.speculative.loop.events import ForcedEvent, ProposedEvent, VerifiedEvent
from polydec.methods.speculative.loop.protocols import Drafter, Policy, Verifier
from polydec.methods.speculative.loop.stats import DraftCount
from polydec.methods.speculative.loop.walk import Walk, WalkRound


class AnswerReading(Protocol):
    """What is read of the target behind an answer, beside its text."""

    def check_session(self, session: Session) -> None:
        """Check that it can be read behind a prompt. Raises PolydecError where it cannot."""
        ...

    async def read_answer(self, walk: Walk, prompt: Sequence[int], answer: Result) -> Result:
        """Read it behind an answer that has ended.

        Args:
            walk: Wrote the answer; its last round is not committed.
            prompt: The prompt.
            answer: The answer.

        Returns:
            The answer with what was read.
        """
        ...


@dataclass(frozen=True)
class SpeculativeDecoder:
    """A decoder of the draft-and-verify family.

    Attributes:
        target: The law to decode.
        drafter: Who guesses.
        verifier: Which guesses are accepted.
        policy: How much is guessed next.
        law: What the target's law is to the one that the request names: LAW, the same, or
            APPROXIMATE where the recipe puts another in its place.
        reading: What is read of the target behind each answer. None: nothing.
    """

    target: Target
    drafter: Drafter
    verifier: Verifier
    policy: Policy[Any]
    law: Exactness = Exactness.LAW
    reading: AnswerReading | None = None

    @property
    def exactness(self) -> Exactness:
        if self.law is Exactness.LAW:
            return self.verifier.exactness
        return self.law

    @property
    def vocab(self) -> TokenVocabulary:
        return self.target.vocab

    async def write_choices(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        """Write all choices of a request.

        The prompt is fed once, and each choice goes on from a fork of the session.

        Args:
            request: The request.
            rng: Gives the random stream of each choice.
            into: Transcript that the answers are written to.

        Returns:
            The answers in the order of the choices.
        """
        texts = [into.open_answer(choice) for choice in request.choices]
        # Log-probabilities and the mass that a guard leaves are read from the model's own rows,
        # before shaping.
        base = request.base_detail
        # A guard looks at whole laws, to see whether any token is left.
        if request.guard is not None:
            base = RowDetail.ROW
        session = self._open_session(request.prompt)
        walk = await Walk.of_session(self, session, request.prompt, base=base, whole=request.n > 1)
        walks = [walk]
        try:
            # The prompt is read once; further answers branch from it.
            walks += [walk.fork(choice) for choice in request.choices[1:]]
            return await gather_coroutines(
                *(
                    _write(w, text, rng(choice), into, self.vocab.words, self.reading)
                    for w, text, choice in zip(walks, texts, request.choices, strict=True)
                )
            )
        finally:
            for w in walks:
                w.close()

    def _open_session(self, prompt: Sequence[int]) -> Session:
        """A session on the prompt, behind which answers can be read as that is asked for."""
        session = self.target.open_session(prompt)
        try:
            if self.reading is not None:
                self.reading.check_session(session)
        except BaseException:
            session.close()
            raise
        return session


async def _write(
    walk: Walk,
    text: AnswerText,
    rng: Rng,
    into: Transcript,
    words: TokenCodec | None,
    reading: AnswerReading | None,
) -> Result:
    """Run round after round until the text ends; ``words`` spells drafted tokens for observers."""
    choice = text.choice or 0
    asked = into.request.logprobs
    told_proposed = into.is_observed(ProposedEvent)
    told_verified = into.is_observed(VerifiedEvent)
    guard = into.request.guard
    count = DraftCount()
    while True:
        r = await walk.next_round(rng, text.room, text.ends)
        # Events cost a decoding of every drafted token, so they are made only for an observer that
        # listens.
        if told_proposed:
            if words is None:
                piece = ()
            else:
                piece = tuple(words.decode([x]) for x in r.draft.token)
            draft = r.draft
            into.on(
                ProposedEvent(choice, r.position, draft.token, draft.parent, piece, draft.probes)
            )
        if told_verified:
            into.on(VerifiedEvent(choice, r.position, r.verdict.path, r.verdict.bonus))
        notes = logprobs_at_nodes(r.scores, r.nodes, r.tokens, asked)
        # The guard's state is read before the write: it belongs to the first token of this round.
        if guard is None:
            before = None
        else:
            before = text.guarded
        new = text.write_tokens(r.tokens, notes, len(r.verdict.path))
        # Statistics count the tokens that the answer took, which may be fewer than the round gave
        # where it ended.
        count.count_pass(r.draft, r.verdict, new)
        if guard is not None:
            count.count_masked(_kept(guard, before, r, new))
            if into.is_observed(ForcedEvent) and (forced := _forced(guard, before, r, new)):
                into.on(ForcedEvent(choice, forced))
        if text.finish_reason is not None:
            answer = text.finished_answer(count.stats)
            # The walk holds the cache that the answer was written from.
            if reading is not None:
                answer = await reading.read_answer(walk, into.request.prompt, answer)
            # The walk is closed at once, so that the cache it holds is free for the choices that go
            # on.
            walk.close()
            return answer
        walk.commit_round(r)


def _kept(guard: TextGuard, states: Any, r: WalkRound, count: int) -> list[float]:
    """Of the first `count` tokens of a round, the log-probability of all that rules allow there."""
    out = list[float]()
    for node, x in zip(r.nodes, r.tokens[:count], strict=False):
        out.append(guard.kept_probability(states, r.scores.base.logprob_row(node)))
        states = guard.next_states(states, x)
    return out


def _forced(guard: TextGuard, states: Any, r: WalkRound, count: int) -> tuple[int, ...]:
    """Positions among the first `count` tokens of a round where the rules left one token only."""
    out = list[int]()
    for i, (node, x) in enumerate(zip(r.nodes, r.tokens[:count], strict=False)):
        if guard.leaves_single_token(states, r.scores.base.logprob_row(node)):
            out.append(r.position + i)
        states = guard.next_states(states, x)
    return tuple(out)

"""Draft and target at work at the same time.

The target verifies what the draft wrote before, while the draft goes on.
"""

from __future__ import annotations

from dataclasses import dataclass

from polydec.base.errors import RequestError
from polydec.core.decoder import Streams
from polydec.core.effects import gather_coroutines
from polydec.core.protocols import Session, Target
from polydec.core.request import Request, Result
from polydec.core.rng import Rng
from polydec.core.row_scores import PickedScores
from polydec.core.transcript import AnswerText, Transcript, logprobs_at_nodes
from polydec.core.types import Draft, Exactness, RowDetail, ScoreRequest, TokenVocabulary
from polydec.methods.speculative.loop.draws import categorical_pick, draw_draft_token
from polydec.methods.speculative.loop.events import ProposedEvent, VerifiedEvent
from polydec.methods.speculative.loop.protocols import Verifier
from polydec.methods.speculative.loop.stats import DraftCount


@dataclass(frozen=True)
class PearlDecoder:
    """Draft and verify in parallel: the draft model goes on while the target verifies.

    Each round awaits two things together: `gamma` further tokens of the draft's chain, and the
    target's pass over the root and the drafted tokens that are not verified yet. Then these tokens
    and the first of the new ones are tested.

    Where none is pending (pre-verify) that is the first drafted token. Where all pass, the rest of
    the new tokens is pending while the draft goes on after them (post-verify), so that a run of
    accepted tokens has no longest length. After a rejection all that was drafted is dropped. No
    token is drawn from the row after the last accepted one: its successor was not known when the
    pass began. A drafted end of the text waits until it is verified.

    A scheduler that has a pool of workers runs both models at the same time; else they run one
    after the other, with the same text.

    Attributes:
        target: The law to decode.
        draft: The draft model, a law over the same vocabulary.
        verifier: Which drafted tokens are accepted.
        gamma: Tokens that the draft writes in a round, 1 to 64; best about the ratio of the two
            models' pass times. Default 4.

    Exact: the verifier's promise: each token is tested once, with the two laws of its position, and
    draws are keyed by it.
    Reduces to: plain decoding's law where nothing is accepted; at gamma 1 every round tests one
    token.
    Source: Liu et al., "PEARL: parallel speculative decoding with adaptive draft length" (2024).
    """

    target: Target
    draft: Target
    verifier: Verifier
    gamma: int = 4

    def __post_init__(self) -> None:
        if not 1 <= self.gamma <= 64:
            raise RequestError(f"gamma is {self.gamma}: it must lie in 1 to 64")

    @property
    def exactness(self) -> Exactness:
        return self.verifier.exactness

    @property
    def vocab(self) -> TokenVocabulary:
        return self.target.vocab

    async def write_choices(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        """Decode all choices of a request. Both models read the prompt once.

        Args:
            request: The request. Its choices share the prompt's pass and then go on in forks.
            rng: Gives the random stream of each choice.
            into: Transcript that the answers are written to.

        Returns:
            The answers in the order of the choices. Their statistics count as drafted only the
            tokens that were tested.
        """
        texts = [into.open_answer(choice) for choice in request.choices]
        sessions = [self.target.open_session(request.prompt)]
        try:
            # Opened one after the other inside of `try`, so that a failure closes what is open.
            sessions.append(self.draft.open_session(request.prompt))
            # Both prompts are read at the same time, as both models run at the same time later.
            await gather_coroutines(
                *(
                    s.prefill_prompt(ScoreRequest(law=RowDetail.NOTHING, last=request.n > 1))
                    for s in sessions
                )
            )
            pairs = [(sessions[0], sessions[1])]
            # The prompt is read once; further answers branch from it.
            for choice in request.choices[1:]:
                pairs.append((sessions[0].fork(choice), sessions[1].fork(choice)))
                sessions += pairs[-1]
            return await gather_coroutines(
                *(
                    self._write(big, small, text, rng(choice), into)
                    for (big, small), text, choice in zip(
                        pairs, texts, request.choices, strict=True
                    )
                )
            )
        finally:
            for session in sessions:
                session.close()

    async def _write(
        self, big: Session, small: Session, text: AnswerText, rng: Rng, into: Transcript
    ) -> Result:
        choice = text.choice or 0
        asked = into.request.logprobs
        counted = DraftCount()
        told_proposed = into.is_observed(ProposedEvent)
        told_verified = into.is_observed(VerifiedEvent)
        words = self.vocab.words
        want = ScoreRequest(
            law=RowDetail.ROW, base=RowDetail.NOTHING if asked is None else RowDetail.ROW
        )
        # What the target has not verified: the root, and the drafted tokens that wait for the next
        # pass. Nothing before it is staged in either session, so a round costs the same however
        # long the text is.
        pending = Draft.chain_draft(into.request.prompt[-1])
        while True:
            n = text.position
            waiting = len(pending) - 1
            # Nothing is drafted after an end of the text, nor beyond the room that the answer has
            # left.
            if waiting and pending.token[-1] in text.ends:
                more = 0
            else:
                more = min(self.gamma, text.room - waiting)
            # The draft model writes ahead while the target scores what is pending.
            line, scores = await gather_coroutines(
                self._ahead(small, pending, more, n, rng, text.ends), big.score_draft(pending, want)
            )
            # The first of the new tokens is tested in the same round: its row is the one after the
            # last pending node, which the pass has just given.
            tested = line.only_nodes(range(min(len(pending) + 1, len(line))))
            if told_proposed:
                if words is None:
                    piece = ()
                else:
                    piece = tuple(words.decode([x]) for x in tested.token)
                into.on(ProposedEvent(choice, n, tested.token, tested.parent, piece))
            verdict = self.verifier.verify_draft(
                tested, TruncatedScores.rows_of(scores, range(len(tested) - 1)), rng, n
            )
            got = len(verdict.path)
            new = tested.token[1 : got + 1]
            # Only a rejection gives a bonus token: after a full acceptance the row of the last
            # accepted token is not known yet.
            if got < len(tested) - 1:
                new = (*new, verdict.bonus)
            if told_verified:
                into.on(VerifiedEvent(choice, n, verdict.path[: len(new) - 1], new[-1]))
            notes = logprobs_at_nodes(scores, range(len(new)), new, asked)
            count = text.write_tokens(new, notes, got)
            counted.count_pass(tested, verdict, count)
            if text.finish_reason is not None:
                return text.finished_answer(counted.stats)
            # Post-verify: the accepted tested token becomes the root, and the rest of the new
            # tokens waits for the next pass.
            if got == len(tested) - 1:
                big.commit_tokens(pending.token)
                pending = _line_below(small, line, got)
            else:
                # Everything after the rejected token is dropped.
                big.commit_tokens(tested.token[: got + 1])
                small.commit_tokens(tested.token[: got + 1])
                pending = Draft.chain_draft(new[-1])

    async def _ahead(
        self, session: Session, line: Draft, more: int, n: int, rng: Rng, ends: frozenset[int]
    ) -> Draft:
        """The line with `more` tokens of the draft behind it, fewer where one is an end."""
        for k in range(more):
            scores = await session.score_draft(line, ScoreRequest())
            tip = len(line) - 1
            token, draw, law_V, q = draw_draft_token(
                scores, tip, categorical_pick(rng.child_stream("draft", n, k))
            )
            line = line.with_node(token, tip, draw, law_V, q)
            if token in ends:
                break
        return line


def _line_below(session: Session, line: Draft, root: int) -> Draft:
    """The line from a new root on; the draft model's session commits what stands before it."""
    # The session has not scored the last token of the line.
    tip = len(line) - 1
    if root == tip:
        session.commit_tokens(line.token[:tip])
        return Draft.chain_draft(line.token[tip])
    left = session.keep_nodes(range(tip), root)
    chance = (line.chance or ())[tip]
    return left.with_node(line.token[tip], len(left) - 1, line.draw[tip], line.law[tip], chance)


class TruncatedScores(PickedScores):
    """The first rows of some scores.

    What follows them is not known. A verifier that comes so far has accepted all tokens; it gets a
    certain token there, for which nothing is drawn.
    """

    def certain_token(self, i: int) -> int | None:
        if i < len(self.at):
            return super().certain_token(i)
        return 0

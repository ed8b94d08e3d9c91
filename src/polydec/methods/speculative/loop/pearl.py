"""Draft and target at work at the same time: the target verifies what the draft wrote before while the draft goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.decoder import Streams
from polydec.core.effects import gather_coroutines
from polydec.core.protocols import DraftScores, Session, Target
from polydec.core.request import Request, Result
from polydec.core.rng import Rng
from polydec.core.transcript import AnswerText, Transcript, logprobs_at_nodes
from polydec.core.types import Draft, Exactness, RowDetail, ScoreRequest, TokenVocabulary
from polydec.methods.speculative.loop.draws import categorical_pick, draw_draft_token
from polydec.methods.speculative.loop.events import ProposedEvent, VerifiedEvent
from polydec.methods.speculative.loop.protocols import Verifier
from polydec.methods.speculative.loop.stats import DraftCount


@dataclass(frozen=True)
class PearlDecoder:
    """Each round awaits two things together: `gamma` further tokens of the draft's chain, and the target's pass over the
    root and the tokens that are drafted and not verified. Then these tokens and the first of the new ones are tested.

    Where none is pending (pre-verify) that is the first drafted token; where all pass, the rest of the new tokens is
    pending while the draft goes on behind them (post-verify), so that a run of accepted tokens has no longest length.
    After a rejection all that was drafted is dropped. No token is drawn from the row behind the last accepted one: its
    successor was not known when the pass began. A drafted end waits until it is verified.

    gamma: 1 to 64; best about the ratio of the two models' pass times. A scheduler that has a pool runs both at the same
    time; else one after the other, with the same text.

    Exact: the verifier's promise: each token is tested once, with the two laws of its position, and draws are keyed by it.
    Reduces to: plain decoding's law where nothing is accepted; at gamma 1 every round tests one token.
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

    async def run(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        """Decode all choices; both models read the prompt once. Stats count as drafted what was tested."""
        texts = [into.open(choice) for choice in request.choices]
        sessions = [self.target.open(request.prompt)]
        try:
            sessions.append(self.draft.open(request.prompt))
            await gather_coroutines(
                *(
                    s.prefill(ScoreRequest(law=RowDetail.NOTHING, last=request.n > 1))
                    for s in sessions
                )
            )
            pairs = [(sessions[0], sessions[1])]
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
        told = into.told(ProposedEvent)
        words = self.vocab.words
        want = ScoreRequest(
            law=RowDetail.ROW, base=RowDetail.NOTHING if asked is None else RowDetail.ROW
        )
        pending = line = Draft.chain(into.request.prompt[-1])
        # pending: the root and what waits for the target; line: what the draft has staged
        while True:
            n = text.position
            waiting = len(pending) - 1
            known = len(line)
            if waiting and pending.token[-1] in text.ends:
                more = 0
            else:
                more = min(self.gamma, text.room - waiting)
            line, scores = await gather_coroutines(
                self._ahead(small, line, more, n, rng, text.ends), big.score(pending, want)
            )
            tested = _lengthen(pending, line, known, known + 1)
            if told:
                if words is None:
                    piece = ()
                else:
                    piece = tuple(words.decode([x]) for x in tested.token)
                into.on(ProposedEvent(choice, n, tested.token, tested.parent, piece))
            verdict = self.verifier.verify(tested, TruncatedScores(scores, len(tested) - 1), rng, n)
            got = len(verdict.path)
            new = tested.token[1 : got + 1]
            if got < len(tested) - 1:
                new = (*new, verdict.bonus)
            into.on(VerifiedEvent(choice, n, verdict.path[: len(new) - 1], new[-1]))
            if asked is None:
                notes = ()
            else:
                notes = logprobs_at_nodes(scores, range(len(new)), new, asked)
            count = text.write(new, notes, got)
            counted.see(tested, verdict, count)
            if text.finish_reason is not None:
                return text.result(counted.stats)
            if got == len(tested) - 1:
                big.commit(pending.token)
                pending = _lengthen(Draft.chain(new[-1]), line, known + 1, len(line))
            else:
                big.commit(tested.token[: got + 1])
                small.commit(line.token[: known - waiting + got])
                pending = line = Draft.chain(new[-1])

    async def _ahead(
        self, session: Session, line: Draft, more: int, n: int, rng: Rng, ends: frozenset[int]
    ) -> Draft:
        """The line with `more` tokens of the draft behind it, fewer where one is an end."""
        for k in range(more):
            scores = await session.score(line, ScoreRequest())
            tip = len(line) - 1
            token, draw, law_V, q = draw_draft_token(
                scores, tip, categorical_pick(rng.at("draft", n, k))
            )
            line = line.grown(token, tip, draw, law_V, q)
            if token in ends:
                break
        return line


def _lengthen(chain: Draft, line: Draft, start: int, stop: int) -> Draft:
    """The chain with nodes start to stop of the line behind it."""
    for i in range(start, min(stop, len(line))):
        chain = chain.grown(
            line.token[i], len(chain) - 1, line.draw[i], line.law[i], (line.chance or ())[i]
        )
    return chain


@dataclass(frozen=True)
class TruncatedScores:
    """The first `size` rows of some scores. What follows them is not known: a verifier that comes so far has accepted all,
    and is told a certain token, for which nothing is drawn."""

    scores: DraftScores
    size: int

    def certain(self, i: int) -> int | None:
        if i < self.size:
            return self.scores.certain(i)
        return 0

    def row(self, i: int) -> Tensor:
        return self.scores.row(i)

    def weights(self, i: int) -> Tensor:
        return self.scores.weights(i)

    def argmax(self, i: int) -> int:
        return self.scores.argmax(i)

    def topk(self, i: int, k: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        return self.scores.topk(i, k)

    def topk_rows(self, rows: Sequence[int], k: int) -> Sequence[Sequence[int]]:
        return self.scores.topk_rows(rows, k)

    def logp(self, i: int, tokens: Sequence[int]) -> tuple[float, ...]:
        return self.scores.logp(i, tokens)

    @property
    def hidden_NH(self) -> Tensor | None:
        return self.scores.hidden_NH

    def exit(self, depth: int, nodes: Sequence[int]) -> DraftScores:
        return self.scores.exit(depth, nodes)

    @property
    def base(self) -> DraftScores:
        return self.scores.base

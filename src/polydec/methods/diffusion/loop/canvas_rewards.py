"""Rewards of answers, and predictions of the reward that a canvas leads to (SVDD)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from polydec.core.canvas_law import Canvas
from polydec.core.effects import gather_coroutines
from polydec.core.protocols import Session, Target
from polydec.core.types import Draft, RowDetail, ScoreRequest, TextEdit, TokenVocabulary
from polydec.methods.diffusion.loop.denoising import DenoisingDecoder
from polydec.methods.diffusion.loop.filling import FillingState
from polydec.methods.diffusion.loop.types import canvas_with_edit, gap_positions

LEAST = -1e4
"""The value of an answer with a token that a judge rules out, and of no answer a lower one."""


class AnswerJudge(Protocol):
    """Judges answers to one prompt."""

    async def prepare_judgement(self) -> None:
        """Prepare for judging; called before each judgement, it does its work once."""
        ...

    async def answer_worth(self, tokens: Sequence[int]) -> float:
        """Return the worth of an answer of at least one token, its end included."""
        ...

    def close(self) -> None: ...


class AnswerReward(Protocol):
    """A black box that judges finished answers."""

    def open_judge(self, prompt: Sequence[int], vocab: TokenVocabulary) -> AnswerJudge:
        """Open a judge for answers to one prompt.

        Args:
            prompt: Token ids of the prompt.
            vocab: Vocabulary of the answers.
        """
        ...


class CanvasValueReader(Protocol):
    """Predicts what canvases of one answer will be worth."""

    async def state_values(self, spots: Sequence[FillingState]) -> tuple[list[float], int]:
        """Return the predicted worth of each state, and how many positions were fed."""
        ...

    def close(self) -> None: ...


class CanvasValue(Protocol):
    """Predicts what a canvas with gaps will be worth."""

    def open_reader(self, base: DenoisingDecoder, prompt: Sequence[int]) -> CanvasValueReader:
        """Open a reader for the canvases of one answer.

        Args:
            base: Decoder that fills the canvas.
            prompt: Token ids of the prompt.
        """
        ...


@dataclass(frozen=True)
class PosteriorMeanValue:
    """Values a canvas by the answer that the model would give at once (SVDD-PM).

    One pass over the canvas, and the likeliest token in each gap; the reward judges that answer.

    Attributes:
        reward: Judges finished answers.
    """

    reward: AnswerReward

    def open_reader(self, base: DenoisingDecoder, prompt: Sequence[int]) -> CanvasValueReader:
        """Open a reader, with a judge of the reward.

        Args:
            base: Decoder whose model is asked for the likeliest tokens.
            prompt: Token ids of the prompt.
        """
        # The judge belongs to the prompt; it is opened once for all canvases of the answer.
        return _PosteriorMeanReader(base, self.reward.open_judge(prompt, base.vocab))


@dataclass(frozen=True)
class _PosteriorMeanReader:
    base: DenoisingDecoder
    judge: AnswerJudge

    async def state_values(self, spots: Sequence[FillingState]) -> tuple[list[float], int]:
        await self.judge.prepare_judgement()
        # The candidates' passes run as one batch.
        valued = await gather_coroutines(*(self._value(spot) for spot in spots))
        return [value for value, _ in valued], sum(fed for _, fed in valued)

    async def _value(self, spot: FillingState) -> tuple[float, int]:
        canvas, fed = await self._finished(spot)
        return await self.judge.answer_worth(answer_of(canvas, spot)), fed

    async def _finished(self, spot: FillingState) -> tuple[Canvas, int]:
        """Return the canvas with the likeliest token in each gap, and how much was fed for it."""
        # A complete canvas needs no pass.
        if not spot.block:
            return spot.canvas, 0
        # A session of its own: the pass must not leave keys and values of guessed tokens behind.
        board = self.base.denoiser.open_canvas(len(spot.canvas), spot.begin)
        try:
            # With no canvas before, the rule feeds all that the model sees.
            feed = self.base.fed_positions(spot, None)
            rows = gap_positions(spot.canvas, spot.begin, feed[-1] + 1)
            logw_RV = await board.score_canvas(spot.canvas, rows, feed)
            look = self.base.unmasker_view(spot, rows, logw_RV)
            # The model's own likeliest tokens, of those that are allowed: rules of sampling have no
            # part in it.
            tokens = replace(look, shapers=()).likeliest
        finally:
            board.close()
        return canvas_with_edit(
            spot.canvas, TextEdit(write=tuple(zip(rows, tokens, strict=True)))
        ), len(feed)

    def close(self) -> None:
        self.judge.close()


@dataclass(frozen=True)
class LearnedCanvasValue:
    """Values a canvas by a trained network (SVDD-MC), without a pass of the model or a reward.

    Attributes:
        network: Predicts the worth from a canvas, None for gaps.
    """

    network: Callable[[Canvas], float]

    def open_reader(self, base: DenoisingDecoder, prompt: Sequence[int]) -> CanvasValueReader:
        """Open a reader of the network.

        Args:
            base: Decoder that fills the canvas; not needed.
            prompt: Token ids of the prompt; not needed.
        """
        return _LearnedValueReader(self.network)


@dataclass(frozen=True)
class _LearnedValueReader:
    network: Callable[[Canvas], float]

    async def state_values(self, spots: Sequence[FillingState]) -> tuple[list[float], int]:
        return [self.network(spot.canvas) for spot in spots], 0

    def close(self) -> None:
        pass


def answer_of(canvas: Canvas, spot: FillingState) -> list[int]:
    """Return the answer's tokens up to the first gap or end, the end included.

    Args:
        canvas: Prompt and answer; None is a gap.
        spot: State that says where the answer begins and which ids end it.
    """
    answer = canvas[spot.begin :]
    # A gap ends what is known of the answer; an end token ends it for good.
    stop = next((i for i, x in enumerate(answer) if x is None), len(answer))
    stop = next((i + 1 for i, x in enumerate(answer[:stop]) if x in spot.ends), stop)
    return [x for x in answer[:stop] if x is not None]


@dataclass(frozen=True)
class LikelihoodReward:
    """The mean log-probability of an answer's tokens under an autoregressive model, in nats.

    Attributes:
        model: The autoregressive model.
    """

    model: Target

    def open_judge(self, prompt: Sequence[int], vocab: TokenVocabulary) -> AnswerJudge:
        """Open a session of the model that begins with the prompt.

        Args:
            prompt: Token ids of the prompt.
            vocab: Vocabulary of the answers; not needed.
        """
        return _LikelihoodJudge(self.model.open_session(prompt), prompt[-1])


@dataclass(eq=False)
class _LikelihoodJudge:
    """Reads answers with the autoregressive model.

    Attributes:
        session: Session of the model; it has read the prompt from the first answer on.
        root: Last token of the prompt.
        read: Whether the prompt was read.
    """

    session: Session
    root: int
    read: bool = False

    async def prepare_judgement(self) -> None:
        # The first judgement feeds the prompt: where nothing is judged it is never fed.
        if not self.read:
            await self.session.prefill_prompt(ScoreRequest(law=RowDetail.NOTHING))
        self.read = True

    async def answer_worth(self, tokens: Sequence[int]) -> float:
        # The session stays at the prompt; each answer is read by a fork of it.
        reader = self.session.fork()
        try:
            scores = await reader.score_draft(
                Draft.chain_draft(self.root, tokens[:-1]), ScoreRequest()
            )
            # Impossible tokens count LEAST, so that a mean stays finite and comparable.
            return sum(
                max(scores.token_logprobs(i, (x,))[0], LEAST) for i, x in enumerate(tokens)
            ) / len(tokens)
        finally:
            reader.close()

    def close(self) -> None:
        self.session.close()


@dataclass(frozen=True)
class AnswerTextReward:
    """What a function says of the answer's text, without its end.

    For a model without a tokenizer the text is the ids as numbers.

    Attributes:
        judge: Gives a text's worth, any unit; the higher, the better.
    """

    judge: Callable[[str], float]

    def open_judge(self, prompt: Sequence[int], vocab: TokenVocabulary) -> AnswerJudge:
        """Open a judge that decodes answers to text.

        Args:
            prompt: Token ids of the prompt; not needed.
            vocab: Vocabulary that decodes the answers.
        """
        return _TextJudge(self.judge, vocab)


@dataclass(frozen=True)
class _TextJudge:
    judge: Callable[[str], float]
    vocab: TokenVocabulary

    async def prepare_judgement(self) -> None:
        pass

    async def answer_worth(self, tokens: Sequence[int]) -> float:
        # The end is no part of the text that is judged.
        kept = [x for x in tokens if x not in self.vocab.eos]
        words = self.vocab.words
        if words is None:
            text = " ".join(map(str, kept))
        else:
            text = words.decode(kept)
        return max(float(self.judge(text)), LEAST)

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class TargetLengthReward:
    """`reward`, less a penalty for each token that an answer is too long or too short.

    Attributes:
        reward: Judges finished answers.
        length: Wanted tokens of an answer, its end not counted. 0: any length.
        pull: Penalty for each token, in units of the reward.
    """

    reward: AnswerReward
    length: int = 0
    pull: float = 1.0

    def open_judge(self, prompt: Sequence[int], vocab: TokenVocabulary) -> AnswerJudge:
        """Open a judge of the reward, with the penalty where a length is wanted.

        Args:
            prompt: Token ids of the prompt.
            vocab: Vocabulary of the answers; its EOS ids do not count as length.
        """
        judge = self.reward.open_judge(prompt, vocab)
        # Without a wanted length the judge itself is returned: no layer in between.
        if self.length:
            return _TargetLengthJudge(judge, self, vocab.eos)
        return judge


@dataclass(frozen=True)
class _TargetLengthJudge:
    judge: AnswerJudge
    how: TargetLengthReward
    ends: frozenset[int]

    async def prepare_judgement(self) -> None:
        await self.judge.prepare_judgement()

    async def answer_worth(self, tokens: Sequence[int]) -> float:
        length = sum(x not in self.ends for x in tokens)
        return await self.judge.answer_worth(tokens) - self.how.pull * abs(length - self.how.length)

    def close(self) -> None:
        self.judge.close()

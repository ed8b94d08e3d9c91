"""Gaps of an answer, filled one after the other by whatever decoder continues texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

from polydec.core.decoder import Decoder, Streams
from polydec.core.effects import gather_coroutines
from polydec.core.request import AnswerStats, Request, Result, SilentWriter, TextGuard
from polydec.core.rng import Rng
from polydec.core.transcript import AnswerText, Transcript
from polydec.core.types import Exactness, TokenVocabulary
from polydec.request.gap_marks import GapMarks, split_at_gaps


@dataclass(frozen=True)
class GapFillingDecoder:
    """Fills the gaps of `Request.given` from the first to the last, each by a run of `decoder`.

    The prompt of a run is the request's with the answer behind it, marks in the place of its gaps,
    then each gap's mark with what fills it. What is given of the answer is not changed. Each gap of
    each choice has a random stream of its own.

    Attributes:
        decoder: Writes what fills a gap: any method, sampling and constraint.
        marks: Of the model.
        guard: What the text in a gap may not hold. None: there are no such rules.
        repeated: A gap ends where what fills it begins to repeat so many tokens of what stands
            behind it, 0 or more; these are left out. 0: only its own mark ends it.

    Exact: what fills a gap has the law of `decoder` behind its prompt; with `repeated` that law, cut.
    Reduces to: `decoder` on the prompt with its marks, for one gap at the end.
    Source: Aghajanyan et al., "CM3: a causal masked multimodal model of the internet" (2022).
    """

    decoder: Decoder
    marks: GapMarks
    guard: TextGuard | None = None
    repeated: int = 0

    @property
    def exactness(self) -> Exactness:
        # A cut changes the law, not which text is the likeliest up to it.
        return Exactness.APPROXIMATE if self.repeated else self.decoder.exactness

    @property
    def vocab(self) -> TokenVocabulary:
        return self.decoder.vocab

    async def write_choices(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        """Write all choices of a request.

        Args:
            request: The prompt, and the answer with gaps as `given`.
            rng: Gives the random stream of each choice.
            into: Transcript that the answers are written to.

        Returns:
            The answers in the order of the choices.
        """
        return await gather_coroutines(
            *(
                self._fill(request, rng(choice), into.open_answer(choice))
                for choice in request.choices
            )
        )

    async def _fill(self, request: Request, rng: Rng, text: AnswerText) -> Result:
        parts, sizes = split_at_gaps(request.given)
        # The end behind an answer closes it, and is no part of the text that a gap stands in.
        closing = tuple(x for x in parts[-1][-1:] if x in text.ends)
        parts[-1] = parts[-1][: len(parts[-1]) - len(closing)]
        # The model reads all of the answer before it fills the first gap.
        prompt = (*request.prompt, *parts[0])
        for mark, part in zip(self.marks.gaps, parts[1:], strict=False):
            prompt += (mark, *part)
        _write(text, parts[0])
        counted = list[AnswerStats]()
        for gap, size in enumerate(sizes):
            # A stop string may have ended the answer: nothing behind it is shown.
            if text.finish_reason is not None and counted:
                break
            # Behind the answer each gap's mark asks for what fills it.
            prompt += (self.marks.gaps[gap],)
            asked = self._gap_request(request, prompt, size)
            # A stream of its own: what one gap draws does not depend on how long another became.
            stream = rng.child_stream("gap", gap)
            (made,) = await self.decoder.write_choices(
                asked,
                lambda choice, stream=stream: stream,
                Transcript(asked, self.vocab.eos),
            )
            # The end of a gap is the model's own sign, and no part of the text.
            written = tuple(x for x in made.token_ids if x != self.marks.filled)
            written = written[: repetition_start(written, parts[gap + 1], self.repeated)]
            prompt += (*written, self.marks.filled)
            counted.append(made.stats)
            _write(text, (*written, *parts[gap + 1]))
        _write(text, closing)
        return text.finished_answer(reduce(lambda a, b: a.plus_stats(b), counted))

    def _gap_request(self, request: Request, prompt: tuple[int, ...], size: int) -> Request:
        """What is asked of the decoder for one gap of so many tokens at most."""
        return replace(
            request,
            prompt=prompt,
            max_tokens=size,
            # The gap ends with its own mark, or where its room ends.
            stop_ids=request.stop_ids | {self.marks.filled},
            choice=0,
            n=1,
            # Nobody is shown a gap before the text in front of it stands.
            writer=SilentWriter,
            given=(),
            guard=self.guard,
            rules=None,
            prompt_logprobs=None,
        )


def repetition_start(fill: Sequence[int], behind: Sequence[int], count: int) -> int:
    """Where a text begins to repeat what stands behind its gap.

    Args:
        fill: Token ids of what fills the gap.
        behind: Token ids of what stands behind it.
        count: Tokens that must be the same, from the first one of `behind`; 0: none are looked for.

    Returns:
        The index of the first of them in `fill`; its length where there are none.
    """
    # Behind a gap of few tokens a match would be chance: nothing is cut there.
    if count and len(behind) >= count:
        begun = tuple(behind[:count])
        for i in range(len(fill) - count + 1):
            if tuple(fill[i : i + count]) == begun:
                return i
    return len(fill)


def _write(text: AnswerText, tokens: Sequence[int]) -> None:
    """Write these tokens, if the answer has not ended."""
    # A stop string may lie across what is given and what was filled.
    if tokens and text.finish_reason is None:
        text.write_tokens(tokens)

"""A reader reads the word in an image at once, and that is the answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from polydec.core.decoder import Streams
from polydec.core.effects import ForwardQuery
from polydec.core.law import normalise_log_weights
from polydec.core.request import Request, Result, TokenLogprob
from polydec.core.transcript import AnswerText, Transcript
from polydec.core.types import Exactness, TokenVocabulary
from polydec.models.formats.images import PixelStrip
from polydec.models.learned.kinds.word_reader import BEGUN, ReadingQuery, WordReader, usual_reading
from polydec.models.nets.reading_layers import END


@dataclass(frozen=True)
class ReadingStats:
    """Counts of one answer.

    Attributes:
        passes: Passes of the reader.
        first: Tokens that were there after it: all.
    """

    passes: int = 1
    first: int = 0

    def plus_stats(self, other: ReadingStats) -> ReadingStats:
        """Both together: of two answers, or of two parts of one."""
        return ReadingStats(self.passes + other.passes, self.first + other.first)

    def metrics(self) -> dict[str, Any]:
        """None: a pass is all that there is."""
        return {}


@dataclass(frozen=True)
class OnePassReading:
    """The answer is what a reader reads: the likeliest letter of each place, up to the first end.

    The model that the reader was trained for does not run. Of a text that the prompt begins, the
    letters behind it are written.

    Attributes:
        reader: The trained reader.
        strip: The image.
        vocab: Of the answer.
        read: How it reads: of the head, the states of the image and, by name, a stream `rng` it makes
            logits of letters. Default: as its head does by itself.

    Exact: approximate: letters are read by themselves, by another network than the model's.
    Reduces to: plain, greedy, where the reader reads what the model does.
    Source: readers that write at once: CPPD (2023), LISTER (2023), MDiff4STR (2025).
    """

    reader: WordReader
    strip: PixelStrip
    vocab: TokenVocabulary
    read: Callable[..., Tensor] = usual_reading

    def __post_init__(self) -> None:
        self.reader.check_image(self.strip)

    @property
    def exactness(self) -> Exactness:
        return Exactness.APPROXIMATE

    async def write_choices(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        """Read the word once, and write it as every choice.

        Args:
            request: What is asked: prompt token ids, number of answers, limits.
            rng: Random stream of each choice; the first one's decides where a reading draws.
            into: Record of the request, which gets the tokens, the statistics and the trace events.

        Returns:
            One result for each choice of the request, in order.
        """
        texts = [into.open_answer(choice) for choice in request.choices]
        # All choices share one reading, so the first one's stream decides.
        asked = ReadingQuery(self.strip, partial(self.read, rng=rng(0).child_stream("reading")))
        rows_TV = await ForwardQuery(self.reader, asked, len(self.strip))
        logp_TV = normalise_log_weights(rows_TV)[len(request.prompt) - BEGUN :]
        return [_finish_reading(text, logp_TV, request) for text in texts]


def _finish_reading(text: AnswerText, logp_TV: Tensor, request: Request) -> Result:
    """Write what was read into an answer."""
    k = min(request.logprobs or 0, logp_TV.shape[1])
    tokens = list[int]()
    notes = list[TokenLogprob]()
    for logp_V in logp_TV:
        value_K, token_K = logp_V.topk(k)
        top = tuple(zip(map(int, token_K), map(float, value_K)))
        tokens.append(int(logp_V.argmax()))
        notes.append(TokenLogprob(tokens[-1], 0.0, float(logp_V.max()), top))
    # Behind the last letter that a reader reads there is nothing: a text without an end goes on with
    # it where ends are ignored.
    tokens += [END] * request.max_tokens
    notes += [TokenLogprob(END, 0.0, 0.0, ())] * request.max_tokens
    text.write_tokens(tokens, notes if request.logprobs is not None else ())
    return text.finished_answer(ReadingStats(1, len(text.tokens)))

"""A query decoder reads the image of a prompt, and what it writes is the answer (X-Decoder)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from polydec.base.errors import MissingError
from polydec.core.decoder import Streams
from polydec.core.effects import ForwardQuery
from polydec.core.protocols import Target
from polydec.core.request import ImageMask, Request, Result, TokenLogprob
from polydec.core.transcript import AnswerText, Transcript
from polydec.core.types import Exactness, TokenVocabulary
from polydec.models.learned.kinds.query_decoder import (
    FoundObject,
    QueryDecoder,
    find_named_objects,
    find_phrase,
)
from polydec.models.nets.query_decoder import CaptionMemory, QueryDecoderNetwork


@dataclass(frozen=True)
class QueryStats:
    """Counts of one answer.

    Attributes:
        passes: Passes of the query decoder.
        rows: Queries that ran through its layers: latent ones, and those of captions.
        first: Tokens that were there after the first pass.
    """

    passes: int
    rows: int
    first: int = 0

    def plus_stats(self, other: QueryStats) -> QueryStats:
        """Both together: of two answers, or of two parts of one."""
        return QueryStats(
            self.passes + other.passes, self.rows + other.rows, self.first + other.first
        )

    def metrics(self) -> dict[str, Any]:
        """Queries that ran through the layers."""
        return {"query_rows": self.rows}


class AnswerPage:
    """All choices of a request, which get the same tokens.

    Args:
        texts: The choices.
        noted: Of how many of the likeliest tokens the log-probabilities are noted; None: no notes are.
    """

    def __init__(self, texts: Sequence[AnswerText], noted: int | None) -> None:
        self.texts = texts
        self.noted = noted
        self.passes = 0
        self.rows = 0

    @property
    def takes_tokens(self) -> bool:
        """Whether more may be written."""
        return self.texts[0].finish_reason is None

    @property
    def token_count(self) -> int:
        """Tokens that were written."""
        return len(self.texts[0].tokens)

    async def ask_decoder(
        self, decoder: QueryDecoder, query: Callable[[QueryDecoderNetwork], Any], rows: int
    ) -> Any:
        """Ask a query decoder, and count the pass.

        Args:
            decoder: Who is asked.
            query: What, as a function of its network.
            rows: Queries that it runs through the layers.

        Returns:
            The answer.
        """
        self.passes += 1
        self.rows += rows
        return await ForwardQuery(decoder, query, rows)

    def write_token(self, token: int, logp_V: Tensor | None = None) -> None:
        """Append a token to all choices that have not ended.

        Args:
            token: Its id.
            logp_V: The law that it was taken from. None: it was certain.
        """
        # Greedy: the token is certain under the law that decodes, whatever the network's says.
        notes = () if self.noted is None else (_noted_token(token, logp_V, self.noted),)
        for text in self.texts:
            text.write_tokens([token], notes)

    def end_answers(self, end: int, masks: Sequence[ImageMask]) -> list[Result]:
        """End all choices.

        Args:
            end: The token that ends them.
            masks: Masks that their tokens stand for.

        Returns:
            The answers.
        """
        # Behind an end there is nothing: a request that ignores ends gets more of them.
        while self.takes_tokens:
            self.write_token(end)
        stats = QueryStats(self.passes, self.rows, min(1, self.token_count))
        return [replace(x.finished_answer(stats), masks=tuple(masks)) for x in self.texts]


def _noted_token(token: int, logp_V: Tensor | None, count: int) -> TokenLogprob:
    if logp_V is None:
        return TokenLogprob(token, 0.0, 0.0, ())
    # The law that the network had, though the likeliest token is taken.
    value_K, token_K = logp_V.topk(min(count, len(logp_V)))
    top = tuple(zip(map(int, token_K), map(float, value_K)))
    return TokenLogprob(token, 0.0, float(logp_V[token]), top)


class QueryTask(Protocol):
    """What is asked of a query decoder."""

    async def write_answer(
        self, decoder: QueryDecoder, vector_PH: Tensor, page: AnswerPage
    ) -> list[ImageMask]:
        """Write an answer, which may stay open behind its last token.

        Args:
            decoder: The query decoder.
            vector_PH: Vectors of the image.
            page: Gets the tokens.

        Returns:
            Masks that its tokens stand for.
        """
        ...


@dataclass(frozen=True, eq=False)
class CaptionTask:
    """Caption an image, or a region of it, greedily.

    Attributes:
        region_1F: Cells of the finest scale that caption queries read. None: all.
        cached: Whether what the latent queries and earlier tokens left is held. Without it the whole
            decoder runs over a buffer of the longest caption for each token, as published.
    """

    region_1F: Tensor | None
    cached: bool

    async def write_answer(
        self, decoder: QueryDecoder, vector_PH: Tensor, page: AnswerPage
    ) -> list[ImageMask]:
        """Write the caption; it has no masks.

        Args:
            decoder: The query decoder.
            vector_PH: Vectors of the image.
            page: Gets the tokens.

        Returns:
            Nothing: an empty list.
        """
        latents = decoder.sizes.objects + 1
        # The mark before it counts as the first of its tokens.
        caption = [decoder.start]
        memory = await self._held_image(decoder, vector_PH, page) if self.cached else None
        # The buffer bounds a caption, as it does there.
        while page.takes_tokens and len(caption) <= decoder.sizes.longest:
            if memory is not None:
                step = partial(QueryDecoderNetwork.read_token, memory=memory, token=caption[-1])
                logit_V, memory = await page.ask_decoder(decoder, step, 1)
            else:
                step = partial(
                    QueryDecoderNetwork.recompute_token,
                    vector_PH=vector_PH,
                    caption=tuple(caption),
                    region_1F=self.region_1F,
                )
                # As many as are computed, also behind the caption's end.
                rows = latents + decoder.sizes.longest
                logit_V = await page.ask_decoder(decoder, step, rows)
            caption.append(int(logit_V.argmax()))
            page.write_token(caption[-1], logit_V.log_softmax(-1))
        return []

    async def _held_image(
        self, decoder: QueryDecoder, vector_PH: Tensor, page: AnswerPage
    ) -> CaptionMemory:
        """What a caption reads of the image, and of the latent queries."""
        read = partial(
            QueryDecoderNetwork.read_image, vector_PH=vector_PH, region_1F=self.region_1F
        )
        return await page.ask_decoder(decoder, read, decoder.sizes.objects + 1)


@dataclass(frozen=True)
class NamingTask:
    """Name the things of an image, each with its mask (open-vocabulary segmentation).

    Attributes:
        names: Token ids of the names that are looked for.
    """

    names: tuple[tuple[int, ...], ...]

    async def write_answer(
        self, decoder: QueryDecoder, vector_PH: Tensor, page: AnswerPage
    ) -> list[ImageMask]:
        """Write the names of all things that were found, the surest first.

        Args:
            decoder: The query decoder.
            vector_PH: Vectors of the image.
            page: Gets the tokens.

        Returns:
            A mask at the last token of each name.
        """
        find = partial(find_named_objects, vector_PH=vector_PH, names=self.names)
        found: list[FoundObject] = await page.ask_decoder(decoder, find, decoder.sizes.objects + 1)
        # Where the answer ends before a name does, that name has no mask.
        named = ((self.names[one.name], one) for one in found)
        masks = (_write_name(page, name, one, decoder.cell) for name, one in named)
        return [mask for mask in masks if mask is not None]


@dataclass(frozen=True)
class ReferringTask:
    """Find what a phrase speaks of (referring segmentation).

    Attributes:
        phrase: Its token ids.
    """

    phrase: tuple[int, ...]

    async def write_answer(
        self, decoder: QueryDecoder, vector_PH: Tensor, page: AnswerPage
    ) -> list[ImageMask]:
        """Write the phrase again.

        Args:
            decoder: The query decoder.
            vector_PH: Vectors of the image.
            page: Gets the tokens.

        Returns:
            A mask at its last token.
        """
        # The copy of the object queries that reads the phrase, and nothing else.
        find = partial(find_phrase, vector_PH=vector_PH, phrase=self.phrase)
        one = await page.ask_decoder(decoder, find, decoder.sizes.objects)
        mask = _write_name(page, self.phrase, one, decoder.cell)
        return [] if mask is None else [mask]


def _write_name(
    page: AnswerPage, name: Sequence[int], found: FoundObject, cell: int
) -> ImageMask | None:
    """Write a name; its mask, unless the answer ended before."""
    # An answer may be cut off within a name.
    for token in name:
        if not page.takes_tokens:
            return None
        page.write_token(token)
    return ImageMask(page.token_count - 1, found.logit_HW, cell)


@dataclass(frozen=True, eq=False)
class QueryDecoding:
    """The answer is what a query decoder makes of the last image of the prompt.

    The target's vision tower reads the image; its language model does not run, and the words of the
    prompt are not read.

    Attributes:
        target: The law whose prompt holds the image.
        decoder: The query decoder.
        task: What is asked of it.

    Exact: approximate: another network than the model writes, always greedily.
    Reduces to: the same text with and without what is held of a caption (`CaptionTask.cached`).
    Source: Zou et al., "Generalized decoding for pixel, image, and language" (2022), X-Decoder.
    """

    target: Target
    decoder: QueryDecoder
    task: QueryTask

    @property
    def exactness(self) -> Exactness:
        return Exactness.APPROXIMATE

    @property
    def vocab(self) -> TokenVocabulary:
        return self.target.vocab

    async def write_choices(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        """Write one answer, as every choice.

        Args:
            request: What is asked: prompt token ids, number of answers, limits.
            rng: Not read: nothing is drawn.
            into: Record of the request, which gets the tokens.

        Returns:
            One result for each choice of the request, in order.
        """
        vector_PH = self._image_vectors(request.prompt)
        # Nothing is drawn, so all choices are one.
        texts = [into.open_answer(choice) for choice in request.choices]
        page = AnswerPage(texts, request.logprobs)
        masks = await self.task.write_answer(self.decoder, vector_PH, page)
        return page.end_answers(self.decoder.end, masks)

    def _image_vectors(self, prompt: Sequence[int]) -> Tensor:
        """The vectors of the prompt's last image, before any pass."""
        # The session is asked for vectors alone, and feeds nothing.
        session = self.target.open_session(prompt)
        try:
            vector_PH = self.decoder.last_image(session.text_vectors())
        finally:
            session.close()
        if vector_PH is None:
            raise MissingError("the prompt has no image for the query decoder: give one (--image)")
        return vector_PH


def region_cells(box: Sequence[int], grid: tuple[int, int], cell: int) -> Tensor:
    """Which cells of a mask a box of pixels touches.

    Args:
        box: Left, top, right and bottom, in pixels; the last two lie outside of it.
        grid: Rows and columns of cells.
        cell: Pixels of a side of a cell.

    Returns:
        ``[1, rows * columns]``, bool.
    """
    # A cell that the box touches at all belongs to it.
    left, top, right, bottom = box
    # Where each row and column of cells begins.
    begin_H = torch.arange(grid[0]) * cell
    begin_W = torch.arange(grid[1]) * cell
    rows_H = (begin_H < bottom) & (begin_H + cell > top)
    columns_W = (begin_W < right) & (begin_W + cell > left)
    return (rows_H[:, None] & columns_W).flatten()[None]

"""A stream of images, put into words where what would be said of it changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from polydec.base.errors import RequestError
from polydec.laws.shapers.sampling import Sampling
from polydec.models.formats.images import Image
from polydec.models.learned.kinds.answer_embedder import AnswerEmbedder
from polydec.models.sessions.soft import Soft
from polydec.request.engine import Engine
from polydec.request.fields import Ask
from polydec.request.stream_policies import SegmentPolicy, StreamSegment

if TYPE_CHECKING:
    from polydec.request.loaded import LoadedModel


@dataclass(frozen=True)
class WatchedSegment:
    """Images in a row that are told by one text.

    Attributes:
        first: Number of the first one, from 0.
        last: Number of the last one.
        text: What the model says.
        tokens: Of the text.
    """

    first: int
    last: int
    text: str
    tokens: int


def watch_images(
    lm: LoadedModel,
    images: Sequence[Image],
    asked: str,
    policy: SegmentPolicy,
    *,
    max_tokens: int = 48,
    method: str = "auto",
) -> list[WatchedSegment]:
    """Say what a stream of images shows, in one text for each segment of it.

    The embedding of the answer is foretold of every image; only those of segments are put into
    words, greedily.

    Args:
        lm: A model that reads images, with an answer embedder (`polydec train jepa`).
        images: The stream, in order, at least one image.
        asked: What is asked of each image.
        policy: Where segments begin.
        max_tokens: Tokens of a text, at most.
        method: By which texts are written.

    Returns:
        The segments, in order.

    Raises:
        RequestError: There is no image, the model reads none, or one of them cannot be read.
        MissingError: The model has no answer embedder.
    """
    # Said first: nothing else needs a model.
    if not images:
        raise RequestError("images is empty: give at least one, in the order of the stream")
    embedder = embedder_of(lm)
    # Encoded once for all images, and for all texts.
    question = lm.encoder.encode_prompt(asked)
    # One pass of a small network an image, and no token.
    embedding_TE = torch.stack(
        [foretold_embedding(lm, embedder, image, question) for image in images]
    )
    # Only these are put into words.
    segments = policy.part_stream(embedding_TE)
    texts = write_segments(lm, embedder, question, segments, max_tokens=max_tokens, method=method)
    return [
        WatchedSegment(segment.first, segment.stop - 1, text, tokens)
        for segment, (text, tokens) in zip(segments, texts, strict=True)
    ]


def embedder_of(lm: LoadedModel) -> AnswerEmbedder:
    """The answer embedder of a model that reads images.

    Raises:
        RequestError: The model reads no images.
        MissingError: It has no answer embedder.
    """
    # A model of words is named before what it lacks.
    if lm.checkpoint.vision is None:
        raise RequestError(
            f"{lm.name} reads text only: a stream of images needs a vision-language model, such as zoo:vision"
        )
    return lm.recipe_kit().needed_artefact(AnswerEmbedder)


def write_segments(
    lm: LoadedModel,
    embedder: AnswerEmbedder,
    question: Sequence[int],
    segments: Sequence[StreamSegment],
    *,
    max_tokens: int,
    method: str,
) -> list[tuple[str, int]]:
    """Put the embeddings of segments into words, side by side.

    Args:
        lm: The model that writes.
        embedder: Shows it an embedding as vectors before the question.
        question: Token ids of what is asked.
        segments: The segments.
        max_tokens: Tokens of a text, at most.
        method: By which texts are written.

    Returns:
        Of each segment its text, and how many tokens it has.
    """
    # Side by side: the texts share their passes.
    engine = Engine(lm)
    tickets = [
        engine.submit(
            Ask(
                # The embedding stands where the image would.
                [Soft(embedder.shown_vectors(segment.embedding_E)), *question],
                method=method,
                # The likeliest text, so that the same stream is told in the same words.
                sampling=Sampling(temperature=0.0),
                max_tokens=max_tokens,
            )
        )
        for segment in segments
    ]
    # Tickets come back in the order of the segments.
    made = [completion.choices[0] for completion in engine.run(tickets)]
    return [(choice.text.strip(), len(choice.token_ids)) for choice in made]


def foretold_embedding(
    lm: LoadedModel, embedder: AnswerEmbedder, image: Image, question: Sequence[int]
) -> torch.Tensor:
    """Foretell the embedding of what would be said of an image.

    Args:
        lm: The model, whose tower reads the image.
        embedder: What foretells.
        image: The image.
        question: Token ids of what is asked.

    Returns:
        The embedding, of length 1.
    """
    vision = lm.checkpoint.vision
    assert vision is not None, "checked with the embedder"
    # Not by the prompt's road: no token follows, and nothing of it is cached.
    vector_PW = vision.tower.image_vectors(vision.decode_image(image))
    return embedder.foretell_answer(vector_PW.cpu(), question)

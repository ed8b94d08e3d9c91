"""Images of requests over HTTP, decoded where requests are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from polydec.api import Ask, LoadedModel
from polydec.base.subprocess_worker import WorkerBusyError, few_waiting
from polydec.models.formats.images import DecodedImage, Image
from polydec.models.sessions.encoder_decoder import EncoderDecoderModel
from polydec.models.sessions.vision import PlacedImage, VisionReader
from polydec.request.image_prompts import request_images
from polydec.request.image_sources import (
    MOST_IMAGES,
    decode_request_images,
    map_request_images,
    message_image_parts,
    requested_image,
)
from polydec.serve.constrained import SOON, WAITING
from polydec.serve.errors import RefusalError


def decode_images(asks: Sequence[Ask], model: LoadedModel) -> tuple[Ask, ...]:
    """Decode the images that the requests of one response read.

    All requests wait for the thread that plans them: behind this it need not wait for a decoder.

    Args:
        asks: The requests, which have one source.
        model: The model that is to answer.

    Returns:
        The requests with their images decoded; as they are where the model reads none.

    Raises:
        RequestError: There is no image where there must be one, or one cannot be decoded.
        RefusalError: Too many wait for the process that decodes (503).
    """
    # Whatever needs more than one prompt has its images beside them, as its source.
    reading = _image_reading(asks[0], model)
    if reading is None:
        return tuple(asks)
    try:
        # One process decodes all images: a queue in front of it may not take all readers.
        with few_waiting(WAITING):
            first = decode_request_images(asks[0], *reading)
    except WorkerBusyError as error:
        raise RefusalError(f"image: {error}", status=503, code="queue_full", retry=SOON) from None
    # A chat is one request; several prompts have one source.
    return (first, *(replace(ask, source=first.source) for ask in asks[1:]))


def see_images(asks: Sequence[Ask], model: LoadedModel) -> tuple[Ask, ...]:
    """Let the vision tower read the images that the requests of one response hold, decoded ones alone.

    A tower may take seconds, for which the thread that plans all requests must not wait. Images of a
    request that has no room for all of them were not all decoded: the plan refuses it.

    Args:
        asks: The requests, which have one source.
        model: The model that is to answer.

    Returns:
        The requests with their images seen; as they are where no tower reads them.
    """
    vision = model.checkpoint.vision
    first = asks[0]
    if vision is None:
        return tuple(asks)
    # Of a request without an image nothing is copied.
    found = request_images(first)
    if not found or not all(isinstance(image, DecodedImage) for image in found):
        return tuple(asks)

    def seen(image: Image | DecodedImage) -> Image | DecodedImage:
        assert isinstance(image, DecodedImage), "all of them are"
        # A press of images may ask what layers look at: a second reading would cost as much again.
        watches = first.cache is not None
        placed = vision.see_image(image.content, first.cache_salt, watches=watches)
        return replace(image, content=placed)

    first = map_request_images(first, seen)
    return (first, *(replace(ask, source=first.source) for ask in asks[1:]))


def _decoder_with_room(vision: VisionReader, room: int) -> Callable[[Image], PlacedImage | None]:
    """Decodes images as long as the context has room for them; the plan refuses the one that has none
    before it comes to those behind."""
    taken = 0

    def decode(image: Image) -> PlacedImage | None:
        nonlocal taken
        if taken > room:
            return None
        # As many places as the plan will give it.
        placed = vision.place_image(image)
        taken += len(placed.ids)
        return placed

    return decode


def _image_reading(ask: Ask, model: LoadedModel) -> tuple[Callable[..., Any], object] | None:
    """What makes of an image what a model reads, and how it reads images; None where it reads none, or
    the request holds more than may be."""
    law = model.checkpoint.lm
    vision = model.checkpoint.vision
    if vision is not None:
        # Too many are refused with the request's other fields, and not decoded first.
        if len(message_image_parts(ask.prompt)) > MOST_IMAGES:
            return None
        return _decoder_with_room(vision, law.context), vision.tower.tile_plan
    if not isinstance(law, EncoderDecoderModel) or law.strip is None:
        return None
    # Imported here: most models read no image.
    from polydec.models.formats.image_decoding import read_pixel_strip

    # One image, and no text beside it: said before it is decoded.
    requested_image(ask, model.name)
    return partial(read_pixel_strip, shape=law.strip), law.strip

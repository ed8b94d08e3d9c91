"""Presses that make images smaller (models/sessions/image_press.py), as requests ask for them."""

from __future__ import annotations

from typing import Any

from polydec.base.errors import RequestError
from polydec.models.nets.press import CachePress
from polydec.models.sessions.image_fall import ImageFall
from polydec.models.sessions.image_press import ImagePress, VectorChoice
from polydec.models.sessions.soft import image_grids
from polydec.request.image_sources import IMAGE_HINT, message_image_parts
from polydec.request.stages import CheckedRequest, EncodedRequest


def image_press_of(checked: CheckedRequest) -> ImagePress | None:
    """The press of a request that makes images smaller; None: it asks for none."""
    if checked.press is not None and isinstance(checked.press.press, ImagePress):
        return checked.press.press
    return None


def check_image_press(checked: CheckedRequest) -> None:
    """Check such a press against the other fields, before an image is decoded.

    Args:
        checked: The request.

    Raises:
        RequestError: The model reads no images as vectors, the request holds none, or a field does not
            go with the press.
    """
    press = image_press_of(checked)
    if press is None:
        return
    if checked.loaded.checkpoint.vision is None:
        raise RequestError(
            f"cache is {press.called}: it chooses among the vectors of images, and {checked.model.name} reads none, so leave "
            "it out"
        )
    if checked.ask.source is None and not message_image_parts(checked.ask.prompt):
        raise RequestError(
            f"cache is {press.called}: it chooses among the vectors of images, and the request holds no image; {IMAGE_HINT}, "
            "or leave it out"
        )
    # What is taken behind an edit was computed with other vectors in view.
    if checked.ask.reuse is not None:
        raise RequestError(
            f"reuse is {checked.ask.reuse!r} and cache is {press.called}: images of other vectors have other entries, so "
            "leave one of them out"
        )


def vector_choice_of(checked: CheckedRequest) -> VectorChoice | None:
    """Which vectors of a request's images stay; None: all.

    Args:
        checked: The request, which holds an image.

    Raises:
        RequestError: The network cannot leave some of them out.
    """
    press = image_press_of(checked)
    if press is None:
        return None
    # Positions that do not follow one another are known to our own networks.
    network = checked.model.checkpoint.lm.network
    if not getattr(network, "moves_places", False):
        raise RequestError(
            f"cache is {press.called}: what runs this model (transformers) counts positions by itself, so no vector of an "
            "image can be left out"
        )
    return press.choice


def skipped_positions(encoded: EncodedRequest) -> int:
    """Positions of a prompt at which no vector stands any more."""
    if encoded.vectors is None:
        return 0
    # Each says how many positions it and those before it saved, or lost where that is below 0.
    grids = image_grids(encoded.vectors.instead)
    return max(0, -grids[-1].saved_behind) if grids else 0


def law_over_press(encoded: EncodedRequest, law: Any, press: CachePress | ImagePress) -> Any:
    """A model's law over the cache that a request asks for.

    Args:
        encoded: The request.
        law: The model's law.
        press: How its cache is kept.

    Returns:
        The law. Vectors that are left out of images are not its affair: the prompt lacks them.

    Raises:
        RequestError: The network cannot read such a cache.
    """
    if not isinstance(press, ImagePress):
        return law.pressed_law(press)
    # A law of its own is made only where something is hidden.
    if press.fall is None or encoded.vectors is None:
        return law
    fall = ImageFall(encoded.vectors.instead, encoded.image_spans, press.fall, press.called)
    return law.falling_view(fall)

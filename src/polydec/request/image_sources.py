"""Images of a request: in its source, or among the parts of its chat messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from polydec.base.errors import RequestError
from polydec.models.formats.images import (
    DecodedImage,
    Image,
    image_of_part,
    is_image_part,
)
from polydec.request.fields import Ask
from polydec.request.prompt_encoder import IMAGE_PLACE

IMAGE_HINT = "give one: --image FILE, source=polydec.Image(…), or a message with an image_url"
"""How an image is given, as the end of a sentence."""
MOST_IMAGES = 64
"""Images of a request at most."""


def _is_image(given: object) -> bool:
    """Whether something is an image, or says that it is one."""
    return isinstance(given, (Image, DecodedImage)) or is_image_part(given)


def source_images(source: object) -> list[Any]:
    """The images of a source, each as it was given: one, or those of a sequence of images; none where
    it is anything else."""
    if _is_image(source):
        return [source]
    # A sequence of ids is a text, and one that holds both is neither.
    if isinstance(source, (list, tuple)) and all(map(_is_image, source)):
        return [*source]
    return []


def has_image_source(ask: Ask) -> bool:
    """Whether a request's source is an image, or several."""
    return bool(source_images(ask.source))


def message_image_parts(prompt: object) -> list[tuple[str, Mapping[str, Any]]]:
    """The images among the parts of chat messages, each with the name of its place."""
    if isinstance(prompt, (str, bytes)) or not isinstance(prompt, Sequence):
        return []
    return [
        (_part_place(at, i), part)
        for at, message in enumerate(prompt)
        if isinstance(message, Mapping) and isinstance(message.get("content"), list)
        for i, part in enumerate(message["content"])
        if is_image_part(part)
    ]


def holds_images(ask: Ask) -> bool:
    """Whether a request has an image: in its source, or among the parts of its messages."""
    return has_image_source(ask) or bool(message_image_parts(ask.prompt))


def prompt_without_images(prompt: Any, mark: str) -> Any:
    """A prompt from which images are left out.

    Args:
        prompt: A text, chat messages, or token ids.
        mark: The text that stands for an image.

    Returns:
        The same without images and their places; token ids as they are.
    """
    if isinstance(prompt, str):
        return prompt.replace(mark, "") if mark else prompt
    if not isinstance(prompt, Sequence) or not all(isinstance(m, Mapping) for m in prompt):
        return prompt
    return [_without_parts(message) for message in prompt]


def _without_parts(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message whose images, and places of such, are left out."""
    content = message.get("content")
    # A text of its own has no parts to leave out.
    if not isinstance(content, list):
        return message
    kept = [part for part in content if not is_image_part(part) and part != IMAGE_PLACE]
    return {**message, "content": kept}


def refuse_images(ask: Ask, name: str) -> None:
    """Refuse a request that holds an image.

    Args:
        ask: The request.
        name: Of a model that reads none.

    Raises:
        RequestError: Its source is an image, or its messages hold one.
    """
    if has_image_source(ask):
        where = "source is an image"
    elif found := message_image_parts(ask.prompt):
        where = f"{found[0][0]} is an image"
    else:
        return
    raise RequestError(
        f"{where}: {name} reads text only, so leave it out (a vision-language model reads images, and so does one of "
        "`polydec train reader`)"
    )


def requested_image(ask: Ask, name: str) -> Image | DecodedImage:
    """The one image of a request, which is all that its model reads.

    Args:
        ask: The request.
        name: Of the model.

    Returns:
        The image.

    Raises:
        RequestError: There is none, there are several, or a text stands where an image must or
            beside one in messages.
    """
    parts = message_image_parts(ask.prompt)
    beside = source_images(ask.source)
    given: Any = beside[0] if len(beside) == 1 else ask.source
    if given is None and not parts:
        raise RequestError(f"source is none: {name} reads an image, so {IMAGE_HINT}")
    # A source beside an image in messages counts as another one, whatever it is.
    count = len(parts) + max(len(beside), given is not None)
    if count > 1:
        raise RequestError(f"the request holds {count} images: {name} reads one")
    if parts:
        _refuse_text(ask.prompt, name)
        where, part = parts[0]
        return image_of_part(part, where)
    if isinstance(given, (Image, DecodedImage)):
        return given
    if isinstance(given, Mapping) and is_image_part(given):
        return image_of_part(given, "source")
    what = "a text" if isinstance(given, (str, bytes)) else "no image"
    raise RequestError(f"source is {what}: {name} reads an image, so {IMAGE_HINT}")


def decode_request_images(ask: Ask, read: Callable[[Image], Any], form: object) -> Ask:
    """Decode the images of a request before it is planned, by whoever may wait for that.

    Those that were decoded before stay as they are.

    Args:
        ask: The request.
        read: Makes of an image what the model reads; None leaves it to the plan.
        form: How the model reads images.

    Returns:
        The request with its images decoded, each where it stood.

    Raises:
        RequestError: One of them cannot be decoded.
        WorkerBusyError: Too many images wait (see `few_waiting`).
    """

    def decoded(image: Image | DecodedImage) -> Image | DecodedImage:
        if isinstance(image, DecodedImage):
            return image
        content = read(image)
        return image if content is None else DecodedImage(image, content, form)

    return map_request_images(ask, decoded)


def map_request_images(
    ask: Ask, change: Callable[[Image | DecodedImage], Image | DecodedImage]
) -> Ask:
    """Put other images in the place of those of a request.

    Args:
        ask: The request.
        change: Makes of an image the other one; it is called in the order of the images.

    Returns:
        The request with the other images, each where the one was.

    Raises:
        RequestError: A part of a message holds no image, or `change` refuses one.
    """
    # What is no image is refused where the request is checked.
    if beside := source_images(ask.source):
        held = [image_of_part(x, "source") if is_image_part(x) else x for x in beside]
        made = tuple(change(image) for image in held)
        ask = replace(ask, source=made[0] if len(made) == 1 else made)
    images = {
        where: change(image_of_part(part, where)) for where, part in message_image_parts(ask.prompt)
    }
    if not images:
        return ask
    messages: Any = ask.prompt
    return replace(ask, prompt=[_with_images(at, m, images) for at, m in enumerate(messages)])


def _with_images(at: int, message: Any, images: Mapping[str, Image | DecodedImage]) -> Any:
    """A message whose images are decoded ones, by the names of their places; `at` is its number."""
    if not isinstance(message, Mapping) or not isinstance(message.get("content"), list):
        return message
    parts = list[Any]()
    for i, part in enumerate(message["content"]):
        image = images.get(_part_place(at, i))
        # Whatever is no image stays as it is.
        parts.append(part if image is None else {**part, "image_url": image})
    return {**message, "content": parts}


def _part_place(message: int, part: int) -> str:
    """What sentences call a part of a message."""
    return f"messages[{message}].content[{part}]"


def _refuse_text(messages: Any, name: str) -> None:
    """Raise RequestError where a message says something beside its image, which nothing would read."""
    for at, message in enumerate(messages):
        content = message.get("content")
        # A content is a text, or a list of parts.
        parts = content if isinstance(content, list) else [content]
        if any(not is_image_part(part) and _says_something(part) for part in parts):
            raise RequestError(
                f"messages[{at}] holds text: {name} reads an image and nothing beside it, so leave the text out"
            )


def _says_something(part: object) -> bool:
    """Whether a part of a content is no empty text."""
    if isinstance(part, Mapping):
        return bool(part.get("text")) or part.get("type") != "text"
    return bool(part)

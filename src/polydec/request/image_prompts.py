"""Prompts in which images stand: of each the place, and what a vision-language model reads there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from polydec.base.errors import RequestError
from polydec.core.protocols import Target
from polydec.models.formats.images import DecodedImage, Image, image_of_part, is_image_part
from polydec.models.sessions.checkpoint import resolve_deferred_bundle
from polydec.models.sessions.image_press import VectorChoice
from polydec.models.sessions.soft import Soft
from polydec.models.sessions.vision import PlacedImage, VisionReader
from polydec.request.fields import Ask
from polydec.request.image_presses import vector_choice_of
from polydec.request.image_sources import (
    IMAGE_HINT,
    MOST_IMAGES,
    has_image_source,
    message_image_parts,
    source_images,
)
from polydec.request.prompt_encoder import IMAGE_PLACE, VectorPrompt
from polydec.request.stages import CheckedRequest, EncodedRequest, ImagePrompt

if TYPE_CHECKING:
    from polydec.request.loaded import LoadedModel


def check_image_request(checked: CheckedRequest) -> None:
    """Check the images of a request against its other fields, before any of them is decoded.

    Args:
        checked: The request, of a model that reads images.

    Raises:
        RequestError: Its source is no image, there are too many, or a field does not go with them.
    """
    ask = checked.ask
    if ask.source is not None and not has_image_source(ask):
        raise RequestError(
            f"source is no image: {checked.model.name} reads images beside its prompt, so {IMAGE_HINT}"
        )
    # Counted before any is decoded: each may take seconds.
    count = len(message_image_parts(ask.prompt)) + len(source_images(ask.source))
    if not count:
        return
    if count > MOST_IMAGES:
        raise RequestError(f"the request holds {count} images: at most {MOST_IMAGES} are legal")
    # Each entry is a field, and whether it needs a text that is tokens and nothing else.
    given = {
        "units": ask.units != "tokens",
        "infill": ask.infill is not None,
        "prompt_logprobs": ask.prompt_logprobs is not None,
    }
    for name, is_given in given.items():
        if is_given:
            raise RequestError(
                f"{name} is given beside an image, which stands where tokens would: leave one of them out"
            )


def encode_image_prompt(
    checked: CheckedRequest, vision: VisionReader, room: int | None = None
) -> EncodedRequest:
    """Encode a prompt in which images may stand.

    Args:
        checked: The request.
        vision: What reads images for its model.
        room: Tokens that there is room for. None: no bound beside the model's context.

    Returns:
        The request with its ids: of an image as many of its token as it has vectors.

    Raises:
        RequestError: Something cannot be read, there are not as many places as images, or they take
            more tokens than there is room for.
    """
    model = checked.model
    ask = checked.ask
    images = request_images(ask)
    prompt = prompt_with_places(ask, vision.token_text, has_chat=model.checkpoint.text.has_chat)
    ids = model.encoder.encode_request(replace(ask, prompt=prompt), room)
    # Vectors of the user's own may stand among ids, and stay there.
    parts: list[Any] = list(ask.prompt) if checked.form.vectors else list(ids)
    places = sum(not isinstance(part, Soft) and part == vision.token for part in parts)
    if places != len(images):
        raise RequestError(
            f"prompt has {_counted(places, 'place')} for images ({vision.token_text or vision.token}) and the request holds "
            f"{_counted(len(images), 'image')}: there must be as many"
        )
    # A prompt without images is read as any other model reads it.
    if not images and not checked.form.vectors:
        return EncodedRequest(checked, model, ids)
    context = model.checkpoint.lm.context
    most = context if room is None else min(room, context)
    taken = len(ids) - places
    placed = list[PlacedImage]()
    # One after another, as each must find room before the next is decoded.
    for image in images:
        placed.append(vision.place_image(image))
        taken += len(placed[-1].ids)
        if taken > most:
            raise RequestError(
                f"prompt has {taken} tokens with {_counted(len(placed), 'image')}: there is room for {most}"
            )
    # There is room for all of them: only now the tower runs, where nobody let it run before.
    given = ImagePrompt(tuple(parts), tuple(images))
    choice = vector_choice_of(checked) if images else None
    filled = _filled_places(given, placed, vision, ask.cache_salt, choice)
    vectors = _vector_prompt(model, filled)
    return EncodedRequest(
        checked,
        model,
        vectors.ids,
        vectors=vectors,
        image_prompt=given,
        image_spans=_image_spans(filled, given),
    )


def law_of_seeing_draft(encoded: EncodedRequest, law: Target) -> Target:
    """The law of a draft model behind the images of a prompt, which it reads by a tower of its own.

    Args:
        encoded: The request.
        law: The draft's law.

    Returns:
        The law behind its own vectors; `law` itself where it reads no images, or reads them in other
        places: it then sees the image's token.

    Raises:
        RequestError: An image cannot be read as the draft reads it.
    """
    given = encoded.image_prompt
    draft = encoded.model.draft
    if given is None or not given.images or draft is None or draft.vision is None:
        return law
    vision = draft.vision
    # Decoded anew, as its tiles may have another size.
    placed = [vision.place_image(image) for image in given.images]
    choice = vector_choice_of(encoded.checked)
    filled = _filled_places(given, placed, vision, encoded.ask.cache_salt, choice)
    # A place of another length would put what follows it at other positions.
    vectors = _vector_prompt(
        replace(encoded.model, checkpoint=resolve_deferred_bundle(draft)), filled
    )
    if vectors.ids != encoded.ids:
        return law
    return vectors.prompted_law(law)


def _filled_places(
    given: ImagePrompt,
    placed: Sequence[PlacedImage],
    vision: VisionReader,
    cache_salt: str,
    choice: VectorChoice | None,
) -> list[int | Soft]:
    """A prompt whose images are what a model reads in their places."""
    out = list[int | Soft]()
    # Images stand in the order of their places.
    following = iter(placed)
    for part in given.parts:
        if isinstance(part, Soft) or part != vision.token:
            out.append(part)
        else:
            out += vision.place_parts(next(following), cache_salt, choice)
    return out


def _image_spans(filled: Sequence[int | Soft], given: ImagePrompt) -> tuple[tuple[int, int], ...]:
    """Where vectors of images stand in what a model reads of a prompt, the user's own left out."""
    # By identity: what was put in stands for an image.
    own = {id(part) for part in given.parts if isinstance(part, Soft)}
    out = list[tuple[int, int]]()
    at = 0
    for part in filled:
        size = len(part.vectors_KD) if isinstance(part, Soft) else 1
        if isinstance(part, Soft) and id(part) not in own:
            out.append((at, at + size))
        at += size
    return tuple(out)


def _vector_prompt(model: LoadedModel, filled: list[int | Soft]) -> VectorPrompt:
    """What a model reads of a prompt whose images are vectors, and what stands for it."""
    seen = model.encoder.check_token_ids(filled, "prompt")
    # One token's embedding tells how many numbers the network reads at a place.
    width = model.network.embed_tokens((0,)).shape[1]
    return model.encoder.encode_vectors(filled, seen, width)


def request_images(ask: Ask) -> list[Image | DecodedImage]:
    """The images of a request, in the order of their places. Raises RequestError where a part of a
    message holds none."""
    out = list[Image | DecodedImage]()
    for given in source_images(ask.source):
        out.append(image_of_part(given, "source") if isinstance(given, Mapping) else given)
    out += [image_of_part(part, where) for where, part in message_image_parts(ask.prompt)]
    return out


def prompt_with_places(ask: Ask, mark: str, *, has_chat: bool) -> Any:
    """A request's prompt with the places of its images.

    Images beside the prompt stand before all that the user says, in order, unless the prompt has
    places itself.

    Args:
        ask: The request.
        mark: The text that stands for an image.
        has_chat: Whether the model has a chat template.

    Returns:
        The prompt: in messages places are parts, in a text the mark.
    """
    prompt: Any = ask.prompt
    beside = len(source_images(ask.source))
    # A text: with a template it becomes what a user says, behind the image.
    if isinstance(prompt, str):
        # A mark that users write is plain text where control tokens are.
        named = bool(mark) and mark in prompt and not ask.sanitize_control_tokens
        if not beside or named:
            return prompt
        if ask.raw or not has_chat:
            return f"{mark}\n" * beside + prompt
        said = [{"type": "text", "text": prompt}] if prompt else []
        return [{"role": "user", "content": [IMAGE_PLACE] * beside + said}]
    if not isinstance(prompt, Sequence) or not all(isinstance(m, Mapping) for m in prompt):
        return prompt
    # Images within messages stand where they are; those beside them stand first.
    messages = [_with_places(message) for message in prompt]
    if beside and not any(_has_place(message) for message in prompt):
        _stand_first(messages, beside)
    return messages


def _with_places(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message whose images are places."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    parts = [IMAGE_PLACE if is_image_part(part) else part for part in content]
    return {**message, "content": parts}


def _has_place(message: Mapping[str, Any]) -> bool:
    """Whether a message has a place of an image that stands beside the prompt."""
    content = message.get("content")
    return isinstance(content, list) and IMAGE_PLACE in content


def _stand_first(messages: list[Mapping[str, Any]], count: int) -> None:
    """Put so many places before what the user says first."""
    for at, message in enumerate(messages):
        if message.get("role") != "user":
            continue
        content = message.get("content")
        said = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
        messages[at] = {**message, "content": [IMAGE_PLACE] * count + [*said]}
        return


def _counted(count: int, what: str) -> str:
    """A number of things, in words."""
    return f"{count} {what}" + "s" * (count != 1)

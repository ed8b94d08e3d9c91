"""/v1/images/generations: OpenAI's request for pictures, and its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from polydec.api import Ask, Completion, LoadedModel
from polydec.base.options import short_repr
from polydec.models.text.picture_view import PictureView
from polydec.serve.body import (
    RequestBody,
    ResponseOptions,
    read_ask_fields,
    read_stream_options,
)
from polydec.serve.errors import RefusalError

IMAGES = "/v1/images/generations"

HONOURED: Mapping[str, tuple[str | int, ...]] = {
    "response_format": ("b64_json",),
    "output_format": ("png",),
    "quality": ("auto", "standard"),
    "style": (),
    "moderation": ("auto",),
    "output_compression": (100,),
    "partial_images": (0,),
}
"""Fields of OpenAI's clients, each with the values that say what is done anyway."""


class ImagesReader:
    """Reads a request for pictures."""

    prefix = "img"

    def read_request(
        self, body: RequestBody, model: LoadedModel, method: str, seed: int
    ) -> ResponseOptions:
        """Read a request for pictures of one class.

        Args:
            body: Body of the request, from which the fields are taken.
            model: The model that is to answer.
            method: Decoding method where the request names none.
            seed: Seed where the request has none.

        Returns:
            What the request asks for.

        Raises:
            RefusalError: Something cannot be honoured.
            RequestError: A value is out of its range.
        """
        view = model.checkpoint.view
        if view is None:
            raise RefusalError(
                "model writes text: only a model of pictures answers here", param="model"
            )
        fields = read_ask_fields(body, model, method, seed)
        prompt = body.take_field("prompt")
        if not isinstance(prompt, str) or not prompt:
            raise RefusalError(
                f"prompt is {short_repr(prompt)}: it must be a text of at least one character",
                param="prompt",
            )
        _check_size(body.take_field("size"), view)
        for name, legal in HONOURED.items():
            value = body.take_field(name)
            if value is not None and value not in legal:
                raise RefusalError(
                    f"{name} is {short_repr(value)}: it must be {' or '.join(map(str, (*legal, 'left out')))}",
                    param=name,
                )
        if body.limits is not None:
            body.limits.admit_answers(fields["n"])
        stream, usage, details, steps = read_stream_options(body)
        if stream:
            raise RefusalError(
                "stream is true: pictures are sent when they are complete", param="stream"
            )
        body.refuse_rest()
        return ResponseOptions((Ask(prompt, **fields),), stream, usage, details, steps=steps)


def _check_size(size: Any, view: PictureView) -> None:
    """Refuse a size that is not that of the model's pictures."""
    height, width, _ = view.pixel_shape
    if size not in (None, "auto", f"{width}x{height}"):
        raise RefusalError(
            f"size is {short_repr(size)}: pictures of this model have {width}x{height} pixels",
            param="size",
        )


class ImagesAnswer:
    """One response of /v1/images/generations, which is never a stream.

    Args:
        reader: What has read the request; not needed.
        wanted: What the request asks for.
        model: The model that answers.
        served: Name of the model in the response.
        name: Id of the response; OpenAI's form has none.
        created: When the request came, in seconds of the epoch.
    """

    def __init__(
        self,
        reader: ImagesReader,
        wanted: ResponseOptions,
        model: LoadedModel,
        served: str,
        name: str,
        created: int,
    ) -> None:
        self.wanted = wanted
        self.served = served
        self.created = created

    def complete_response(self, done: Sequence[Completion]) -> dict[str, Any]:
        """Write the response in OpenAI's form.

        Args:
            done: The completion, of which each choice is a picture.

        Returns:
            The response's object, in which `data` has a PNG file in base64 for each picture.
        """
        read = sum(c.usage["prompt_tokens"] for c in done)
        written = sum(c.usage["completion_tokens"] for c in done)
        pictures = [c.picture for one in done for c in one.choices if c.picture is not None]
        height, width, _ = pictures[0].pixels.shape
        out: dict[str, Any] = {
            "created": self.created,
            "model": self.served,
            "data": [{"b64_json": picture.base64_text} for picture in pictures],
            "output_format": "png",
            "size": f"{width}x{height}",
            "usage": {
                "input_tokens": read,
                "output_tokens": written,
                "total_tokens": read + written,
            },
        }
        if self.wanted.details:
            out["polydec"] = {"method": done[0].method, "metrics": done[0].metrics}
        return out

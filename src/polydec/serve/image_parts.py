"""Images over HTTP, in OpenAI's form: parts of messages, or a source."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from polydec.base.errors import RequestError
from polydec.models.formats.images import image_of_part
from polydec.serve.errors import RefusalError

IMAGE_PART = ("type", "image_url", "detail", "cache_control")
"""What a part that is an image has."""
EMPTY: tuple[Any, ...] = (None, [], {}, "")
"""Clients send back what they got, empty fields included."""


class MemberCheck(Protocol):
    """A body that refuses unknown members of its objects, or notes them where it ignores them."""

    def refuse_members(
        self,
        where: str,
        value: Mapping[str, Any],
        known: Collection[str],
        nothing: Collection[Any] = (None,),
    ) -> None:
        """Refuse an unknown member of an object inside a field, or note it.

        Args:
            where: Path of the object.
            value: The object.
            known: Names of the members that are read.
            nothing: Values by which an unknown member says nothing.

        Raises:
            RefusalError: A member is unknown.
        """
        ...


def read_image_part(where: str, part: Mapping[str, Any], body: MemberCheck) -> dict[str, Any]:
    """Read an image. Whether the model reads one is seen with the model.

    Args:
        where: Path of the part, which begins with its field's name.
        part: The part as it was sent.
        body: Body of the request.

    Returns:
        The part, without what says nothing of the image.

    Raises:
        RefusalError: A member is unknown, or the part holds no data URL.
    """
    body.refuse_members(where, part, IMAGE_PART, EMPTY)
    held = part.get("image_url")
    if isinstance(held, Mapping):
        # `detail` says at which size OpenAI's models read; here each model has a size of its own.
        body.refuse_members(f"{where}.image_url", held, ("url", "detail"), EMPTY)
    try:
        image_of_part(part, where)
    except RequestError as why:
        raise RefusalError(str(why), param=where.partition("[")[0]) from None
    return {"type": "image_url", "image_url": held}

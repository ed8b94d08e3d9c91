"""Vectors among the ids of a prompt over HTTP: a safetensors file in base64, bounded before it is read."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from typing import Any

from polydec.base.options import short_repr
from polydec.models.sessions.soft import Soft
from polydec.serve.errors import RefusalError

HEADER = 4096
"""Most bytes that say what stands in the file."""
ROWS = 8192
"""Most vectors of one entry."""


def read_prompt_vectors(fields: Mapping[str, Any]) -> Soft:
    """Read vectors that stand among the ids of a prompt.

    Args:
        fields: {"vectors": base64 of a safetensors file with one tensor, "stands_for": token ids or
            null}.

    Returns:
        The vectors.

    Raises:
        RefusalError: It is anything else.
    """
    if unknown := next((k for k in fields if k not in ("vectors", "stands_for")), None):
        raise RefusalError(
            f"prompt has vectors with {short_repr(unknown)}: they hold vectors and stands_for",
            param="prompt",
        )
    words = fields.get("stands_for")
    if words is not None and (
        not isinstance(words, list) or not all(type(x) is int for x in words)
    ):
        raise RefusalError(
            f"stands_for is {short_repr(words)}: it must be a list of token ids", param="prompt"
        )
    return Soft(_tensor(fields.get("vectors")), words)


def _tensor(text: Any) -> Any:
    from safetensors import SafetensorError
    from safetensors.torch import load

    if not isinstance(text, str):
        raise RefusalError(
            f"vectors is {short_repr(text)}: it must be a safetensors file in base64",
            param="prompt",
        )
    try:
        data = b64decode(text, validate=True)
    except ValueError:
        raise RefusalError("vectors is no base64", param="prompt") from None
    # The first eight bytes say how long the header is: a long one would be parsed before anything
    # is checked.
    if len(data) < 8 or not 2 <= int.from_bytes(data[:8], "little") <= HEADER:
        raise RefusalError(
            f"vectors is no safetensors file with a header of at most {HEADER} bytes",
            param="prompt",
        )
    try:
        tensors = load(data)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError):
        raise RefusalError("vectors is no whole safetensors file", param="prompt") from None
    if len(tensors) != 1:
        raise RefusalError(
            f"vectors has {len(tensors)} tensors: it must have one, [k, width]", param="prompt"
        )
    (made,) = tensors.values()
    if made.ndim != 2 or not 1 <= len(made) <= ROWS or not made.is_floating_point():
        raise RefusalError(
            f"vectors has shape {tuple(made.shape)} and type {str(made.dtype).removeprefix('torch.')}: it must be "
            f"[k, width] of floating-point numbers, k of 1 to {ROWS}",
            param="prompt",
        )
    return made

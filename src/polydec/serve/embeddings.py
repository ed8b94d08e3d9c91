"""/v1/embeddings: OpenAI's request for vectors, and its answer."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from polydec.api import LoadedModel
from polydec.base.options import short_repr
from polydec.request.embedding import (
    EmbeddingInput,
    embedding_width,
    prepare_embedding_inputs,
    resolve_embedding_settings,
)
from polydec.request.reading import EmbeddingSettings, embedding_options
from polydec.serve.body import RequestBody
from polydec.serve.errors import RefusalError
from polydec.serve.json_text import LazyRows
from polydec.serve.limits import RequestLimits

MOST = 2048
"""Texts of a request, as OpenAI has it."""

NUMBERS = 4
PACKED_NUMBERS = 16
"""Numbers of vectors that take as much room in a response as a log-probability; in base64."""


@dataclass(frozen=True)
class EmbeddingRequest:
    """A request for vectors, checked.

    Attributes:
        texts: The texts to read, as token ids.
        how: How vectors are read out of the model.
        dimensions: Numbers of a vector, from its beginning. None: all.
        packed: Whether vectors are sent as base64, and not as numbers.
    """

    texts: Sequence[EmbeddingInput]
    how: EmbeddingSettings
    dimensions: int | None
    packed: bool

    @property
    def tokens(self) -> int:
        return sum(len(t.ids) for t in self.texts)

    def answer_body(self, model: str, rows: Tensor) -> dict[str, Any]:
        """Write the answer in OpenAI's form.

        Args:
            model: Name under which the model is served.
            rows: The vectors, shape ``[texts, width]``.

        Returns:
            The response's object; each row is made when it is written.
        """
        vectors = rows[:, : self.dimensions]
        # A vector that was cut has length 1 no more.
        if self.how.normalised and self.dimensions:
            vectors = normalize(vectors, dim=-1)

        def table_row(at: int) -> dict[str, Any]:
            if self.packed:
                vector = _packed(vectors[at])
            else:
                vector = vectors[at].tolist()
            return {"object": "embedding", "index": at, "embedding": vector}

        return {
            "object": "list",
            "data": LazyRows(table_row, range(len(vectors))),
            "model": model,
            "usage": {"prompt_tokens": self.tokens, "total_tokens": self.tokens},
        }


def _packed(row: Tensor) -> str:
    return b64encode(row.contiguous().to(torch.float32).numpy().astype("<f4").tobytes()).decode()


def read_embedding_request(
    body: RequestBody, model: LoadedModel, limits: RequestLimits
) -> EmbeddingRequest:
    """Read a request for vectors.

    Args:
        body: Body of the request.
        model: The model that is to read.
        limits: Limits of the server.

    Returns:
        The request.

    Raises:
        RefusalError: A field is malformed, or the response would list too many numbers.
        RequestError: A text is too long, or the model gives no such vectors.
    """
    texts = body.take_field("input")
    form = body.take_field("encoding_format", "float")
    fields = {
        name: value for name in embedding_options() if (value := body.take_field(name)) is not None
    }
    how = resolve_embedding_settings(model, EmbeddingSettings(**fields))
    dimensions = body.whole_number("dimensions", 1, embedding_width(model, how))
    body.refuse_rest()
    if form not in ("float", "base64"):
        raise RefusalError(
            f"encoding_format is {short_repr(form)}: it must be float or base64",
            param="encoding_format",
        )
    given = _texts(texts)
    width = dimensions or embedding_width(model, how)
    packed = form == "base64"
    most = limits.entries * (PACKED_NUMBERS if packed else NUMBERS)
    # Bounded before anything is computed: the response is made in memory.
    if len(given) * width > most:
        raise RefusalError(
            f"input has {len(given)} texts, and {width} numbers each: this server lists at most {most} in a response: give "
            f"fewer texts, or ask for fewer dimensions{'' if packed else ' or for base64'}",
            param="input",
        )
    return EmbeddingRequest(
        prepare_embedding_inputs(model, given, how, limits.prompt), how, dimensions, packed
    )


def _texts(value: Any) -> Sequence[Any]:
    """A text, texts, token ids, or lists of them."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not value:
        raise RefusalError(
            f"input is {short_repr(value)}: it must be a text, token ids, or a list of either",
            param="input",
        )
    # A list of integers is one text in token ids.
    if type(value[0]) is int:
        texts = (value,)
    else:
        texts = value
    if len(texts) > MOST:
        raise RefusalError(f"input has {len(texts)} texts: it may have {MOST}", param="input")
    for at, text in enumerate(texts):
        if not isinstance(text, (str, list)):
            raise RefusalError(
                f"input[{at}] is {short_repr(text)}: it must be a text or token ids", param="input"
            )
    return texts

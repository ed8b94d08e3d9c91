"""/v1/embeddings: OpenAI's request for vectors, and its answer."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from polydec.api import LM
from polydec.base.options import shown
from polydec.request.embedding import Prepared, prepared, settled
from polydec.request.reading import Reading, declared
from polydec.serve.body import Body
from polydec.serve.errors import Refusal
from polydec.serve.json_text import LazyRows
from polydec.serve.limits import Limits

MOST = 2048
"""Texts of a request, as OpenAI has it."""

NUMBERS, PACKED_NUMBERS = 4, 16
"""Numbers of vectors that take as much room in a response as a log-probability; in base64."""


@dataclass(frozen=True)
class Embeddings:
    """A request, checked. dimensions: numbers of a vector, from its beginning; packed: they are sent as base64, not as
    numbers."""

    texts: Sequence[Prepared]
    how: Reading
    dimensions: int | None
    packed: bool

    @property
    def tokens(self) -> int:
        return sum(len(t.ids) for t in self.texts)

    def answer(self, model: str, rows: Tensor) -> dict[str, Any]:
        """OpenAI's object; rows: the vectors."""
        vectors = rows[:, : self.dimensions]
        vectors = normalize(vectors, dim=-1) if self.how.normalised and self.dimensions else vectors

        def row(at: int) -> dict[str, Any]:
            vector = _packed(vectors[at]) if self.packed else vectors[at].tolist()
            return {"object": "embedding", "index": at, "embedding": vector}

        return {
            "object": "list",
            "data": LazyRows(row, range(len(vectors))),
            "model": model,
            "usage": {"prompt_tokens": self.tokens, "total_tokens": self.tokens},
        }


def _packed(row: Tensor) -> str:
    return b64encode(row.contiguous().to(torch.float32).numpy().astype("<f4").tobytes()).decode()


def read(body: Body, model: LM, limits: Limits) -> Embeddings:
    """Raises Refusal or RequestError for what cannot be honoured."""
    texts, form = body.take("input"), body.take("encoding_format", "float")
    dimensions = body.whole("dimensions", 1, _width(model))
    fields = {name: value for name in declared() if (value := body.take(name)) is not None}
    body.end()
    if form not in ("float", "base64"):
        raise Refusal(
            f"encoding_format is {shown(form)}: it must be float or base64", param="encoding_format"
        )
    how, given = settled(model, Reading(**fields)), _texts(texts)
    width, packed = dimensions or _width(model), form == "base64"
    most = limits.entries * (PACKED_NUMBERS if packed else NUMBERS)
    if len(given) * width > most:
        raise Refusal(
            f"input has {len(given)} texts, and {width} numbers each: this server lists at most {most} in a response: give "
            f"fewer texts, or ask for fewer dimensions{'' if packed else ' or for base64'}",
            param="input",
        )
    return Embeddings(prepared(model, given, how, limits.prompt), how, dimensions, packed)


def _width(model: LM) -> int:
    return model.network.embed((0,)).shape[1]


def _texts(value: Any) -> Sequence[Any]:
    """A text, texts, token ids, or lists of them."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not value:
        raise Refusal(
            f"input is {shown(value)}: it must be a text, token ids, or a list of either",
            param="input",
        )
    texts = (value,) if type(value[0]) is int else value
    if len(texts) > MOST:
        raise Refusal(f"input has {len(texts)} texts: it may have {MOST}", param="input")
    for at, text in enumerate(texts):
        if not isinstance(text, (str, list)):
            raise Refusal(
                f"input[{at}] is {shown(text)}: it must be a text or token ids", param="input"
            )
    return texts

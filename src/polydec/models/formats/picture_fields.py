"""The fields of `polydec_picture` in a config.json. A model of texts never needs them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from polydec.base.outside_records import StrictRecord

MOST_CLASSES = 4096
"""Classes that a prompt may name at most."""

Side = Annotated[int, Field(ge=1, le=512)]
ClassWord = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^\S+$")]


class PictureFields(StrictRecord):
    """`polydec_picture` of a config.json: a grid of tokens, and the words of its prompts.

    `dropped` is the word of a prompt that names no class, as guidance reads it; None: there is none.
    `patch`: pictures are drawn by vectors, each of which is a square of so many tokens a side, and a
    text holds one square behind the other; None: token by token, in rows. `row_end`: the token that
    stands behind every row; None: rows follow one another.
    """

    height: Side
    width: Side
    classes: Annotated[list[ClassWord], Field(min_length=1, max_length=MOST_CLASSES)]
    dropped: ClassWord | None = None
    patch: Annotated[int, Field(ge=1, le=64)] | None = None
    row_end: Annotated[int, Field(ge=0, le=1 << 24)] | None = None

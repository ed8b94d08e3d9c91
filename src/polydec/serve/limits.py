"""What the server lets its clients take."""
from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Annotated

from polydec.options import Option, Within, read


@dataclass(frozen=True)
class Limits:
    """Of one model's requests. Raises ValueError for a value out of its range."""
    running: Annotated[int, Within(1, 4096), "answers that are written at the same time"] = 64
    waiting: Annotated[int, Within(0, 65536), "answers that wait for their turn; more are refused with 429"] = 256
    body: Annotated[int, Within(1024, 1 << 28), "bytes of a request"] = 4 << 20
    prompt: Annotated[int, Within(1, 1 << 24), "tokens of a prompt"] = 1 << 17
    output: Annotated[int, Within(1, 1 << 24), "tokens of an answer"] = 4096
    seconds: Annotated[float, Within(0.001, 86400), "of a request, waiting included"] = 600.0
    positions: Annotated[int, Within(1, 1 << 20), "of one pass of the model"] = 4096

    def __post_init__(self) -> None:
        for option in limits():
            object.__setattr__(self, option.name, option.convert(getattr(self, option.name)))


@cache
def limits() -> tuple[Option, ...]:
    """The fields of `Limits` with their ranges."""
    return read(Limits)

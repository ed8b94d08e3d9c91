"""What the server lets its clients take."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated

from polydec.api import LM, Ask
from polydec.base.errors import RequestError
from polydec.base.options import Option, Within, read
from polydec.models.soft import surplus
from polydec.request.ask import room, steering


@dataclass(frozen=True)
class Limits:
    """Of one model's requests. Raises RequestError for a value out of its range."""

    running: Annotated[int, Within(1, 4096), "answers that are written at the same time"] = 64
    waiting: Annotated[
        int, Within(0, 65536), "answers that wait for their turn; more are refused with 429"
    ] = 256
    body: Annotated[int, Within(1024, 1 << 28), "bytes of a request"] = 4 << 20
    prompt: Annotated[int, Within(1, 1 << 24), "tokens of a prompt"] = 1 << 17
    output: Annotated[int, Within(1, 1 << 24), "tokens of an answer"] = 4096
    seconds: Annotated[float, Within(0.001, 86400), "of a request, waiting included"] = 600.0
    positions: Annotated[
        int,
        Within(0, 1 << 20),
        "of one pass of the model; 0: from what passes cost on this machine",
    ] = 0
    wait: Annotated[
        float, Within(0.001, 86400), "seconds that a request waits for its turn; then it is a 503"
    ] = 300.0
    cache: Annotated[
        int, Within(0, 1 << 50), "bytes of the caches of all requests; 0: as much as they take"
    ] = 0

    def __post_init__(self) -> None:
        for option in limits():
            object.__setattr__(self, option.name, option.convert(getattr(self, option.name)))

    def admit(self, answers: int) -> None:
        """Raise RequestError where a request asks for more answers than there can ever be room for."""
        most = self.running + self.waiting
        if answers > most:
            raise RequestError(
                f"n is {answers} over all prompts: this server takes at most {most} answers at a time"
            )


@cache
def limits() -> tuple[Option, ...]:
    """The fields of `Limits` with their ranges."""
    return read(Limits)


def fitted(model: LM, ask: Ask, limits: Limits) -> Ask:
    """A request within the limits. Its max_tokens None: as much as there is room for. Raises RequestError for one that goes
    beyond them."""
    most = min(limits.prompt, model.network.context)
    ids = model.ids(ask.prompt, raw=ask.raw, tools=ask.tools, template=ask.template, most=most)
    steered = steering(model, ask, ids, ask.raw, most)
    second = () if steered is None or steered.second is None else steered.second
    for name, text in (("prompt", ids), ("negative_prompt", second)):
        if len(text) > limits.prompt:
            raise RequestError(
                f"{name} has {len(text)} tokens: this server takes at most {limits.prompt}"
            )
    if ask.max_tokens is None:
        left = room(model, ask.method, ids, steered)[0] - surplus(ask.prompt)
        return replace(ask, max_tokens=max(1, min(limits.output, left)))
    if ask.max_tokens > limits.output:
        raise RequestError(
            f"max_tokens is {ask.max_tokens}: this server writes at most {limits.output}"
        )
    return ask

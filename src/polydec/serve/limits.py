"""Requests within what the server lets its clients take."""

from __future__ import annotations

from dataclasses import replace

from polydec.api import LM, Ask
from polydec.base.errors import RequestError
from polydec.models.soft import surplus
from polydec.request.ask import room, steering
from polydec.serve.settings import Limits


def fitted(model: LM, ask: Ask, limits: Limits) -> Ask:
    """A request within the limits. Its max_tokens None: as much as there is room for. Raises RequestError for one that goes
    beyond them."""
    model = model.in_units(ask.units, ask.covers)
    most, source = min(limits.prompt, model.network.context), tuple[int, ...]()
    if hasattr(model.checkpoint.lm, "given"):
        model, source, ids = model.from_source(ask, most)
    else:
        ids = model.ids(
            ask.prompt,
            raw=ask.raw,
            tools=ask.tools,
            template=ask.template,
            ending=ask.prompt_ending,
            most=most,
        )
    steered = steering(model, ask, ids, ask.raw, most)
    second = () if steered is None or steered.second is None else steered.second
    for name, text in (("prompt", ids), ("negative_prompt", second), ("source", source)):
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

"""Requests within what the server lets its clients take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polydec.api import Ask, LoadedModel
from polydec.base.errors import RequestError
from polydec.models.sessions.soft import soft_prompt_surplus
from polydec.request.ask import answer_token_room, plan_steering
from polydec.serve.settings import RequestLimits


def apply_request_limits(
    model: LoadedModel, asks: Sequence[Ask], limits: RequestLimits
) -> list[Ask]:
    """Fit the prompts of one response into the server's limits.

    Args:
        model: The model that is to answer.
        asks: The requests; max_tokens None becomes as much as there is room for.
        limits: Limits of the server.

    Returns:
        The requests, each with max_tokens.

    Raises:
        RequestError: One of them, or the log-probabilities that all of them list, goes beyond a
            limit.
    """
    out = list[Ask]()
    listed = 0
    for ask in asks:
        fit, listed = _within(model, ask, limits, listed)
        if listed > limits.entries:
            raise RequestError(_too_many(asks, limits))
        out.append(fit)
    return out


def _within(model: LoadedModel, ask: Ask, limits: RequestLimits, listed: int) -> tuple[Ask, int]:
    """A request within the limits, and how many log-probabilities are listed up to its last one.

    `listed` is how many the requests before it list.
    """
    model = model.in_units(ask.units, ask.covers)
    # Encoding stops there: a longer text is refused anyway.
    most = min(limits.prompt, model.network.context)
    source = tuple[int, ...]()
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
            sanitize_control_tokens=ask.sanitize_control_tokens,
        )
    steered = plan_steering(model, ask, ids, ask.raw, most)
    # A second prompt is fed like the first one, and bounded like it.
    if steered is None or steered.second is None:
        second = ()
    else:
        second = steered.second
    for name, text in (("prompt", ids), ("negative_prompt", second), ("source", source)):
        if len(text) > limits.prompt:
            raise RequestError(
                f"{name} has {len(text)} tokens: this server takes at most {limits.prompt}"
            )
    listed += ask.n * len(ids) * _each(ask.prompt_logprobs)
    each = ask.n * _each(ask.logprobs)  # for each token of the answers
    if ask.max_tokens is None:
        left = answer_token_room(model, ask.method, ids, steered)[0] - soft_prompt_surplus(
            ask.prompt
        )
        most = min(limits.output, left)
        # Where the length is free, it also fits what may still be listed.
        if each:
            most = min(most, (limits.entries - listed) // each)
        ask = replace(ask, max_tokens=max(1, most))
    elif ask.max_tokens > limits.output:
        raise RequestError(
            f"max_tokens is {ask.max_tokens}: this server writes at most {limits.output}"
        )
    assert ask.max_tokens is not None
    return ask, listed + each * ask.max_tokens


def _each(alternatives: int | None) -> int:
    """Log-probabilities that are listed for one token."""
    if alternatives is None:
        return 0
    return 1 + alternatives


def _too_many(asks: Sequence[Ask], limits: RequestLimits) -> str:
    first = asks[0]
    prompted = _each(first.prompt_logprobs) > _each(first.logprobs)
    if prompted:
        name = "prompt_logprobs"
        value = first.prompt_logprobs
    else:
        name = "logprobs"
        value = first.logprobs
    return (
        f"{name} is {value}: prompts and answers would list more than {limits.entries} log-probabilities, alternatives "
        "included, which is what this server lists: ask for fewer alternatives, tokens, answers or prompts"
    )

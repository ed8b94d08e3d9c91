"""Requests within what the server lets its clients take."""

from __future__ import annotations

from collections.abc import Sequence

from polydec.api import Ask, LoadedModel
from polydec.base.errors import RequestError
from polydec.methods.registry import steer
from polydec.models.sessions.soft import soft_prompt_surplus
from polydec.request.ask import encode_prompts, validate_request
from polydec.request.room import answer_token_room
from polydec.request.stages import EncodedRequest
from polydec.serve.settings import RequestLimits


def apply_request_limits(
    model: LoadedModel, asks: Sequence[Ask], limits: RequestLimits
) -> list[EncodedRequest]:
    """The prompts of one response within the limits of a server.

    Args:
        model: Of the engine that runs them.
        asks: The requests; max_tokens None: as much as there is room for.
        limits: What clients may take.

    Returns:
        The requests, checked and encoded.

    Raises:
        RequestError: One of them, or what all of them list, goes beyond the limits, or cannot be
            honoured.
    """
    out = list[EncodedRequest]()
    listed = 0
    for ask in asks:
        fit, listed = _within(model, ask, limits, listed)
        if listed > limits.entries:
            raise RequestError(_too_many(asks, limits))
        out.append(fit)
    return out


def _within(
    model: LoadedModel, ask: Ask, limits: RequestLimits, listed: int
) -> tuple[EncodedRequest, int]:
    """A request within the limits, and how many log-probabilities are listed up to its last;
    listed: those before it."""
    checked = validate_request(model, ask)
    steering = checked.steering
    # A way that reads passages in fewer positions takes prompts that are longer than the context.
    if steering is not None and steer.shortens_prompts(steering.card.name):
        room = limits.prompt
    else:
        room = min(limits.prompt, model.network.context)
    # Far beyond this room a text is not even encoded.
    encoded = encode_prompts(checked, room)
    ask = encoded.ask
    if encoded.steering is None:
        second = ()
    else:
        second = encoded.steering.second or ()
    texts = {"prompt": encoded.ids, "negative_prompt": second, "source": encoded.source}
    for name, text in texts.items():
        if len(text) > limits.prompt:
            raise RequestError(
                f"{name} has {len(text)} tokens: this server takes at most {limits.prompt}"
            )
    # What is given of an answer says how long it is.
    if encoded.infill:
        if len(encoded.infill) > limits.output:
            raise RequestError(
                f"infill has {len(encoded.infill)} tokens, gaps and its end included: this server writes at most "
                f"{limits.output}"
            )
        encoded = encoded.with_max_tokens(len(encoded.infill))
        ask = encoded.ask
    listed += ask.n * len(encoded.ids) * _each(ask.prompt_logprobs)
    each = ask.n * _each(ask.logprobs)  # for each token of the answers
    if ask.max_tokens is None:
        left = answer_token_room(encoded, encoded.ids)[0] - soft_prompt_surplus(ask.prompt)
        most = min(limits.output, left)
        # Where the length is free, it also fits what may still be listed.
        if each:
            most = min(most, (limits.entries - listed) // each)
        encoded = encoded.with_max_tokens(max(1, most))
    elif ask.max_tokens > limits.output:
        raise RequestError(
            f"max_tokens is {ask.max_tokens}: this server writes at most {limits.output}"
        )
    assert encoded.ask.max_tokens is not None
    return encoded, listed + each * encoded.ask.max_tokens


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

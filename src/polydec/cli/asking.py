"""How commands ask the engine: the one place that knows its calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from polydec import api
from polydec.methods.economics.costs import PassCosts


def check_requests(
    lm: api.LoadedModel,
    prompts: Iterable[tuple[api.Prompt, bool]],
    methods: Iterable[tuple[str, Mapping[str, Any]]],
    **request: Any,
) -> None:
    """Plan every prompt by every method without decoding: what takes minutes begins after all has
    been checked.

    Args:
        lm: The loaded model.
        prompts: Prompts, each with whether it goes in without the chat template.
        methods: Names of methods, each with its options.
        request: What all requests hold.

    Raises:
        RequestError: A prompt or a method is refused.
    """
    from polydec.request.ask import plan_request  # loads torch

    prompts = list(prompts)
    methods = list(methods)
    for method, options in methods:
        lm.check_method(method, options)
    for method, options in methods:
        for prompt, raw in prompts:
            plan_request(
                lm,
                api.Ask(prompt, method=method, options=options, raw=raw, **request),
                # Default costs: a plan for a check must not time passes.
                measure=PassCosts,
            )

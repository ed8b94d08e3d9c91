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
    """Raise RequestError with one sentence if any of these (prompt, raw) is refused by any of these (method, options) with this
    request. Nothing is computed: what takes minutes begins after all has been checked."""
    from polydec.request.ask import plan_request  # loads torch

    prompts = list(prompts)
    methods = list(methods)
    for method, options in methods:
        lm.check(method, options)
    for method, options in methods:
        for prompt, raw in prompts:
            plan_request(
                lm,
                api.Ask(prompt, method=method, options=options, raw=raw, **request),
                measure=PassCosts,
            )

"""How commands ask the engine: the one place that knows its calls."""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from polydec import api, registry


def check(lm: api.LM, prompts: Iterable[tuple[api.Prompt, bool]], methods: Iterable[tuple[str, Mapping[str, Any]]],
          **request: Any) -> None:
    """Raise ValueError with one sentence if any of these (prompt, raw) is refused by any of these (method, options) with this
    request. Nothing is computed: what takes minutes begins after all has been checked."""
    prompts, methods = list(prompts), list(methods)
    for method, options in methods:
        lm.check(method, options)
    engine = api.Engine(lm)
    for method, options in methods:
        for prompt, raw in prompts:
            ticket = engine.submit(prompt, method=method, options=options, raw=raw, **request)
            engine.cancel(ticket)
            check_draft(lm, ticket, method)


def check_draft(lm: api.LM, ticket: api.Ticket, method: str) -> None:
    """Raise ValueError where a draft with a tokenizer of its own has not the context that the prompt takes there."""
    card = registry.get(method).CARD
    if lm.draft is None or "draft" not in card.needs or card.same_tokenizer:
        return
    text = lm.checkpoint.text.decode(list(ticket.prompt))
    taken, context = len(lm.draft.text.encode(text)), lm.draft.lm.network.context
    if taken >= context:
        raise ValueError(f"prompt has {taken} tokens of the draft {lm.draft.name}: its context holds {context}, the answer "
                         "included")

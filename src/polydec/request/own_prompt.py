"""How the draft of a model over bytes reads a request's prompt: as its own tokenizer and chat
template have it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from polydec.base.errors import PolydecError
from polydec.models.sessions.checkpoint import (
    DeferredBundle,
    ModelBundle,
    resolve_deferred_bundle,
)
from polydec.request.loaded import LoadedModel
from polydec.request.prompt_encoder import PromptEncoder
from polydec.request.stages import CheckedRequest, EncodedRequest
from polydec.request.units import over_bytes


def draft_with_own_prompt(encoded: EncodedRequest) -> LoadedModel:
    """A model over bytes whose draft reads the prompt as its own tokenizer and chat template have
    it; the model as it is where there is no draft."""
    checked = encoded.checked
    model = encoded.model
    aligned = model.draft
    draft = checked.loaded.draft
    if aligned is None or draft is None:
        return model
    law: Any = model.checkpoint.lm

    def with_own_prompt() -> ModelBundle:
        second = resolve_deferred_bundle(aligned)
        # The draft as a law over bytes of its own, whose prompt is in its own ids.
        own = over_bytes(resolve_deferred_bundle(draft), law.width)
        prompt = _own_prompt(own, checked)
        # A prompt that it cannot encode by itself is spelled from the model's bytes.
        if prompt is None:
            prompt = own.text.encode(law.prompt_text(encoded.ids))
        head = own.lm.fixed_beginning(prompt)
        return replace(second, lm=replace(second.lm, instead=(encoded.ids, head)))

    return replace(model, draft=DeferredBundle(draft.name, with_own_prompt))


def _own_prompt(own: ModelBundle, checked: CheckedRequest) -> tuple[int, ...] | None:
    """How a second model over bytes reads the prompt of a request; None: by no template of its own."""
    ask = checked.ask
    if checked.form.token_ids:
        return None
    chat = checked.model.checkpoint.text.has_chat and not ask.raw
    if chat and not own.text.has_chat:
        return None
    encoder = PromptEncoder(own.name, own.text, own.lm.vocab.size)
    try:
        return encoder.encode_request(replace(ask, raw=not chat))
    except PolydecError:
        # Its template refuses what the first one shows.
        return None

"""How many tokens an answer may have: what the contexts of the models leave behind a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from polydec.base.errors import RequestError
from polydec.methods.registry import steer
from polydec.methods.registry.kit import DRAFT
from polydec.request.fields import LENGTH
from polydec.request.stages import EncodedRequest

if TYPE_CHECKING:
    from polydec.request.loaded import LoadedModel


def answer_token_room(encoded: EncodedRequest, ids: Sequence[int]) -> tuple[int, str]:
    """How long an answer may be.

    Args:
        encoded: The request.
        ids: Of its prompt, or what the model reads in their place.

    Returns:
        The tokens that there is room for, and of whose context they are, as a part of a sentence.

    Raises:
        RequestError: There is no room behind one of the prompts.
    """
    model = encoded.model
    steering = encoded.steering
    contexts = [(model.checkpoint.lm.context, model.name)]
    needs = encoded.checked.card.needs
    if steering is None:
        second = ()
        own = 0
    else:
        second = steering.second or ()
        own = steer.steering_vector_positions(steering.card.name, steering.options)
        needs = (*needs, *steering.card.needs)
    if model.draft is not None and DRAFT in needs:
        contexts.append((model.draft.lm.network.context, model.draft.name))
    context, who = min(contexts, key=lambda entry: entry[0])
    for name, text in (("prompt", ids), ("negative_prompt", second)):
        if context - count_context_tokens(model, text) - own < 1:
            if own:
                vectors = f" and {own} vectors stand in it"
            else:
                vectors = ""
            raise RequestError(
                f"{name} has {_text_length(model, text)}{vectors}: the context of {who} holds {context}, the answer included"
            )
    longest = max(count_context_tokens(model, text) for text in (ids, second))
    why = f"the context of {who} holds {context}" + (f", {own} vectors included" * bool(own))
    return context - own - longest, why


def answer_length(encoded: EncodedRequest) -> int:
    """Tokens of an answer at most: those that are asked for, else as many as is usual and there is
    room for. Raises RequestError where there is no room."""
    ids = encoded.ids
    # Vectors may take more places than the ids that stand for them, or fewer.
    if encoded.vectors is not None:
        ids = max(ids, encoded.vectors.instead, key=len)
    most, why = answer_token_room(encoded, ids)
    asked = len(encoded.infill) or encoded.ask.max_tokens
    view = encoded.model.checkpoint.view
    if view is not None and (asked or 0) > view.token_count:
        raise RequestError(
            f"max_tokens is {asked}: a picture of {encoded.model.name} has {view.token_count} tokens, so leave it out"
        )
    if asked is None and view is not None:
        return view.token_count
    if asked is None:
        return min(LENGTH, most)
    marks = encoded.gap_marks
    if marks is not None and (takes := marks.context_tokens(encoded.infill)) > most:
        raise RequestError(
            f"infill takes {takes} tokens with the marks of its gaps: the prompt has {_text_length(encoded.model, ids)} "
            f"and {why}, so it can take at most {most}"
        )
    if asked > most:
        raise RequestError(
            f"max_tokens is {asked}: the prompt has {_text_length(encoded.model, ids)} and {why}, so it can be at most {most}"
        )
    return asked


def count_context_tokens(model: LoadedModel, text: Sequence[int]) -> int:
    """Tokens of a model's context that a text takes.

    Args:
        model: Over the units in which the text is written.
        text: Its ids.

    Returns:
        As many as it has, or fewer where it is written in bytes.
    """
    if model.checkpoint.unit == "byte" and text:
        return model.checkpoint.lm.tokens_of(text)
    return len(text)


def _text_length(model: LoadedModel, text: Sequence[int]) -> str:
    """How long a text is, in words."""
    tokens = count_context_tokens(model, text)
    if model.checkpoint.unit == "byte":
        return f"{len(text)} bytes, which are {tokens} tokens"
    return f"{tokens} tokens"

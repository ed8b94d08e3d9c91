"""How many tokens an answer may have: what the contexts of the models leave behind a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from polydec.base.errors import RequestError
from polydec.methods.registry import steer
from polydec.methods.registry.kit import DRAFT
from polydec.request.fields import LENGTH
from polydec.request.image_presses import skipped_positions
from polydec.request.stages import EncodedRequest
from polydec.request.steering import steering_kit

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
    needs = encoded.checked.card.needs
    if steering is None:
        second = ()
        own = 0
        again = (0, 0)
    else:
        second = steering.second or ()
        own = steer.steering_vector_positions(steering.card.name, steering.options)
        again = steer.recurring_vector_positions(steering.card.name, steering.options)
        needs = (*needs, *steering.card.needs)
    texts = {
        "prompt": prompt_positions(encoded, ids),
        "negative_prompt": count_context_tokens(model, second),
    }
    readers = [(model.checkpoint.lm.context, model.name, texts)]
    if model.draft is not None and DRAFT in needs:
        # A draft reads the words, whatever the model reads in their place.
        positions = count_context_tokens(model, ids) + skipped_positions(encoded)
        words = {**texts, "prompt": positions}
        readers.append((model.draft.lm.network.context, model.draft.name, words))
    # Both bound the answer, each by its own reading of the prompt.
    rooms = list[tuple[int, str]]()
    # The smallest context is the one that a refusal names.
    for context, who, taken in sorted(readers, key=lambda reader: reader[0]):
        for name, positions in taken.items():
            if context - positions - own < 1:
                text = ids if name == "prompt" else second
                fewer = positions < count_context_tokens(model, text)
                read = f", which are read in {positions} positions" * fewer
                vectors = f" and {own} vectors stand in it" * bool(own)
                raise RequestError(
                    f"{name} has {_text_length(model, text)}{read}{vectors}: the context of {who} holds {context}, the answer "
                    "included"
                )
        why = f"the context of {who} holds {context}" + (f", {own} vectors included" * bool(own))
        left = context - own - max(taken.values())
        rooms.append((tokens_between_vectors(left, *again), why))
    return min(rooms, key=lambda room: room[0])


def tokens_between_vectors(positions: int, vectors: int, every: int) -> int:
    """How many tokens of an answer there is room for, where vectors stand between them.

    Args:
        positions: Positions that are left.
        vectors: Those that vectors take behind each `every` tokens.
        every: Tokens between them; 0: no vectors stand there.

    Returns:
        Tokens, 0 or more.
    """
    if not every:
        return positions
    # A part is so many tokens and the vectors that follow them.
    whole, rest = divmod(positions, every + vectors)
    # Behind the last whole part only tokens stand that need no vectors before the next one.
    return whole * every + min(rest, every - 1)


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


def prompt_positions(encoded: EncodedRequest, ids: Sequence[int]) -> int:
    """How many positions of the model's context a prompt takes as it is steered.

    Args:
        encoded: The request.
        ids: Of its prompt, or what the model reads in their place.

    Returns:
        The positions, without those of vectors that a way reads beside the prompt.
    """
    steering = encoded.steering
    # A way shortens what is all tokens, and has checked what it needs before its law is asked for.
    if steering is None or not steer.shortens_prompts(steering.card.name) or encoded.vectors:
        return count_context_tokens(encoded.model, ids) + skipped_positions(encoded)
    # A kit of the bare model: nothing is bent yet where room is counted.
    kit = steering_kit(encoded, encoded.model.checkpoint.lm)
    return steer.steered_prompt_positions(steering.card.name, kit, steering.options)

"""The law of texts that are written from another form of what they are written from."""

from __future__ import annotations

from collections.abc import Sequence

from polydec.base.errors import RequestError
from polydec.core.protocols import Target
from polydec.laws.targets.other_prompt import SecondPromptTarget
from polydec.laws.targets.shaped import ShapedTarget
from polydec.models.sessions.encoder_decoder import EncoderSource
from polydec.models.sessions.lm import CausalLaw


def law_behind_form(
    target: Target, prompt: Sequence[int], instead: Sequence[int], answer: int
) -> Target:
    """A law with another form of its source.

    Of a model with an encoder that is what the encoder reads. A model without one reads its prompt
    so, and a text that does not begin with that prompt as it is.

    Args:
        target: The law, which sampling may have shaped; rules see the prompt that was given.
        prompt: The prompt of the request.
        instead: What is read: the source, or the prompt, in its other form.
        answer: Tokens of a text at most.

    Returns:
        The law, shaped as before.

    Raises:
        RequestError: What is read is longer than the model's context, or leaves no room for the text.
    """
    # Shapers go around the new law: a rule such as a penalty must not see the marks.
    if isinstance(target, ShapedTarget):
        inner = law_behind_form(target.target, prompt, instead, answer)
        return ShapedTarget(inner, *target.shapers)
    # Only the innermost law knows its encoder.
    beside = target.beside if isinstance(target, CausalLaw) else None
    if isinstance(beside, EncoderSource):
        # Said here with its reason: the source that was given may well have been short enough.
        if len(instead) > beside.model.context:
            raise RequestError(
                f"source has {len(instead)} tokens with the marks of a plan: "
                f"this model reads at most {beside.model.context}"
            )
        return beside.model.law_given_source(instead, beside.cache_salt)
    # Marks make a prompt longer than the one whose room was checked.
    context = getattr(target, "context", None)
    if context is not None and len(instead) + answer > context:
        raise RequestError(
            f"prompt has {len(instead)} tokens with the marks of a plan: the model's context holds "
            f"{context}, the answer of max_tokens {answer} included"
        )
    return SecondPromptTarget(target, tuple(prompt), tuple(instead))

"""How a request's law is steered: the way, its options, and the second prompt that it reads."""

from __future__ import annotations

from dataclasses import replace

from polydec.base.errors import RequestError
from polydec.core.protocols import Target
from polydec.laws.targets.other_prompt import SecondPromptTarget
from polydec.methods.registry import steer
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.steer import reads_second_prompt
from polydec.request.fields import Ask
from polydec.request.image_sources import holds_images, prompt_without_images
from polydec.request.stages import EncodedRequest, SteeringSettings


def check_steering(ask: Ask, mark: str | None = None) -> SteeringSettings | None:
    """Check how a request is steered.

    A way that holds a prompt with images against a second one, which is not given, reads the same
    prompt without them.

    Args:
        ask: The request.
        mark: The text that stands for an image. None: the model reads none.

    Returns:
        The way to steer. None: the request is not steered.

    Raises:
        RequestError: A way or an option is not there, or a second prompt is given and not read.
    """
    if ask.steer is None and ask.negative_prompt is None:
        if ask.steer_options:
            raise RequestError("steer_options is given without steer: name the way to steer")
        return None
    if ask.steer is None:
        name = "cfg"
    else:
        name = ask.steer
    options = steer.steering_option_values(name, ask.steer_options)
    steer.check_second(name, ask.negative_prompt is not None)
    second = ask.negative_prompt
    derive = steer.second_prompt_deriver(name)
    if second is None and derive is not None and isinstance(ask.prompt, str):
        second = derive(ask.prompt)
        if second == ask.prompt:
            raise RequestError(
                f"prompt has no examples to leave out for steering {name}: give a second one (negative_prompt)"
            )
    if second is None and mark is not None and holds_images(ask) and reads_second_prompt(name):
        second = prompt_without_images(ask.prompt, mark)
    return SteeringSettings(steer.get_steering_module(name).CARD, options, second)


def encode_second_prompt(
    encoded: EncodedRequest, room: int | None = None
) -> SteeringSettings | None:
    """Encode the second prompt of a request.

    Args:
        encoded: The request, with the ids of its first prompt.
        room: Tokens that there is room for, far beyond which a text is not even encoded. None: no
            bound.

    Returns:
        Its way to steer, with these ids.

    Raises:
        RequestError: The second prompt cannot be read.
    """
    steering = encoded.checked.steering
    if steering is None or steering.prompt is None:
        return steering
    ask = encoded.ask
    encoder = encoded.model.encoder
    # An empty text asks nothing; where no chat template says how that is written, the last token stands alone.
    if isinstance(steering.prompt, str) and not steering.prompt:
        return replace(steering, second=encoder.encode_empty(raw=ask.raw) or encoded.ids[-1:])
    second = encoder.encode_prompt(
        steering.prompt,
        raw=ask.raw,
        who="negative_prompt",
        template=ask.template,
        most=room,
        sanitize_control_tokens=ask.sanitize_control_tokens,
    )
    return replace(steering, second=second)


def steered_law(encoded: EncodedRequest, law: Target) -> Target:
    """Steer a law as a request asks.

    Args:
        encoded: The request.
        law: One of the model's laws behind its prompt.

    Returns:
        The steered law; `law` itself where nothing steers.

    Raises:
        RequestError: The model lacks what the way needs.
    """
    steering = encoded.steering
    if steering is None:
        return law
    checked = encoded.checked
    if steering.second is None:
        beside = None
    elif encoded.source:
        # A second source, and the same text written from it.
        beside = checked.model.checkpoint.lm.law_given_source(
            steering.second, encoded.ask.cache_salt
        )
    else:
        beside = SecondPromptTarget(law, encoded.ids, steering.second)
    kit = replace(steering_kit(encoded, law), beside=beside)
    return steer.build(steering.card.name, kit, steering.options)[0]


def steering_kit(encoded: EncodedRequest, law: Target) -> Kit:
    """What a way is built of.

    Args:
        encoded: The request.
        law: One of the model's laws behind its prompt.

    Returns:
        The kit, without the law behind a second prompt.
    """
    model = encoded.model
    # Vectors of a way's own stand before the last token of a prompt that is tokens and nothing else.
    of_tokens = encoded.vectors is None and encoded.checked.model.checkpoint.unit == "token"
    return Kit(
        law,
        artefacts=model.artefacts,
        later=model.draft_law,
        prompt=encoded.ids if of_tokens else (),
        seed=encoded.ask.seed,
        # Selectors let the model read passages in windows of this length.
        context=model.checkpoint.lm.context,
    )

"""The road of a request, stage by stage: it is validated, its prompt encoded, its laws bent, its
method chosen.

Everything that can be wrong is said before anything runs. The last stage, running, is the engine's
(engine.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from polydec.base.errors import PolydecError, RequestError
from polydec.base.options import short_repr
from polydec.core.prompt_logprobs import PromptLogprobs
from polydec.core.request import Request
from polydec.laws.shapers.sampling import build_guard
from polydec.methods.economics.costs import PassCosts
from polydec.methods.registry import press, registry, steer
from polydec.methods.registry.card import Card
from polydec.methods.registry.family import AUTOREGRESSIVE
from polydec.methods.registry.kit import Kit, ModelArtefact, OtherPrompts, PromptedLaw
from polydec.models.sessions.reuse import AGAIN
from polydec.models.text import prompt_ending
from polydec.models.text.message_forms import joined_text
from polydec.models.text.picture_view import PictureView
from polydec.request.answer_functions import answer_functions, check_functions
from polydec.request.answer_language import answer_language, constraint_of_request
from polydec.request.families import request_family, row_end_rule
from polydec.request.fields import Ask, convert_ask
from polydec.request.gap_decoder import GapFillingDecoder
from polydec.request.gap_marks import find_gap_marks, split_at_gaps
from polydec.request.image_presses import check_image_press, law_over_press
from polydec.request.loaded import LoadedModel
from polydec.request.own_prompt import draft_with_own_prompt
from polydec.request.prompt_encoder import form_of_prompt
from polydec.request.room import answer_length
from polydec.request.stages import (
    BentRequest,
    CheckedRequest,
    EncodedRequest,
    PressSettings,
    RequestPlan,
)
from polydec.request.steering import check_steering, encode_second_prompt, steered_law
from polydec.request.thinking import thinking_settings


def no_memory(method: str) -> dict[str, Any]:
    """Of a method that keeps nothing between requests."""
    return {}


def plan_request(
    model: LoadedModel,
    ask: Ask,
    *,
    memory: Callable[[str], dict[str, Any]] = no_memory,
    measure: Callable[[], PassCosts] | None = None,
) -> RequestPlan:
    """Check a request against a model and build its decoder; nothing is computed.

    Args:
        model: As it was loaded.
        ask: The request.
        memory: What a method keeps between requests, by its name.
        measure: Gives the costs of passes, for a method that asks for them. None: the model's.

    Returns:
        The request as an engine runs it.

    Raises:
        RequestError: Something cannot be honoured; one sentence names the field, the value and what
            is legal.
    """
    # Cheap checks first: a text may take seconds to encode.
    checked = validate_request(model, ask)
    encoded = encode_prompts(checked)
    bent = bend_laws(encoded)
    return choose_method(bent, memory=memory, measure=measure)


def validate_request(model: LoadedModel, ask: Ask) -> CheckedRequest:
    """First stage: convert every field, and check what can be known without the prompt's tokens.

    Args:
        model: As it was loaded.
        ask: The request.

    Returns:
        The request with typed values.

    Raises:
        RequestError: A field is out of its range, unknown to this kind of model, or does not go
            with another one.
    """
    ask = convert_ask(ask)
    check_functions(ask)
    ask = replace(ask, constraint=constraint_of_request(ask.constraint))
    # What is echoed has log-probabilities where the answer has some.
    if ask.echo and ask.logprobs is not None:
        listed = max(ask.logprobs, ask.prompt_logprobs or 0)
        ask = replace(ask, prompt_logprobs=listed)
    if model.checkpoint.view is not None:
        ask = _picture_request(model, model.checkpoint.view, ask)
    # Over bytes the vocabulary is another one, so ids below are compared with that of the view.
    view = model.in_units(ask.units, ask.covers)
    # The family is the model's own: a view over bytes hides an encoder.
    family = request_family(model.checkpoint.lm)
    recipe = registry.recipe_for_model(ask.method, family.kind)
    options = registry.method_option_values(recipe.CARD.name, ask.options)
    size = view.checkpoint.lm.vocab.size
    for token in ask.stop_token_ids:
        if not 0 <= token < size:
            raise RequestError(f"stop_token_ids has token {token}: ids lie in 0 to {size - 1}")
    # None means the checkpoint's own values, which an empty `Sampling` would override.
    sampling = view.asked_sampling(ask.sampling)
    sampling.check_token_ids(size)
    checked = CheckedRequest(
        loaded=model,
        model=view,
        family=family,
        ask=ask,
        form=form_of_prompt(ask.prompt),
        recipe=recipe,
        options=options,
        sampling=sampling,
        stop_ids=frozenset(ask.stop_token_ids),
        press=_check_press(ask),
        steering=check_steering(ask, _image_mark(model)),
    )
    # What a kind of model cannot do comes before what fields cannot do together: its sentences say
    # more.
    family.check_request(checked)
    check_image_press(checked)
    _check_together(checked)
    return checked


def encode_prompts(checked: CheckedRequest, room: int | None = None) -> EncodedRequest:
    """Second stage: token ids of everything that the model reads.

    Args:
        checked: The request.
        room: Tokens that there is room for, far beyond which a text is not even encoded. None: no
            bound.

    Returns:
        The request with the ids of its prompt, its source, its second prompt and its answer with
        gaps.

    Raises:
        RequestError: One of them cannot be read.
    """
    # Each family decides what is read beside the prompt.
    encoded = checked.family.encode_prompt(checked, room)
    # A draft with a tokenizer of its own needs the prompt in its own ids.
    if checked.model.checkpoint.unit == "byte":
        encoded = replace(encoded, model=draft_with_own_prompt(encoded))
    return replace(
        encoded,
        steering=encode_second_prompt(encoded, room),
        infill=_encode_infill(encoded),
        gap_patterns=checked.model.encoder.find_gap_patterns(checked.ask.infill),
    )


def bend_laws(encoded: EncodedRequest) -> BentRequest:
    """Third stage: the law that is decoded, and the request in token ids.

    Args:
        encoded: The request.

    Returns:
        The request with its law: over the cache that is asked for, behind vectors, steered,
        constrained.

    Raises:
        RequestError: There is no room for an answer, or the law cannot be bent so.
    """
    checked = encoded.checked
    ask = encoded.ask
    # From here the law is wrapped from the inside out: cache, reuse, vectors, steering. Sampling
    # follows in the last stage.
    law: Any = encoded.model.checkpoint.lm
    reuse = None
    if checked.press is not None:
        law = law_over_press(encoded, law, checked.press.press)
    if ask.reuse is not None:
        law = law.reusing_view(
            ask.reuse_key, ask.reuse == "edited", ask.cache_salt, ask.reuse_again
        )
        reuse = law.within[1]
    if encoded.vectors is not None:
        law = encoded.vectors.prompted_law(law)
    steered = steered_law(encoded, law)
    # Known only now, as the room depends on the prompt's tokens and on a source.
    length = answer_length(encoded)
    if checked.sampling.min_tokens > length:
        raise RequestError(
            f"min_tokens is {checked.sampling.min_tokens}: it must not exceed max_tokens ({length})"
        )
    # Thinking that an unfinished answer has begun goes on, so its text counts.
    begun = _begun_answer(checked)
    thinking = thinking_settings(encoded.model.checkpoint, ask, encoded.ids, begun)
    # The constraint needs to know of thinking, behind which it begins.
    allowed = answer_language(encoded, length, thinking)
    text = encoded.model.checkpoint.text
    # An answer to a chat is a text of its own; what continues a text keeps the space that parts the two.
    alone = text.has_chat and not ask.raw and not checked.form.token_ids and begun is None
    writer = text.text_writers(
        ask.stop,
        ask.include_stop,
        after=() if alone else encoded.ids,
        min_tokens=checked.sampling.min_tokens,
        thinking=None if thinking is None else thinking.writes_marks,
    )
    # Where the rules and the constraint together leave no token, the text must end.
    guard = build_guard(
        checked.sampling, eos=checked.eos, stop_ids=checked.stop_ids, language=allowed.language
    )
    functions = answer_functions(ask, checked.sampling.min_tokens)
    request = Request(
        encoded.ids,
        length,
        stop_ids=checked.stop_ids,
        ignore_eos=ask.ignore_eos,
        seed=ask.seed,
        # Answers are chosen by their log-probabilities, also where nobody is shown them.
        logprobs=0 if ask.logprobs is None and ask.best_of is not None else ask.logprobs,
        writer=writer,
        n=ask.answer_count,
        guard=guard,
        given=encoded.infill,
        prompt_logprobs=ask.prompt_logprobs,
        rules=functions,
    )
    return BentRequest(
        encoded,
        request,
        law,
        steered,
        allowed.language,
        allowed.ending,
        thinking,
        reuse,
        None if functions is None else functions.processor,
        allowed.canvas,
    )


def choose_method(
    bent: BentRequest,
    *,
    memory: Callable[[str], dict[str, Any]] = no_memory,
    measure: Callable[[], PassCosts] | None = None,
) -> RequestPlan:
    """Fourth stage: the laws as sampling shapes them, and the method's decoder over these.

    Args:
        bent: The request with its law.
        memory: What a method keeps between requests, by its name.
        measure: Gives the costs of passes, for a method that asks for them. None: the model's.

    Returns:
        The request as an engine runs it.

    Raises:
        RequestError: The method does not go with the law, a rule of sampling does not go with the
            model, or the model lacks something that the method needs.
    """
    checked = bent.encoded.checked
    model = bent.encoded.model
    # A method that needs, say, hidden states cannot take a law that has none.
    if checked.steering is not None:
        name = checked.steering.card.name
        _check_method_and_law(bent, f"steering {name}", "steer another way")
    elif checked.press is not None:
        name = checked.press.card.name
        _check_method_and_law(bent, f"cache {name}", "leave the cache as it is")
    laws = checked.family.shape_laws(bent)
    # The recipe notes here which artefacts it took, for warnings about the others.
    read = list[ModelArtefact]()
    reuse = bent.reuse
    kit = Kit(
        laws.target,
        artefacts=model.artefacts,
        # A function, since only few methods ask, and the first answer may take ten seconds.
        measure=measure or (lambda: checked.loaded.costs),
        memory=memory(checked.card.name),
        shapers=laws.shapers,
        language=bent.language,
        context=model.checkpoint.lm.context,
        read=read,
        later=laws.draft,
        source=bent.encoded.source_tokens,
        strip=bent.encoded.source_strip,
        shows_image=bool(bent.encoded.image_spans),
        # Behind an edit part of the prompt is never fed, so states of it are not there.
        whole_prompt=reuse is None or not reuse.edited,
        other=_other_prompts(bent),
        rows=row_end_rule(model.checkpoint.view),
    )
    decoder = registry.build_recipe(checked.recipe, kit, checked.options)
    request = bent.request
    # Around any method: each gap is a run of it. Rules speak of what is written, not of what is given.
    if bent.encoded.gap_marks is not None:
        decoder = GapFillingDecoder(
            decoder, bent.encoded.gap_marks, request.guard, checked.ask.infill_repeat
        )
        request = replace(request, guard=None)
    # Around any method: the prompt's laws are read before it begins.
    if request.prompt_logprobs is not None:
        decoder = PromptLogprobs(decoder, bent.bare_law, request.prompt_logprobs)
    return RequestPlan(
        bent.encoded, request, decoder, bent.ending, bent.thinking, reuse, tuple(read)
    )


def _image_mark(model: LoadedModel) -> str | None:
    """The text that stands for an image in a prompt; None: the model reads none."""
    vision = model.checkpoint.vision
    return None if vision is None else vision.token_text


def _other_prompts(bent: BentRequest) -> OtherPrompts | None:
    """What the model would say to other texts than a request's prompt; None where that is no text,
    or is read beside something else than images."""
    checked = bent.encoded.checked
    ask = checked.ask
    text = ask.prompt
    # Another text cannot stand in the place of a chat, of ids, or of what a source begins.
    if not isinstance(text, str) or bent.encoded.source or ask.reuse is not None:
        return None
    if checked.family.kind is not AUTOREGRESSIVE or ask.infill is not None or ask.units != "tokens":
        return None

    def law_behind(text: str) -> PromptedLaw:
        # One token of an answer must have room; how long texts may be is the method's to say.
        asked = replace(
            ask, prompt=text, prompt_logprobs=None, max_tokens=max(1, checked.sampling.min_tokens)
        )
        # What it is held against may be made of the text, so it is made anew.
        steering = check_steering(asked, _image_mark(checked.loaded))
        again = bend_laws(encode_prompts(replace(checked, ask=asked, steering=steering)))
        return PromptedLaw(checked.family.shape_laws(again).target, again.request.prompt)

    return OtherPrompts(text, law_behind)


def _picture_request(model: LoadedModel, view: PictureView, ask: Ask) -> Ask:
    """A request for a picture: guidance without a second prompt reads the one that names no class.
    Raises RequestError for a prompt that no picture is of, or a field that only texts have."""
    if ask.units != "tokens":
        raise RequestError(
            f"units is {ask.units}: the tokens of a picture have no bytes, so leave it out"
        )
    view.check_class(ask.prompt)
    # What "auto" chooses among are methods of tokens.
    one_by_one = view.patch is not None and model.family.continues_text
    if one_by_one and registry.find_method(ask.method) == "auto":
        ask = replace(ask, method="mar")
    if ask.negative_prompt:
        view.check_class(ask.negative_prompt, "negative_prompt")
        return ask
    # Asked for, by its name or by a second prompt that asks nothing.
    steered = ask.steer or ("cfg" if ask.negative_prompt is not None else None)
    if steered is None or view.dropped is None or not steer.reads_second_prompt(steered):
        return ask
    return replace(ask, negative_prompt=view.dropped)


def _check_press(ask: Ask) -> PressSettings | None:
    """How a request keeps old keys and values. Raises RequestError for a press or an option that is
    not there."""
    if ask.cache is None:
        # Options without a press would be dropped silently.
        if ask.cache_options:
            raise RequestError("cache_options is given without cache: name the press")
        return None
    pressing, options = press.build(ask.cache, ask.cache_options)
    card: Card = press.get_press_module(ask.cache).CARD
    return PressSettings(card, options, pressing)


def _check_together(checked: CheckedRequest) -> None:
    """Raise RequestError for two fields that do not go together, whatever the model."""
    ask = checked.ask
    _check_reuse(checked)
    if ask.prompt_logprobs is not None and checked.form.vectors:
        raise RequestError(
            f"prompt_logprobs is {ask.prompt_logprobs}: the prompt holds vectors, which have no law, so leave it out"
        )
    if ask.answer_count < ask.n:
        raise RequestError(f"best_of is {ask.best_of}: it must be at least n, which is {ask.n}")
    if ask.echo and checked.form.messages:
        raise RequestError(
            "echo is true: the prompt holds chat messages, and an echo is of a text or of token ids, so leave it out"
        )
    # Each alone is a promise about length, and together they may have no answer.
    if ask.finish and checked.sampling.min_tokens:
        raise RequestError(
            f"finish is true and min_tokens is {checked.sampling.min_tokens}: an answer that is brought to an end may end "
            "earlier, so leave one of them out"
        )
    marked = ask.infill is not None and find_gap_marks(checked.model.checkpoint.text) is not None
    if ask.infill_repeat and not marked:
        raise RequestError(
            f"infill_repeat is {ask.infill_repeat}: it is of gaps (infill) that a model of `polydec train lm --objective "
            "cm3` fills, so leave it out"
        )
    if ask.finish and ask.constraint is None:
        raise RequestError(
            "finish is true: it brings constrained answers to an end, so give a constraint (a regular expression, "
            "a JSON schema, a grammar …) or leave it out"
        )


def _check_reuse(checked: CheckedRequest) -> None:
    """Raise RequestError for a field that does not go with what is taken of an earlier text's
    cache."""
    ask = checked.ask
    if ask.reuse != "edited" and ask.reuse_again != AGAIN:
        raise RequestError(
            f"reuse_again is {ask.reuse_again}, and reuse is {ask.reuse or 'none'}: it says what is fed behind an edit, so "
            "say 'edited'"
        )
    if ask.reuse is None:
        if ask.reuse_key:
            raise RequestError(
                f"reuse_key is {short_repr(ask.reuse_key)}, and reuse is none: say 'prefix' or 'edited'"
            )
        return
    second = checked.steering is not None and checked.steering.prompt is not None
    without_law = ask.reuse == "edited" and ask.prompt_logprobs is not None
    # Each entry is a reason and whether it holds, so that one sentence serves all.
    refused = {
        "units is bytes": ask.units != "tokens",
        "a second prompt is read": second,
        "prompt_logprobs is given, and what is taken has no law to show": without_law,
    }
    for why, holds in refused.items():
        if holds:
            raise RequestError(f"reuse is {ask.reuse!r}: {why}; leave one of them out")


def _encode_infill(encoded: EncodedRequest) -> tuple[int | None, ...]:
    """The ids of an answer with gaps; an end-of-text token behind it tells the model where it ends.
    Raises RequestError where it has more tokens than the context, or more gaps than a model that
    continues texts has marks for."""
    checked = encoded.checked
    if checked.ask.infill is None:
        return ()
    model = encoded.model
    answer = model.encoder.encode_infill(checked.ask.infill, model.checkpoint.lm.context)
    marks = encoded.gap_marks
    if marks is not None and len(sizes := split_at_gaps(answer)[1]) > len(marks.gaps):
        raise RequestError(
            f"infill has {len(sizes)} gaps, and {model.name} has marks for {len(marks.gaps)}: leave some out"
        )
    # A model may have several; the lowest id is taken so that runs agree.
    end = min(checked.eos, default=None)
    if end is None:
        return answer
    return (*answer, end)


def _begun_answer(checked: CheckedRequest) -> str | None:
    """What stands of the answer already; None: nothing does. Raises RequestError where the prompt
    has no messages to end."""
    ask = checked.ask
    if ask.prompt_ending != prompt_ending.OPENED and not checked.form.messages:
        raise RequestError(
            f"prompt_ending is {ask.prompt_ending!r}: the prompt holds no chat messages, so leave it out"
        )
    if ask.prompt_ending != prompt_ending.CONTINUED:
        return None
    # A message holds a text, or a list of parts that are texts.
    last = ask.prompt[-1]
    if isinstance(last, Mapping):
        content = last["content"]
    else:
        content = ""
    return str(joined_text(content))


def _check_method_and_law(bent: BentRequest, what: str, instead: str) -> None:
    """Raise RequestError where a method could decode the model and cannot decode the law that
    something else makes of it: `what`, and what to do instead. What the model lacks anyway is said
    as it is without that."""
    card = bent.encoded.checked.card
    kit = replace(
        bent.encoded.model.recipe_kit(),
        strip=bent.encoded.source_strip,
        shows_image=bool(bent.encoded.image_spans),
    )
    # Checked on the bare model first: then what fails below is the fault of the bent law.
    registry.check_method_needs(card, kit)
    try:
        registry.check_method_needs(card, replace(kit, target=bent.law))
    except PolydecError as why:
        raise RequestError(
            f"method {card.name} and {what} do not go together: {why} (take method auto or plain, or {instead})"
        ) from None

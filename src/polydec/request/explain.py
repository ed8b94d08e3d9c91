"""What a request will do, part by part, before anything runs; and what would run in its place where
it is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from polydec.base.errors import PolydecError
from polydec.base.options import as_text, join_names
from polydec.core.types import Exactness
from polydec.laws.constraints.everything import UnrestrictedLanguage
from polydec.laws.shapers._rule import SamplingRuleContext
from polydec.laws.shapers.logits_processor import LogitsProcessorRule
from polydec.laws.shapers.sampling import (
    Sampling,
    active_rule_names,
    all_sampling_fields,
    all_sampling_rules,
)
from polydec.methods.economics.costs import PassCosts
from polydec.methods.registry import registry
from polydec.methods.registry.card import promise_in_words
from polydec.methods.registry.family import MASKED_DIFFUSION
from polydec.methods.registry.kit import (
    ANY_DRAFT,
    DRAFT,
    MASKED_DRAFT,
    PATCH_DRAFT,
    SMALLER_DRAFT,
    ArtefactNeed,
    ModelArtefact,
)
from polydec.methods.search.loop.rollouts import RolloutSearch
from polydec.models.sessions.reuse import AGAIN
from polydec.request.ask import plan_request
from polydec.request.fields import Ask, ask_options
from polydec.request.loaded import LoadedModel
from polydec.request.room import answer_token_room
from polydec.request.stages import CheckedRequest, RequestPlan

PROMISES = {
    Exactness.LAW: "exactly the law of all that stands above",
    Exactness.ARGMAX: "exactly the greedy text of all that stands above",
    Exactness.APPROXIMATE: "it may differ from that of plain decoding",
}


@dataclass(frozen=True)
class RequestPart:
    """One part of a request. role: what it is there for; name: which one; options: with the values
    they have; says: what it does here, in a sentence; needs: what it cannot do without."""

    role: str
    name: str
    says: str
    options: dict[str, str]
    needs: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"needs": list(self.needs)}


def explain_request(model: LoadedModel, ask: Ask) -> list[RequestPart]:
    """The parts of a request in the order in which they act. Nothing is computed.

    Args:
        model: Would answer it.
        ask: The request.

    Returns:
        The parts.

    Raises:
        RequestError: The request is refused.
    """
    # Costs of no measured machine: to explain a request must not start a measurement of ten
    # seconds.
    made = plan_request(model, ask, measure=PassCosts)
    checked = made.encoded.checked
    return [
        *_models(model, made),
        *_pressed(made),
        *_reused(made),
        *_units(made),
        *_steering(made),
        *_constraint(checked),
        *_rules(checked),
        *_method(made),
        *_stop_function(checked.ask),
        *_length(made),
    ]


def request_alternatives(model: LoadedModel, ask: Ask) -> list[str]:
    """Of a request that is refused: what could be changed, one thing at a time, so that it would
    run.

    Args:
        model: Refuses it.
        ask: The request.

    Returns:
        The changes in words, the least change of its meaning first.
    """
    # Each change is planned in full, since a request may be refused for several reasons.
    return [words for words, other in _changes(model, ask) if can_run_request(model, other)]


def can_run_request(model: LoadedModel, ask: Ask) -> bool:
    """Whether a request is not refused.

    Args:
        model: Would answer it.
        ask: The request.

    Returns:
        True where it would run.
    """
    try:
        # Planning raises whatever a run would be refused for, and computes nothing.
        plan_request(model, ask, measure=PassCosts)
    except PolydecError:
        return False
    return True


def _changes(model: LoadedModel, ask: Ask) -> Iterator[tuple[str, Ask]]:
    """Requests that differ from this one in one thing."""
    # The default may be "plain" itself; it is then tried once.
    for method in dict.fromkeys((model.family.default_method, "plain")):
        if ask.method not in ("auto", method):
            yield f"with method {method}", replace(ask, method=method, options={})
    # Options may be legal for another method only.
    if ask.options:
        yield "without options of the method", replace(ask, options={})
    sampling = model.in_units(ask.units, ask.covers).asked_sampling(ask.sampling)
    for rule in _on(sampling):
        # A rule may have several fields: all of them go back to where they do nothing.
        neutral = {
            o.name: all_sampling_fields()[o.name].default for o in all_sampling_rules()[rule].fields
        }
        yield f"without {rule}", replace(ask, sampling=replace(sampling, **neutral))
    if ask.steer is not None or ask.negative_prompt is not None:
        yield "without steering", replace(ask, steer=None, steer_options={}, negative_prompt=None)
    # Without `steer` the second prompt is the steering, which the change before takes away.
    if ask.negative_prompt is not None and ask.steer is not None:
        yield "without a second prompt", replace(ask, negative_prompt=None)
    if ask.cache is not None:
        yield "with the cache as it is", replace(ask, cache=None, cache_options={})
    if ask.reuse is not None:
        yield (
            "without an earlier text's cache",
            replace(ask, reuse=None, reuse_key="", reuse_again=AGAIN),
        )
    if ask.constraint is not None:
        # finish goes along: it has no meaning without a constraint.
        yield "without the constraint", replace(ask, constraint=None, finish=False)
    if ask.finish:
        yield "without finish", replace(ask, finish=False)
    if ask.logits_processor is not None:
        yield "without logits_processor", replace(ask, logits_processor=None)
    if ask.max_tokens is not None:
        yield "with max_tokens left out", replace(ask, max_tokens=None)
    if ask.infill is not None:
        yield "without infill", replace(ask, infill=None)
    if ask.units != "tokens":
        yield "in tokens", replace(ask, units="tokens")


def _on(sampling: Sampling) -> list[str]:
    """The rules that are not neutral."""
    return [
        rule.name
        for rule in all_sampling_rules().values()
        if any(getattr(sampling, o.name) != o.default for o in rule.fields)
    ]


def _models(model: LoadedModel, made: RequestPlan) -> Iterator[RequestPart]:
    lm = model.checkpoint.lm
    yield RequestPart(
        "model",
        model.name,
        f"{model.checkpoint.kernel}; its law is what everything below starts from",
        {},
    )
    if model.draft is not None:
        draft = model.draft
        # auto chooses while it runs, so nothing here can say whether it will draft.
        if _needs_draft(made):
            says = "read by what needs it below"
        else:
            says = "nothing below needs it; a method that chooses for itself, such as auto, may draft with it"
        yield RequestPart(
            "draft",
            draft.name,
            says
            if lm.vocab.same_tokens(draft.lm.vocab)
            else f"{says}; its tokenizer is another one",
            {},
        )
    # Given by the user under these names, in this order.
    for name, artefact in zip(model.given, model.artefacts):
        if _reads(made, artefact):
            says = "read by what needs it below"
        else:
            says = f"nothing below reads it{_readers(artefact)}"
        yield RequestPart("trained", name, f"{artefact.called}; {says}", {})


def describe_unused_settings(model: LoadedModel, made: RequestPlan) -> list[str]:
    """What the user gives and that does nothing in a request: what was trained for the model, the
    draft model, and rules of sampling.

    Args:
        model: With what was loaded for it.
        made: The request.

    Returns:
        A sentence for each thing.
    """
    checked = made.encoded.checked
    ask = checked.ask
    method = made.card.name
    # What the checkpoint itself sets is no choice of the user's, and so nothing to warn of.
    own = checked.model.sampling_with()
    sampling = checked.sampling
    unread = [
        f"{name} is {artefact.called}, and {method} does not read it{_readers(artefact)}"
        for name, artefact in zip(model.given, model.artefacts)
        if not _reads(made, artefact)
    ]
    still = [
        f"{o.name} is {as_text(getattr(sampling, o.name))} and does nothing here: {why}"
        for rule, why in _acting(checked)[1].items()
        for o in all_sampling_rules()[rule].fields
        if getattr(sampling, o.name) != getattr(own, o.name)
    ]
    # Only a value that was changed is worth a sentence.
    if made.unit == "token" and ask.covers != ask_options()["covers"].default:
        unread.append(f"covers is {ask.covers} and does nothing here: units is tokens")
    # The field is legal for every model, so that one client can talk to many.
    if ask.reasoning_format != "none" and made.thinking is None:
        unread.append(
            f"reasoning_format is {ask.reasoning_format} and does nothing here: neither the chat template nor the tokenizer "
            "says how this model thinks"
        )
    if (
        model.draft is not None
        and model.draft_given
        and not _needs_draft(made)
        # The default method uses a draft where it helps, so it is not called unread there.
        and method != model.family.default_method
    ):
        unread.append(f"{model.draft.name} is the draft model, and {method} does not read it")
    # Greedy is the default, and who asks for several texts has rarely thought of it.
    if sampling.greedy and isinstance(made.decoder, RolloutSearch):
        unread.append(
            f"temperature is {as_text(sampling.temperature)}, which is one text: {method} draws its texts at 1; "
            "0.6 or 0.7 is usual, as most models write anything at 1"
        )
    return unread + still


def _units(made: RequestPlan) -> Iterator[RequestPart]:
    ask = made.encoded.ask
    if made.unit != "token":
        yield RequestPart(
            "units",
            ask.units,
            "the chance of a byte adds up all tokens that go on with it; lengths and log-probabilities below count bytes",
            {"covers": str(ask.covers)},
        )


def _reads(made: RequestPlan, artefact: ModelArtefact) -> bool:
    # By identity: two artefacts may have equal fields.
    return any(artefact is other for other in made.read)


def _needs_draft(made: RequestPlan) -> bool:
    """Whether the method or the steering does nothing without a draft model."""
    # A steering may want a second model as well, such as contrastive decoding.
    needs = {*made.card.needs, *(() if made.steering is None else made.steering.card.needs)}
    return bool({DRAFT, ANY_DRAFT, SMALLER_DRAFT, MASKED_DRAFT, PATCH_DRAFT} & needs)


def _readers(artefact: ModelArtefact) -> str:
    """Which methods need it, as the end of a sentence."""

    def card_needs(card: Any) -> bool:
        return any(isinstance(n, ArtefactNeed) and n.is_fitting(artefact) for n in card.needs)

    methods = [
        name for name, recipe in registry.recipe_modules().items() if card_needs(recipe.CARD)
    ]
    if methods:
        return f": {join_names(methods)} would"
    return ""


def _pressed(made: RequestPlan) -> Iterator[RequestPart]:
    if made.press_settings is not None:
        card = made.press_settings.card
        yield RequestPart(
            "cache",
            card.name,
            f"{_sentence(card.summary)}: the law below is that of the model over this cache",
            _written(made.press_settings.options),
        )


def _reused(made: RequestPlan) -> Iterator[RequestPart]:
    if made.reuse is not None:
        # A common beginning changes nothing of the law; text behind an edit was computed behind
        # other words.
        what = "what an earlier text of the key begins with is not fed again"
        if made.reuse.edited:
            what += "; nor is what stands behind an edit, so the law below is approximate"
        options = {"reuse_key": made.reuse.key}
        if made.reuse.edited:
            options["reuse_again"] = str(made.reuse.again)
        yield RequestPart("reuse", made.reuse.told["name"], what, options)


def _steering(made: RequestPlan) -> Iterator[RequestPart]:
    if made.steering is not None:
        card = made.steering.card
        yield RequestPart(
            "steering",
            card.name,
            _sentence(card.summary),
            _written(made.steering.options),
            tuple(n.name for n in card.needs),
        )


def _constraint(checked: CheckedRequest) -> Iterator[RequestPart]:
    ask = checked.ask
    canvas = checked.family.kind is MASKED_DIFFUSION
    if canvas:
        what = (
            "only tokens with which the canvas can still be finished within it; those of a pass "
            "are drawn together"
        )
    else:
        what = (
            "only tokens that keep the answer within it; checked at every "
            "node of a draft; what it forces is not guessed"
        )
    if ask.constraint is not None:
        yield RequestPart("constraint", type(ask.constraint).__name__, what, {})
    elif checked.model.encoder.find_gap_patterns(ask.infill):
        yield RequestPart("constraint", "the patterns of gaps", what, {})
    # A canvas ends within its length in any case.
    if ask.finish and not canvas:
        yield RequestPart(
            "constraint",
            "InTime",
            "when the tokens run out, only those that lead to a legal end",
            {},
        )


def _rules(checked: CheckedRequest) -> Iterator[RequestPart]:
    """The rules in their order, then those that do nothing here."""
    sampling = checked.sampling
    names, still = _acting(checked)
    for name in names:
        # The constraint has a part of its own, with more to say; the function has no field here.
        if name == "logits_processor":
            yield RequestPart("sampling rule", name, "whatever a function makes of each row", {})
        elif name != "constraint":
            yield RequestPart(
                "sampling rule",
                name,
                _sentence(all_sampling_rules()[name].fields[0].help),
                _given(sampling, name),
            )
    for name, why in still.items():
        yield RequestPart("idle rule", name, f"does nothing here: {why}", _given(sampling, name))


def _acting(checked: CheckedRequest) -> tuple[list[str], dict[str, str]]:
    """The rules that act, in their order; and why each of the others does nothing of which a field
    is not neutral."""
    lm = checked.model.checkpoint.lm
    sampling = checked.sampling
    # Rules want some token that ends the text; which one does not matter, as no law is computed.
    some_end = (min(lm.vocab.eos, default=0),)
    if checked.ask.constraint is None:
        language = None
    else:
        # Only whether there is a constraint counts here, so it is not compiled.
        language = UnrestrictedLanguage(lm.vocab.size)
    if checked.family.kind.continues_text:
        geometry = lm.geometry
    else:
        geometry = None
    if checked.ask.logits_processor is None:
        processor = None
    else:
        processor = LogitsProcessorRule(checked.ask.logits_processor)
    setting = SamplingRuleContext(
        some_end,
        some_end,
        words=lm.vocab.words,
        geometry=geometry,
        language=language,
        processor=processor,
    )
    names, cut = active_rule_names(sampling, setting, checked.ask.order)
    # These were cut off because greedy choice comes first.
    still = dict.fromkeys(
        cut, "at temperature 0 the likeliest token is written, whatever is unlikely"
    )
    off = {
        name: all_sampling_rules()[name].fields[0].name
        # On by a field of its own, but with the first field neutral the rule is never built.
        for name in _on(sampling)
        if name not in names and name not in still
    }
    return names, still | {
        name: f"it is off, as {first} is {as_text(getattr(sampling, first))}"
        for name, first in off.items()
    }


def _method(made: RequestPlan) -> Iterator[RequestPart]:
    card = made.card
    kept = made.decoder.exactness
    promise = f"{promise_in_words(kept, card.family)} ({PROMISES[kept]})"
    yield RequestPart(
        "method",
        card.name,
        f"{_sentence(card.summary)}: {promise}",
        _written(made.options),
        tuple(n.name for n in card.needs),
    )


def _stop_function(ask: Ask) -> Iterator[RequestPart]:
    if ask.stop_when is not None:
        yield RequestPart("stop", "stop_when", "an answer ends where a function says so", {})


def _length(made: RequestPlan) -> Iterator[RequestPart]:
    request = made.request
    # The shorter context of model and draft bounds an answer; `why` says whose it is.
    most, why = answer_token_room(made.encoded, request.prompt)
    if made.source:
        source = f"{made.source} tokens of source, "
    else:
        source = ""
    says = (
        f"{source}{len(request.prompt)} {made.unit}s of prompt, at most {request.max_tokens} of an answer; there is room for "
        f"{most}, as {why}"
    )
    yield RequestPart(
        "length",
        f"{request.max_tokens} {made.unit}s",
        says,
        {"n": str(request.n), "seed": str(request.seed)},
    )


def _given(sampling: Sampling, rule: str) -> dict[str, str]:
    """The fields of a rule that are not neutral."""
    return {
        o.name: as_text(getattr(sampling, o.name))
        for o in all_sampling_rules()[rule].fields
        if getattr(sampling, o.name) != o.default
    }


def _written(options: Any) -> dict[str, str]:
    return {name: as_text(value) for name, value in options.items()}


def _sentence(text: str) -> str:
    return text.removesuffix(".")

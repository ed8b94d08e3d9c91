"""A request, checked: the plan of it. Everything that can be wrong is said before anything runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from polydec.base.errors import PolydecError, RequestError
from polydec.base.options import short_repr
from polydec.core.decoder import Decoder
from polydec.core.prompt import PromptLogprobs
from polydec.core.protocols import Shaper, Target
from polydec.core.request import Request
from polydec.laws.constraints import pieces
from polydec.laws.constraints.in_time import DeadlineLanguage, in_time
from polydec.laws.constraints.protocols import OutputConstraint, TokenLanguage
from polydec.laws.shapers.sampling import Sampling, build_guard, build_shapers, stateful_rule_names
from polydec.laws.targets.reprompted import SecondPromptTarget
from polydec.laws.targets.shaped import ShapedTarget
from polydec.laws.targets.softened import SoftPromptTarget
from polydec.methods.diffusion.loop.no_early_end import NoEarlyEndDenoiser
from polydec.methods.economics.costs import PassCosts
from polydec.methods.registry import press, registry, steer
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import ANY_DRAFT, CALLED, DRAFT, Kit, ModelArtefact, family_of
from polydec.models.sessions.reuse import CacheReuse
from polydec.models.text import prompt_ending
from polydec.models.text.message_forms import joined_text
from polydec.request.fields import LENGTH, Ask, Prompt, ask_options
from polydec.request.loaded import LoadedModel
from polydec.request.thinking import ThinkingSettings, thinking_of


@dataclass(frozen=True)
class RequestPlan:
    """A request that can be run: its prompt's ids are in `request`; options: of the method, with the values they have; ending:
    what brings its answers to an end in time, None: nothing does; read: the model's artefacts that the method asked for;
    pressed: how old keys and values are kept, None: as they are; unit: what ids of the request and its answers stand for,
    "token" or "byte"; source: tokens that are read beside the prompt; reuse: what is taken of an earlier text's cache;
    thinking: how that is read, None: it is left as it stands."""

    request: Request
    decoder: Decoder
    card: Card
    options: Mapping[str, Any]
    steering: SteeringSettings | None = None
    ending: DeadlineLanguage | None = None
    read: tuple[ModelArtefact, ...] = ()
    pressed: PressSettings | None = None
    unit: str = "token"
    source: int = 0
    reuse: CacheReuse | None = None
    thinking: ThinkingSettings | None = None

    @property
    def pinned(self) -> bool:
        """Whether its caches may not be given back and fed again, which would change the law."""
        return self.reuse is not None and self.reuse.edited

    @property
    def method(self) -> dict[str, Any]:
        """What will run, as results and traces name it."""
        out = {
            "name": self.card.name,
            "guarantee": self.decoder.exactness.value,
            "options": dict(self.options),
        }
        if self.steering is not None:
            out["steering"] = {
                "name": self.steering.card.name,
                "options": dict(self.steering.options),
            }
        if self.pressed is not None:  # the guarantee is towards this law
            out["cache"] = {"name": self.pressed.card.name, "options": dict(self.pressed.options)}
        if self.reuse is not None:  # and towards this one, where it is approximate
            out["reuse"] = self.reuse.told
        return out


@dataclass(frozen=True)
class PressSettings:
    """A checked way to keep old keys and values, and all its options with the values they have."""

    card: Card
    options: Mapping[str, Any]


@dataclass(frozen=True)
class SteeringSettings:
    """A checked way to steer: the second prompt's ids (None: it reads none), and all its options with the values they have."""

    card: Card
    options: Mapping[str, Any]
    second: tuple[int, ...] | None

    def law(self, model: LoadedModel, prompt: tuple[int, ...], law: Target) -> Target:
        """The law that it makes of one of the model's. Raises RequestError where the model lacks what it needs."""
        source = getattr(law, "beside", None)
        if self.second is None:
            beside = None
        elif source is not None:  # a second source, and the same text written from it
            beside = source.model.given(self.second, source.cache_salt)
        else:
            beside = SecondPromptTarget(law, prompt, self.second)
        return steer.build(
            self.card.name,
            Kit(
                law,
                artefacts=model.artefacts,
                beside=beside,
                later=model.small,
                prompt=prompt if getattr(law, "instead", prompt) == prompt else (),
            ),
            self.options,
        )[0]


def plan_steering(
    model: LoadedModel, ask: Ask, ids: tuple[int, ...], raw: bool, most: int | None = None
) -> SteeringSettings | None:
    """How a request is steered; ids: of its prompt; most: tokens that a second prompt has room for. Raises RequestError with
    one sentence for what cannot be honoured."""
    steer_fields = {
        name: ask_options()[name].convert(getattr(ask, name)) for name in ("steer", "steer_options")
    }
    if steer_fields["steer"] is None and ask.negative_prompt is None:
        if steer_fields["steer_options"]:
            raise RequestError("steer_options is given without steer: name the way to steer")
        return None
    if steer_fields["steer"] is None:
        name = "cfg"
    else:
        name = steer_fields["steer"]
    options = steer.steering_option_values(name, steer_fields["steer_options"])
    steer.check_second(name, ask.negative_prompt is not None)
    second = ask.negative_prompt
    derive = steer.second_prompt_deriver(name)
    if second is None and derive is not None and isinstance(ask.prompt, str):
        second = derive(ask.prompt)
        if second == ask.prompt:
            raise RequestError(
                f"prompt has no examples to leave out for steering {name}: give a second one (negative_prompt)"
            )
    if isinstance(second, str) and not second:
        other = model.empty(raw=raw) or ids[-1:]
    elif second is None:
        other = None
    else:
        other = model.ids(
            second,
            raw=raw,
            who="negative_prompt",
            template=ask.template,
            most=most,
            sanitize_control_tokens=ask.sanitize_control_tokens,
        )
    return SteeringSettings(steer.get_steering_module(name).CARD, options, other)


def law_over_pressed_cache(
    model: LoadedModel, name: str | None, options_asked: Mapping[str, Any]
) -> tuple[Any, PressSettings | None]:
    """The model's law over the cache that a request asks for. Raises RequestError where there is none of that name, or the
    model cannot read it."""
    lm = model.checkpoint.lm
    family = family_of(model.checkpoint.lm)
    if name is None:
        if options_asked:
            raise RequestError("cache_options is given without cache: name the press")
        return lm, None
    pressing, options = press.build(name, options_asked)
    card: Card = press.get_press_module(name).CARD
    if family != "ar":
        raise RequestError(
            f"cache is {short_repr(card.name)}: {CALLED[family]} model feeds its text anew and has no old keys to press"
        )
    return lm.pressed(pressing), PressSettings(card, options)


def law_over_reused_cache(
    lm: Any, values: Mapping[str, Any], steered: SteeringSettings | None
) -> tuple[Any, CacheReuse | None]:
    """The law as a request reads it that takes what it can of an earlier text's cache. Raises RequestError where the model, or
    something else that is asked for, cannot go with that."""
    kind = values["reuse"]
    key = values["reuse_key"]
    if kind is None:
        if key:
            raise RequestError(
                f"reuse_key is {short_repr(key)}, and reuse is none: say 'prefix' or 'edited'"
            )
        return lm, None
    if (family := family_of(lm)) != "ar":
        raise RequestError(
            f"reuse is {kind!r}: {CALLED[family]} model feeds its text anew, so leave it out"
        )
    refused = {
        "units is bytes": values["units"] != "tokens",
        "a source is read beside the prompt": getattr(lm, "beside", None) is not None,
        "a second prompt is read": steered is not None and steered.second is not None,
        "prompt_logprobs is given, and what is taken has no law to show": kind == "edited"
        and values["prompt_logprobs"] is not None,
    }
    for why, holds in refused.items():
        if holds:
            raise RequestError(f"reuse is {kind!r}: {why}; leave one of them out")
    view = lm.reusing(key, kind == "edited", values["cache_salt"])
    return view, view.within[1]


def plan_request(
    model: LoadedModel,
    ask: Ask,
    *,
    memory: Callable[[str], dict[str, Any]] = lambda method: {},
    measure: Callable[[], PassCosts] | None = None,
) -> RequestPlan:
    """Check a request against a model and build its decoder; nothing is computed. memory: what a method keeps between
    requests, by its name; measure: gives the costs of passes, None: the model's. Raises RequestError with one sentence that
    names the field, the value and what is legal."""
    values = {name: o.convert(getattr(ask, name)) for name, o in ask_options().items()}
    bare, model = model, model.in_units(values["units"], values["covers"])
    point = model.checkpoint
    family = family_of(model.checkpoint.lm)
    card: Card = registry.get_recipe_module(registry.of_model(values["method"], family)).CARD
    options = registry.method_option_values(card.name, values["options"])
    stop_ids = _ids(values["stop_token_ids"], point.lm.vocab.size)
    source = tuple[int, ...]()
    if hasattr(point.lm, "given"):
        model, source, ids = model.from_source(ask)
        point = model.checkpoint
    elif ask.source is not None:
        raise RequestError(
            f"source is given: {model.name} reads nothing beside its prompt (an encoder-decoder model does), so leave it out"
        )
    else:
        ids = model.ids(
            ask.prompt,
            raw=values["raw"],
            tools=ask.tools,
            template=values["template"],
            sanitize_control_tokens=values["sanitize_control_tokens"],
            ending=values["prompt_ending"],
        )
    if values["units"] != "tokens":
        model = model.each_prompted(bare, ids, lambda own: _own_prompt(own, model, ask))
    lm, pressed = law_over_pressed_cache(model, values["cache"], values["cache_options"])
    steered = plan_steering(model, ask, ids, values["raw"])
    lm, reuse = law_over_reused_cache(lm, values, steered)
    lm = model.behind_vectors(ask.prompt, lm)
    fed = (
        lm.instead if isinstance(lm, SoftPromptTarget) else ids
    )  # what the model reads, vectors counted
    if fed is not ids and values["prompt_logprobs"] is not None:
        raise RequestError(
            f"prompt_logprobs is {values['prompt_logprobs']}: the prompt holds vectors, which have no law, so leave it out"
        )
    if steered is not None and family != "ar":
        raise RequestError(
            f"steer is {short_repr(steered.card.name)}: {CALLED[family]} model has no law of a next token to steer"
        )
    if ask.sampling is None:
        sampling = model.sampling()
    else:
        sampling = ask.sampling
    sampling.check(point.lm.vocab.size)
    if ask.infill is None:
        template_filled = ()
    else:
        template_filled = infill_token_ids(model, ask.infill, end=not values["ignore_eos"])
    length = _length(
        model, card, max(ids, fed, key=len), len(template_filled) or values["max_tokens"], steered
    )
    if sampling.min_tokens > length:
        raise RequestError(
            f"min_tokens is {sampling.min_tokens}: it must not exceed max_tokens ({length})"
        )
    # an answer to a chat is a text of its own; what continues a text keeps the space that parts the two
    messages = not isinstance(ask.prompt, str) and not _are_ids(ask.prompt)
    begun = _begun_answer(ask.prompt, values["prompt_ending"], messages)
    alone = point.text.has_chat and not values["raw"] and not _are_ids(ask.prompt) and begun is None
    thinking = thinking_of(point, values, ids, family, begun)
    writer = point.text.writer(
        values["stop"],
        values["include_stop"],
        after=() if alone else ids,
        min_tokens=sampling.min_tokens,
        thinking=None if thinking is None else thinking.writes_marks,
    )
    if values["ignore_eos"]:
        eos = frozenset[int]()
    else:
        eos = point.lm.vocab.eos
    if ask.constraint is None:
        language = None
    else:
        language = _language(ask.constraint, model, sampling, family, eos, stop_ids)
    if values["finish"] and sampling.min_tokens:
        raise RequestError(
            f"finish is true and min_tokens is {sampling.min_tokens}: an answer that is brought to an end may end "
            "earlier, so leave one of them out"
        )
    if values["finish"]:
        ending = _ending(language, length, model, _ends(model, eos, stop_ids))
    else:
        ending = None
    if ending is not None:
        language = ending
    if thinking is not None:
        ends = _ends(model, eos, stop_ids)
        language = thinking.language(point, language, ends) or language
    guard = build_guard(sampling, eos=eos, stop_ids=stop_ids, language=language)
    request = Request(
        ids,
        length,
        stop_ids,
        values["ignore_eos"],
        values["seed"],
        0,
        values["logprobs"],
        writer,
        values["n"],
        guard,
        template_filled,
        values["prompt_logprobs"],
    )
    shape = _SHAPES[family]
    if steered is None:
        law = lm
    else:
        law = steered.law(model, ids, lm)
    if steered is not None:
        check_together(model, card, law, f"steering {steered.card.name}", "steer another way")
    elif pressed is not None:
        check_together(model, card, law, f"cache {pressed.card.name}", "leave the cache as it is")
    laws = shape(model, law, card, sampling, request, values["order"], language)
    read = list[ModelArtefact]()
    build = DecoderBuilder(
        card.name,
        options,
        *laws,
        model.artefacts,
        memory(card.name),
        language,
        point.lm.context,
        read,
        source,
        reuse is None or not reuse.edited,
    )
    decoder = build.decoder(measure or (lambda: bare.costs))
    if request.prompt_logprobs is not None:
        if family != "ar":
            raise RequestError(
                f"prompt_logprobs is {request.prompt_logprobs}: {CALLED[family]} model has no law of a next "
                "token, so leave it out"
            )
        decoder = PromptLogprobs(decoder, lm, request.prompt_logprobs)
    return RequestPlan(
        request,
        decoder,
        card,
        options,
        steered,
        ending,
        tuple(read),
        pressed,
        point.unit,
        len(source),
        reuse,
        thinking,
    )


def _begun_answer(prompt: Prompt, ending: str, messages: bool) -> str | None:
    """What stands of the answer already; None: nothing does. Raises RequestError where the prompt has no messages to end."""
    if ending != prompt_ending.OPENED and not messages:
        raise RequestError(
            f"prompt_ending is {ending!r}: the prompt holds no chat messages, so leave it out"
        )
    if ending != prompt_ending.CONTINUED:
        return None
    last = prompt[-1]
    if isinstance(last, Mapping):
        content = last["content"]
    else:
        content = ""
    return str(joined_text(content))


def _own_prompt(own: LoadedModel, first: LoadedModel, ask: Ask) -> tuple[int, ...] | None:
    """How a second model over bytes reads the prompt of a request; None: by no template of its own."""
    if _are_ids(ask.prompt):
        return None
    chat = first.checkpoint.text.has_chat and not ask.raw
    if chat and not own.checkpoint.text.has_chat:
        return None
    try:
        return own.ids(
            ask.prompt,
            raw=not chat,
            tools=ask.tools,
            template=ask.template,
            sanitize_control_tokens=ask.sanitize_control_tokens,
            ending=ask.prompt_ending,
        )
    except PolydecError:  # its template refuses what the first one shows
        return None


def check_together(model: LoadedModel, card: Card, law: Target, what: str, instead: str) -> None:
    """Raise RequestError where a method could decode the model and cannot decode the law that something else makes of it:
    `what`, and what to do instead. What the model lacks anyway is said as it is without that."""
    kit = model.kit()
    registry.check_method_needs(card.name, kit)
    try:
        registry.check_method_needs(card.name, replace(kit, target=law))
    except PolydecError as why:
        raise RequestError(
            f"method {card.name} and {what} do not go together: {why} (take method auto or plain, or {instead})"
        ) from None


def _ends(model: LoadedModel, eos: frozenset[int], stop_ids: frozenset[int]) -> frozenset[int]:
    """The ids that end a constrained answer; a stop id that is text as well ends it wherever it is written."""
    words = model.checkpoint.lm.vocab.words
    known = () if words is None else words.pieces
    return eos | {x for x in stop_ids if x >= len(known) or known[x] is None}


def _ending(
    language: TokenLanguage[Any] | None, length: int, model: LoadedModel, ends: frozenset[int]
) -> DeadlineLanguage:
    """The language with an end within so many tokens. Raises RequestError where there is nothing to end, or none is found."""
    if language is None:
        raise RequestError(
            "finish is true: it brings constrained answers to an end, so give a constraint (a regular expression, "
            "a JSON schema, a grammar …) or leave it out"
        )
    vocab = model.checkpoint.lm.vocab
    return in_time(
        language,
        length,
        pieces.token_byte_pieces(vocab, ends),
        sorted(x for x in ends if 0 <= x < vocab.size),
    )


@dataclass(frozen=True)
class DecoderBuilder:
    """What a decoder is made of. Costs are measured only for methods that ask for them, and only once all else is checked."""

    method: str
    options: Mapping[str, Any]
    target: Any
    draft: Callable[[], Any]
    shapers: tuple[Shaper[Any], ...]
    artefacts: tuple[Any, ...]
    memory: dict[str, Any]
    language: TokenLanguage[Any] | None = None
    context: int | None = None
    read: list[ModelArtefact] = field(default_factory=list[ModelArtefact])
    source: tuple[int, ...] = ()
    whole_prompt: bool = True

    def decoder(self, measure: Callable[[], PassCosts]) -> Decoder:
        asked: list[bool] = []

        def unmeasured() -> PassCosts:
            asked.append(True)
            return PassCosts()

        first = self._build(unmeasured)
        if asked:
            return self._build(measure)
        return first

    def _build(self, measure: Callable[[], PassCosts]) -> Decoder:
        kit = Kit(
            self.target,
            None,
            self.artefacts,
            measure,
            self.memory,
            self.shapers,
            language=self.language,
            context=self.context,
            read=self.read,
            later=self.draft,
            source=self.source,
            whole_prompt=self.whole_prompt,
        )
        return registry.build(self.method, kit, self.options)[0]


def _language(
    constraint: OutputConstraint,
    model: LoadedModel,
    sampling: Sampling,
    family: str,
    eos: frozenset[int],
    stop_ids: frozenset[int],
) -> TokenLanguage[Any]:
    """What a constraint means to this model. Raises RequestError where the rest of the request leaves it no room."""
    vocab = model.checkpoint.lm.vocab
    if family != "ar":
        raise RequestError(
            f"constraint needs a text that is written from left to right, and {CALLED[family]} model writes in "
            "any order: leave it out"
        )
    ends = _ends(model, eos, stop_ids)
    if not ends:
        raise RequestError(
            "constraint has no token to end an answer with (ignore_eos, or a model without EOS): allow EOS, or "
            "give a special token among stop_token_ids"
        )
    language = constraint.language(vocab, ends)
    if language.finite and sampling.min_tokens:
        raise RequestError(
            f"min_tokens is {sampling.min_tokens}: the constraint holds a few texts only, and they end where they "
            "end, so leave min_tokens out"
        )
    return language


def _shaped(
    model: LoadedModel,
    law: Target,
    card: Card,
    sampling: Sampling,
    request: Request,
    order: str,
    language: TokenLanguage[Any] | None,
) -> tuple[Any, Callable[[], Any], tuple[()]]:
    """The target's law, which may be steered, and what gives the draft's, as the request bends them (no shapers are left
    over); a draft that may have another vocabulary takes the rules that name no token."""
    lm = model.checkpoint.lm
    if request.ignore_eos:
        eos = frozenset[int]()
    else:
        eos = lm.vocab.eos
    shapers = build_shapers(
        sampling,
        order=order,
        eos=eos,
        stop_ids=request.stop_ids,
        seed=request.seed,
        choice=0,
        words=lm.vocab.words,
        geometry=lm.geometry,
        language=language,
    )
    if shapers:
        target = ShapedTarget(law, *shapers)
    else:
        target = law

    @cache
    def small() -> Any:
        draft = model.small()
        length = count_context_tokens(lm, request.prompt) + request.max_tokens
        if draft is None or (not card.needs_draft and draft.network.context < length):
            return None  # one that may help, and has no room for this text, is left out
        if family_of(draft) != "ar":  # the laws of its gaps only choose what is proposed
            return draft
        bent = shapers
        if ANY_DRAFT in card.needs:
            bent = build_shapers(
                sampling.anywhere(),
                order=order,
                eos=draft.vocab.eos,
                seed=request.seed,
                choice=0,
                words=draft.vocab.words,
                geometry=draft.geometry,
            )
        if bent:
            return ShapedTarget(draft, *bent)
        return draft

    return target, small, ()


def _shape_diffusion_request(
    model: LoadedModel,
    law: Target,
    card: Card,
    sampling: Sampling,
    request: Request,
    order: str,
    language: TokenLanguage[Any] | None,
) -> tuple[Any, Callable[[], Any], tuple[Shaper[Any], ...]]:
    """A masked-diffusion model, the draft that guides it where the method asks for one, and the shapers that bend each gap's
    law by itself. Raises RequestError for a draft that is of no use, or a rule that looks at the text before a token."""
    lm: Any = model.checkpoint.lm
    if model.draft is not None and not card.needs_draft:
        raise RequestError(
            f"draft is {short_repr(model.draft.name)}: method {card.name} decodes a masked-diffusion model without one "
            "(guided-diffusion takes one)"
        )
    if sampling.min_tokens:  # a matter of positions here
        ends = (frozenset[int]() if request.ignore_eos else lm.vocab.eos) | request.stop_ids
        lm = NoEarlyEndDenoiser(lm, ends, len(request.prompt) + sampling.min_tokens)
        sampling = replace(sampling, min_tokens=0)
    _no_looking_back(
        next(iter(stateful_rule_names(sampling)), None), "a masked-diffusion model fills gaps"
    )
    return lm, model.small, build_shapers(sampling, order=order, seed=request.seed, choice=0)


def _no_looking_back(rule: str | None, who: str) -> None:
    """Raise RequestError for a sampling rule that looks at the text before a token. who: is decoded, and does what."""
    if rule:
        raise RequestError(
            f"sampling rule {rule} looks at the text before a token, and {who} in any order: leave it out"
        )


def _inserted(
    model: LoadedModel,
    law: Target,
    card: Card,
    sampling: Sampling,
    request: Request,
    order: str,
    language: TokenLanguage[Any] | None,
) -> tuple[Any, Callable[[], Any], tuple[Shaper[Any], ...]]:
    """An insertion model, and the shapers that bend each slot's law by itself. Raises RequestError for a draft, which is of no
    use, or a rule that looks at the text before a token."""
    if model.draft is not None:
        raise RequestError(
            f"draft is {short_repr(model.draft.name)}: an insertion model is decoded without one, so leave it out"
        )
    rule = next(iter(stateful_rule_names(sampling)), "min_tokens" if sampling.min_tokens else None)
    _no_looking_back(rule, "an insertion model writes")
    return law, _none, build_shapers(sampling, order=order, seed=request.seed, choice=0)


def _none() -> None:
    """No draft model."""


_SHAPES: Mapping[str, Callable[..., tuple[Any, Callable[[], Any], tuple[Shaper[Any], ...]]]] = {
    "ar": _shaped,
    "diffusion": _shape_diffusion_request,
    "insertion": _inserted,
}
"""By a model's family, how a request bends its laws: (target, what gives the draft, the shapers left to the method)."""

_GAPS = re.compile(r"\[\[(\d{1,6})\]\]")


def infill_token_ids(
    model: LoadedModel, answer: str | Sequence[int | None], *, end: bool
) -> tuple[int | None, ...]:
    """The tokens of an answer with gaps, None for each gap; end: an EOS behind it, which tells the model where it ends. Raises
    RequestError where it has no gap, or the model cannot fill one."""
    if family_of(model.checkpoint.lm) == "ar":
        raise RequestError(
            "infill is given: only a masked-diffusion or an insertion model fills gaps, such as zoo:diffusion"
        )
    size = model.checkpoint.lm.vocab.size
    out = list[int | None]()
    if isinstance(answer, str):
        for i, part in enumerate(_GAPS.split(answer)):
            if i % 2:
                out += (None,) * int(part)
            elif part:
                out += model.checkpoint.text.encode(part, special=False)
    else:
        for at, x in enumerate(answer):
            if x is not None and (type(x) is not int or not 0 <= x < size):
                raise RequestError(
                    f"infill[{at}] is {short_repr(x)}: it must be none, for a gap, or an id of 0 to {size - 1}"
                )
        out += answer
    if None not in out:
        raise RequestError("infill has no gap: write [[3]] where three tokens are to be filled in")
    eos = min(model.checkpoint.lm.vocab.eos, default=None)
    if end and eos is not None:
        return (*out, eos)
    return tuple(out)


def answer_token_room(
    model: LoadedModel, method: str, ids: Sequence[int], steered: SteeringSettings | None = None
) -> tuple[int, str]:
    """Tokens of an answer that the context has room for behind a prompt, and what it is of whose context. Raises RequestError
    where there is none."""
    contexts = [(model.checkpoint.lm.context, model.name, model.checkpoint.lm)]
    draft = model.draft
    needs = (
        *registry.get_recipe_module(method).CARD.needs,
        *(() if steered is None else steered.card.needs),
    )
    if draft is not None and DRAFT in needs:
        contexts.append((draft.lm.network.context, draft.name, draft.lm))
    context, who, lm = min(contexts, key=lambda entry: entry[0])
    if steered is None or steered.second is None:
        second = ()
    else:
        second = steered.second
    if steered is None:
        own = 0
    else:
        own = steer.steering_vector_positions(steered.card.name, steered.options)
    for name, text in (("prompt", ids), ("negative_prompt", second)):
        if context - count_context_tokens(lm, text) - own < 1:
            if own:
                vectors = f" and {own} vectors stand in it"
            else:
                vectors = ""
            raise RequestError(
                f"{name} has {_count(lm, text)}{vectors}: the context of {who} holds {context}, the answer included"
            )
    most = context - own - max(count_context_tokens(lm, ids), count_context_tokens(lm, second))
    return most, f"the context of {who} holds {context}" + (f", {own} vectors included" * bool(own))


def count_context_tokens(lm: Any, text: Sequence[int]) -> int:
    """Tokens of a model's context that a text takes: as many as it has, or fewer where it is written in bytes."""
    measure = getattr(lm, "tokens_of", None)
    if measure is not None and text:
        return measure(text)
    return len(text)


def _count(lm: Any, text: Sequence[int]) -> str:
    """How long a text is, in words."""
    tokens = count_context_tokens(lm, text)
    if hasattr(lm, "tokens_of"):
        bytes_ = f"{len(text)} bytes, which are "
    else:
        bytes_ = ""
    return f"{bytes_}{tokens} tokens"


def _length(
    model: LoadedModel,
    card: Card,
    ids: Sequence[int],
    asked: int | None,
    steered: SteeringSettings | None,
) -> int:
    """Tokens of an answer at most. Raises RequestError where the context has no room for them."""
    most, why = answer_token_room(model, card.name, ids, steered)
    if asked is not None and asked > most:
        raise RequestError(
            f"max_tokens is {asked}: the prompt has {_count(model.checkpoint.lm, ids)} and {why}, so it can be at most {most}"
        )
    if asked is None:
        return min(LENGTH, most)
    return asked


def _are_ids(prompt: Prompt) -> bool:
    return not isinstance(prompt, str) and not isinstance(prompt[0], Mapping)


def _ids(ids: tuple[int, ...], size: int) -> frozenset[int]:
    """Stop ids of a vocabulary of this size, checked."""
    for x in ids:
        if not 0 <= x < size:
            raise RequestError(f"stop_token_ids has token {x}: ids lie in 0 to {size - 1}")
    return frozenset(ids)

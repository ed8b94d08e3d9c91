"""A request as a user makes it, and the checked plan of it: everything that can be wrong is said before anything runs."""
from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Annotated, Any, get_args, get_type_hints

from polydec import registry
from polydec.card import Card
from polydec.core.decoder import Decoder
from polydec.core.protocols import Shaper
from polydec.core.request import Request
from polydec.kit import ANY_DRAFT, DRAFT, Kit, family_of
from polydec.loaded import LM, Prompt
from polydec.models.costs import Costs
from polydec.options import AtLeast, Note, Option, Within, option, shown
from polydec.shapers.sampling import Sampling, build_guard, build_shapers, sequential
from polydec.targets.no_early_end import NoEarlyEnd
from polydec.targets.shaped import Shaped

LENGTH = 128
"""Tokens of an answer where nobody says how many."""

STOPS = 64
"""Most stop strings, and most stop ids, of a request."""


@dataclass(frozen=True)
class Ask:
    """One request.

    prompt: text (through the chat template where the model has one), token ids, or chat messages; method: any name of a
    method; options: of the method; sampling: None for the checkpoint's own; stop: a text or several; stop_token_ids: end an
    answer like EOS; infill: the answer with gaps, for a masked-diffusion model: a text in which [[3]] stands for three tokens,
    or ids with None for each gap; EOS follows it unless that is ignored, and its length takes the place of max_tokens; order:
    the engine whose order of sampling rules is followed. The n answers share the seed and have their own randomness each.
    """
    prompt: Prompt
    method: str = "plain"
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    sampling: Sampling | None = None
    max_tokens: Annotated[int | None, AtLeast(1), Note(f"none: {LENGTH}, or what the context leaves"),
                          "tokens of an answer at most, EOS included"] = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: Annotated[bool, "go on after EOS"] = False
    include_stop: Annotated[bool, "leave the stop string in the text"] = False
    seed: Annotated[int, "names the randomness"] = 0
    n: Annotated[int, Within(1, 1024), "answers to one prompt"] = 1
    logprobs: Annotated[int | None, Within(0, 64), Note("none: no log-probabilities"),
                        "alternatives to report beside each token"] = None
    raw: Annotated[bool, "no chat template"] = False
    infill: str | Sequence[int | None] | None = None
    order: str = "vllm"


@cache
def limits() -> tuple[Option, ...]:
    """The fields of a request that are plain values, with their ranges."""
    hints = get_type_hints(Ask, include_extras=True)
    return tuple(option(f.name, hints[f.name], f.default) for f in fields(Ask)
                 if any(isinstance(x, str) for x in get_args(hints[f.name])[1:]))


@dataclass(frozen=True)
class Plan:
    """A request that can be run: its prompt's ids are in `request`; options: of the method, with the values they have."""
    request: Request
    decoder: Decoder
    card: Card
    options: Mapping[str, Any]

    @property
    def method(self) -> dict[str, Any]:
        """What will run, as results and traces name it."""
        return {"name": self.card.name, "guarantee": self.decoder.exactness.value, "options": dict(self.options)}


def plan(model: LM, ask: Ask, *, memory: Callable[[str], dict[str, Any]] = lambda method: {},
         measure: Callable[[], Costs] | None = None) -> Plan:
    """Check a request against a model and build its decoder; nothing is computed. memory: what a method keeps between
    requests, by its name; measure: gives the costs of passes, None: the model's. Raises ValueError with one sentence that
    names the field, the value and what is legal."""
    point, family = model.checkpoint, family_of(model.checkpoint.lm)
    card: Card = registry.get(registry.of_model(_text("method", ask.method), family)).CARD
    values = {o.name: o.convert(getattr(ask, o.name)) for o in limits()}
    options = registry.chosen(card.name, _mapping("options", ask.options))
    stops, stop_ids = _stops(ask.stop), _ids(ask.stop_token_ids, point.lm.vocab.size)
    ids = model.ids(ask.prompt, raw=values["raw"])
    sampling = model.sampling() if ask.sampling is None else ask.sampling
    sampling.check(point.lm.vocab.size)
    given = () if ask.infill is None else infill(model, ask.infill, end=not values["ignore_eos"])
    length = _length(model, card, ids, len(given) or values["max_tokens"])
    if sampling.min_tokens > length:
        raise ValueError(f"min_tokens is {sampling.min_tokens}: it must not exceed max_tokens ({length})")
    # an answer to a chat is a text of its own; what continues a text keeps the space that parts the two
    alone = point.text.has_chat and not values["raw"] and not _are_ids(ask.prompt)
    writer = point.text.writer(stops, values["include_stop"], after=() if alone else ids)
    eos = frozenset[int]() if values["ignore_eos"] else point.lm.vocab.eos
    guard = build_guard(sampling, eos=eos, stop_ids=stop_ids)
    request = Request(ids, length, stop_ids, values["ignore_eos"], values["seed"], 0, values["logprobs"], writer, values["n"],
                      guard, given)
    shape = _shaped if family == "ar" else _beside
    laws = shape(model, card, sampling, request, _text("order", ask.order))
    build = Build(card.name, options, *laws, model.artefacts, memory(card.name))
    return Plan(request, build.decoder(measure or (lambda: model.costs)), card, options)


@dataclass(frozen=True)
class Build:
    """What a decoder is made of. Costs are measured only for methods that ask for them, and only once all else is checked."""
    method: str
    options: Mapping[str, Any]
    target: Any
    draft: Any
    shapers: tuple[Shaper[Any], ...]
    artefacts: tuple[Any, ...]
    memory: dict[str, Any]

    def decoder(self, measure: Callable[[], Costs]) -> Decoder:
        asked: list[bool] = []

        def unmeasured() -> Costs:
            asked.append(True)
            return Costs()

        first = self._build(unmeasured)
        return self._build(measure) if asked else first

    def _build(self, measure: Callable[[], Costs]) -> Decoder:
        kit = Kit(self.target, self.draft, self.artefacts, measure, self.memory, self.shapers)
        return registry.build(self.method, kit, self.options)[0]


def _shaped(model: LM, card: Card, sampling: Sampling, request: Request, order: str) -> tuple[Any, Any, tuple[()]]:
    """The target's and the draft's law as the request bends them (no shapers are left over); a draft that may have another
    vocabulary takes the rules that name no token."""
    lm, draft = model.checkpoint.lm, None if model.draft is None else model.draft.lm
    eos = frozenset[int]() if request.ignore_eos else lm.vocab.eos
    shapers = build_shapers(sampling, order=order, eos=eos, stop_ids=request.stop_ids, seed=request.seed, choice=0)
    target = Shaped(lm, *shapers) if shapers else lm
    if draft is None or (not card.needs_draft and draft.network.context < len(request.prompt) + request.max_tokens):
        return target, None, ()                   # one that may help, and has no room for this text, is left out
    if ANY_DRAFT in card.needs:
        shapers = build_shapers(sampling.anywhere(), order=order, eos=draft.vocab.eos, seed=request.seed, choice=0)
    return target, Shaped(draft, *shapers) if shapers else draft, ()


def _beside(model: LM, card: Card, sampling: Sampling, request: Request,
            order: str) -> tuple[Any, Any, tuple[Shaper[Any], ...]]:
    """A masked-diffusion model, the draft that guides it where the method asks for one, and the shapers that bend each gap's
    law by itself. Raises ValueError for a draft that is of no use, or a rule that looks at the text before a token."""
    lm: Any = model.checkpoint.lm
    if model.draft is not None and not card.needs_draft:
        raise ValueError(f"draft is {shown(model.draft.name)}: method {card.name} decodes a masked-diffusion model without one "
                         "(guided-diffusion takes one)")
    if sampling.min_tokens:                       # a matter of positions here
        ends = (frozenset[int]() if request.ignore_eos else lm.vocab.eos) | request.stop_ids
        lm = NoEarlyEnd(lm, ends, len(request.prompt) + sampling.min_tokens)
        sampling = replace(sampling, min_tokens=0)
    if rule := next(iter(sequential(sampling)), None):
        raise ValueError(f"sampling rule {rule} looks at the text before a token, and a masked-diffusion model fills gaps in "
                         "any order: leave it out")
    draft = None if model.draft is None else model.draft.lm
    return lm, draft, build_shapers(sampling, order=order, seed=request.seed, choice=0)


_GAPS = re.compile(r"\[\[(\d{1,6})\]\]")


def infill(model: LM, answer: str | Sequence[int | None], *, end: bool) -> tuple[int | None, ...]:
    """The tokens of an answer with gaps, None for each gap; end: an EOS behind it, which tells the model where it ends. Raises
    ValueError where it has no gap, or the model cannot fill one."""
    if family_of(model.checkpoint.lm) != "diffusion":
        raise ValueError("infill is given: only a masked-diffusion model fills gaps, such as zoo:diffusion")
    size, out = model.checkpoint.lm.vocab.size, list[int | None]()
    if isinstance(answer, str):
        for i, part in enumerate(_GAPS.split(answer)):
            out += (None,) * int(part) if i % 2 else model.checkpoint.text.encode(part, special=False) if part else ()
    else:
        for at, x in enumerate(answer):
            if x is not None and (type(x) is not int or not 0 <= x < size):
                raise ValueError(f"infill[{at}] is {shown(x)}: it must be none, for a gap, or an id of 0 to {size - 1}")
        out += answer
    if None not in out:
        raise ValueError("infill has no gap: write [[3]] where three tokens are to be filled in")
    eos = min(model.checkpoint.lm.vocab.eos, default=None)
    return (*out, eos) if end and eos is not None else tuple(out)


def room(model: LM, method: str, ids: Sequence[int]) -> tuple[int, str]:
    """Tokens of an answer that the context has room for behind a prompt, and what it is of whose context. Raises ValueError
    where there is none."""
    contexts = {model.name: model.checkpoint.lm.network.context}
    draft = model.draft
    if draft is not None and DRAFT in registry.get(method).CARD.needs:
        contexts[draft.name] = draft.lm.network.context
    who, context = min(contexts.items(), key=lambda kv: kv[1])
    if context - len(ids) < 1:
        raise ValueError(f"prompt has {len(ids)} tokens: the context of {who} holds {context}, the answer included")
    return context - len(ids), f"the context of {who} holds {context}"


def _length(model: LM, card: Card, ids: Sequence[int], asked: int | None) -> int:
    """Tokens of an answer at most. Raises ValueError where the context has no room for them."""
    most, why = room(model, card.name, ids)
    if asked is not None and asked > most:
        raise ValueError(f"max_tokens is {asked}: the prompt has {len(ids)} tokens and {why}, so it can be at most {most}")
    return min(LENGTH, most) if asked is None else asked


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} is {shown(value)}: it must be a text")
    return value


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if value is not None and not (isinstance(value, Mapping) and all(isinstance(k, str) for k in value)):
        raise ValueError(f"{name} is {shown(value)}: it must hold values by name")
    return value or {}


def _are_ids(prompt: Prompt) -> bool:
    return not isinstance(prompt, str) and not isinstance(prompt[0], Mapping)


def _stops(stop: Any) -> tuple[str, ...]:
    """Stop strings, checked."""
    if isinstance(stop, str):
        stop = (stop,)
    if not isinstance(stop, Sequence) or len(stop) > STOPS:
        raise ValueError(f"stop is {shown(stop)}: it must be a text or up to {STOPS} of them")
    for s in stop:
        if not isinstance(s, str) or not 1 <= len(s) <= 4096:
            raise ValueError(f"stop has {shown(s)}: each must be a text of 1 to 4096 characters")
    return tuple(stop)


def _ids(ids: Any, size: int) -> frozenset[int]:
    """Stop ids, checked."""
    if isinstance(ids, (str, bytes)) or not isinstance(ids, (Sequence, set, frozenset)) or len(ids) > STOPS:
        raise ValueError(f"stop_token_ids is {shown(ids)}: it must hold up to {STOPS} token ids")
    for x in ids:
        if type(x) is not int or not 0 <= x < size:
            raise ValueError(f"stop_token_ids has token {shown(x)}: ids lie in 0 to {size - 1}")
    return frozenset(ids)

"""Sampling parameters under the names that people know, and the shapers that they mean.

Nothing here names a rule: each file of this folder says its fields, their ranges and its place in every order (`RULE`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, make_dataclass, replace
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from inspect import Parameter, Signature
from pkgutil import iter_modules
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Unpack, cast

from polydec.base import plugins
from polydec.base.errors import RequestError
from polydec.base.options import Option, short_repr
from polydec.core.protocols import Shaper
from polydec.core.types import RowDetail, TokenCodec
from polydec.laws.constraints.protocols import TokenLanguage
from polydec.laws.shapers._guard import ForbiddenTokenGuard, MaskingShaper
from polydec.laws.shapers._rule import ENGINES, SamplingRule, SamplingRuleContext
from polydec.laws.shapers.names import unknown_field_error
from polydec.laws.shapers.temperature import GREEDY_BELOW
from polydec.models.sessions.geometry import EmbeddingGeometry


@cache
def all_sampling_rules() -> Mapping[str, SamplingRule]:
    """Every rule of this folder and of other packages (`plugins.py`) by its name, in the order of
    vLLM. Raises TypeError where two have one name or field.
    """
    known = list(rules_here().values())
    # Plug-ins cannot replace rules of Polydec's own.
    taken = {rule.name for rule in known}
    known += plugins.load_plugins("shapers", taken, plugins.with_rule, "RULE of that name").values()
    names = [rule.name for rule in known] + [
        o.name for rule in known for o in rule.fields if o.name != rule.name
    ]
    # Two rules of one field would both act on it: a fault of the code, or of a plug-in.
    twice = next((x for x in names if names.count(x) > 1), None)
    if twice is not None:
        raise TypeError(f"two rules of sampling are called {twice}, or have a field of that name")
    return _in_order(known)


@cache
def rules_here() -> Mapping[str, SamplingRule]:
    """Every rule of this folder; `docs/keywords.py` writes what their fields are into declared.py."""
    package = import_module("polydec.laws.shapers")
    # Every module here may have a RULE; those that only help are left out.
    files = (
        m.name
        for m in iter_modules(package.__path__)
        if not m.name.startswith("_") and m.name not in ("sampling", "declared", "names")
    )
    return _in_order(
        rule
        for name in files
        if (rule := getattr(import_module(f"polydec.laws.shapers.{name}"), "RULE", None))
    )


def _in_order(known: Iterable[SamplingRule]) -> Mapping[str, SamplingRule]:
    return MappingProxyType(
        {rule.name: rule for rule in sorted(known, key=lambda r: (r.place["vllm"], r.name))}
    )


@cache
def all_sampling_fields() -> Mapping[str, Option]:
    """The fields of `Sampling` by their names: type, range, default and help of each."""
    return MappingProxyType(
        {o.name: o for rule in all_sampling_rules().values() for o in rule.fields}
    )


ORDERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        engine: tuple(
            sorted(
                all_sampling_rules(),
                key=lambda name: (all_sampling_rules()[name].place[engine], name),
            )
        )
        for engine in ENGINES
    }
)
"""The order of each engine."""

if TYPE_CHECKING:
    from polydec.laws.shapers.declared import SamplingFields as _Fields
    from polydec.laws.shapers.declared import SamplingKeywords
else:  # with the fields of other packages' rules
    SamplingKeywords = dict
    _Fields = make_dataclass(
        "_Fields",
        [(o.name, o.type, field(default=o.default)) for o in all_sampling_fields().values()],
        frozen=True,
        kw_only=True,
    )


class Sampling(_Fields):
    """How to sample: a frozen value with one attribute for each of `all_sampling_fields()`; every
    default is neutral.

    Names are vLLM's, then transformers', then llama.cpp's; `sampling_fields_table()` lists them
    with their ranges. Two that are equal have equal fields; dataclasses.replace changes some of
    them.

    Raises RequestError with one sentence for a field that is unknown or out of its range, or if the
    rules leave no token.
    """

    __signature__ = Signature(  # what notebooks and docs show
        [
            Parameter(
                o.name,
                Parameter.KEYWORD_ONLY,
                default=o.default,
                annotation=Annotated[o.type, o.help],
            )
            for o in all_sampling_fields().values()
        ]
    )

    def __init__(self, **given: Unpack[SamplingKeywords]) -> None:
        known = all_sampling_fields()
        # A wrong name is refused before any value is converted.
        for name in given:
            if name not in known:
                raise unknown_field_error(name, known)
        for name, option in known.items():
            object.__setattr__(
                self, name, option.convert_value(given[name]) if name in given else option.default
            )
        # The one contradiction that can be seen without a law: no token would ever be left.
        if self.allowed_token_ids is not None and not set(self.allowed_token_ids) - set(
            self.bad_token_ids
        ):
            raise RequestError(
                "bad_token_ids bans every one of allowed_token_ids: at least one token must be left"
            )

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always written."""
        return self.temperature < GREEDY_BELOW

    def without_token_fields(self) -> Sampling:
        """Copy these parameters without the fields that name token ids or count tokens: what can be
        asked of another tokenizer.

        Returns:
            The copy, with these fields at their defaults.
        """
        # Ids and counts belong to one tokenizer: these fields go back to their defaults.
        foreign = {
            name
            for rule in all_sampling_rules().values()
            for name in (*rule.token_ids, *rule.counts)
        }
        return replace(self, **{name: all_sampling_fields()[name].default for name in foreign})

    def check_token_ids(self, size: int) -> None:
        """Raise RequestError where an id lies outside a vocabulary of `size` tokens, or no token
        is left of it.
        """
        # Every id that a rule names must lie in the vocabulary.
        for name in (name for rule in all_sampling_rules().values() for name in rule.token_ids):
            high = max(getattr(self, name) or (), default=0)
            if high >= size:
                raise RequestError(f"{name} has token {high}: the vocabulary ends at {size - 1}")
        # Ids may repeat in the list, so distinct ones are counted.
        if len(set(self.bad_token_ids)) == size:
            raise RequestError(
                f"bad_token_ids bans all {size} tokens of the vocabulary: at least one must be left"
            )


def _made(sampling: Sampling, setting: SamplingRuleContext) -> dict[str, Shaper[Any] | None]:
    """Of each rule its shaper, or None where it is off."""
    return {
        rule.name: rule.make(setting, **{o.name: getattr(sampling, o.name) for o in rule.fields})
        for rule in all_sampling_rules().values()
    }


def build_shapers(
    sampling: Sampling,
    *,
    order: str | Sequence[str] = "vllm",
    eos: Iterable[int] = (),
    stop_ids: Iterable[int] = (),
    seed: int = 0,
    choice: int = 0,
    words: TokenCodec | None = None,
    geometry: EmbeddingGeometry | None = None,
    language: TokenLanguage[Any] | None = None,
    processor: Shaper[Any] | None = None,
) -> tuple[Shaper[Any], ...]:
    """Build the shapers of sampling parameters, in the order of an engine. Neutral rules are left
    out.

    Greedy (temperature below 1e-5) is the limit of the temperature where it stands: what comes
    after it, and what cannot move the argmax, is dropped, but penalties, bias and masks always act;
    GreedyRule is the last. So a typical or XTC rule acts on a greedy text in the order of llama.cpp
    only, where the temperature comes last.

    Only the order is the engine's: penalties look at all of the text also where llama.cpp looks at
    64 tokens.

    Args:
        sampling: The parameters.
        order: "transformers", "vllm" or "llamacpp", or the names of rules in an order written out
            (those of ORDERS, each once; those that are off may be left out). Default "vllm".
        eos: Token ids that end a text; min_tokens holds them back. Default: none.
        stop_ids: Token ids that end the answers of this request; min_tokens holds them back, too.
            Default: none.
        seed: Names the coins of XTC, together with `choice`. Default 0.
        choice: Number of the answer. Default 0.
        words: The tokenizer of the target, which CyclicReflex needs. None: there is none.
        geometry: The embeddings of the target, which Top-W needs. None: there are none.
        language: The texts that a constraint allows. None: all.
        processor: Applies the request's own function to rows. None: there is none.

    Returns:
        The shapers, the first one applied first.

    Raises:
        RequestError: The order is unknown or lacks a rule that is on, or a rule needs what is not
            there.
    """
    return tuple(
        shaper
        for _, shaper in _acting(
            sampling,
            order,
            SamplingRuleContext(
                tuple(sorted(eos)),
                # Ids that stop an answer end a text too; a rule that forbids ends must know both.
                tuple(sorted({*eos, *stop_ids})),
                seed,
                choice,
                words,
                geometry,
                language,
                processor,
            ),
        )
    )


def active_rule_names(
    sampling: Sampling, setting: SamplingRuleContext, order: str | Sequence[str] = "vllm"
) -> tuple[list[str], list[str]]:
    """List the rules that act and those that are on without effect.

    A greedy text has no unlikely tokens to cut off, so rules that only cut off are without effect
    there.

    Args:
        sampling: The parameters.
        setting: What the rules may know of the target and the request.
        order: As for `build_shapers`. Default "vllm".

    Returns:
        Names of the rules that shape a law, in their order, and names of those that change nothing.

    Raises:
        RequestError: As for `build_shapers`.
    """
    names = [name for name, _ in _acting(sampling, order, setting)]
    return names, [
        name for name, s in _made(sampling, setting).items() if s is not None and name not in names
    ]


def _acting(
    sampling: Sampling, order: str | Sequence[str], setting: SamplingRuleContext
) -> list[tuple[str, Shaper[Any]]]:
    """The rules that act, by name, in an order."""
    if isinstance(order, str):
        if order not in ORDERS:
            near = get_close_matches(order, ORDERS, 1, 0.0)[0]
            raise RequestError(
                f"order is {short_repr(order)}: it must be one of {', '.join(ORDERS)} (nearest: {near})"
            )
        order = ORDERS[order]
    # An order written out: its rules must exist and stand in it once.
    bad = next((x for x in order if x not in all_sampling_rules()), None)
    if bad is not None or len(set(order)) != len(order):
        raise RequestError(
            f"order has {short_repr(bad)}: its rules are {', '.join(ORDERS['vllm'])}"
            if bad is not None
            else f"order is {', '.join(order)}: each rule may stand in it once"
        )
    made = _made(sampling, setting)
    # A rule that needs something of the target says here that it is missing.
    for name, shaper in made.items():
        if shaper is not None:
            all_sampling_rules()[name].check(shaper, setting)
    # A rule that is on must have a place: leaving it out in silence would change the law.
    lost = next((name for name, s in made.items() if s is not None and name not in order), None)
    if lost is not None:
        raise RequestError(f"order lacks {lost}, which is on: add it where it belongs")
    on = [(name, s) for name in order if (s := made[name]) is not None]
    at = next((i for i, (_, s) in enumerate(on) if s.reads is RowDetail.ARGMAX), None)
    # Without a greedy rule, every rule that is on acts.
    if at is None:
        return on
    acts = [
        (name, s)
        # Before the greedy rule whatever can move the argmax acts; after it only rules that always
        # act.
        for i, (name, s) in enumerate(on)
        if (i < at or all_sampling_rules()[name].always) and not s.keeps_argmax
    ]
    return [*acts, on[at]]


def stateful_rule_names(sampling: Sampling) -> tuple[str, ...]:
    """The rules that are on and have a state: what they do to a law depends on the text before it."""
    # Any end id serves: the question is only whether a rule has a state.
    made = _made(sampling, SamplingRuleContext((0,), (0,)))
    return tuple(
        name for name, s in made.items() if s is not None and s.start_state((0,)) is not None
    )


def build_guard(
    sampling: Sampling,
    *,
    eos: Iterable[int] = (),
    stop_ids: Iterable[int] = (),
    language: TokenLanguage[Any] | None = None,
) -> ForbiddenTokenGuard | None:
    """Build the guard that ends a text at which the rules and the constraint leave no token.

    Args:
        sampling: The parameters.
        eos: Token ids that end a text. Default: none.
        stop_ids: Token ids that end the answers of this request. Default: none.
        language: The texts that a constraint allows. None: all.

    Returns:
        The guard; None where no rule forbids any token.
    """
    eos = tuple(sorted(eos))
    made = _made(
        sampling, SamplingRuleContext(eos, tuple(sorted({*eos, *stop_ids})), language=language)
    )
    # Rules that mask have `forbids_token`; the others take no token away for good.
    masks = tuple(
        (name, cast(MaskingShaper, s))
        for name, s in made.items()
        if s is not None and hasattr(s, "forbids_token")
    )
    if masks:
        return ForbiddenTokenGuard(masks)
    return None


def sampling_fields_table() -> str:
    """The fields as a table in Markdown, for the docs."""
    rows = ["| field | what it is | legal | default |", "|---|---|---|---|"]
    return "\n".join(
        rows
        + [
            f"| `{o.name}` | {o.help} | {o.legal} | {_plain(o.default)} |"
            for o in all_sampling_fields().values()
        ]
    )


def order_table() -> str:
    """The order of each engine as a table in Markdown."""
    rows = ["| engine | rules, the first one applied first |", "|---|---|"]
    return "\n".join(
        rows + [f"| `{engine}` | {', '.join(order)} |" for engine, order in ORDERS.items()]
    )


def _plain(default: Any) -> str:
    if default in (None, ()):
        return "none"
    return f"{default:g}"

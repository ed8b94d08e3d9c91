"""Finds recipes and mechanisms by their files: adding a method is adding a file."""
from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from polydec.core.costs import Costs
from polydec.core.decode import Speculative
from polydec.core.protocols import Target
from polydec.models.ngrams import NGrams

ROLES = {"drafters": "open", "trees": "grow", "verifiers": "verify", "policies": "budget", "shapers": "shape"}
"""Role folders, and the method by which a class in one is known to be a mechanism."""

GIVEN = ("target", "draft", "ngrams", "costs", "kept")
"""Parameters of `build` that the engine fills (`ngrams`: the table of the target's own text, or None; `kept`: what a method
leaves there for its later requests); the others are the method's options."""

_BOOLS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_SPOKEN = {int: "a whole number", float: "a number", bool: "true or false", str: "a word",
           tuple: "whole numbers, such as 2,1,1"}


@dataclass(frozen=True)
class Option:
    """A parameter of a recipe's `build`: its type (int, float, bool, str, tuple[int, ...], or one of these with None),
    its default and one line of help."""
    name: str
    type: Any
    default: Any
    help: str

    @property
    def kind(self) -> type:
        """The type without None and without what a tuple holds."""
        alone = next(t for t in get_args(self.type) if t is not type(None)) if isinstance(self.type, UnionType) else self.type
        return get_origin(alone) or alone

    @property
    def optional(self) -> bool:
        return isinstance(self.type, UnionType)

    def convert(self, value: Any) -> Any:
        """`value` as this option's type; text is read as the command line gives it. Raises ValueError."""
        kind = self.kind
        try:
            if self.optional and (value is None or value == "none"):
                return None
            if isinstance(value, str):
                return _parse(kind, value)
            if kind is tuple and isinstance(value, (list, tuple)) and all(type(x) is int for x in value):
                return tuple(value)
            if type(value) is kind or (kind is float and type(value) is int):
                return value
        except (ValueError, KeyError):
            pass
        raise ValueError(f"{self.name} is {value!r}: it must be {_SPOKEN[kind]}{' or none' if self.optional else ''}")


def _parse(kind: type, text: str) -> Any:
    if kind is bool:
        return _BOOLS[text.lower()]
    return tuple(int(x) for x in text.split(",")) if kind is tuple else kind(text)


@cache
def recipes() -> dict[str, ModuleType]:
    """Every recipe's module by its name (the file's, with hyphens)."""
    package = import_module("polydec.recipes")
    return {m.name.replace("_", "-"): import_module(f"polydec.recipes.{m.name}") for m in iter_modules(package.__path__)}


@cache
def mechanisms(role: str) -> dict[str, type]:
    """Every mechanism of a role folder by its file's name: the public class there that has the role's method."""
    package, out = import_module(f"polydec.{role}"), dict[str, type]()
    for m in iter_modules(package.__path__):
        module = import_module(f"polydec.{role}.{m.name}")
        for name, thing in vars(module).items():
            if isinstance(thing, type) and thing.__module__ == module.__name__ and hasattr(thing, ROLES[role]) \
                    and not name.startswith("_"):
                out[m.name if m.name not in out else f"{m.name}.{name}"] = thing
    return out


def get(name: str) -> ModuleType:
    """A recipe's module. Raises ValueError with the nearest names for one that is not there."""
    if name not in recipes():
        raise ValueError(f"method {name!r} is unknown: {_nearest(name, recipes(), 'methods')}")
    return recipes()[name]


def options(name: str) -> tuple[Option, ...]:
    """The options of a recipe, from the signature of its `build`."""
    module = get(name)
    hints = get_type_hints(module.build)
    return tuple(Option(p.name, hints[p.name], p.default, module.CARD.options[p.name])
                 for p in inspect.signature(module.build).parameters.values() if p.name not in GIVEN)


def build(name: str, target: Target, draft: Target | None = None, given: Mapping[str, Any] | None = None,
          costs: Costs | None = None, kept: dict[str, Any] | None = None,
          ngrams: NGrams | None = None) -> tuple[Speculative, dict[str, Any]]:
    """The recipe's decoder, and all its options with the values they have. Raises ValueError for an unknown option, a
    value of the wrong type or out of range, or a draft or a table that is missing."""
    module, known = get(name), {o.name: o for o in options(name)}
    for option in given or {}:
        if option not in known:
            raise ValueError(f"option {option!r} of method {name} is unknown: "
                             + (_nearest(option, known, "options") if known else "it has no options"))
    if "draft" in module.CARD.needs:
        if draft is None:
            raise ValueError(f"method {name} needs a draft model: name one (--draft), or take one of "
                             + ", ".join(n for n, m in recipes().items() if not m.CARD.needs))
        if module.CARD.same_tokenizer:
            target.vocab.require_same(draft.vocab, "the draft")
    if "ngrams" in module.CARD.needs:
        if ngrams is None:
            raise ValueError(f"method {name} needs an n-gram table: name one (--ngrams); `polydec train ngrams` makes one")
        target.vocab.require_same(ngrams.vocab, "the n-gram table")
    if "layers" in module.CARD.needs and not target.layers:
        raise ValueError(f"method {name} needs a model whose layers can run alone: this one runs as a whole only")
    if "draft's layers" in module.CARD.needs and draft is not None and not draft.layers:
        raise ValueError(f"method {name} needs a draft whose layers can run alone: this one runs as a whole only")
    if "draft" not in module.CARD.needs and draft is not None and not target.vocab.same(draft.vocab):
        draft = None                              # it is there for another method
    if ngrams is not None and not target.vocab.same(ngrams.vocab):
        ngrams = None
    values = {o.name: o.convert(given[o.name]) if given and o.name in given else o.default for o in known.values()}
    engine = {"costs": costs or Costs(), "kept": {} if kept is None else kept, "ngrams": ngrams}
    wanted = {k: v for k, v in engine.items() if k in inspect.signature(module.build).parameters}
    return module.build(target, draft=draft, **wanted, **values), values


def wants_costs(name: str) -> bool:
    """Whether a recipe is given what passes cost on this machine."""
    return "costs" in inspect.signature(get(name).build).parameters


def describe(name: str) -> dict[str, Any]:
    """The object of `polydec methods --json`."""
    card = get(name).CARD
    return {"name": name, "title": card.title, "summary": card.summary, "kind": card.kind, "family": card.family,
            "guarantee": card.guarantee.value if card.guarantee else None, "needs": list(card.needs),
            "needs_training": card.needs_training, "source": card.source, "reduces_to": card.reduces_to,
            "parent": card.parent, "home": card.home,
            "options": {o.name: {"type": _SPOKEN[o.kind], "default": o.default, "help": o.help} for o in options(name)}}


def _nearest(name: str, known: Mapping[str, Any], what: str) -> str:
    near = get_close_matches(name, known, 3, 0.5)
    return f"did you mean {' or '.join(near)}?" if near else f"the {what} are {', '.join(known)}"

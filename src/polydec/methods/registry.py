"""Finds recipes and mechanisms by their files: adding a method is adding a file."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from polydec.base import plugins
from polydec.base.errors import PolydecError, RequestError
from polydec.base.options import Option, as_text, meant, read, shown
from polydec.core.decoder import Decoder
from polydec.methods.card import Card
from polydec.methods.kit import CALLED, Kit

ROLES = {
    "drafters": "open",
    "trees": "grow",
    "verifiers": "verify",
    "policies": "budget",
    "shapers": "shape",
    "unmaskers": "choose",
    "refreshes": "feed",
    "contrasts": "mix",
}
"""Role folders, and the method by which a class in one is known to be a mechanism."""


@cache
def recipes() -> dict[str, ModuleType]:
    """Every recipe's module by its name (the file's, with hyphens), those of other packages included (`plugins.py`)."""
    package = import_module("polydec.recipes")
    own = {
        m.name.replace("_", "-"): import_module(f"polydec.recipes.{m.name}")
        for m in iter_modules(package.__path__)
    }
    return own | plugins.found("methods", own, plugins.with_card, "CARD of that name with a build")


def of_family(family: str) -> list[str]:
    """Names of the recipes that decode models of a family, "ar", "diffusion" or "insertion"."""
    return [name for name, module in recipes().items() if module.CARD.family in ("any", family)]


@cache
def mechanisms(role: str) -> dict[str, type]:
    """Every mechanism of a role folder by its file's name: the public class there that has the role's method. Those of other
    packages are among them (`plugins.py`)."""
    package, own = import_module(f"polydec.{role}"), dict[str, type]()
    for m in iter_modules(package.__path__):
        for kind in _mechanisms_in(import_module(f"polydec.{role}.{m.name}"), role):
            own[m.name if m.name not in own else f"{m.name}.{kind.__name__}"] = kind
    return own | plugins.found(
        role,
        own,
        lambda thing, _: (
            thing if isinstance(thing, type) else next(_mechanisms_in(thing, role), None)
        ),
        f"public class with a method {ROLES[role]}",
    )


def _mechanisms_in(module: ModuleType, role: str) -> Iterator[type]:
    """The public classes of a module that have a role's method."""
    for name, thing in vars(module).items():
        if (
            isinstance(thing, type)
            and thing.__module__ == module.__name__
            and hasattr(thing, ROLES[role])
            and not name.startswith("_")
            and not getattr(thing, "_is_protocol", False)
        ):
            yield thing


@cache
def names() -> dict[str, str]:
    """Every name that a method answers to, in lower case: its own, its aliases and its paper's number; and its own name."""
    out = dict[str, str]()
    for name, module in recipes().items():
        card: Card = module.CARD
        for known in (name, *card.aliases, *filter(None, [card.arxiv])):
            out.setdefault(_plain(known), name)
    return out


def _plain(name: str) -> str:
    """How names are compared: in lower case, with a hyphen for whatever stands between words."""
    return re.sub(r"[\s_-]+", "-", name.strip().lower())


def find(name: str) -> str:
    """The method that answers to a name, an alias or an arXiv number. Raises RequestError with the nearest names for one that
    is not there."""
    if _plain(name) in names():
        return names()[_plain(name)]
    raise RequestError(f"method {shown(name)} is unknown: {_suggestion(name)}")


DEFAULTS = {"ar": "auto", "diffusion": "fast-dllm", "insertion": "insertion-language-models"}
"""By a model's family, the method that "auto" means."""


def of_model(name: str, family: str) -> str:
    """The method that a name means for a model of this family: "auto" is the family's own default. Raises RequestError for a
    name that is unknown, or a method of another family."""
    found = find(name)
    found = DEFAULTS[family] if found == "auto" else found
    check_family(found, family)
    return found


def check_names(name: str, given: Mapping[str, Any] | None = None) -> None:
    """Raise RequestError where no model could be decoded by this method with these options: a name that is unknown, or a value
    out of its range. "auto" may mean the default of any family, so it takes the options of each."""
    found = find(name)
    wrong: PolydecError | None = None
    for method in DEFAULTS.values() if found == "auto" else (found,):
        try:
            chosen(method, given)
            return
        except PolydecError as error:
            wrong = wrong or error
    if wrong is not None:
        raise wrong


def search(words: str) -> list[str]:
    """Methods whose name, aliases, title, paper or summary hold all of these words, those whose name does first."""
    wanted = _plain(words).split("-")

    def rank(name: str) -> int:
        card: Card = recipes()[name].CARD
        called = [
            _plain(" ".join((name, *card.aliases, card.arxiv))),
            _plain(card.title),
            _plain(card.source + card.summary),
        ]
        return next((i for i in range(3) if all(w in "-".join(called[: i + 1]) for w in wanted)), 3)

    ranks = {name: rank(name) for name in recipes()}
    return sorted((n for n in ranks if ranks[n] < 3), key=lambda n: (ranks[n], n))


def _suggestion(name: str) -> str:
    """The methods that a wrong name may mean: near in spelling, or speaking of these words."""
    near = get_close_matches(_plain(name)[:100], names(), 3, 0.6)
    meant = [*dict.fromkeys(names()[n] for n in near)] or search(name[:100])[:3]
    return f"did you mean {' or '.join(meant)}?" if meant else "`polydec methods` lists all of them"


def get(name: str) -> ModuleType:
    """A recipe's module, by any of its names. Raises RequestError with the nearest names for one that is not there."""
    return recipes()[find(name)]


@cache
def options(name: str) -> tuple[Option, ...]:
    """The options of a recipe, from the signature of its `build`."""
    return read(get(name).build)


def chosen(name: str, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """All options of a recipe with the values they have, under their names of today. Raises RequestError for an unknown option,
    one that is given twice, or a value of the wrong type or out of range."""
    known = {o.name: o for o in options(name)}
    today = {o.formerly: o.name for o in known.values() if o.formerly}
    values = dict[str, Any]()
    for option, value in (given or {}).items():
        now = today.get(option, option)
        if now not in known:
            raise RequestError(
                f"option {shown(option)} of method {find(name)} is unknown: "
                + _nearest(str(option), known)
            )
        if now in values:
            raise RequestError(
                f"option {now} of method {find(name)} is given twice: {known[now].formerly} is its earlier name"
            )
        values[now] = value
    return {
        o.name: o.convert(values[o.name]) if o.name in values else o.default for o in known.values()
    }


def _nearest(name: str, known: Collection[str]) -> str:
    return meant(name, known, "the options") if known else "it has no options"


def can(name: str, kit: Kit) -> bool:
    """Whether the kit holds what a method needs."""
    try:
        check(name, kit)
    except PolydecError:
        return False
    return True


def check(name: str, kit: Kit) -> None:
    """Raise RequestError with one sentence where the kit lacks something that a method needs."""
    card: Card = get(name).CARD
    check_family(name, kit.family)
    for need in card.needs:
        need.check(kit, card.name)


def check_family(name: str, family: str) -> None:
    """Raise RequestError where a method does not decode models of this family."""
    card: Card = get(name).CARD
    if card.family not in ("any", family):
        others = CALLED[card.family].partition(" ")[2]
        raise RequestError(
            f"method {card.name} decodes {others} models and this is {CALLED[family]} one: take {_OWN[family]} "
            "(`polydec methods`)"
        )


_OWN = {
    "ar": "plain, auto or another of the family 'ar'",
    "diffusion": "llada, fast-dllm or another of the family 'diffusion'",
    "insertion": "insertion-language-models",
}
"""By a model's family, what can decode it."""


def build(
    name: str, kit: Kit, given: Mapping[str, Any] | None = None
) -> tuple[Decoder, dict[str, Any]]:
    """The recipe's decoder, and all its options with the values they have. Raises RequestError for an unknown option, a
    value of the wrong type or out of range, or something that the kit lacks."""
    module, values = get(name), chosen(name, given)
    card: Card = module.CARD
    check(name, kit)
    if not card.needs_draft:
        kit = kit.without_foreign_draft()
    return module.build(kit, **values), values


def describe(name: str) -> dict[str, Any]:
    """The object of `polydec methods --json`."""
    card: Card = get(name).CARD
    return {
        "name": card.name,
        "title": card.title,
        "summary": card.summary,
        "kind": card.kind,
        "family": card.family,
        "guarantee": card.guarantee.value if card.guarantee else None,
        "needs": [n.name for n in card.needs],
        "needs_training": card.needs_training,
        "source": card.source,
        "arxiv": card.arxiv,
        "aliases": list(card.aliases),
        "reduces_to": card.reduces_to,
        "parent": card.parent,
        "home": card.home,
        "options": {
            o.name: {"type": o.legal, "default": o.default, "help": o.help, "schema": o.schema()}
            for o in options(card.name)
        },
    }


def written(value: object) -> str:
    """A default as --set takes it."""
    return as_text(value)

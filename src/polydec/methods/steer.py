"""Ways to steer a model: found by their files, names, aliases and papers, and built into a law that any method decodes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from polydec.base import plugins
from polydec.base.errors import RequestError
from polydec.base.options import Option, meant, read, shown
from polydec.core.protocols import Target
from polydec.methods.card import Card
from polydec.methods.kit import SECOND_PROMPT, Kit


@cache
def steerings() -> dict[str, ModuleType]:
    """The module of each way by its name (the file's, with hyphens), those of other packages included (`plugins.py`)."""
    package = import_module("polydec.steering")
    files = [m.name for m in iter_modules(package.__path__) if not m.name.startswith("_")]
    own = {name.replace("_", "-"): import_module(f"polydec.steering.{name}") for name in files}
    return own | plugins.found(
        "steerings", own, plugins.with_card, "CARD of that name with a build"
    )


@cache
def names() -> dict[str, str]:
    """Every name that a way answers to, in lower case with hyphens: its own, its aliases, its paper's number; and its own."""
    cards = {name: module.CARD for name, module in steerings().items()}
    return {
        _plain(known): name
        for name, card in cards.items()
        for known in (name, *card.aliases, *filter(None, [card.arxiv]))
    }


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "-", name.strip().lower())


def get(name: str) -> ModuleType:
    """A way's module, by any of its names. Raises RequestError with the nearest names for one that is not there."""
    if _plain(name) not in names():
        near = dict.fromkeys(
            names()[n] for n in get_close_matches(_plain(name)[:100], names(), 3, 0.5)
        )
        raise RequestError(
            f"steer is {shown(name)}: "
            + (
                f"did you mean {' or '.join(near)}?"
                if near
                else f"it must be one of {', '.join(steerings())}"
            )
        )
    return steerings()[names()[_plain(name)]]


@cache
def options(name: str) -> tuple[Option, ...]:
    """The options of a way, from the signature of its `build`."""
    return read(get(name).build)


def chosen(name: str, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """All options of a way with the values they have. Raises RequestError for one that is unknown, of the wrong type or out of
    range."""
    known, given = {o.name: o for o in options(name)}, given or {}
    for option in given:
        if option not in known:
            raise RequestError(
                f"option {shown(option)} of steering {get(name).CARD.name} is unknown: "
                + meant(str(option), known, "the options")
            )
    return {
        o.name: o.convert(given[o.name]) if o.name in given else o.default for o in known.values()
    }


def derived(name: str) -> Callable[[str], str] | None:
    """What makes the second prompt of a text where none is given; None where nothing does."""
    return getattr(get(name), "derive", None)


def check_second(name: str, given: bool) -> None:
    """Raise RequestError where a second prompt is missing, or is given and not read."""
    card: Card = get(name).CARD
    if given and SECOND_PROMPT not in card.needs:
        raise RequestError(
            f"negative_prompt is given: steering {card.name} reads no second prompt, so leave it out"
        )


def build(
    name: str, kit: Kit, given: Mapping[str, Any] | None = None
) -> tuple[Target, dict[str, Any]]:
    """The steered law of a kit's bare target, and all options with the values they have. Raises RequestError for an option that
    is not legal, or something that the kit lacks."""
    module, values = get(name), chosen(name, given)
    card: Card = module.CARD
    for need in card.needs:
        need.check(kit, f"steering {card.name}")
    return module.build(kit, **values), values


def describe(name: str) -> dict[str, Any]:
    """The object of `polydec steerings --json`."""
    card: Card = get(name).CARD
    return {
        "name": card.name,
        "title": card.title,
        "summary": card.summary,
        "kind": card.kind,
        "needs": [n.name for n in card.needs],
        "source": card.source,
        "arxiv": card.arxiv,
        "aliases": list(card.aliases),
        "reduces_to": card.reduces_to,
        "home": card.home,
        "options": {
            o.name: {"type": o.legal, "default": o.default, "help": o.help, "schema": o.schema()}
            for o in options(card.name)
        },
    }

"""polydec methods: what can be asked for."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from polydec.base.errors import PolydecError
from polydec.cli.terminal_output import emit_drawn
from polydec.core.types import Exactness
from polydec.methods.registry import press, registry, steer
from polydec.methods.registry.card import promise_in_words
from polydec.methods.registry.catalogue import search_described_names
from polydec.methods.registry.studies import STUDIES

LONGEST = 200
"""Characters of a search that are looked at."""


def methods(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="a name, alias or arXiv number: that method in full; other words: all that speaks of them"
        ),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="a JSON list")] = False,
) -> None:
    """List every method: what it is, promises, needs, options, source. With a name: one method in full; with words: those
    whose name, title, paper or summary holds them all, and what else speaks of them (ways to steer, rules of sampling,
    systems that have a command or a benchmark of their own).\f

    Args:
        words: A name, an alias, an arXiv number or words to look for. Default None: all methods.
        json_: Whether a JSON list is printed. Default False.
    """
    names, beside = find_methods_by_words(" ".join(words or ()))
    # One method and nothing else: it is printed in full.
    whole = len(names) == 1 and not beside
    rows = [registry.describe_method(n) for n in names]
    # Programs get everything, whatever people would be shown.
    if json_:
        print(json.dumps([*rows, *beside]))
        return
    if not whole and names:
        table = Table(box=None, pad_edge=False)
        for column in ("method", "guarantee", "needs", "what it is"):
            table.add_column(column, no_wrap=column != "what it is")
        for r in rows:
            table.add_row(
                r["name"], guarantee_words(r) or "-", ", ".join(r["needs"]) or "-", r["title"]
            )
        emit_drawn(lambda out: out.print(table))
    elif names:
        in_full(rows[0], "--set")
    if beside:
        others = Table(box=None, pad_edge=False)
        for column in ("beside them", "kind", "what it is", "where"):
            others.add_column(column, no_wrap=column in ("beside them", "kind"))
        for r in beside:
            others.add_row(r["name"], r["kind"], r["title"], r["where"])
        emit_drawn(lambda out: out.print(others))


def in_full(r: Mapping[str, Any], flag: str) -> None:
    """Print all that is known of one method, one way to steer or one press.

    Args:
        r: Its description.
        flag: The flag that sets its options.
    """
    console = Console(highlight=False)
    console.print(f"[bold]{r['name']}[/bold]: {r['title']}")
    console.print(r["summary"])
    for key in (
        "aliases",
        "kind",
        "family",
        "guarantee",
        "needs",
        "needs_training",
        "reduces_to",
        "parent",
        "home",
        "source",
        "arxiv",
        "published",
    ):
        # Descriptions of steerings and presses lack some of these keys.
        if value := r.get(key):
            if isinstance(value, list):
                shown = ", ".join(map(str, value))
            elif value is True:
                shown = "yes"
            elif key == "guarantee":
                shown = f"{value} ({guarantee_words(r)})"
            else:
                shown = value
            console.print(f"  {key.replace('_', ' ')}: {shown}")
    for option, facts in r["options"].items():
        console.print(f"  {flag} {option}={option_default_text(facts['default'])}  {facts['help']}")


def guarantee_words(r: Mapping[str, Any]) -> str:
    """What a method promises, in words for those who do not know the promise's name.

    Args:
        r: Its description.

    Returns:
        The words; "" where it promises nothing.
    """
    kept = r["guarantee"]
    return promise_in_words(Exactness(kept) if kept else None, r["family"])


def search_other_features(words: str) -> list[dict[str, str]]:
    """What is no method and speaks of these words: ways to steer, presses, rules of sampling,
    systems that are always on or have a command of their own.
    """
    ways = [
        {
            "name": name,
            "kind": "steering",
            "title": steer.get_steering_module(name).CARD.title,
            "where": f"--steer {name}",
        }
        for name in steer.STEERINGS.search_modules(words)
    ]
    caches = [
        {
            "name": name,
            "kind": "press",
            "title": press.get_press_module(name).CARD.title,
            "where": f"--cache {name}",
        }
        for name in press.PRESSES.search_modules(words)
    ]
    shapers = registry.mechanism_classes("shapers")
    # Rules of sampling have no cards: their docstrings, and their modules', are searched.
    pages = {key: inspect.getdoc(inspect.getmodule(kind)) or "" for key, kind in shapers.items()}
    # Key, module's docstring and class's docstring of each rule.
    told = {key: (key, pages[key], inspect.getdoc(kind) or "") for key, kind in shapers.items()}
    rules = [
        {
            "name": key,
            "kind": "sampling rule",
            "title": pages[key].partition("\n")[0],
            "where": "docs/sampling.md",
        }
        for key in search_described_names(words, told)
    ]
    # Whole systems are composed of several methods, and are listed beside them.
    systems = {s.name: s for s in STUDIES}
    texts = {s.name: (s.name, s.arxiv, s.title, s.source) for s in STUDIES}
    studies = [
        {
            "name": name,
            "kind": "system",
            "title": systems[name].title,
            "where": systems[name].where,
        }
        for name in search_described_names(words, texts)
    ]
    return [*ways, *caches, *rules, *studies]


def find_methods_by_words(words: str) -> tuple[list[str], list[dict[str, str]]]:
    """The methods that words mean, and what else speaks of them, unless they are a method's name.

    Raises:
        RequestError: Nothing speaks of them.
    """
    if not words.strip():
        return sorted(registry.recipe_modules()), []
    try:
        # A name, an alias or an arXiv number means one method exactly.
        return [registry.find_method(words)], []
    except PolydecError:
        names = registry.search_methods(words[:LONGEST])
        beside = search_other_features(words[:LONGEST])
        # The sentence of `find_method` names the nearest one.
        if not names and not beside:
            raise
        return names, beside


def option_default_text(value: object) -> str:
    """A default as --set takes it."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower()

"""polydec methods: what can be asked for."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from polydec.base.errors import RequestError
from polydec.cli.terminal_output import emit_drawn
from polydec.core.types import Exactness
from polydec.methods.registry import press, registry, steer
from polydec.methods.registry.card import promise_in_words
from polydec.methods.registry.catalogue import (
    ModuleCatalogue,
    in_hyphens,
    search_described_names,
)
from polydec.methods.registry.published_systems import (
    MISSING_KIND,
    all_published_systems,
    paper_titles,
)

LONGEST = 200
"""Characters of a search that are looked at."""


def methods(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="a name, alias or arXiv number: that method in full; other words: all that speaks of them"
        ),
    ] = None,
    published: Annotated[
        bool,
        typer.Option(
            "--published",
            help="of one method, way to steer or press: what its paper sets otherwise than our defaults, and why",
        ),
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="a JSON list")] = False,
) -> None:
    """List every method: what it is, promises, needs, options, source. With a name: one method in full; with words: those
    whose name, title, paper or summary holds them all, and what else speaks of them (ways to steer, rules of sampling,
    published systems that have a command or a benchmark of their own, or are not here yet).\f

    Args:
        words: A name, an alias, an arXiv number or words to look for. Default None: all methods.
        published: Whether what one method's paper sets is printed, in place of the method. Default
            False.
        json_: Whether a JSON list is printed. Default False.
    """
    if published:
        print_published_settings(" ".join(words or ()), json_)
        return
    names, beside = find_methods_by_words(" ".join(words or ()))
    rows = [registry.describe_method(n) for n in names]
    # Programs get everything, whatever people would be shown.
    if json_:
        print(json.dumps([*rows, *beside]))
        return
    # One method alone is printed in full.
    if len(names) > 1:
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


def print_published_settings(name: str, json_: bool) -> None:
    """Print what a paper sets otherwise than our defaults.

    Args:
        name: Any name of a method, or of a way to steer or a press that no method shares.
        json_: Whether one JSON object is printed.

    Raises:
        RequestError: There is nothing of that name.
    """
    if not name.strip():
        raise RequestError(
            "published is given without a method: name one (`polydec methods` lists all of them)"
        )
    catalogue, own_name = named_module(name)
    found = catalogue.describe_published(own_name)
    if json_:
        print(json.dumps(found))
        return
    print(f"{found['name']}: {found['summary']}")
    if found["settings"]:
        table = Table(box=None, pad_edge=False)
        for column in ("option", "ours", "published", "why"):
            table.add_column(column, no_wrap=column == "option")
        for r in found["settings"]:
            ours = option_default_text(r["ours"])
            table.add_row(r["option"], ours, option_default_text(r["published"]), r["why"])
        emit_drawn(lambda out: out.print(table))


def named_module(name: str) -> tuple[ModuleCatalogue, str]:
    """Where a name stands, and what it stands for.

    Args:
        name: Any name of a method, a way to steer or a press.

    Returns:
        Its catalogue, and its own name there.

    Raises:
        RequestError: There is nothing of that name.
    """
    # A name that several share is the method's, which most people mean.
    for catalogue in (registry.RECIPES, steer.STEERINGS, press.PRESSES):
        known = catalogue.all_names()
        if in_hyphens(name) in known:
            return catalogue, known[in_hyphens(name)]
    # The message names the nearest methods.
    return registry.RECIPES, registry.find_method(name)


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


def search_other_features(words: str, whole_words: bool = False) -> list[dict[str, str]]:
    """What is no method and speaks of these words: ways to steer, presses, rules of sampling, and
    published systems that are something else, or not here yet.

    Args:
        words: Separated by spaces.
        whole_words: Whether the beginning of a word is not enough. Default False.

    Returns:
        A row each, those first that are named so.
    """
    rows, texts = _other_features()
    return [rows[key] for key in search_described_names(words, texts, whole_words)]


@cache
def _other_features() -> tuple[
    dict[tuple[str, str], dict[str, str]], dict[tuple[str, str], tuple[str, ...]]
]:
    """A row of each, and what is said of it, by kind and name."""
    rows = dict[tuple[str, str], dict[str, str]]()
    texts = dict[tuple[str, str], tuple[str, ...]]()
    catalogues = (
        ("steering", "--steer {}", steer.STEERINGS),
        ("press", "--cache {}", press.PRESSES),
    )
    for kind, flag, catalogue in catalogues:
        said = catalogue.searched_texts()
        for name, module in catalogue.all_modules().items():
            rows[kind, name] = _found_row(name, kind, module.CARD.title, flag.format(name))
            texts[kind, name] = said[name]
    # Rules of sampling have no cards: their docstrings, and their modules', are searched.
    papers = paper_titles("sampling rule")
    for name, rule in registry.mechanism_classes("shapers").items():
        page = inspect.getdoc(inspect.getmodule(rule)) or ""
        title = page.partition("\n")[0]
        rows["sampling rule", name] = _found_row(name, "sampling rule", title, "docs/sampling.md")
        said_of_rule = f"{page} {papers.get(name, '')}"
        texts["sampling rule", name] = (name, said_of_rule, inspect.getdoc(rule) or "")
    # A system of the registry has a row of its own only where commands go with it.
    for system in all_published_systems():
        if not system.names or system.where:
            kind = system.kind if not system.names else "system"
            where = "; ".join(system.where) or MISSING_KIND
            rows["system", system.plain_name] = _found_row(
                system.plain_name, kind, system.about, where
            )
            texts["system", system.plain_name] = system.search_texts
    return rows, texts


def _found_row(name: str, kind: str, title: str, where: str) -> dict[str, str]:
    return {"name": name, "kind": kind, "title": title, "where": where}


def find_methods_by_words(words: str) -> tuple[list[str], list[dict[str, str]]]:
    """The methods that words mean, and what else speaks of them.

    Raises:
        RequestError: Nothing speaks of them.
    """
    if not words.strip():
        return sorted(registry.recipe_modules()), []
    # A name, an alias or an arXiv number means one method exactly; it may be a word of other
    # papers' titles as well.
    name = registry.method_names().get(in_hyphens(words))
    if name is not None:
        return [name], find_other_papers(words, name)
    names = registry.search_methods(words[:LONGEST])
    beside = search_other_features(words[:LONGEST])
    if not names and not beside:
        # Its sentence names the nearest one.
        registry.find_method(words)
    return names, beside


def find_other_papers(words: str, name: str) -> list[dict[str, str]]:
    """Other systems whose names or papers' titles hold words that are also a method's name.

    Args:
        words: A name, an alias or an arXiv number.
        name: The method that answers to it.

    Returns:
        A row each.
    """
    others = {
        ("system", system.plain_name): system.search_texts[:2]
        for system in all_published_systems()
        if name not in system.names or system.kind != "method"
    }
    found = set(search_described_names(words[:LONGEST], others, whole_words=True))
    return [
        _found_row(
            system.plain_name,
            system.kind,
            system.about or system.paper,
            "; ".join(system.reached_by) or MISSING_KIND,
        )
        for system in all_published_systems()
        if ("system", system.plain_name) in found
    ]


def option_default_text(value: object) -> str:
    """A default as --set takes it."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower()

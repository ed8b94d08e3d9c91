"""Every system of the papers is found by its title, and what its row names exists."""

import importlib
import re
from collections import Counter
from pathlib import Path

import pytest

from polydec.base.errors import PolydecError
from polydec.cli.main import every_command, load_command
from polydec.cli.methods import find_methods_by_words
from polydec.lab.commands.studies import study_names
from polydec.lab.commands.training import training_commands
from polydec.methods.registry import press, registry, steer
from polydec.methods.registry.published_systems import (
    BASELINE_AREA,
    KINDS,
    MISSING_KIND,
    REGISTRY_FLAGS,
    all_published_systems,
    paper_titles,
)

DOCS = Path(__file__).parents[3] / "docs"
SYSTEMS = [one for one in all_published_systems() if one.area != BASELINE_AREA]
EMPTY_WORDS = frozenset(
    (
        *("a", "all", "an", "and", "any", "as", "at", "be", "by", "do", "for", "from", "how", "in"),
        *("is", "it", "more", "of", "on", "or", "than", "that", "the", "to", "via", "when", "with"),
        *("you", "your"),
    )
)
FIRST_ANSWERS = 6
RARE = 2
"""Titles that may hold a word that is telling."""


def words_of_title(title: str) -> list[str]:
    """Words as somebody types them: what a hyphen joins is one."""
    words = [word.strip(",:?!.()").lower() for word in title.split()]
    return [word for word in words if len(word) > 1 and word not in EMPTY_WORDS]


WORDS = {one.plain_name: set(words_of_title(one.paper)) for one in SYSTEMS}
TITLES_WITH = Counter(word for words in WORDS.values() for word in words)


def answer_places(words: str) -> tuple[list[str], list[str]]:
    """Names of the methods that are found, and of what is found beside them."""
    names, beside = find_methods_by_words(words)
    return names, [row["name"] for row in beside]


def best_place(system, words: str) -> int | None:
    """Where one of the system's names stands in the better of both lists, from 0."""
    wanted = {system.plain_name, *system.names}
    places = [
        place
        for answers in answer_places(words)
        for place, name in enumerate(answers)
        if name in wanted
    ]
    return min(places, default=None)


def test_the_table_holds_every_system_once():
    assert len(SYSTEMS) == 136
    assert len({one.plain_name for one in all_published_systems()}) == len(all_published_systems())
    assert len({one.paper for one in SYSTEMS}) == 136
    assert {one.kind for one in SYSTEMS} == set(KINDS)


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda one: one.plain_name)
def test_a_title_and_its_words_find_the_system(system):
    assert best_place(system, system.paper) == 0
    for name in (system.system, *system.also):
        place = best_place(system, name)
        assert place is not None and place < FIRST_ANSWERS, (name, place)
    for word in WORDS[system.plain_name]:
        place = best_place(system, word)
        assert place is not None, word
        if TITLES_WITH[word] <= RARE:
            assert place < FIRST_ANSWERS, (word, place)


def test_most_titles_have_words_of_their_own():
    telling = {
        slug: {word for word in words if TITLES_WITH[word] <= RARE} for slug, words in WORDS.items()
    }
    assert sum(map(len, telling.values())) > 400
    assert sum(1 for words in telling.values() if words) > 125


def names_in_registry(kind: str) -> set[str]:
    if kind == "method":
        return set(registry.recipe_modules())
    if kind == "steering":
        return set(steer.steering_modules())
    if kind == "press":
        return set(press.press_modules())
    return set(registry.mechanism_classes("shapers"))


def check_command(line: str) -> None:
    """A command of a row exists and takes its flags, and a training takes their values."""
    _, name, *rest = line.split()
    assert name in every_command(), line
    if name == "train":
        kind = rest.pop(0)
        commands = {command.name: command for command in training_commands()}
        assert kind in commands, line
        command = commands[kind]
        known = {command.option_flag(o): o.convert_value for o in command.flag_options()}
    else:
        known = {flag: str for option in load_command(name).params for flag in option.opts}
    for flag, value in zip(rest[::2], rest[1::2], strict=True):
        assert flag in known, line
        known[flag](value)
        if flag == "--suite":
            assert value in {*study_names.SUITES, "parallelbench"}, line
        if flag == "--method":
            assert value in registry.recipe_modules(), line


def test_what_a_row_names_exists():
    commands = pages = 0
    for one in all_published_systems():
        assert one.kind in KINDS
        assert bool(one.names) == (one.kind in REGISTRY_FLAGS), one.system
        if one.names:
            missing = set(one.names) - names_in_registry(one.kind)
            assert not missing, f"{one.system}: {missing}"
        assert one.about or one.names, one.system
        assert one.reached_by or one.kind == MISSING_KIND, one.system
        for place in one.where:
            for line in re.findall(r"polydec .*", place):
                check_command(line)
                commands += 1
            for page in re.findall(r"docs/(\S+\.md)", place):
                assert (DOCS / page).exists(), place
                pages += 1
    assert commands > 20 and pages > 20


def test_what_lacks_something_is_here_and_says_it_in_a_few_words():
    lacking = [one for one in SYSTEMS if one.lacks]
    assert lacking
    for one in lacking:
        assert one.kind != MISSING_KIND, one.system
        assert len(one.lacks.split()) > 2 and not one.lacks.endswith("."), one.system


def test_what_is_here_is_the_kind_that_its_command_says():
    for one in all_published_systems():
        if one.kind == "training":
            assert any(place.startswith("polydec train ") for place in one.where), one.system
        if one.kind in ("suite", "study"):
            assert any(place.startswith("polydec bench --suite ") for place in one.where)
    assert paper_titles("method")["rsd-s"].startswith("RSD ")
    with pytest.raises(AssertionError):
        check_command("polydec train lm --nothing 1")
    with pytest.raises(PolydecError):
        check_command("polydec train words --kind syllables")


def test_the_page_is_made_of_the_file(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    tables = importlib.import_module("tables")
    text = (DOCS / "systems.md").read_text("utf-8")
    begin = tables.BEGIN.format(what="systems", source="file")
    assert text == tables.rendered(text, begin, tables.systems_table()), "run docs/tables.py"

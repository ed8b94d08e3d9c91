"""Small tasks with one right answer, made as needed: what a masked-diffusion model learns on."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from string import ascii_lowercase

from polydec.base.errors import RequestError
from polydec.lab.train.data import held_out

NAMES = (
    "Ada",
    "Ben",
    "Cleo",
    "Dan",
    "Eva",
    "Finn",
    "Gus",
    "Hana",
    "Ivo",
    "Jana",
    "Kai",
    "Lea",
    "Mia",
    "Noel",
    "Olga",
    "Pia",
)
DIGITS = "0123456789"
ITEMS = 6
"""Of a list, unless lengths vary."""
PERIOD = 4
"""Digits that are repeated, unless lengths vary."""
ENDLESS = 1200
"""Characters of an answer that goes on: more than any canvas holds."""
TOWNS = (
    "Arles",
    "Bonn",
    "Cork",
    "Delft",
    "Essen",
    "Faro",
    "Ghent",
    "Hull",
    "Izmir",
    "Jena",
    "Kyoto",
    "Lima",
)


@dataclass(frozen=True)
class SyntheticTask:
    """A task with its answer.

    Attributes:
        question: What is asked.
        answer: The right answer, or one of several.
    """

    question: str
    answer: str


@dataclass(frozen=True)
class TaskVariety:
    """What tasks are made of.

    Attributes:
        least: Items of the shortest list, 3 to 9.
        most: Items of the longest list, 3 to 9.
        letters: Whether items may be small letters too, where a list need not hold numbers.
        people: Whether half of the names and towns of `slots` are made of syllables, and ages have
            one to three digits.
    """

    least: int = ITEMS
    most: int = ITEMS
    letters: bool = False
    people: bool = False

    def __post_init__(self) -> None:
        if not 3 <= self.least <= self.most <= 9:
            raise RequestError(
                f"least is {self.least} and most is {self.most}: they must lie in 3 to 9, least first"
            )

    @property
    def values(self) -> str:
        """What an item may be where it need not be a number."""
        if self.letters:
            return DIGITS + ascii_lowercase
        return DIGITS

    def item_count(self, r: random.Random) -> int:
        """How many items a list has. Where there is no choice, nothing is drawn."""
        if self.least == self.most:
            return self.least
        return r.randint(self.least, self.most)

    def draw_items(self, r: random.Random, values: str = "") -> str:
        """Draw a list.

        Args:
            r: Source of randomness; it is advanced.
            values: Characters that an item may be; "": all that the variety allows.

        Returns:
            The items, side by side.
        """
        values = values or self.values
        return "".join(r.choice(values) for _ in range(self.item_count(r)))


SIX = TaskVariety()
"""Lists of six digits, and the names that are listed here: what the embedded models were trained
on."""

VARIED = TaskVariety(3, 9, True, True)
"""Lengths and values that vary."""


def task_variety(varied: bool) -> TaskVariety:
    """The variety that `--varied` asks for, or the one of the embedded models."""
    if varied:
        return VARIED
    return SIX


def _copy(r: random.Random, of: TaskVariety) -> SyntheticTask:
    items = of.draw_items(r)
    return SyntheticTask(f"copy: {items}", items)


def _reverse(r: random.Random, of: TaskVariety) -> SyntheticTask:
    items = of.draw_items(r)
    return SyntheticTask(f"reverse: {items}", items[::-1])


def _sort(r: random.Random, of: TaskVariety) -> SyntheticTask:
    items = of.draw_items(r)
    return SyntheticTask(f"sort: {items}", "".join(sorted(items)))


def _shuffle(r: random.Random, of: TaskVariety) -> SyntheticTask:
    # Items differ from one another; any order of them is right.
    items = r.sample(of.values, of.item_count(r))
    return SyntheticTask("shuffle: " + "".join(items), "".join(r.sample(items, len(items))))


def _fill(r: random.Random, of: TaskVariety) -> SyntheticTask:
    start = r.randrange(10)
    count = of.item_count(r)
    items = "".join(DIGITS[(start + i) % 10] for i in range(count))
    # At least one digit is visible, from which all others follow.
    shown = r.randrange(count)
    seen = [x if i == shown or r.random() < 0.5 else "_" for i, x in enumerate(items)]
    return SyntheticTask("fill: " + " ".join(seen), items)


def _pick(r: random.Random, of: TaskVariety) -> SyntheticTask:
    items = of.draw_items(r)
    # Any item will do, but all places must agree on one.
    return SyntheticTask(f"pick: {items}", r.choice(items) * len(items))


def _count(r: random.Random, of: TaskVariety) -> SyntheticTask:
    seen = of.draw_items(r, DIGITS)
    # Any of the digits may be the start, but all places must agree on it.
    start = r.choice(seen)
    return SyntheticTask(
        f"count: {seen}", "".join(DIGITS[(int(start) + i) % 10] for i in range(len(seen)))
    )


def _chain(r: random.Random, of: TaskVariety) -> SyntheticTask:
    # Different places, so that each step has one successor.
    places = r.sample(DIGITS, of.item_count(r) - 1)
    steps = [a + b for a, b in pairwise(places)]
    return SyntheticTask(
        f"chain: {places[0]} by {' '.join(r.sample(steps, len(steps)))}", "".join(places[1:])
    )


def _sums(r: random.Random, of: TaskVariety) -> SyntheticTask:
    items = of.draw_items(r, DIGITS)
    # Each place depends on all items before it.
    sums = [sum(map(int, items[: i + 1])) % 10 for i in range(len(items))]
    return SyntheticTask(f"sums: {items}", "".join(map(str, sums)))


def _slots(r: random.Random, of: TaskVariety) -> SyntheticTask:
    if of.people:
        name, town = (_name(r) if r.random() < 0.5 else r.choice(known) for known in (NAMES, TOWNS))
        age = r.randrange(10 ** r.randint(1, 3))
    else:
        name = r.choice(NAMES)
        town = r.choice(TOWNS)
        age = r.randrange(10, 90)
    return SyntheticTask(f"slots: {name}, {town}, {age}", f"name: {name} town: {town} age: {age}")


def _name(r: random.Random) -> str:
    """A made-up name of two or three syllables."""
    return "".join(
        r.choice("bcdfghjklmnprstvz") + r.choice("aeiou") + r.choice(("", "", "l", "n", "r"))
        for _ in range(r.randint(2, 3))
    ).capitalize()


def _replace(r: random.Random, of: TaskVariety) -> SyntheticTask:
    *items, new = r.sample(of.values, of.item_count(r) + 1)
    question = f"replace: {''.join(items)} {new}"
    # Any one place may take the new item.
    items[r.randrange(len(items))] = new
    return SyntheticTask(question, "".join(items))


def _same(r: random.Random, of: TaskVariety) -> SyntheticTask:
    digit = r.choice(of.values)
    return SyntheticTask(f"same: {digit}", digit * ENDLESS)


def _keep(r: random.Random, of: TaskVariety) -> SyntheticTask:
    # Like `pick`, without an end.
    seen = of.draw_items(r)
    return SyntheticTask(f"keep: {seen}", r.choice(seen) * ENDLESS)


def _on(r: random.Random, of: TaskVariety) -> SyntheticTask:
    start = r.choice(DIGITS)
    return SyntheticTask(f"on: {start}", _up(start))


def _repeat(r: random.Random, of: TaskVariety) -> SyntheticTask:
    items = of.draw_items(r)
    # Where lengths do not vary, the period does not either.
    if of.least >= of.most:
        items = items[:PERIOD]
    return SyntheticTask(f"repeat: {items}", (items * ENDLESS)[:ENDLESS])


def _table(r: random.Random, of: TaskVariety) -> SyntheticTask:
    add = r.choice(DIGITS)
    return SyntheticTask(f"table: {add}", _rows(add))


def _up(start: str) -> str:
    """Digits that go up by one, without end."""
    return "".join(DIGITS[(int(start) + i) % 10] for i in range(ENDLESS))


def _rows(add: str) -> str:
    """A table of sums with one digit, each sum as its last digit, without end."""
    # Six characters a sum with its space.
    return " ".join(f"{i % 10}+{add}={(i + int(add)) % 10}" for i in range(ENDLESS // 6))


TASKS: Mapping[str, Callable[[random.Random, TaskVariety], SyntheticTask]] = {
    "copy": _copy,
    "reverse": _reverse,
    "sort": _sort,
    "slots": _slots,
    "fill": _fill,
    "shuffle": _shuffle,
    "sums": _sums,
    "pick": _pick,
    "count": _count,
    "chain": _chain,
    "replace": _replace,
    "same": _same,
    "keep": _keep,
    "on": _on,
    "repeat": _repeat,
    "table": _table,
}
"""By name, what makes one: the same digits; backwards; in order; fields of a sentence; digits that
go up by one, some of them hidden; any order; running sums, their last digits; any one digit six
times; up by one from any of the digits; where steps lead; one of the digits, any, replaced by
another. The others are of LONG. Of shuffle, sums, pick, count, chain, replace and keep the tokens
of an answer depend on each other: one pass cannot know them all."""

LONG = ("same", "keep", "on", "repeat", "table")
"""Tasks whose answer goes on to the end of the canvas: one digit; any one of the digits; up by one
from a digit; PERIOD digits again and again; a table of sums."""

SHIPPED = ("copy", "slots", "fill", "shuffle", "pick", "count", "replace")
"""What the embedded models know, beside LONG."""


def draw_task(
    name: str, seed: int, number: int, unseen: bool = False, of: TaskVariety = SIX
) -> SyntheticTask:
    """Draw a task.

    Whether it is held out depends on its question, by the rule for all text (`data.held_out`).

    Args:
        name: Name of a task of `TASKS`.
        seed: Seed of the draws.
        number: Number of the task.
        unseen: Whether it is held out from training. Default False.
        of: What tasks are made of. Default: as for the embedded models.

    Returns:
        The task.

    Raises:
        RequestError: The name is unknown.
    """
    if name not in TASKS:
        raise RequestError(f"tasks has {name!r}: it must be one of {', '.join(TASKS)}")
    # The side of the split is part of the name: held-out tasks do not repeat the draws of others.
    r = random.Random(f"{name} {seed} {number} {unseen}")
    # Drawn again until the question lies on the wanted side.
    while held_out((task := TASKS[name](r, of)).question) != unseen:
        pass
    return task


def is_right_task_answer(name: str, question: str, answer: str) -> bool:
    """Whether an answer is right.

    Of a task that goes on (LONG) any beginning is right; whether it fills the canvas is not judged
    here.

    Args:
        name: Name of the task.
        question: The question, its name included.
        answer: The answer to judge.

    Returns:
        True also where several answers are right.
    """
    stated = question.partition(": ")[2]
    items = stated.split(" ")
    # Tasks with several right answers first.
    if name == "shuffle":
        return sorted(answer) == sorted(stated)
    # All places hold one of the items.
    if name == "pick":
        return answer in {x * len(stated) for x in stated}
    if name == "count":
        return answer in {_counted([x, *"_" * (len(stated) - 1)]) for x in stated}
    if name == "replace":
        before, new = items
        return answer in {before[:i] + new + before[i + 1 :] for i in range(len(before))}
    # An empty answer begins every text, and is no answer.
    if name in LONG:
        return bool(answer) and _goes_on(name, stated, answer)
    # The others have one right answer, which is made anew; only the lambda that is asked for runs.
    return (
        answer
        == {
            "copy": lambda: stated,
            "reverse": lambda: stated[::-1],
            "sort": lambda: "".join(sorted(stated)),
            "slots": lambda: "name: {} town: {} age: {}".format(*stated.split(", ")),
            "fill": lambda: _counted(items),
            "sums": lambda: "".join(
                str(sum(map(int, stated[: i + 1])) % 10) for i in range(len(stated))
            ),
            "chain": lambda: _walked(items[0], {step[0]: step[1] for step in items[2:]}),
        }[name]()
    )


def _goes_on(name: str, stated: str, answer: str) -> bool:
    """Whether a text begins a right answer of a task that goes on."""
    begun = {
        "same": lambda: [stated * ENDLESS],
        "keep": lambda: [x * ENDLESS for x in stated],
        "on": lambda: [_up(stated)],
        "repeat": lambda: [stated * ENDLESS],
        "table": lambda: [_rows(stated)],
    }[name]()
    return any(text.startswith(answer) for text in begun)


def _counted(items: Sequence[str]) -> str:
    """Digits that go up by one, from the first that is visible."""
    # The first visible digit, and where it stands: the digit at place 0 is `at` less.
    at, shown = next((i, int(x)) for i, x in enumerate(items) if x != "_")
    return "".join(DIGITS[(shown - at + i) % 10] for i in range(len(items)))


def _walked(place: str, steps: Mapping[str, str]) -> str:
    """The places that the steps lead through."""
    out = ""
    while place in steps:
        place = steps[place]
        out += place
    return out

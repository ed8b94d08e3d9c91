"""Small tasks with one right answer, made as they are needed: what a masked-diffusion model learns on."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count as numbers
from itertools import islice, pairwise

from polydec.train.data import held_out

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
"""Of a list."""
PERIOD = 4
"""Digits that are repeated."""
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
class Task:
    """What is asked, and the right answer."""

    question: str
    answer: str


def _copy(r: random.Random) -> Task:
    items = _items(r)
    return Task(f"copy: {items}", items)


def _reverse(r: random.Random) -> Task:
    items = _items(r)
    return Task(f"reverse: {items}", items[::-1])


def _sort(r: random.Random) -> Task:
    items = _items(r)
    return Task(f"sort: {items}", "".join(sorted(items)))


def _shuffle(r: random.Random) -> Task:
    items = r.sample(DIGITS, ITEMS)
    return Task("shuffle: " + "".join(items), "".join(r.sample(items, ITEMS)))


def _fill(r: random.Random) -> Task:
    start = r.randrange(10)
    items = "".join(DIGITS[(start + i) % 10] for i in range(ITEMS))
    shown = r.randrange(ITEMS)
    seen = [x if i == shown or r.random() < 0.5 else "_" for i, x in enumerate(items)]
    return Task("fill: " + " ".join(seen), items)


def _pick(r: random.Random) -> Task:
    items = _items(r)
    return Task(f"pick: {items}", r.choice(items) * ITEMS)


def _count(r: random.Random) -> Task:
    seen = _items(r)
    start = r.choice(seen)
    return Task(f"count: {seen}", "".join(DIGITS[(int(start) + i) % 10] for i in range(ITEMS)))


def _chain(r: random.Random) -> Task:
    places = r.sample(DIGITS, ITEMS - 1)
    steps = [a + b for a, b in pairwise(places)]
    return Task(
        f"chain: {places[0]} by {' '.join(r.sample(steps, len(steps)))}", "".join(places[1:])
    )


def _sums(r: random.Random) -> Task:
    items = _items(r)
    sums = [sum(map(int, items[: i + 1])) % 10 for i in range(ITEMS)]
    return Task(f"sums: {items}", "".join(map(str, sums)))


def _slots(r: random.Random) -> Task:
    name, town, age = r.choice(NAMES), r.choice(TOWNS), r.randrange(10, 90)
    return Task(f"slots: {name}, {town}, {age}", f"name: {name} town: {town} age: {age}")


def _replace(r: random.Random) -> Task:
    *items, new = r.sample(DIGITS, ITEMS + 1)
    question = f"replace: {''.join(items)} {new}"
    items[r.randrange(ITEMS)] = new
    return Task(question, "".join(items))


def _same(r: random.Random) -> Task:
    digit = r.choice(DIGITS)
    return Task(f"same: {digit}", digit * ENDLESS)


def _keep(r: random.Random) -> Task:
    seen = _items(r)
    return Task(f"keep: {seen}", r.choice(seen) * ENDLESS)


def _on(r: random.Random) -> Task:
    start = r.choice(DIGITS)
    return Task(f"on: {start}", _up(start))


def _repeat(r: random.Random) -> Task:
    items = _items(r)[:PERIOD]
    return Task(f"repeat: {items}", (items * ENDLESS)[:ENDLESS])


def _table(r: random.Random) -> Task:
    add = r.choice(DIGITS)
    return Task(f"table: {add}", _rows(add))


def _up(start: str) -> str:
    """Digits that go up by one, on and on."""
    return "".join(DIGITS[(int(start) + i) % 10] for i in range(ENDLESS))


def _rows(add: str) -> str:
    """Sums with a digit, their last digits, on and on."""
    return " ".join(f"{i % 10}+{add}={(i + int(add)) % 10}" for i in range(ENDLESS // 6))


def _items(r: random.Random) -> str:
    return "".join(r.choice(DIGITS) for _ in range(ITEMS))


TASKS: Mapping[str, Callable[[random.Random], Task]] = {
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
"""By name, what makes one: the same digits; backwards; in order; fields of a sentence; digits that go up by one, some of them
hidden; any order; running sums, their last digits; any one digit six times; up by one from any of the digits; where steps
lead; one of the digits, any, replaced by another. The others are of LONG. Of shuffle, sums, pick, count, chain, replace and
keep the tokens of an answer depend on each other: one pass cannot know them all."""

LONG = ("same", "keep", "on", "repeat", "table")
"""Tasks whose answer goes on to the end of the canvas: one digit; any one of the digits; up by one from a digit; PERIOD digits
again and again; a table of sums."""

SHIPPED = ("copy", "slots", "fill", "shuffle", "pick", "count", "replace")
"""What the embedded models know, beside LONG."""


def make(name: str, seed: int, number: int, held: bool = False) -> Task:
    """A task of this name; those that are held out are drawn from numbers of their own. Raises ValueError for a name that is
    unknown."""
    if name not in TASKS:
        raise ValueError(f"tasks has {name!r}: it must be one of {', '.join(TASKS)}")
    return TASKS[name](random.Random(f"{name} {seed} {number} {held}"))


def learnable(name: str, seed: int, count: int) -> list[Task]:
    """The first `count` tasks of this name whose questions are not held out (`data.held_out`): what is trained for a model, and
    tuned, is measured on others."""
    return list(
        islice(
            (t for t in (make(name, seed, i) for i in numbers()) if not held_out(t.question)), count
        )
    )


def right(name: str, question: str, answer: str) -> bool:
    """Whether an answer is right. Where one may choose, several answers are. Of one that goes on (LONG) any beginning is right:
    whether it fills the canvas is for others to say."""
    said = question.partition(": ")[2]
    items = said.split(" ")
    if name == "shuffle":
        return sorted(answer) == sorted(said)
    if name == "pick":
        return answer in {x * ITEMS for x in said}
    if name == "count":
        return answer in {_counted([x, *"_" * (ITEMS - 1)]) for x in said}
    if name == "replace":
        before, new = items
        return answer in {before[:i] + new + before[i + 1 :] for i in range(len(before))}
    if name in LONG:
        return bool(answer) and _goes_on(name, said, answer)
    return (
        answer
        == {
            "copy": lambda: said,
            "reverse": lambda: said[::-1],
            "sort": lambda: "".join(sorted(said)),
            "slots": lambda: "name: {} town: {} age: {}".format(*said.split(", ")),
            "fill": lambda: _counted(items),
            "sums": lambda: "".join(
                str(sum(map(int, said[: i + 1])) % 10) for i in range(len(said))
            ),
            "chain": lambda: _walked(items[0], {step[0]: step[1] for step in items[2:]}),
        }[name]()
    )


def _goes_on(name: str, said: str, answer: str) -> bool:
    """Whether this begins a right answer of those that go on."""
    begun = {
        "same": lambda: [said * ENDLESS],
        "keep": lambda: [x * ENDLESS for x in said],
        "on": lambda: [_up(said)],
        "repeat": lambda: [said * ENDLESS],
        "table": lambda: [_rows(said)],
    }[name]()
    return any(text.startswith(answer) for text in begun)


def _counted(items: Sequence[str]) -> str:
    """Digits that go up by one, from those that are shown."""
    at, shown = next((i, int(x)) for i, x in enumerate(items) if x != "_")
    return "".join(DIGITS[(shown - at + i) % 10] for i in range(len(items)))


def _walked(place: str, steps: Mapping[str, str]) -> str:
    """Where the steps lead from a place."""
    out = ""
    while place in steps:
        place = steps[place]
        out += place
    return out

"""Small tasks with one right answer, made as they are needed: what a masked-diffusion model learns on."""
from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivo", "Jana", "Kai", "Lea", "Mia", "Noel", "Olga", "Pia")
DIGITS = "0123456789"
ITEMS = 6
"""Of a list."""
TOWNS = ("Arles", "Bonn", "Cork", "Delft", "Essen", "Faro", "Ghent", "Hull", "Izmir", "Jena", "Kyoto", "Lima")


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


def _chain(r: random.Random) -> Task:
    places = r.sample(DIGITS, ITEMS - 1)
    steps = [a + b for a, b in zip(places, places[1:])]
    return Task(f"chain: {places[0]} by {' '.join(r.sample(steps, len(steps)))}", "".join(places[1:]))


def _sums(r: random.Random) -> Task:
    items = _items(r)
    sums = [sum(map(int, items[:i + 1])) % 10 for i in range(ITEMS)]
    return Task(f"sums: {items}", "".join(map(str, sums)))


def _slots(r: random.Random) -> Task:
    name, town, age = r.choice(NAMES), r.choice(TOWNS), r.randrange(10, 90)
    return Task(f"slots: {name}, {town}, {age}", f"name: {name} town: {town} age: {age}")


def _items(r: random.Random) -> str:
    return "".join(r.choice(DIGITS) for _ in range(ITEMS))


TASKS: Mapping[str, Callable[[random.Random], Task]] = {
    "copy": _copy, "reverse": _reverse, "sort": _sort, "slots": _slots, "fill": _fill, "shuffle": _shuffle, "sums": _sums,
    "chain": _chain}
"""By name, what makes one. Of the last three the tokens of an answer depend on each other: one pass cannot know them all."""


def make(name: str, seed: int, number: int, held: bool = False) -> Task:
    """A task of this name; those that are held out are drawn from numbers of their own. Raises ValueError for a name that is
    unknown."""
    if name not in TASKS:
        raise ValueError(f"tasks has {name!r}: it must be one of {', '.join(TASKS)}")
    return TASKS[name](random.Random(f"{name} {seed} {number} {held}"))

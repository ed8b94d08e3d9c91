"""Small tasks with one right answer, made as they are needed: what a masked-diffusion model learns on."""
from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivo", "Jana", "Kai", "Lea", "Mia", "Noel", "Olga", "Pia")
TOWNS = ("Arles", "Bonn", "Cork", "Delft", "Essen", "Faro", "Ghent", "Hull", "Izmir", "Jena", "Kyoto", "Lima")


@dataclass(frozen=True)
class Task:
    """What is asked, and the right answer."""
    question: str
    answer: str


def _copy(r: random.Random) -> Task:
    items = _items(r)
    return Task("copy: " + " ".join(items), " ".join(items))


def _reverse(r: random.Random) -> Task:
    items = _items(r)
    return Task("reverse: " + " ".join(items), " ".join(reversed(items)))


def _sort(r: random.Random) -> Task:
    items = _items(r)
    return Task("sort: " + " ".join(items), " ".join(sorted(items)))


def _slots(r: random.Random) -> Task:
    name, town, age = r.choice(NAMES), r.choice(TOWNS), r.randrange(10, 90)
    said = [f"{name} lives in {town}", f"and is {age} years old"]
    return Task(f"slots: {said[0]} {said[1]}", f"name={name} town={town} age={age}")


def _items(r: random.Random) -> list[str]:
    return [r.choice("abcdefghijklmnopqrst") for _ in range(r.randint(3, 6))]


TASKS: Mapping[str, Callable[[random.Random], Task]] = {"copy": _copy, "reverse": _reverse, "sort": _sort, "slots": _slots}
"""By name, what makes one."""


def make(name: str, seed: int, number: int, held: bool = False) -> Task:
    """A task of this name; those that are held out are drawn from numbers of their own. Raises ValueError for a name that is
    unknown."""
    if name not in TASKS:
        raise ValueError(f"tasks has {name!r}: it must be one of {', '.join(TASKS)}")
    return TASKS[name](random.Random(f"{name} {seed} {number} {held}"))

"""Published systems by their papers: what each of them is here, and how it is reached.

The rows stand in published_systems.jsonl, one system a line. A system may be methods of the
registry, or a command, a training, a suite or something that is always on; one that nobody has
built yet says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

FILE = Path(__file__).with_suffix(".jsonl")
MISSING_KIND = "not here yet"
BASELINE_AREA = "baseline"
"""Of systems that others build on: found by words, and not counted among those of the papers."""
REGISTRY_FLAGS: Mapping[str, str] = MappingProxyType(
    {
        "method": "--method {}",
        "steering": "--steer {}",
        "press": "--cache {}",
        "sampling rule": "docs/sampling.md",
    }
)
"""The kinds whose names stand in a registry, and how such a name is given."""
KINDS = (*REGISTRY_FLAGS, "command", "training", "suite", "study", "always on", MISSING_KIND)


@dataclass(frozen=True)
class PublishedSystem:
    """One system of a paper.

    Attributes:
        system: What people call it.
        also: Other names that people look for it by.
        paper: The paper's title.
        authors: Who wrote it, and when; "" where the registry says it, or nobody looked it up.
        arxiv: Its number there; "" where it is not known.
        area: What it is for, as lists of papers are ordered.
        kind: What it is here, one of `KINDS`.
        names: By which it stands in the registry of its kind; empty for other kinds.
        where: Commands that reach it or make what it needs, and pages that say more.
        about: What it does, in words; "" where the registry says it.
        lacks: What of its paper is neither built nor measured; "" where every mechanism that the
            paper names is here, and for what is not here at all.
    """

    system: str
    also: tuple[str, ...]
    paper: str
    authors: str
    arxiv: str
    area: str
    kind: str
    names: tuple[str, ...]
    where: tuple[str, ...]
    about: str
    lacks: str = ""

    @property
    def plain_name(self) -> str:
        """The name in lower case, with hyphens between words."""
        return re.sub(r"[^a-z0-9+*]+", "-", self.system.lower()).strip("-")

    @property
    def reached_by(self) -> tuple[str, ...]:
        """What reaches it: flags of registered names first, then commands and pages; empty where
        it is not here."""
        flag = REGISTRY_FLAGS.get(self.kind)
        if flag is None:
            return self.where
        # Rules of sampling share one page, which is named once.
        flags = dict.fromkeys(flag.format(name) for name in self.names)
        return (*flags, *self.where)

    @property
    def search_texts(self) -> tuple[str, ...]:
        """What is said of it, the most telling text first."""
        return (
            " ".join((self.system, *self.also, self.arxiv)),
            self.paper,
            f"{self.about} {self.authors} {self.area}",
        )


@cache
def all_published_systems() -> tuple[PublishedSystem, ...]:
    """Every row of the file, in its order."""
    return tuple(_read_system(line) for line in FILE.read_text("utf-8").splitlines())


def _read_system(line: str) -> PublishedSystem:
    row: dict[str, Any] = json.loads(line)
    # JSON has lists only; a frozen row holds tuples.
    lists = {key: tuple(row[key]) for key in ("also", "names", "where")}
    return PublishedSystem(**{**row, **lists})


@cache
def paper_titles(kind: str) -> Mapping[str, str]:
    """Titles and systems' names by the name in the registry of a kind ("method", "steering",
    "press" or "sampling rule")."""
    out = dict[str, str]()
    for one in all_published_systems():
        if one.kind == kind:
            said = " ".join((one.system, *one.also, one.paper))
            for name in one.names:
                out[name] = f"{out.get(name, '')} {said}".strip()
    return MappingProxyType(out)

"""Writes src/polydec/laws/shapers/declared.py: the fields of sampling, which each rule declares in
its own file, in one place for editors and for whoever must not load what computes. `--check` only
says whether it is up to date."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from polydec.base.options import OneOf, Option, ValueNote
from polydec.laws.shapers import sampling

FILE = Path(sampling.__file__).with_name("declared.py")
HEAD = '''\
"""The fields of sampling, as the rules of this folder declare them. Made by `python docs/keywords.py`; do not edit.

An editor reads them here, and so does whoever must not load what computes, as a list of flags."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, TypedDict

from polydec.base.options import (
{names}
)


@dataclass(frozen=True, kw_only=True)
class SamplingFields:
    """The attributes of `Sampling`: type, range, default and help."""

'''
KEYWORDS = '''

class SamplingKeywords(TypedDict, total=False):
    """What `Sampling` takes by name."""

'''


def page() -> str:
    known = sampling.rules_here()
    options = [o for rule in known.values() for o in rule.fields]
    words = [x for o in options for x in (*o.limits, *([ValueNote(o.note)] if o.note else []))]
    names = sorted({type(x).__name__ for x in words})
    return (
        HEAD.replace("{names}", "\n".join(f"    {name}," for name in names))
        + "".join(f"    {line}\n" for o in options for line in declared(o))
        + KEYWORDS
        + "".join(f"    {o.name}: {taken(o)}\n" for o in options)
    )


def declared(o: Option) -> list[str]:
    """One attribute, as `ruff format` lays it out."""
    words = [
        spelt(o.type),
        *map(made, o.limits),
        *([made(ValueNote(o.note))] if o.note else []),
        text(o.help),
    ]
    default = text(o.default) if isinstance(o.default, str) else repr(o.default)
    line = f"{o.name}: Annotated[{', '.join(words)}] = {default}"
    if len(line) <= 96:
        return [line]
    begun = line.removesuffix(default) + "("
    if len(begun) <= 96:
        return [begun, f"    {default}", ")"]
    inner = f"    {', '.join(words)}"
    if len(inner) <= 96:
        return [f"{o.name}: Annotated[", inner, f"] = {default}"]
    return [f"{o.name}: Annotated[", *(f"    {word}," for word in words), f"] = {default}"]


def made(limit: Any) -> str:
    """A limit as it is written."""
    values = (
        limit.choices
        if isinstance(limit, OneOf)
        else [getattr(limit, f.name) for f in fields(limit)]
    )
    return f"{type(limit).__name__}({', '.join(text(x) if isinstance(x, str) else repr(x) for x in values)})"


def text(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def spelt(kind: Any) -> str:
    """A type as it is written."""
    return str(
        kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else kind
    ).replace("collections.abc.", "")


def taken(o: Option) -> str:
    """The type that a caller may give: any sequence of ids."""
    wide = {tuple: "Sequence[int]", Mapping: "Mapping[int, float]"}
    return wide.get(o.kind, o.kind.__name__) + (" | None" if o.optional else "")


if __name__ == "__main__":
    made_now = page()
    if "--check" in sys.argv:
        sys.exit(0 if FILE.exists() and FILE.read_text("utf-8") == made_now else 1)
    FILE.write_text(made_now, "utf-8")

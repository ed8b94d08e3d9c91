"""What `polydec train` makes for a model beside weights: tables and heads, each in a directory that says what it is."""
from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from polydec.models import ngrams, stop_head, zoo

READERS: dict[str, Callable[[str], Any]] = {"ngrams": ngrams.load, "stop-head": stop_head.load}


def read(name: str) -> Any:
    """The artefact in a directory (or `zoo:NAME`). Raises ValueError with one sentence where there is none."""
    return READERS[kind_of(name)](name)


def kind_of(name: str) -> str:
    """Which kind a directory holds, by what its config says, or by the files of those that say nothing."""
    where = Path(zoo.resolve(name)) if name.startswith("zoo:") else Path(name)
    try:
        said = json.loads((where / "config.json").read_text("utf-8")).get("polydec")
    except (OSError, ValueError, AttributeError):
        said = None
    if isinstance(said, str) and said in READERS:
        return said
    return "stop-head" if (where / stop_head.WEIGHTS).is_file() else "ngrams"

"""Drafters on states that all learn from one text, which their target writes once."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from polydec.lab.train.specs.states import StatesSpec
from polydec.lab.train.states import train_states

TEXT, HELD = "text.jsonl", "held.jsonl"


def train_on_shared_text(folder: Path, spec: StatesSpec) -> dict[str, Any]:
    """Train a drafter on the text of a folder, which the first drafter of all lets the target write.

    Args:
        folder: Where text.jsonl and held.jsonl are kept.
        spec: Of the drafter; its `text` is set here.

    Returns:
        What was measured.
    """
    where = Path(spec.out)
    where.mkdir(parents=True, exist_ok=True)
    text = folder / TEXT
    if text.exists():
        shutil.copy(folder / HELD, where / HELD)
        copy_held_states(folder, where)
        told = train_states(replace(spec, text=str(text)))
        copy_held_states(where, folder)
        return told
    told = train_states(spec)
    copy_held_states(where, folder)
    shutil.copy(where / HELD, folder / HELD)
    # The text comes last: where it stands, its held-out answers do too.
    shutil.copy(where / TEXT, text)
    return told


def copy_held_states(source: Path, to: Path) -> None:
    """Copy the target's states on held-out answers, where they are not yet: what is short of some is completed."""
    for path in source.glob(f"{Path(HELD).stem}.states-*"):
        if not (to / path.name).exists():
            shutil.copy(path, to / path.name)

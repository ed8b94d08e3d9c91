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
        return train_states(replace(spec, text=str(text)))
    told = train_states(spec)
    shutil.copy(where / HELD, folder / HELD)
    # The text comes last: where it stands, its held-out answers do too.
    shutil.copy(where / TEXT, text)
    return told

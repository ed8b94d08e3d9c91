"""The text that a target writes for those who learn from it."""
from __future__ import annotations

from pathlib import Path

from polydec.models.checkpoint import Checkpoint
from polydec.train import selfplay
from polydec.train.data import data_root
from polydec.train.progress import counted


def gather(point: Checkpoint, path: Path, data: str | None, each: int, *, max_tokens: int, seed: int) -> None:
    """Let the target answer `each` prompts a kind into `path`, and a tenth as many held-out ones into held.jsonl beside it.
    What is there already is passed over. data: where the prompts are, as in `data_root`."""
    for file, count, held in ((path, each, False), (path.with_name("held.jsonl"), max(1, each // 10), True)):
        with counted(f"writing {file.name}") as watch:
            selfplay.write(file, point.lm, point.text, data_root(data), count, max_tokens=max_tokens, seed=seed, held=held,
                           watch=watch)

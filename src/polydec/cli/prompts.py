"""Prompts from an argument, a text file or JSON lines."""
from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from polydec.api import LM, Prompt


@dataclass(frozen=True)
class Row:
    """A prompt to decode: its first user turn, and the workload that it belongs to."""
    prompt: Prompt
    workload: str
    raw: bool = False

    @property
    def key(self) -> str:
        return self.prompt if isinstance(self.prompt, str) else str(self.prompt)


def read_text(path: Path) -> str:
    """The file's text. Raises ValueError with one sentence where it cannot be read."""
    try:
        if path.suffix == ".gz":
            return gzip.decompress(path.read_bytes()).decode("utf-8")
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"file {str(path)!r} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def read(path: Path, lm: LM | None = None, prompt_tokens: int | None = None) -> list[Row]:
    """Rows of a JSON-lines file: `prompt`, or `turns` (Spec-Bench; the first one), or `text`, of which the first
    `prompt_tokens` tokens are the prompt; `category` names the workload, else the file does. Any other text file: one
    prompt a line."""
    text, workload = read_text(path), path.name.split(".")[0]
    if ".jsonl" not in path.name and not text.lstrip().startswith("{"):
        rows = [Row(line.strip(), workload) for line in text.split("\n") if line.strip()]
    else:
        rows = [_row(line, i, path, workload, lm, prompt_tokens)
                for i, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not rows:
        raise ValueError(f"file {str(path)!r} holds no prompt")
    return rows


def first(rows: Sequence[Row], limit: int | None) -> list[Row]:
    """The first `limit` rows, 1 and more; all of them where that is None."""
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}: it must be at least 1")
    return list(rows[:limit])


def _row(line: str, i: int, path: Path, workload: str, lm: LM | None, prompt_tokens: int | None) -> Row:
    try:
        j = json.loads(line)
    except json.JSONDecodeError:
        raise ValueError(f"line {i} of {str(path)!r} is not a JSON object") from None
    if not isinstance(j, dict):
        raise ValueError(f"line {i} of {str(path)!r} is not a JSON object")
    workload = str(j.get("category", workload))
    if "prompt" in j:
        return Row(j["prompt"], workload)
    if j.get("turns"):
        return Row(j["turns"][0], workload)
    if "text" in j:
        if prompt_tokens is None or lm is None:
            raise ValueError(f"{str(path)!r} holds running text: say with --prompt-tokens where its prompts end")
        return Row(lm.ids(j["text"], raw=True)[:prompt_tokens], workload, raw=True)
    raise ValueError(f"line {i} of {str(path)!r} has none of the fields prompt, turns, text")


# One of each kind of work: a question, a summary, two edits, code. Written for this project.
BUILT_IN = (
    Row("Why is the sky blue during the day but red at sunset? Explain it so that a ten-year-old understands.", "question"),
    Row("Summarize the following text in two sentences.\n\nThe town library closed its doors in March because the roof had "
        "begun to leak. For nine months the readers borrowed their books from a bus that stopped at the market square every "
        "Tuesday and Friday. The bus was so well liked that, when the repaired library opened again in December, the town "
        "council decided to keep the bus running. It now visits the villages in the hills, where the nearest library is an "
        "hour away, and the librarians say that more than half of all borrowed books now leave on the bus.", "summary"),
    Row("Correct the grammar and spelling of this text and repeat the whole corrected text.\n\nYesterday me and my brother "
        "goes to the big market for buying some vegetable. There was many peoples and we has to wait very long time. The "
        "tomatos was cheap but the potatos was more expensiver than last week. When we comes home, our mother were very happy "
        "because we has bought all the thing what she want.", "edit"),
    Row("Rename the function `f` to `mean` and the argument `xs` to `values`, and write the whole file again.\n\n"
        "```python\ndef f(xs):\n    \"\"\"The arithmetic mean of a list of numbers.\"\"\"\n    if not xs:\n"
        "        raise ValueError(\"the list is empty\")\n    total = 0.0\n    for x in xs:\n        total = total + x\n"
        "    return total / len(xs)\n\n\nprint(f([1, 2, 3]))\nprint(f([4.5, 5.5]))\n```", "code edit"),
    Row("Write a Python class for a bank account with the methods deposit, withdraw and transfer. Each method must check its "
        "argument and raise a ValueError with a clear message. Add a short docstring to every method.", "code"),
)

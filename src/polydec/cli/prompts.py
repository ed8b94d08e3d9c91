"""Prompts from an argument, a text file or JSON lines."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polydec.base.edge import (
    LARGEST_TEXT,
    decoded_text,
    error_sentence,
    parse_object,
    read_at_most,
    require_integer,
    validate_record,
    whole_text,
)
from polydec.base.errors import RequestError

if TYPE_CHECKING:
    from polydec.api import LoadedModel, Prompt
    from polydec.base.answer_check import AnswerCheck


@dataclass(frozen=True)
class PromptRow:
    """A prompt to decode.

    Attributes:
        prompt: Text, chat messages or token ids.
        workload: Name of the workload that it belongs to.
        raw: Whether it goes in without the chat template. Default false.
        answer: The answer that is wanted, or its check; None: unknown.
    """

    prompt: Prompt
    workload: str
    raw: bool = False
    answer: str | AnswerCheck | None = None

    @property
    def key(self) -> str:
        if isinstance(self.prompt, str):
            return self.prompt
        return str(self.prompt)


def read_text(path: Path) -> str:
    """Read the text of a file, of a .gz, or of standard input (`-`).

    Raises:
        RequestError: It cannot be read.
    """
    if str(path) == "-":
        return standard_input()
    from polydec.models.formats.text_rows import whole_file

    return whole_file(path)


def standard_input() -> str:
    """Read all of standard input.

    Raises:
        RequestError: It is closed, no UTF-8, or has no end.
    """
    try:
        # Bytes where there are some: decoding is ours then, and the size is bounded.
        raw = getattr(sys.stdin, "buffer", None)
        if raw is None:
            return sys.stdin.read().removeprefix("\ufeff")
        return decoded_text(read_at_most(raw, LARGEST_TEXT))
    except (OSError, ValueError, AttributeError) as error:
        raise RequestError(
            error_sentence(f"prompt is missing: standard input cannot be read ({error})")
        ) from None


def read_prompt_rows(
    path: Path, lm: LoadedModel | None = None, prompt_tokens: int | None = None
) -> list[PromptRow]:
    """Read prompts from a file.

    A JSON-lines file has `prompt` or `question`, or `turns` (Spec-Bench; the first one), or
    `messages` (up to the last one of a user), or `text`; `category` names the workload, else the
    file does. Any other text file holds one prompt a line.

    Args:
        path: The file; "-" for standard input.
        lm: The model whose tokenizer cuts running text; None: files hold none.
        prompt_tokens: How many first tokens of a `text` are the prompt, 1 or more; None: files hold
            none.

    Returns:
        The prompts, at least one.

    Raises:
        RequestError: The file cannot be read, holds no prompt, or has a wrong line.
    """
    if prompt_tokens is not None:
        require_integer("prompt_tokens", prompt_tokens, 1, 1_000_000)
    text = read_text(path)
    # The name without any ending, as in `questions.jsonl.gz`.
    workload = path.name.split(".")[0]
    # A file is JSON lines by its name, or where its first line begins an object.
    if ".jsonl" not in path.name and not text.lstrip().startswith("{"):
        rows = [PromptRow(line.strip(), workload) for line in text.split("\n") if line.strip()]
    else:
        rows = [
            parse_prompt_row(line, i, path, workload, lm, prompt_tokens)
            for i, line in enumerate(text.split("\n"), 1)
            if line.strip()
        ]
    if not rows:
        raise RequestError(f"file {str(path)!r} holds no prompt")
    return rows


def first_prompt_rows(rows: Sequence[PromptRow], limit: int | None) -> list[PromptRow]:
    """The first rows.

    Args:
        rows: All rows.
        limit: How many, 1 or more; None: all.

    Returns:
        The rows, in order.

    Raises:
        RequestError: The limit is below 1.
    """
    if limit is not None:
        require_integer("limit", limit, 1, sys.maxsize)
    # A slice up to None takes all rows.
    return list(rows[:limit])


def parse_prompt_row(
    line: str, i: int, path: Path, workload: str, lm: LoadedModel | None, prompt_tokens: int | None
) -> PromptRow:
    """Read the prompt of one JSON line.

    Args:
        line: The line.
        i: Its number, for messages.
        path: Its file, for messages.
        workload: The workload where the line names none.
        lm: The model whose tokenizer cuts running text; None: there is none.
        prompt_tokens: Tokens of a prompt of running text; None: there is none.

    Returns:
        The prompt.

    Raises:
        RequestError: The line holds none, or is of another form.
    """
    from polydec.models.formats.text_rows import NAMES, TextRowRecord

    what = f"line {i} of {str(path)!r}"
    j = validate_record(TextRowRecord, parse_object(line, what), what)
    if j.category is not None:
        # The row's own category goes before the file's name.
        workload = whole_text(str(j.category), f"{what}: category")
    if j.asked is not None:
        if j.answer is None:
            answer = None
        else:
            answer = whole_text(str(j.answer), f"{what}: answer")
        return PromptRow(_prompt(j.asked, f"{what}: prompt"), workload, answer=answer)
    if j.turns is not None:
        return PromptRow(_prompt(j.turns[0], f"{what}: the first turn"), workload)
    if j.messages is not None:
        # The prompt ends with the last message of a user: what follows is an answer.
        last = max(
            (
                n
                for n, m in enumerate(j.messages)
                if isinstance(m, dict) and m.get("role") == "user"
            ),
            default=len(j.messages) - 1,
        )
        return PromptRow(_prompt(j.messages[: last + 1], f"{what}: messages"), workload)
    # Running text has no end of a prompt of its own.
    if j.text is not None:
        if prompt_tokens is None or lm is None:
            raise RequestError(
                f"{str(path)!r} holds running text: say with --prompt-tokens where its prompts end"
            )
        return PromptRow(
            # Running text is cut by tokens, and goes in without a chat template.
            lm.encode_prompt(whole_text(j.text, what), raw=True)[:prompt_tokens],
            workload,
            raw=True,
        )
    raise RequestError(error_sentence(f"{what} has none of the fields {NAMES}"))


def _prompt(value: Any, what: str) -> Prompt:
    """Text, messages or ids. Raises RequestError with one sentence for anything else."""
    if isinstance(value, str):
        return whole_text(value, what)
    # `type(x) is int`, as a bool is no token id.
    if isinstance(value, list) and value and all(type(x) is int for x in value):
        return value
    if isinstance(value, list) and value and all(isinstance(x, dict) for x in value):
        from polydec.cli.lines import ChatMessageRecord

        # Fields besides role and content are refused.
        messages = [validate_record(ChatMessageRecord, x, what) for x in value]
        return [
            {"role": whole_text(m.role, what), "content": whole_text(m.content, what)}
            for m in messages
        ]
    raise RequestError(
        error_sentence(
            f"{what} is a {type(value).__name__}: it must be text, chat messages or token ids"
        )
    )


# One of each kind of work: a question, a summary, two edits, code. Written for this project.
BUILT_IN = (
    PromptRow(
        "Why is the sky blue during the day but red at sunset? Explain it so that a ten-year-old understands.",
        "question",
    ),
    PromptRow(
        "Summarize the following text in two sentences.\n\nThe town library closed its doors in March because the roof had "
        "begun to leak. For nine months the readers borrowed their books from a bus that stopped at the market square every "
        "Tuesday and Friday. The bus was so well liked that, when the repaired library opened again in December, the town "
        "council decided to keep the bus running. It now visits the villages in the hills, where the nearest library is an "
        "hour away, and the librarians say that more than half of all borrowed books now leave on the bus.",
        "summary",
    ),
    PromptRow(
        "Correct the grammar and spelling of this text and repeat the whole corrected text.\n\nYesterday me and my brother "
        "goes to the big market for buying some vegetable. There was many peoples and we has to wait very long time. The "
        "tomatos was cheap but the potatos was more expensiver than last week. When we comes home, our mother were very happy "
        "because we has bought all the thing what she want.",
        "edit",
    ),
    PromptRow(
        "Rename the function `f` to `mean` and the argument `xs` to `values`, and write the whole file again.\n\n"
        '```python\ndef f(xs):\n    """The arithmetic mean of a list of numbers."""\n    if not xs:\n'
        '        raise ValueError("the list is empty")\n    total = 0.0\n    for x in xs:\n        total = total + x\n'
        "    return total / len(xs)\n\n\nprint(f([1, 2, 3]))\nprint(f([4.5, 5.5]))\n```",
        "code edit",
    ),
    PromptRow(
        "Write a Python class for a bank account with the methods deposit, withdraw and transfer. Each method must check its "
        "argument and raise a ValueError with a clear message. Add a short docstring to every method.",
        "code",
    ),
)

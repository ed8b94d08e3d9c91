"""Published sets of questions as prompts of a bench: what a row asks, and what its answer is held
against."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from polydec.base.answer_check import AnswerCheck
from polydec.base.edge import error_sentence, parse_object, whole_text
from polydec.base.errors import RequestError
from polydec.cli.prompts import PromptRow, read_text
from polydec.lab.bench.checks import BoxedFormulaCheck, JsonSchemaCheck, UnitTestCheck, WordsCheck

Asked = tuple[str, AnswerCheck | None]
"""A prompt, and its check."""


@dataclass(frozen=True)
class PromptSuite:
    """A published set of questions.

    Attributes:
        folders: Names under which its folder is looked for.
        asked: Makes the prompt and the check of its answer from a row of its file.
    """

    folders: tuple[str, ...]
    asked: Callable[[Mapping[str, Any]], Asked]


def _gsm8k(row: Mapping[str, Any]) -> Asked:
    text = f"{_text(row, 'question')}\nThink step by step, and end with the answer as a number."
    # The file's answers end with "#### NUMBER" after their reasoning.
    return text, WordsCheck(_text(row, "answer").rpartition("####")[2].strip())


def _svamp(row: Mapping[str, Any]) -> Asked:
    text = f"{_text(row, 'Body')} {_text(row, 'Question')}\nEnd with the answer as a number."
    # "8.0" in the file is "8" in an answer.
    return text, WordsCheck(f"{float(row['Answer']):g}")


def _math(row: Mapping[str, Any]) -> Asked:
    text = f"{_text(row, 'problem')}\nThink step by step, and put the final answer in \\boxed{{}}."
    return text, BoxedFormulaCheck(_text(row, "answer"))


def _mbpp(row: Mapping[str, Any]) -> Asked:
    tests = [_only_text(x, "test_list") for x in row["test_list"]]
    # One test shows the function's name and its arguments, as the text does not say them.
    text = f"{_text(row, 'text')} Answer with the code alone. It must pass this test:\n{tests[0]}"
    return text, UnitTestCheck("\n".join([row.get("test_setup_code") or "", *tests]))


def _humaneval(row: Mapping[str, Any]) -> Asked:
    begin = _text(row, "prompt")
    name = _text(row, "entry_point")
    # The begun function goes to the check as well, for answers that are its body alone.
    text = f"Complete this function, and answer with the whole code alone.\n```python\n{begin}```"
    return text, UnitTestCheck(f"{_text(row, 'test')}\ncheck({name})\n", begin, name)


def _turns(row: Mapping[str, Any]) -> Asked:
    # The first turn of a conversation; no text can be compared with an open answer.
    return _only_text(row["turns"][0], "turns"), None


def _schemas(row: Mapping[str, Any]) -> Asked:
    # The schema stands in the question as it stands in the check.
    schema = json.dumps(row["schema"])
    return (
        f"Write one JSON value that this JSON schema allows, and nothing else.\n{schema}",
        JsonSchemaCheck(schema),
    )


def _text(row: Mapping[str, Any], name: str) -> str:
    return _only_text(row[name], name)


def _only_text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is no text")
    return whole_text(value, name)


SUITES: Mapping[str, PromptSuite] = {
    "gsm8k": PromptSuite(("gsm8k",), _gsm8k),
    "svamp": PromptSuite(("svamp",), _svamp),
    "math500": PromptSuite(("math500", "MATH-500"), _math),
    "mbpp": PromptSuite(("mbpp",), _mbpp),
    "humaneval": PromptSuite(("humaneval", "human-eval"), _humaneval),
    "spec-bench": PromptSuite(("spec_bench", "spec-bench"), _turns),
    "mt-bench": PromptSuite(("mt_bench", "mt-bench"), _turns),
    "json-schema-bench": PromptSuite(("json_schema_bench",), _schemas),
}
LONGEST = 4000
"""Letters of a question: longer ones, some schemas among them, are left out."""


def read_suite_rows(names: str, at: Path, each: int) -> list[PromptRow]:
    """Read rows of each suite, spread evenly over its file.

    Args:
        names: Names of suites with commas between them.
        at: The suite's file, or a folder that holds a folder for each.
        each: Rows of each suite at most.

    Returns:
        Prompts with the checks of their answers.

    Raises:
        RequestError: A suite is unknown or named twice, a file is missing, or a row is of another
            form.
    """
    chosen = [name.strip() for name in names.split(",")]
    for name in chosen:
        if name not in SUITES:
            near = next(iter(get_close_matches(name, SUITES, 1, 0.0)), "")
            raise RequestError(
                f"suite is {name!r}: it must be one of {', '.join(SUITES)}; did you mean {near}?"
            )
    if len(set(chosen)) < len(chosen):
        raise RequestError(f"suite is {names!r}: it must name suites, each of them once")
    if at.is_file() and len(chosen) > 1:
        raise RequestError(f"from is {str(at)!r}: several suites need a folder that holds theirs")
    return [row for name in chosen for row in _of(name, _file(name, at), each)]


def _file(name: str, at: Path) -> Path:
    """The suite's file: the first one of its folder."""
    if at.is_file():
        return at
    # The folder itself comes last, for a user who names the suite's own folder.
    for folder in (*SUITES[name].folders, "."):
        files = sorted(p for p in (at / folder).glob("*.jsonl*") if p.is_file())
        if files:
            return files[0]
    raise RequestError(
        error_sentence(
            f"from is {str(at)!r}: it holds no folder {SUITES[name].folders[0]!r} with a .jsonl"
        )
    )


def _of(name: str, path: Path, each: int) -> list[PromptRow]:
    lines = [(i, line) for i, line in enumerate(read_text(path).split("\n"), 1) if line.strip()]
    out = [row for i, line in lines if (row := _row(name, path, i, line)) is not None]
    if not out:
        raise RequestError(error_sentence(f"file {str(path)!r} holds no question of {name}"))
    return evenly_spaced_rows(out, each)


def _row(name: str, path: Path, i: int, line: str) -> PromptRow | None:
    what = f"line {i} of {str(path)!r}"
    content = parse_object(line, what)
    try:
        text, check = SUITES[name].asked(content)
    # A suite's file comes from elsewhere: whatever is wrong with a row becomes one sentence.
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise RequestError(
            error_sentence(f"{what} is no row of {name} ({type(error).__name__}: {error})")
        ) from None
    if len(text) <= LONGEST:
        return PromptRow(text, name, answer=check)
    return None


def evenly_spaced_rows(rows: Sequence[PromptRow], count: int) -> list[PromptRow]:
    """Some of the rows, at even distances.

    Args:
        rows: All rows.
        count: How many at most, at least 1.

    Returns:
        The rows, in order.
    """
    if len(rows) <= count:
        return list(rows)
    return [rows[i * len(rows) // count] for i in range(count)]

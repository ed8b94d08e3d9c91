"""What an answer is held against: a number or words, a formula in a box, unit tests, a schema."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from polydec.base.answer_check import AnswerCheck
from polydec.base.subprocess_worker import SubprocessLimits, SubprocessWorker, WorkerEndedError
from polydec.lab.bench import answers


@dataclass(frozen=True)
class WordsCheck:
    """Check an answer for a number that it must end with, or for words that must stand in it.

    Attributes:
        words: The number or the words; see `answers.has_right_answer`.
    """

    words: str

    def is_right(self, text: str) -> bool:
        return answers.has_right_answer(self.words, text)


@dataclass(frozen=True)
class BoxedFormulaCheck:
    r"""Check the formula in the last \boxed{} of a text, whatever its spaces and how fractions are
    set.

    A text without a box is right where it ends with the same number.

    Attributes:
        formula: The formula, as LaTeX.
    """

    formula: str

    def is_right(self, text: str) -> bool:
        boxed = last_box(text)
        # Only a plain number can be recognised outside a box.
        if boxed is None:
            wanted = answers.wanted_answer(self.formula)
            return (
                wanted is not None
                and bare_formula(wanted).isdigit()
                and answers.has_right_answer(wanted, text)
            )
        return bare_formula(boxed) == bare_formula(self.formula)


@dataclass(frozen=True)
class UnitTestCheck:
    """Run a Python program's unit tests, in a process of its own with limits on time and memory.

    Attributes:
        tests: The tests, as Python source.
        begin: What is put before an answer that does not define `name` itself.
        name: Name of the function that the tests call; "" for none.
    """

    tests: str
    begin: str = ""
    name: str = ""

    def is_right(self, text: str) -> bool:
        code = last_code(text)
        # Models answer with the whole function, or with its body alone.
        if self.name and not re.search(rf"^def {re.escape(self.name)}\b", code, re.MULTILINE):
            code = self.begin + code
        asked = json.dumps({"program": code, "tests": self.tests}).encode() + b"\n"
        try:
            return bool(_worker().ask_worker(asked).get("passed"))
        except WorkerEndedError:
            return False


@dataclass(frozen=True)
class JsonSchemaCheck:
    """Check that the first JSON value of a text is valid under a schema.

    Attributes:
        schema: The schema, as JSON.
    """

    schema: str

    def is_right(self, text: str) -> bool | None:
        from polydec.lab.bench.valid import is_valid_text
        from polydec.laws.constraints.json_schema import JsonSchema

        code = last_code(text).strip()
        try:
            # The value alone: what follows it, such as an explanation, is not judged.
            _, end = json.JSONDecoder().raw_decode(code)
        except (ValueError, RecursionError):
            return False
        return is_valid_text(JsonSchema(self.schema), code[:end])


def check_of(answer: str | AnswerCheck | None) -> AnswerCheck | None:
    """The check of a row's answer; None where there is nothing that a text could be compared with."""
    if not isinstance(answer, str):
        return answer
    words = answers.wanted_answer(answer)
    if words is None:
        return None
    return WordsCheck(words)


def last_box(text: str) -> str | None:
    """What the last \\boxed{...} holds; None where there is none that is closed."""
    begin = text.rfind("\\boxed{")
    if begin < 0:
        return None
    # Braces may nest: the box ends where its own brace closes.
    depth = 0
    first = begin + len("\\boxed")
    for i in range(first, len(text)):
        depth += (text[i] == "{") - (text[i] == "}")
        if not depth:
            return text[first + 1 : i]
    return None


# In order: spacing, variants of fractions, text, fractions without braces, units, thousands, a full
# stop.
_SETTING: tuple[tuple[str, str], ...] = (
    (r"\\left|\\right|\\!|\\,|\\;|\\ |\\\$|\$|\s", ""),
    (r"\\[dt]frac", r"\\frac"),
    (r"\\text\{([^{}]*)\}", r"\1"),
    (r"\\frac(\d)(\d)", r"\\frac{\1}{\2}"),
    (r"\^\\circ|\^\{\\circ\}|\\%|%", ""),
    (r"(?<=\d),(?=\d{3}\b)", ""),
    (r"\.$", ""),
)


def bare_formula(formula: str) -> str:
    """A formula without spacing, units and variants of notation that do not change its value."""
    for old, new in _SETTING:
        formula = re.sub(old, new, formula)
    return formula


_BLOCK = re.compile(r"```[\w+-]*\n(.*?)(?:```|\Z)", re.DOTALL)


def last_code(text: str) -> str:
    """The last fenced code block of a text; the text itself where there is none."""
    blocks = _BLOCK.findall(text)
    if blocks:
        return blocks[-1]
    return text


SCRIPT = Path(__file__).with_name("unit_tests.py")
WORK = SubprocessLimits(memory=2 << 30, seconds=30.0, answer=1 << 16)


@cache
def _worker() -> SubprocessWorker:
    return SubprocessWorker(SCRIPT, WORK, "a program and its tests")

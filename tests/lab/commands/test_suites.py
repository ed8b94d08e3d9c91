"""Published suites as prompts of a bench: what is asked, what an answer is held against, and what is refused."""

import json

import pytest

from polydec.base.errors import RequestError
from polydec.lab.bench.checks import (
    BoxedFormulaCheck,
    JsonSchemaCheck,
    UnitTestCheck,
    WordsCheck,
    bare_formula,
    check_of,
    last_box,
)
from polydec.lab.commands.suites import SUITES, read_suite_rows

ROWS = {
    "gsm8k": {"question": "2 and 2?", "answer": "2+2=<<2+2=4>>4\n#### 4"},
    "svamp": {"Body": "He had 3.", "Question": "How many?", "Answer": 3.0},
    "math500": {"problem": "What is x?", "answer": "\\frac{1}{2}"},
    "mbpp": {"text": "Write f.", "test_setup_code": "", "test_list": ["assert f(1) == 2"]},
    "humaneval": {
        "prompt": "def f(x):\n",
        "entry_point": "f",
        "test": "def check(c):\n    assert c(1) == 2\n",
    },
    "spec-bench": {"turns": ["Write.", "Again."], "category": "writing"},
    "mt-bench": {"turns": ["Write."]},
    "json-schema-bench": {"schema": {"type": "object", "required": ["a"]}},
}
RIGHT = {
    "gsm8k": ("so it is 4.", "so it is 5."),
    "svamp": ("He has 3 left", "He has 4 left"),
    "math500": ("thus \\boxed{\\dfrac{1}{2}}.", "thus \\boxed{\\frac{1}{3}}."),
    "mbpp": (
        "```python\ndef f(x):\n    return x + 1\n```",
        "```python\ndef f(x):\n    return x\n```",
    ),
    "humaneval": ("```python\n    return x + 1\n```", "```\ndef f(x):\n    return x\n```"),
    "json-schema-bench": ('{"a": 1}', '{"b": 1}'),
}


@pytest.fixture
def folder(tmp_path):
    for name, row in ROWS.items():
        at = tmp_path / SUITES[name].folders[0]
        at.mkdir()
        (at / "part.jsonl").write_text("".join(json.dumps(row) + "\n" for _ in range(3)))
    return tmp_path


def test_every_suite_is_in_the_example():
    assert ROWS.keys() == SUITES.keys()


def test_questions_of_all_suites_in_one_run(folder):
    found = read_suite_rows(",".join(SUITES), folder, 2)
    assert [r.workload for r in found] == [name for name in SUITES for _ in range(2)]
    assert read_suite_rows("gsm8k", folder / "gsm8k" / "part.jsonl", 9)[2].prompt.startswith(
        "2 and 2?"
    )


@pytest.mark.parametrize("name", RIGHT)
def test_an_answer_is_judged(folder, name):
    check = check_of(read_suite_rows(name, folder, 1)[0].answer)
    good, bad = RIGHT[name]
    assert check.is_right(good) is True and check.is_right(bad) is False


@pytest.mark.parametrize(
    "program",
    [
        "import os\nos._exit(0)",
        "raise SystemExit(0)",
        "import sys\nsys.modules['os']._exit(0)",
        "x = bytearray(1 << 33)",
        "def f(:",
        "import os\nfor fd in range(3, 64):\n    try:\n        os.close(fd)\n    except OSError:\n        pass",
    ],
)
def test_a_program_that_ends_or_breaks_does_not_pass(program):
    assert UnitTestCheck("assert f(1) == 2").is_right(f"```python\n{program}\n```") is False
    assert UnitTestCheck("assert f(1) == 2").is_right("def f(x):\n    return 2\n") is True


@pytest.mark.slow
@pytest.mark.parametrize("program", ["while True: pass", "import time\ntime.sleep(60)"])
def test_a_program_without_end_is_ended(program):
    assert UnitTestCheck("").is_right(program) is False
    assert UnitTestCheck("").is_right("x = 1") is True


def test_formulas_are_compared_without_what_sets_them():
    assert bare_formula("\\left( 3, \\dfrac12 \\right)") == bare_formula("(3,\\frac{1}{2})")
    assert last_box("a \\boxed{\\frac{1}{2}} b") == "\\frac{1}{2}"
    assert last_box("a \\boxed{1") is None and last_box("a") is None
    assert BoxedFormulaCheck("1,000").is_right("it is 1000") and not BoxedFormulaCheck(
        "x"
    ).is_right("it is x")
    assert WordsCheck("4").is_right("4") and JsonSchemaCheck('{"type": "integer"}').is_right(
        "```json\n3\n```"
    )


@pytest.mark.parametrize(
    "names, change, said",
    [
        ("gsm9k", {}, "suite is 'gsm9k': it must be one of gsm8k"),
        ("gsm8k,gsm8k", {}, "each of them once"),
        ("gsm8k", {"question": 3}, "is no row of gsm8k"),
        ("svamp", {"Answer": "many"}, "is no row of svamp"),
    ],
)
def test_what_cannot_be_read_is_refused(folder, names, change, said):
    name = names.split(",")[0]
    if change:
        at = folder / SUITES[name].folders[0] / "part.jsonl"
        at.write_text(json.dumps(ROWS[name] | change) + "\n")
    with pytest.raises(RequestError, match=said):
        read_suite_rows(names, folder, 2)


def test_a_bench_over_suites_says_how_many_are_right(folder, tmp_path, polydec_command):
    def call(*more):
        asked = ("bench", "--model", "zoo:tiny", "--methods", "prompt-lookup", *more)
        return polydec_command(*asked)

    mine = (
        "--suite",
        "gsm8k,mbpp",
        "--from",
        folder,
        "--each",
        1,
        "--max-tokens",
        4,
        "--repeat",
        1,
    )
    code, out, err = call(
        *mine, "--json", "--record", tmp_path / "r.jsonl", "--html", tmp_path / "r.html"
    )
    assert code == 0, err
    told = {(r["workload"], r["method"]): r for r in json.loads(out)["rows"]}
    assert told["mbpp", "plain"]["judged"] == 1 and told["gsm8k", "prompt-lookup"]["right"] == 0.0
    assert "gsm8k" in (tmp_path / "r.html").read_text()
    lines = len((tmp_path / "r.jsonl").read_text().split("\n"))
    assert call(*mine, "--json", "--record", tmp_path / "r.jsonl")[0] == 0
    assert len((tmp_path / "r.jsonl").read_text().split("\n")) == lines  # nothing is measured twice
    assert "say with --from" in call("--suite", "gsm8k")[2]
    assert "say with --suite" in call("--from", folder)[2]
    assert "does not take --data" in call(*mine, "--limit", "3")[2]

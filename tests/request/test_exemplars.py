"""Exemplars of the most steps: which are chosen, how they are shown, and what does not fit."""

import json
import sys

import pytest

from polydec import api
from polydec.cli.main import main
from polydec.request.exemplars import (
    SolvedExemplar,
    exemplar_prompt,
    exemplar_question_text,
    most_complex_exemplars,
    read_exemplars,
)

POOL = [
    SolvedExemplar(f"q{i}", "\n".join(["step", ""] * n), str(i)) for i, n in enumerate((1, 3, 2, 3))
]


@pytest.fixture(scope="module")
def lm():
    return api.load("zoo:tiny", draft=None)


def test_the_most_complex_come_first_and_the_question_itself_never():
    assert [e.reasoning_complexity for e in POOL] == [1, 3, 2, 3]
    assert [e.question for e in most_complex_exemplars(POOL, "q9", 3)] == ["q1", "q3", "q2"]
    assert [e.question for e in most_complex_exemplars(POOL, " q1\n", 9)] == ["q3", "q2", "q0"]


def test_files_of_both_forms(tmp_path):
    path = tmp_path / "pool.jsonl"
    path.write_text(
        json.dumps({"question": "a?", "answer": "3 + 4 = 7\n7 - 1 = 6\n#### 6"})
        + "\n\n"
        + json.dumps({"question": "b?", "solution": "one\ntwo\nthree", "answer": "x", "more": 1})
    )
    assert read_exemplars(path) == [
        SolvedExemplar("a?", "3 + 4 = 7\n7 - 1 = 6", "6"),
        SolvedExemplar("b?", "one\ntwo\nthree", "x"),
    ]
    assert (
        read_exemplars(path)[0].shown
        == "Question: a?\nLet's think step by step\n3 + 4 = 7\n7 - 1 = 6\nThe answer is 6"
    )
    for text, said in (
        ("", "holds no solved problem"),
        ('{"question": "a?", "answer": "6"}', "line 1 of .* has no solution"),
        ('{"question": "a?"}', "answer"),
        ("no JSON", "line 1 of"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=said):
            read_exemplars(path)


def test_what_leaves_the_answer_no_room_is_passed_over(lm):
    long = SolvedExemplar("long", "\n".join(["a step of some length"] * 200), "no")
    text = exemplar_prompt(lm, [long, *POOL], "how many?", 2, max_tokens=8)
    assert text == "\n\n".join([POOL[1].shown, POOL[3].shown, exemplar_question_text("how many?")])
    assert exemplar_prompt(lm, POOL, "how many?", 8).count("The answer is") == 4
    with pytest.raises(
        ValueError, match="of 1 solved problems not one fits into the context of zoo:tiny"
    ):
        exemplar_prompt(lm, [long], "how many?", 2, max_tokens=8)
    with pytest.raises(ValueError, match="shots is 0: it must be at least 1"):
        exemplar_prompt(lm, POOL, "how many?", 0)


def test_on_the_command_line(tmp_path, monkeypatch, capsys):
    def polydec(*args):
        monkeypatch.setattr(
            sys,
            "argv",
            [
                "polydec",
                "generate",
                "how many?",
                "--model",
                "zoo:tiny",
                "--draft",
                "none",
                "--max-tokens",
                "4",
                "--json",
                *args,
            ],
        )
        with pytest.raises(SystemExit) as stop:
            main()
        out = capsys.readouterr()
        return int(stop.value.code or 0), out.out, out.err

    path = tmp_path / "pool.jsonl"
    path.write_text(
        "".join(
            json.dumps({"question": e.question, "solution": e.solution, "answer": e.answer}) + "\n"
            for e in POOL
        )
    )
    one, three = (
        json.loads(polydec("--exemplars", str(path), "--shots", n)[1])["usage"]["prompt_tokens"]
        for n in "13"
    )
    assert one < three
    for args, said in (
        ((str(path), "--shots", "65"), "shots is 65: it can be at most 64"),
        ((str(tmp_path / "no"),), "no"),
    ):
        code, _, err = polydec("--exemplars", *args)
        assert code == 2 and said in err and "Traceback" not in err

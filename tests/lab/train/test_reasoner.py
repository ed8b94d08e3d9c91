"""Problems in steps, their checker, and the models that are trained on them."""

import json
import math
import re

import pytest
import torch

from polydec import api
from polydec.lab.train import problems, selfplay
from polydec.lab.train.data import held_out
from polydec.lab.train.lm_student import load_directory
from polydec.lab.train.probe import train_probe
from polydec.lab.train.probes.prm import PrmSpec, label_solution_steps
from polydec.lab.train.problems import (
    KINDS,
    draw_flawed_solution,
    draw_problem,
    is_right_solution,
    label_solution_lines,
    right_until,
)
from polydec.lab.train.reasoner import (
    NOT_LEARNED,
    ReasonerRows,
    ReasonerSpec,
    number_tokenizer,
    train_reasoner,
)
from polydec.lab.train.solutions import LabelledSolution, right_token_flags

SOME = [(kind, i) for kind in KINDS for i in range(60)]


def test_solutions_are_right_and_a_slip_is_seen_where_it_stands():
    for kind, i in SOME:
        problem = draw_problem(kind, 0, i)
        assert is_right_solution(problem, problem.solution) and all(
            label_solution_lines(problem, problem.solution)
        )
        assert not is_right_solution(problem, "\n".join(problem.steps)) and not is_right_solution(
            problem, problem.solution + "\n=1"
        )
        before, wrong = draw_flawed_solution(problem, 0, i)
        said = label_solution_lines(
            problem, "\n".join((*before, wrong, *problem.steps[len(before) + 1 :]))
        )
        assert said[: len(before) + 1] == (True,) * len(before) + (False,) and not any(
            said[len(before) :]
        )


def test_every_chain_is_arithmetic():
    for i in range(60):
        problem = draw_problem("chain", 1, i)
        for step in problem.steps:
            left, right = step.split("=")
            assert eval(left) == int(right) and 0 <= int(right) <= problems.LARGEST
        value = re.match(r"\d+", problem.question)[0]
        for part in re.findall(r"[+*-]\d+", problem.question):
            value = eval(f"{value}{part}")
        assert str(value) == problem.answer


def test_any_way_to_the_goal_is_right():
    problem = problems.ReasoningProblem("make", "24 from 2 3 4", ("2*3=6 4", "6*4=24"), "24")
    for text, said in (
        ("3*4=12 2\n12*2=24\n=24", (True,) * 3),
        ("4*2=8 3\n8*3=24\n=24", (True,) * 3),
        ("2+3=5 4", (False,)),
        ("2*3=6 4\n6+4=10\n=10", (True, False, False)),
        ("2*3=6\n", (False, False)),
    ):
        assert label_solution_lines(problem, text) == said, text
    assert label_solution_lines(problem, "2*3=6 4\n6*4=24\n=12") == (True, True, False)


def test_one_order_fits():
    for i in range(40):
        names, *clues = draw_problem("order", 2, i).question.split(" ")
        fits = [
            p
            for p in problems.permutations(names)
            if all(problems._fits("".join(p), c) for c in clues)
        ]
        assert ["".join(p) for p in fits] == [draw_problem("order", 2, i).answer]


def test_held_out_problems_are_others():
    asked = {
        held: {draw_problem(kind, 3, i, held).question for kind, i in SOME}
        for held in (False, True)
    }
    assert all(held_out(q) for q in asked[True]) and not any(held_out(q) for q in asked[False])
    with pytest.raises(
        ValueError, match="kinds has 'sudoku': it must be one of chain, make, order"
    ):
        draw_problem("sudoku", 0, 0)


def test_rows_say_what_is_learned_and_what_is_judged():
    tokenizer = number_tokenizer()
    assert tokenizer.encode("12*2=24", add_special_tokens=False).tokens == [
        "12",
        "*",
        "2",
        "=",
        "24",
    ]
    rows = ReasonerRows(tokenizer, ReasonerSpec("x", flawed=0.5))
    token_BT, next_BT, right_BT = rows.batch_rows(4, 6)
    assert torch.equal(token_BT, rows.batch_rows(4, 6)[0]) and not torch.equal(
        token_BT, rows.batch_rows(5, 6)[0]
    )
    learned = next_BT[:, :-1] != NOT_LEARNED
    assert (
        torch.equal(next_BT[:, :-1][learned], token_BT[:, 1:][learned])
        and 0.2 < learned.float().mean() < 0.6
    )
    judged = right_BT != NOT_LEARNED
    assert judged[:, 1:][learned].all() and {0, 1} <= set(
        right_BT.unique().tolist()
    )  # what is learned is right
    assert right_BT[:, 1:][learned].min() == 1
    asks = tokenizer.token_to_id("<|user|>")
    for row, said in zip(token_BT.tolist(), right_BT.tolist()):
        assert all(r == NOT_LEARNED for x, r in zip(row, said) if x == asks)


def test_how_far_a_text_is_right():
    problem = problems.ReasoningProblem("make", "24 from 2 3 4", ("2*3=6 4", "6*4=24"), "24")
    for text, until in (
        ("3*4=12 2\n12*2=24\n=24", 20),
        ("3*4=12 2\n", 9),
        ("3*4=1", 5),
        ("5", 0),
        ("3*4=13 2\n12*2=24", 5),
        ("2*3=6 4\n6+4=10\n=10", 9),
        ("2*3=6\n6*4=24", 5),
        ("2*3=6 4\n6*4=24\n=2", 17),
        ("2*3=6 4\n6*4=24\n=24\n", 18),
        ("", 0),
    ):
        assert right_until(problem, text) == until, text
    for kind, i in SOME:
        problem = draw_problem(kind, 0, i)
        before, wrong = draw_flawed_solution(problem, 0, i)
        text = "\n".join((*before, wrong))
        assert right_until(problem, problem.solution) == len(problem.solution)
        assert len(text) - len(wrong) <= right_until(problem, text + "\n") <= len(text)


class Bytes:
    """Text of a model whose tokens are ASCII; 0 is special."""

    def decode(self, ids):
        return "".join(map(chr, filter(None, ids)))


def test_every_token_of_a_solution_is_judged():
    problem = problems.ReasoningProblem("make", "24 from 2 3 4", ("2*3=6 4", "6*4=24"), "24")
    said = [ord(c) for c in "2*3=6 4\n6+"]
    assert right_token_flags(problem, Bytes(), said, frozenset({0})) == (True,) * 9 + (False,)
    whole = [ord(c) for c in problem.solution]
    assert all(right_token_flags(problem, Bytes(), [*whole, 0], frozenset({0})))
    assert right_token_flags(problem, Bytes(), [*whole[:9], 0], frozenset({0})) == (True,) * 9 + (
        False,
    )  # an end too early
    assert (
        right_token_flags(problem, Bytes(), [*whole[:3], 0, *whole[3:]], frozenset({1}))[3:]
        == (False,) * 16
    )  # a special token within


def test_solutions_of_its_own_stand_for_slips():
    tokenizer = number_tokenizer()
    problem = draw_problem("chain", 0, 0)
    drawn = LabelledSolution(problem, (256, 258), (7, 8, 9), (True, False, False))
    token_BT, next_BT, right_BT = ReasonerRows(
        tokenizer, ReasonerSpec("x", flawed=0.99), [drawn]
    ).batch_rows(0, 4)
    assert (token_BT[:, :5] == torch.tensor([256, 258, 7, 8, 9])).any() and (
        next_BT[:, :4] == NOT_LEARNED
    ).any()
    assert (right_BT[0, 2:5] == torch.tensor([1, 0, 0])).all() and (
        right_BT[0, :2] == NOT_LEARNED
    ).all()
    for fields, said in (
        ({"own": -1}, "own is -1: it must be at least 0"),
        ({"own": 3}, "only a network that is named"),
    ):
        with pytest.raises(ValueError, match=said):
            ReasonerSpec("x", **fields)


def test_both_are_trained_and_used(tmp_path):
    torch.set_num_threads(1)
    made = train_reasoner(ReasonerSpec(str(tmp_path / "r"), steps=4, rows=2, width=32, layers=1))
    assert made["steps"] == 4 and made["parameters"] < 40_000
    assert (
        train_reasoner(ReasonerSpec(str(tmp_path / "r"), steps=4, rows=2, width=32, layers=1))[
            "curve"
        ]
        == made["curve"]
    )
    larger = ReasonerSpec(
        str(tmp_path / "g"),
        steps=1,
        rows=2,
        width=64,
        layers=2,
        rate=1e-9,
        muon=0.0,
        start=str(tmp_path / "r"),
    )
    assert train_reasoner(larger)["parameters"] > 3 * made["parameters"]
    ids = torch.tensor([[5, 60, 7]])
    small, grew = (load_directory(str(tmp_path / name)) for name in "rg")
    assert torch.allclose(small(ids), grew(ids), atol=0.1)  # both are stored as bytes
    judging = ReasonerSpec(
        str(tmp_path / "o"),
        ("chain",),
        steps=2,
        rows=2,
        width=32,
        layers=1,
        own=3,
        start=str(tmp_path / "r"),
    )
    done = train_reasoner(judging)
    assert done["steps"] == 2 and len(selfplay.read_samples(tmp_path / "o" / "own.jsonl")) == 3
    assert math.isfinite(done["loss"]), "a batch of its own solutions alone has no token to learn"
    judged = api.load(str(tmp_path / "o"), trained=[str(tmp_path / "o" / "prm")])
    assert (
        api.generate(
            judged, "2+7*3-5", method="best-of-n", max_tokens=8, options={"tries": 2}
        ).metrics["texts_judged"]
        == 2
    )
    spec = PrmSpec(str(tmp_path / "p"), str(tmp_path / "r"), ("chain",), each=12, steps=6, inner=8)
    (tmp_path / "p").mkdir()
    lm = api.load(str(tmp_path / "r"))
    for name, held, count in (("text", False, 12), ("held", True, 10)):
        with open(tmp_path / "p" / f"{name}.jsonl", "w") as f:
            for i in range(count):
                problem = draw_problem("chain", spec.seed + 1, i, held)
                said = problem.solution if i % 2 else problem.solution.replace("=", "=1", 1)
                ids = lm.checkpoint.text.chat_prompt(
                    [{"role": "user", "content": problem.question}]
                )
                f.write(
                    json.dumps(
                        {
                            "prompt_ids": ids,
                            "temperature": 0.8,
                            "output_ids": lm.checkpoint.text.encode(
                                said + "<|end|>", special=False
                            ),
                        }
                    )
                    + "\n"
                )
    with pytest.raises(ValueError, match="none of 1 solutions of the target has a line that ends"):
        label_solution_steps(
            lm.checkpoint, [LabelledSolution(problem, tuple(ids), (7, 8, 9), (True, False, False))]
        )
    figures = train_probe(spec)
    assert figures["held_out"]["steps"] > 6 and 0 < figures["held_out"]["right"] < 1
    lm = api.load(str(tmp_path / "r"), trained=[str(tmp_path / "p")])
    for method, options in (
        ("best-of-n", {"tries": 2}),
        ("a-star-decoding", {"width": 2, "budget": 40}),
    ):
        done = api.generate(lm, "2+7*3-5", method=method, max_tokens=24, options=options)
        assert done.metrics["texts_judged"] >= 1, method

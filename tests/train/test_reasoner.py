"""Problems in steps, their checker, and the models that are trained on them."""
import json
import re

import pytest
import torch

from polydec import api
from polydec.train import problems
from polydec.train.data import held_out
from polydec.train.lm import load_directory
from polydec.train.prm import PrmSpec, train_prm
from polydec.train.problems import KINDS, flawed, labels, make, solved
from polydec.train.reasoner import NOT_LEARNED, ReasonerSpec, Rows, number_tokenizer, train_reasoner

SOME = [(kind, i) for kind in KINDS for i in range(60)]


def test_solutions_are_right_and_a_slip_is_seen_where_it_stands():
    for kind, i in SOME:
        problem = make(kind, 0, i)
        assert solved(problem, problem.solution) and all(labels(problem, problem.solution))
        assert not solved(problem, "\n".join(problem.steps)) and not solved(problem, problem.solution + "\n=1")
        before, wrong = flawed(problem, 0, i)
        said = labels(problem, "\n".join((*before, wrong, *problem.steps[len(before) + 1:])))
        assert said[:len(before) + 1] == (True,) * len(before) + (False,) and not any(said[len(before):])


def test_every_chain_is_arithmetic():
    for i in range(60):
        problem = make("chain", 1, i)
        for step in problem.steps:
            left, right = step.split("=")
            assert eval(left) == int(right) and 0 <= int(right) <= problems.LARGEST
        value = re.match(r"\d+", problem.question)[0]
        for part in re.findall(r"[+*-]\d+", problem.question):
            value = eval(f"{value}{part}")
        assert str(value) == problem.answer


def test_any_way_to_the_goal_is_right():
    problem = problems.Problem("make", "24 from 2 3 4", ("2*3=6 4", "6*4=24"), "24")
    for text, right in (("3*4=12 2\n12*2=24\n=24", (True,) * 3), ("4*2=8 3\n8*3=24\n=24", (True,) * 3),
                        ("2+3=5 4", (False,)), ("2*3=6 4\n6+4=10\n=10", (True, False, False)), ("2*3=6\n", (False, False))):
        assert labels(problem, text) == right, text
    assert labels(problem, "2*3=6 4\n6*4=24\n=12") == (True, True, False)


def test_one_order_fits():
    for i in range(40):
        names, *clues = make("order", 2, i).question.split(" ")
        fits = [p for p in problems.permutations(names) if all(problems._fits("".join(p), c) for c in clues)]
        assert ["".join(p) for p in fits] == [make("order", 2, i).answer]


def test_held_out_problems_are_others():
    asked = {held: {make(kind, 3, i, held).question for kind, i in SOME} for held in (False, True)}
    assert all(held_out(q) for q in asked[True]) and not any(held_out(q) for q in asked[False])
    with pytest.raises(ValueError, match="kinds has 'sudoku': it must be one of chain, make, order"):
        make("sudoku", 0, 0)


def test_rows_say_what_is_learned_and_what_is_judged():
    tokenizer = number_tokenizer()
    assert tokenizer.encode("12*2=24", add_special_tokens=False).tokens == ["12", "*", "2", "=", "24"]
    rows = Rows(tokenizer, ReasonerSpec("x", flawed=0.5))
    token_BT, next_BT, right_BT = rows.batch(4, 6)
    assert torch.equal(token_BT, rows.batch(4, 6)[0]) and not torch.equal(token_BT, rows.batch(5, 6)[0])
    learned = next_BT[:, :-1] != NOT_LEARNED
    assert torch.equal(next_BT[:, :-1][learned], token_BT[:, 1:][learned]) and 0.2 < learned.float().mean() < 0.6
    ends = token_BT[right_BT != NOT_LEARNED]
    assert set(ends.tolist()) <= {tokenizer.token_to_id("<|end|>"), tokenizer.encode("\n", add_special_tokens=False).ids[0]}
    assert {0, 1} <= set(right_BT.unique().tolist())


def test_both_are_trained_and_used(tmp_path):
    torch.set_num_threads(1)
    made = train_reasoner(ReasonerSpec(str(tmp_path / "r"), steps=4, rows=2, width=32, layers=1))
    assert made["steps"] == 4 and made["parameters"] < 40_000
    assert train_reasoner(ReasonerSpec(str(tmp_path / "r"), steps=4, rows=2, width=32, layers=1))["curve"] == made["curve"]
    larger = ReasonerSpec(str(tmp_path / "g"), steps=1, rows=2, width=64, layers=2, rate=1e-9, muon=0.0,
                          start=str(tmp_path / "r"))
    assert train_reasoner(larger)["parameters"] > 3 * made["parameters"]
    ids = torch.tensor([[5, 60, 7]])
    small, grew = (load_directory(str(tmp_path / name)) for name in "rg")
    assert torch.allclose(small(ids), grew(ids), atol=0.1)         # both are stored as bytes
    spec = PrmSpec(str(tmp_path / "p"), str(tmp_path / "r"), ("chain",), each=12, steps=6, inner=8)
    (tmp_path / "p").mkdir()
    lm = api.load(str(tmp_path / "r"))
    for name, held, count in (("text", False, 12), ("held", True, 3)):
        with open(tmp_path / "p" / f"{name}.jsonl", "w") as f:
            for i in range(count):
                problem = make("chain", 1, i, held)
                said = problem.solution if i % 2 else problem.solution.replace("=", "=1", 1)
                ids = lm.checkpoint.text.chat([{"role": "user", "content": problem.question}])
                f.write(json.dumps({"prompt_ids": ids, "temperature": 1.0,
                                    "output_ids": lm.checkpoint.text.encode(said + "<|end|>", special=False)}) + "\n")
    figures = train_prm(spec)
    assert figures["held_out"]["steps"] > 6 and 0 < figures["held_out"]["right"] < 1
    lm = api.load(str(tmp_path / "r"), trained=[str(tmp_path / "p")])
    for method, options in (("best-of-n", {"tries": 2}), ("a-star-decoding", {"width": 2, "budget": 40})):
        done = api.generate(lm, "2+7*3-5", method=method, max_tokens=24, options=options)
        assert done.metrics["texts_judged"] >= 1, method

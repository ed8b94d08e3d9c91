"""What steps and votes buy: automata by brute force, steps written by hand, networks by their kernel."""

import json
import re
import shutil
import sys
from itertools import product
from random import Random

import pytest
import torch

from polydec.base.errors import RequestError
from polydec.lab.bench import permutations as votes
from polydec.lab.bench import steps
from polydec.lab.bench.intervals import shared_trials_interval, student_interval, wilson_interval
from polydec.lab.bench.measure import MethodSetting
from polydec.lab.train.automata import (
    ANSWER,
    BUDGETS,
    END,
    PAD,
    TASKS,
    ScratchpadFormat,
    random_symbol_word,
    scratchpad_step_ends,
)
from polydec.lab.train.specs.steps import StepsSpec
from polydec.lab.train.steps import (
    NOT_LEARNED,
    build_scratchpad_tokenizer,
    draw_scratchpad_batch,
    train_steps,
)

PLAIN = MethodSetting("plain", {})


def test_s5_composes_permutations():
    swap, turn, other = (1, 0, 2, 3, 4), (1, 2, 3, 4, 0), (0, 1, 3, 2, 4)
    s5 = TASKS["s5"]
    assert len(s5.table) == 120 and all(
        len({row[a] for row in s5.table}) == 120 for a in range(3)
    )  # every symbol is undone by some word: nothing is forgotten
    r, names = Random(0), dict[int, tuple[int, ...]]()
    for _ in range(300):
        things, symbols = [*range(5)], random_symbol_word(r, 9)
        for a in symbols:
            things = [things[i] for i in (swap, turn, other)[a]]
        assert names.setdefault(s5.states_after_word(symbols)[-1], tuple(things)) == tuple(things)
    assert len({*names.values()}) == len(names)


@pytest.mark.parametrize("task", TASKS)
def test_the_law_of_states_is_that_of_all_words(task):
    automaton = TASKS[task]
    ends = [automaton.states_after_word(w)[-1] for w in product(range(3), repeat=4)]
    counted = [ends.count(s) / len(ends) for s in range(len(automaton.table))]
    assert automaton.answer_law(4) == pytest.approx(counted, abs=1e-12)
    assert automaton.naming_chance(4) == pytest.approx(max(counted))


def test_parity_is_that_of_the_first_symbol():
    assert all(
        TASKS["parity"].states_after_word(w)[-1] == w.count(0) % 2
        for w in product(range(3), repeat=5)
    )


def test_steps_are_within_their_budget_and_end_with_the_word():
    for name, budget in BUDGETS.items():
        for length in range(1, 65):
            at = scratchpad_step_ends(length, budget(length))
            assert len(at) == budget(length) <= length and list(at) == sorted({*at}), name
            assert not at or at[-1] == length
    assert scratchpad_step_ends(7, BUDGETS["linear"](7)) == (1, 2, 3, 4, 5, 6, 7)
    assert [BUDGETS["log"](n) for n in (1, 2, 4, 8, 32, 40)] == [1, 1, 2, 3, 5, 6]


@pytest.mark.parametrize("budget", BUDGETS)
def test_a_row_holds_the_word_its_steps_and_the_state(budget):
    writing, symbols = ScratchpadFormat("s5", 12), [0, 1, 2, 1, 0]
    row = [writing.tokens[i] for i in writing.encode_prompt(symbols, budget)]
    assert row == ["<|begin|>", *"abcba", *[PAD] * 7, f"<{budget}>"]
    behind = [writing.tokens[i] for i in writing.encode_answer(symbols, budget)]
    states = [f"s{s}" for s in TASKS["s5"].states_after_word(symbols)]
    wanted = [states[i - 1] for i in scratchpad_step_ends(5, BUDGETS[budget](5))]
    assert behind == [*wanted, ANSWER, states[-1], END]
    assert len(row) + len(behind) <= writing.positions


def test_what_is_learned_is_what_stands_behind_the_prompt(tmp_path):
    spec = StepsSpec(str(tmp_path), task="dfa", lengths=(3, 6), longest=8)
    writing = ScratchpadFormat("dfa", 8)
    token_BT, goal_BT = draw_scratchpad_batch(spec, writing, 5, 40)
    assert torch.equal(token_BT, draw_scratchpad_batch(spec, writing, 5, 40)[0])
    assert not torch.equal(token_BT, draw_scratchpad_batch(spec, writing, 6, 40)[0])
    for tokens, goals in zip(token_BT.tolist(), goal_BT.tolist()):
        symbols = [t - writing.token_id("a") for t in tokens[1:9] if t != writing.token_id(PAD)]
        budget = writing.tokens[tokens[9]].strip("<>")
        learned = [g for g in goals if g != NOT_LEARNED]
        assert learned == writing.encode_answer(symbols, budget)
        assert tokens[10 : 10 + len(learned) - 1] == learned[:-1]
    text = "a b <pad> <linear> s0 <answer>"
    encoded = build_scratchpad_tokenizer(writing).encode(text)
    assert [writing.tokens[i] for i in encoded.ids] == ["<|begin|>", *text.split()]


def by_hand(writing, *, slip=0, forever=False, ends=False):
    """Decodes as a model that computes the automaton: one step from the last. slip: from that step on, the wrong state."""

    def decode(lm, prompts, method, most, stops):
        out = []
        for prompt in prompts:
            mark = next(i for i, t in enumerate(prompt) if writing.tokens[t] == "<linear>")
            symbols = [
                t - writing.token_id("a") for t in prompt[1:mark] if t != writing.token_id(PAD)
            ]
            written, state = prompt[mark + 1 :], 0
            if written[-1:] == [writing.token_id(ANSWER)]:
                out.append((written[-2],))
                continue
            row = list[int]()
            for i, a in enumerate(symbols):
                state = (writing.automaton.table[state][a] + (i + 1 == slip)) % 5
                row.append(writing.token_id("s0") + state)
            tail = [row[-1]] * 9 if forever else [writing.token_id(END if ends else ANSWER)]
            out.append(tuple([*row, *tail][:most]))
        return sum(map(len, out)), out

    return decode


def test_an_automaton_written_by_hand_is_always_right_and_never_over_its_budget(monkeypatch):
    writing = ScratchpadFormat("dfa", 12)
    monkeypatch.setattr(steps, "_decode", by_hand(writing))
    right = steps.answer_within_budget(None, writing, "linear", 12, 50, PLAIN)
    assert (right.right, right.forced, right.steps) == (50, 0, 600)
    monkeypatch.setattr(steps, "_decode", by_hand(writing, slip=12))
    assert steps.answer_within_budget(None, writing, "linear", 12, 50, PLAIN).right < 50
    for how in ({"forever": True}, {"ends": True}):  # the mark is put there all the same
        monkeypatch.setattr(steps, "_decode", by_hand(writing, **how))
        forced = steps.answer_within_budget(None, writing, "linear", 12, 50, PLAIN)
        assert (forced.right, forced.forced, forced.steps) == (50, 50, 600)


def test_intervals_of_several_runs():
    assert student_interval([0.5]) == (0.5, 0.5)
    low, high = student_interval([0.2, 0.4, 0.6])
    assert (low, high) == pytest.approx((0.4 - 4.30 * 0.2 / 3**0.5, 0.4 + 4.30 * 0.2 / 3**0.5))
    assert shared_trials_interval([0.2, 0.4, 0.6], 300) == (0.0, pytest.approx(high))
    assert shared_trials_interval([1.0, 1.0, 1.0], 300) == pytest.approx(
        (wilson_interval(300, 300)[0], 1.0)
    )


@pytest.fixture
def bench(capfd, monkeypatch):
    from polydec.cli.main import main

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["polydec", "bench", "--suite", *map(str, args)])
        with pytest.raises(SystemExit) as stop:
            main()
        return (stop.value.code or 0, *capfd.readouterr())

    return run


def test_the_command_measures_models_that_it_trained(bench, tmp_path):
    small = {"lengths": (2, 3), "longest": 4, "width": 32, "steps": 60, "rows": 32}
    train_steps(StepsSpec(str(tmp_path / "parity"), "parity", ("none", "linear"), **small))
    shutil.copytree(tmp_path / "parity", tmp_path / "again")  # counts as a second seed
    page, sheet = tmp_path / "steps.html", tmp_path / "steps.csv"
    asked = ("steps", "--from", tmp_path, "--each", 20, "--html", page, "--csv", sheet, "--json")
    code, out, err = bench(*asked)
    rows = json.loads(out)["rows"]
    assert code == 0 and len(rows) == 6, err
    assert [(r["budget"], r["length"]) for r in rows] == [
        (b, n) for b in ("none", "linear") for n in (2, 3, 4)
    ]
    for r in rows:
        assert r["steps"] <= BUDGETS[r["budget"]](r["length"]) and r["words"] == 40
        assert len(r["each_seed"]) == 2 and r["low"] <= r["right"] <= r["high"]
        assert r["trained_on"] == (r["length"] < 4)
    learned = {r["length"]: r["right"] for r in rows if r["budget"] == "linear"}
    assert learned[2] > 0.8  # a coin is right in half of the words
    text = page.read_text()
    assert not re.search(r"https?:|<script|@import|url\(", text)
    assert "parity: by the steps before the answer" in text and len(sheet.read_text().split()) > 6
    again = bench("steps", "--from", tmp_path, "--each", 20, "--methods", "prompt-lookup", "--json")
    others = json.loads(again[1])["rows"]
    assert [r["right"] for r in others] == [r["right"] for r in rows]


@pytest.mark.parametrize(
    "args, says",
    [
        (("steps",), "suite is 'steps': say with --from"),
        (("steps", "--from", "nowhere"), "no model is there that `polydec train steps --out DIR`"),
        (("steps", "--from", ".", "--methods", "plian"), "plian"),
        (("steps", "--from", ".", "--temperature", "1"), "--temperature is given, and bench"),
        (("steps", "--from", ".", "--limit", "2"), "bench --suite does not take"),
        (("steps", "--from", ".", "--each", "0"), "each is 0"),
        (("permutations", "--from", "."), "--from is given, and bench --suite permutations"),
        (("permutations", "--methods", "plain"), "--methods is given, and bench"),
    ],
)
def test_what_is_wrong_is_one_sentence(bench, args, says):
    code, out, err = bench(*args)
    assert code == 2 and says in err and not out and "Traceback" not in err, err


def test_a_damaged_model_is_refused(tmp_path):
    about = {"task": "s5", "budgets": ["none"], "lengths": [4], "longest": 8, "seed": 0}
    file = tmp_path / "training.json"
    for change, says in (
        ({"task": "s6"}, "task is 's6', not of parity, dfa, s5"),
        ({"budgets": ["all"]}, "budgets is 'all'"),
        ({"longest": 10**9}, "longest"),
        ({"lengths": []}, "lengths"),
    ):
        file.write_text(json.dumps({"about": about | change}))
        with pytest.raises(RequestError, match=re.escape(says)):
            steps.models_of(tmp_path)
    file.write_text(json.dumps({"about": about}))
    assert [m.asked for m in steps.models_of(tmp_path)] == [[4, 8]]


@pytest.mark.parametrize(
    "fields, says",
    [
        ({"budgets": ("some",)}, "budgets has 'some'"),
        ({"lengths": (50,)}, "lengths has 50: longest is 40"),
        ({"width": 48}, "width is 48: it must be a multiple of 32"),
        ({"task": "s6"}, "task"),
    ],
)
def test_a_spec_that_cannot_be_is_refused(fields, says):
    with pytest.raises(RequestError, match=says):
        StepsSpec("x", **fields)


def test_networks_have_learned_what_they_were_shown_and_nothing_else_is_needed():
    networks = votes.TwoLayerNetworks(4, 1024, 24, seed=1)
    every, order = votes.every_input(4), networks.learned_permutation()
    outputs = networks.trained_outputs(every)
    shown = every.sum(1) == 1
    wanted = every[:, order]
    assert outputs[:, shown] == pytest.approx(wanted[shown].expand(24, -1, -1), abs=1e-3)
    assert max(votes.right_input_shares(outputs, every, order, 24)) == 1.0
    assert votes.right_input_shares(outputs, every, order.roll(1), 24) == [
        pytest.approx(1 / 15)
    ]  # all ones
    alone = votes.right_input_shares(outputs, every, order, 1)
    assert len(alone) == 24 and sum(alone) / 24 < 1.0


def test_the_mean_of_many_networks_is_that_of_the_kernel():
    networks = votes.TwoLayerNetworks(4, 1024, 100, seed=0)
    every = votes.every_input(4)
    mean, spread = (f(networks.trained_outputs(every), 0) for f in (torch.mean, torch.std))
    for x, row, error in zip(every[:, networks.learned_permutation()], mean, spread / 100**0.5):
        levels = votes.mean_output_levels(4, int(x.sum()))
        for bit, value, e in zip(x.tolist(), row.tolist(), error.tolist()):
            assert abs(value - levels[int(bit)]) < 5 * e + 0.02
    low, high = votes.mean_output_levels(4, 1)
    assert (low, high) == pytest.approx((0.0, 1.0))


def test_more_votes_are_right_more_often(bench, monkeypatch, tmp_path):
    from polydec.lab.commands.studies import permutations as suite

    monkeypatch.setattr(suite, "SIZES", (3, 4))
    monkeypatch.setattr(suite, "WIDTH", 256)
    page = tmp_path / "votes.html"
    code, out, _ = bench("permutations", "--each", 32, "--html", page, "--json")
    rows = json.loads(out)["rows"]
    assert code == 0 and [(r["bits"], r["votes"]) for r in rows][:3] == [(3, 1), (3, 2), (3, 4)]
    for bits in (3, 4):
        shares = [r["right"] for r in rows if r["bits"] == bits]
        assert shares[0] < shares[2] < shares[-1] and len(shares) == 6
    assert "Groups that are right on every input" in page.read_text()
    assert (
        bench("permutations", "--each", 32, "--json")[1].split('"rows"')[1]
        == (out.split('"rows"')[1])
    )
    assert votes.votes_needed(rows, share=0.0) == {3: 1, 4: 1}

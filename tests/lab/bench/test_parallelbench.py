"""ParallelBench: its judges on answers that are known, its closed forms by simulation, and the command."""

import json
import math
import random
import re
import sys
from itertools import combinations

import pytest

from polydec.lab.bench import parallel_texts as texts
from polydec.lab.bench import parallelbench as pb
from polydec.lab.bench.intervals import wilson_interval
from polydec.lab.train import held_out_questions


def solved(name, seed=0, number=0):
    """A problem and its list, place, new item: read from the question."""
    problem = pb.of_names(name, seed, number)
    items = pb.parse_last_list(problem.question.rpartition("Waiting line: ")[2])
    others = [
        x
        for a in pb.FIRST
        for b in pb.LAST
        if (x := f"{a} {b}") in problem.question.rpartition("\n")[2]
    ]
    digits = [
        int(w.strip("."))
        for w in problem.question.rpartition("\n")[2].split()
        if w.strip(".").isdigit()
    ]
    return problem, items, digits[0] if digits else 0, (others or [""])[0]


@pytest.mark.parametrize("name", pb.LISTS)
def test_a_right_answer_is_right_and_others_are_not(name):
    for number in range(8):
        problem, items, at, new = solved(name, number=number)
        answer = pb.LISTS[name].change(items, at, new)
        written = "[" + ", ".join(f'"{x}"' for x in answer) + "]"
        assert len(items) == 3 + number % 4 and problem.right(written) and problem.strict(written)
        assert problem.right("Here it is: " + written.replace('"', "")) and not problem.strict(
            written.replace('"', "")
        )
        assert (
            not problem.right(written.replace("]", ""))
            and not problem.right("")
            and not problem.right("[]")
        )
        assert not problem.right(
            "[" + ", ".join(f'"{x}"' for x in [*answer, answer[0]]) + "]"
        )  # twice the same person
    assert not pb.of_names("shuffle", 0, 0).right(str(solved("shuffle")[1]))  # not another order


def test_a_line_of_fifteen():
    """The suite of long lines: the ten operations, each judged as those of short ones are."""
    some = list(pb.suite_problems("parallelbench-15", 2))
    assert [p.task for p in some] == [name for name in pb.LISTS for _ in range(2)]
    for p in some:
        items = pb.parse_last_list(p.question.rpartition("Waiting line: ")[2])
        assert p.items == len(items) == len(set(items)) == 15 and p.length >= 15 * 8
        written = "[" + ", ".join(f'"{x}"' for x in items) + "]"
        assert p.strict(written) == (p.task == "copy")


def test_puzzles_are_judged():
    for i in range(20):
        square = pb.latin_square(0, i)
        a, b, c, d = square.question.split("square of ")[1].split(":")[0].split(", ")
        rows = [(a, b, c, d), (b, a, d, c), (c, d, a, b), (d, c, b, a)]
        text = "\n".join(",".join(r) for r in rows)
        assert square.right(text) and square.strict(text)
        assert not square.right(
            "\n".join(",".join(r) for r in (*rows[:3], rows[0]))
        ) and not square.right(text[:-2])
        puzzle = pb.sudoku_problem(0, i)
        given = [line.split(",") for line in puzzle.question.splitlines()[-4:]]
        assert sum(x == "_" for row in given for x in row) == 4
        answers = [
            s
            for s in squares()
            if all(x in ("_", y) for r, t in zip(given, s) for x, y in zip(r, t))
        ]
        assert answers and all(puzzle.right("\n".join(",".join(r) for r in s)) for s in answers)
        wrong = [[y if y != "1" else "2" for y in r] for r in answers[0]]
        assert not puzzle.right("\n".join(",".join(r) for r in wrong))
        for level, themes in (("easy", 1), ("medium", 2), ("hard", 4)):
            words = texts.given_words_problem(level, 0, i)
            asked = words.question.rpartition(": ")[2].strip(".")
            assert (
                words.strict(f"A {asked}.")
                and words.right(asked)
                and not words.right(asked.partition(",")[2])
            )
            of = {
                name for w in asked.split(", ") for name, all_ in texts.THEMES.items() if w in all_
            }
            assert len(set(asked.split(", "))) == 4 and len(of) >= themes
            assert level != "easy" or any(
                set(asked.split(", ")) <= set(all_) for all_ in texts.THEMES.values()
            )


def test_other_words_keep_what_is_meant():
    """A copy is worth nothing, nor is another sentence; the same in other words is worth more than half."""
    for number in range(12):
        task = texts.synonyms_problem(0, number)
        source = task.question.rpartition("\n")[2]
        words = texts.lower_case_words(source)
        other = source.rstrip(".").lower()
        meanings = [m for place in texts.SLOTS for m in place if f" {m[0]} " in f"{other} "]
        assert len(meanings) == 6
        for m in meanings:
            other = f"{other} ".replace(f" {m[0]} ", f" {m[1]} ").strip()
        assert task.right(source) == 0.0 and task.right("Birds fly over the sea.") == 0.0
        assert task.right(other) == 1 - texts.bleu_score(texts.lower_case_words(other), words) > 0.5
        assert task.strict(other) == 0.0 < task.strict(f"{other}.") == task.right(other)
        half = other.replace(meanings[0][1], "").replace(meanings[1][1], "")
        assert task.right(half) < 0.7


def test_tasks_of_ours_do_not_bear_the_papers_names():
    """Twelve tasks are ParallelBench's, and five stand in the place of those that its judges score."""
    tasks = list(dict.fromkeys(p.task for p in pb.suite_problems("parallelbench", 1)))
    assert tasks[:10] == list(pb.LISTS) and tasks[15:] == ["latin_square", "sudoku"]
    ours = [f"given_words_{level}" for level in ("easy", "medium", "hard")]
    assert tasks[10:15] == [*ours, "template_synonyms", "template_agreement"]


def test_an_agreement_tells_who_what_where_and_when():
    for number in range(12):
        task = texts.agreement_problem(0, number)
        talk = task.question.rpartition("\n\n")[2]
        a, b = (talk.splitlines()[i].partition(":")[0] for i in (0, 1))
        thing, day, place = (
            re.search(pattern, talk)[1] for pattern in (r"your (\w+)", r"On (\w+)", r"at the (\w+)")
        )
        told = f"{b} will lend {a} a {thing} at the {place} on {day}."
        assert task.right(told) == task.strict(told) == 1.0 and task.right("") == 0.0
        assert 0.3 < task.right(f"{a} gets a {thing} on {day}") < 0.9 and not task.strict("No stop")


@pytest.mark.parametrize("seed", range(8))
def test_overlaps_of_texts_by_their_definitions(seed):
    """ROUGE-L by all subsequences, BLEU by its formula."""
    dice = random.Random(seed)
    said, meant = ([dice.choice("abc") for _ in range(dice.randint(1, 7))] for _ in range(2))
    common = max(
        len(some)
        for n in range(len(said) + 1)
        for some in combinations(said, n)
        if some in set(combinations(meant, n))
    )
    p, r = common / len(said), common / len(meant)
    assert texts.rouge_l(said, meant) == pytest.approx(2 * p * r / (p + r) if common else 0.0)
    shares = []
    for n in range(1, min(4, len(said)) + 1):
        mine = [tuple(said[i : i + n]) for i in range(len(said) - n + 1)]
        theirs = [tuple(meant[i : i + n]) for i in range(len(meant) - n + 1)]
        hits = sum(min(mine.count(g), theirs.count(g)) for g in set(mine))
        shares.append((hits + (n > 1)) / (len(mine) + (n > 1)))
    penalty = 1.0 if len(said) >= len(meant) else math.exp(1 - len(meant) / len(said))
    want = penalty * math.prod(shares) ** (1 / len(shares))
    assert texts.bleu_score(said, meant) == pytest.approx(want)
    assert texts.bleu_score(said, said) == texts.rouge_l(said, said) == pytest.approx(1.0)


def squares():
    """All 4 x 4 sudokus."""
    from itertools import permutations

    rows = list(permutations("1234"))

    def go(done):
        if len(done) == 4:
            yield done
            return
        for row in rows:
            if all(x != y for r in done for x, y in zip(r, row)) and (
                len(done) % 2 == 0
                or all(len({*done[-1][j : j + 2], *row[j : j + 2]}) == 4 for j in (0, 2))
            ):
                yield from go([*done, row])

    return list(go([]))


def drawn(task, sizes, r):
    """An answer drawn in groups: each item of a group from its law given the groups before."""
    n, left = sum(sizes), list(range(sum(sizes)))
    out, order = [None] * n, r.sample(range(n), n)
    for k in sizes:
        group, order = order[:k], order[k:]
        if task == "shuffle":
            for i in group:
                out[i] = r.choice(left)
            left = [x for x in left if x not in out]
        else:
            open_ = [i for i, x in enumerate(out) if x is None]
            done = "new" in out
            for i in group:
                out[i] = "new" if not done and r.random() < 1 / len(open_) else "old"
    return out


@pytest.mark.parametrize(
    "task, right",
    [("shuffle", lambda x: len({*x}) == len(x)), ("replace_random", lambda x: x.count("new") == 1)],
)
@pytest.mark.parametrize("sizes", [(4,), (2, 2), (3, 1), (1, 1, 1, 1), (6,), (3, 3)])
def test_closed_forms_agree_with_a_simulation(task, right, sizes):
    r, n = random.Random(0), 4000
    hits = sum(right(drawn(task, sizes, r)) for _ in range(n))
    want = pb.closed_form_accuracy(task, sizes)
    assert abs(hits / n - want) < 4 * math.sqrt(max(want * (1 - want), 1e-9) / n)


def test_known_values():
    assert (
        pb.closed_form_accuracy("shuffle", (4,)) == pytest.approx(24 / 256)
        and pb.closed_form_accuracy("copy", (5,)) == 1
    )
    assert pb.closed_form_accuracy("replace_random", (5,)) == pytest.approx(0.8**4)
    assert pb.divergence_floor("shuffle", (4,)) == pytest.approx(4 * math.log(4) - math.log(24))
    assert (
        pb.divergence_floor("replace_random", (5,)) == pytest.approx(4 * math.log(5 / 4))
        and pb.divergence_floor("sort", (5,)) is None
    )
    assert pb.pass_group_sizes(6, 4) == (2, 2, 1, 1) and pb.pass_group_sizes(3, 9) == (1, 1, 1)


@pytest.mark.parametrize("task", ["shuffle", "replace_random"])
def test_more_passes_never_lose(task):
    floors = [pb.divergence_floor(task, pb.pass_group_sizes(12, k)) for k in (1, 2, 3, 4, 6, 12)]
    shares = [
        pb.closed_form_accuracy(task, pb.pass_group_sizes(12, k)) for k in (1, 2, 3, 4, 6, 12)
    ]
    assert floors == sorted(floors, reverse=True) and floors[-1] == pytest.approx(0, abs=1e-12)
    assert shares == sorted(shares) and shares[-1] == pytest.approx(1)


def test_an_interval_holds_its_share():
    assert wilson_interval(0, 10)[0] == pytest.approx(0, abs=1e-12) and wilson_interval(10, 10)[
        1
    ] == pytest.approx(1)
    assert wilson_interval(5, 10)[0] < 0.5 < wilson_interval(5, 10)[1]


@pytest.fixture
def no_stages(monkeypatch):
    """Nothing is known to have been trained: computing what was takes seconds."""
    monkeypatch.setattr(held_out_questions, "RUNS", ())
    held_out_questions.embedded_training_questions.cache_clear()
    yield
    held_out_questions.embedded_training_questions.cache_clear()


def test_the_command(capfd, monkeypatch, no_stages):
    from polydec.cli.main import main as command

    def main(*args):
        monkeypatch.setattr(
            sys, "argv", ["polydec", "bench", "--model", "zoo:diffusion", "--threads", "1", *args]
        )
        with pytest.raises(SystemExit) as stop:
            command()
        return stop.value.code or 0

    asked = (
        "--suite",
        "parallelbench-digits",
        "--each",
        "2",
        "--methods",
        "mdlm:steps=6,llada:steps=1",
    )
    assert main(*asked, "--temperature", "1", "--json") == 0
    rows = json.loads(capfd.readouterr().out)["rows"]
    assert [r["task"] for r in rows][::2] == list(pb.DIGITS) and all(r["n"] == 2 for r in rows)
    shuffles = {r["method"]: r for r in rows if r["task"] == "shuffle"}
    assert shuffles["mdlm steps=6"]["closed_form"] == 1 and shuffles["mdlm steps=6"]["passes"] == 6
    assert shuffles["llada steps=1"]["closed_form"] == pytest.approx(720 / 6**6)
    assert main(*asked) == 0 and "closed form" in capfd.readouterr().out
    assert (
        main("--suite", "nothing") == 2
        and "suite is 'nothing': it must be one of" in capfd.readouterr().err
    )
    assert (
        main("--suite", "parallelbench", "--limit", "3") == 2
        and "does not take" in capfd.readouterr().err
    )

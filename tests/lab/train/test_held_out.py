"""One notion of held out: no trainer asks what is held out, and what measures asks nothing else, and nothing trained on."""

import random

import pytest
import torch

from polydec import load
from polydec.lab.bench import parallelbench
from polydec.lab.train import held_out_questions, joint
from polydec.lab.train.data import ASSISTANT, USER, held_out
from polydec.lab.train.diffusion import DiffusionSpec, DiffusionTaskRows, start_diffusion_student
from polydec.lab.train.held_out_questions import (
    RUNS,
    EarlierTrainingStage,
    embedded_training_questions,
    fresh_held_out_tasks,
)
from polydec.lab.train.insertion import InsertionSpec, draw_insertion_examples
from polydec.lab.train.joint import JointSpec, train_joint
from polydec.lab.train.probes.filter import FilterSpec, filter_training_prompts
from polydec.lab.train.tasks import (
    LONG,
    SHIPPED,
    SIX,
    TASKS,
    TOWNS,
    VARIED,
    TaskVariety,
    draw_task,
    is_right_task_answer,
    task_variety,
)

MODEL = "zoo:diffusion"


@pytest.fixture(scope="module")
def student():
    return start_diffusion_student(DiffusionSpec("", SHIPPED, start=MODEL, length=288))


def questions(rows, decode):
    """What stands between the user's mark and the assistant's."""
    texts = (decode([int(x) for x in row]) for row in rows)
    return [
        text.partition(USER)[2].partition(ASSISTANT)[0].removesuffix("<|end|>") for text in texts
    ]


def of_diffusion(student, varied, monkeypatch):
    spec = DiffusionSpec("", SHIPPED, length=96, shortest=96, varied=varied, rows=35)
    return [
        rows
        for step in range(3)
        for rows in DiffusionTaskRows(student.tokenizer, spec).batch_rows(step)[0]
    ]


def of_insertion(student, varied, monkeypatch):
    spec = InsertionSpec("", rows=105, start=MODEL, varied=varied)
    return [e.prompt for e in draw_insertion_examples(spec, student, 0)]


def of_filter_and_dparallel(student, varied, monkeypatch):
    lm = load(MODEL, draft=None, threads=1)
    return filter_training_prompts(lm, FilterSpec("", MODEL, each=15, varied=varied))


def of_joint(student, varied, monkeypatch):
    class Enough(Exception):
        pass

    rows = []

    def spy(student, token_BT, answer_BT, rng):
        rows.extend(token_BT)
        raise Enough

    monkeypatch.setattr(joint, "sample_answer_trajectories", spy)
    with pytest.raises(Enough):
        train_joint(JointSpec("", MODEL, texts=105, rows=105, varied=varied))
    return rows


@pytest.mark.parametrize("varied", [False, True], ids=["six digits", "varied"])
@pytest.mark.parametrize(
    "trainer",
    [of_diffusion, of_insertion, of_filter_and_dparallel, of_joint],
    ids=lambda f: f.__name__,
)
def test_no_trainer_asks_what_is_held_out(trainer, varied, student, monkeypatch):
    torch.set_num_threads(1)
    rows = trainer(student, varied, monkeypatch)

    def decode(ids):
        return student.tokenizer.decode(ids, skip_special_tokens=False)

    some = questions(rows, decode)
    assert len(some) == 105 and all(q.partition(":")[0] in SHIPPED for q in some)
    assert not any(held_out(q) for q in some)


@pytest.mark.parametrize("of", [SIX, VARIED], ids=["six digits", "varied"])
@pytest.mark.parametrize("name", TASKS)
def test_a_task_is_held_out_or_not_by_its_question(name, of):
    for held in (False, True):
        some = [draw_task(name, 1, i, held, of) for i in range(30)]
        assert all(held_out(t.question) == held for t in some)
        assert all(is_right_task_answer(name, t.question, t.answer) for t in some)
        assert not any(is_right_task_answer(name, t.question, t.answer[:20] + "!") for t in some)
        assert some == [draw_task(name, 1, i, held, of) for i in range(30)]


def test_lengths_and_values_vary():
    said = [draw_task("copy", 0, i, of=VARIED).answer for i in range(300)]
    assert {len(x) for x in said} == set(range(3, 10))
    assert any(x.isdigit() for x in said) and any(c.isalpha() for x in said for c in x)
    towns = {draw_task("slots", 0, i, of=VARIED).question.split(", ")[1] for i in range(250)}
    assert len(towns - {*TOWNS}) > 90 and towns & {*TOWNS}  # made up, and listed
    assert task_variety(True) is VARIED and task_variety(False) is SIX
    assert {len(draw_task("count", 0, i, of=TaskVariety(5, 7)).answer) for i in range(60)} == {
        5,
        6,
        7,
    }
    for wrong in ((2, 6), (6, 5), (3, 10)):
        with pytest.raises(ValueError, match=f"least is {wrong[0]} and most is {wrong[1]}"):
            TaskVariety(*wrong)


def test_the_stages_are_the_questions_that_training_drew():
    """Against a loop over steps as training goes through them: all tasks in turn, or those that go on in every other step."""
    for run in (
        EarlierTrainingStage(7, 5, ("copy", "fill", "copy"), 4),
        EarlierTrainingStage(8, 6, ("copy", "on", "pick", "keep"), 5),
    ):
        mixed, want = any(x in LONG for x in run.tasks), {}
        for step in range(run.steps):
            tasks = [x for x in run.tasks if not mixed or (x in LONG) == bool(step % 2)]
            for i in range(step * run.rows, (step + 1) * run.rows):
                want.setdefault(tasks[i % len(tasks)], []).append(i)
        assert {name: list(run.task_numbers(name)) for name in want} == want
        assert not run.task_numbers("slots")


@pytest.fixture
def few(monkeypatch):
    """Two short stages in place of all."""
    monkeypatch.setattr(
        held_out_questions,
        "RUNS",
        (EarlierTrainingStage(0, 40, SHIPPED), EarlierTrainingStage(3, 40, ("copy", "on"))),
    )
    embedded_training_questions.cache_clear()
    yield
    embedded_training_questions.cache_clear()


def test_what_is_measured_was_not_trained(few):
    assert len(RUNS) == 13 and len(embedded_training_questions("copy")) > 300
    drawn = {TASKS["copy"](random.Random(f"copy 0 {i} False"), SIX).question for i in (0, 7, 14)}
    assert drawn <= embedded_training_questions("copy")
    for name in SHIPPED:
        some = [t.question for t in fresh_held_out_tasks(name, 77, 60)]
        assert len(some) == 60 == len({*some}) and all(map(held_out, some))
        assert not {*some} & embedded_training_questions(name)
    asked = [
        t.question for t in fresh_held_out_tasks("on", 77, 20)
    ]  # ten questions, four of them held out
    assert len(asked) == 20 and len({*asked}) == 4 and all(map(held_out, asked))


def test_a_suite_says_which_of_its_questions_were_trained(monkeypatch):
    every = frozenset(draw_task("fill", 0, i, unseen=True).question for i in range(300))
    for module in (held_out_questions, parallelbench):
        monkeypatch.setattr(
            module,
            "embedded_training_questions",
            lambda name: every if name == "fill" else frozenset(),
        )
    some = list(parallelbench.suite_problems("parallelbench-digits", 3))
    assert [p.task for p in some] == [name for name in parallelbench.DIGITS for _ in range(3)]
    assert all(held_out(p.question) and p.known == (p.task == "fill") for p in some)

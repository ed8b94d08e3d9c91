"""Answers learned from one's own pairs: which tokens, which questions are left out, and what guidance does with it."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from polydec import generate, load
from polydec.base.errors import RequestError
from polydec.lab.train import answers, diffusion, pairs
from polydec.lab.train.data import BEGIN, END, held_out
from polydec.lab.train.diffusion import DiffusionSpec, train_diffusion
from polydec.lab.train.lm import LMSpec, train_lm
from polydec.lab.train.network import LlamaShape, TrainableLlama
from polydec.lab.train.objectives.answer_tokens import AnswerTokens
from polydec.lab.train.objectives.meap import MASK
from polydec.lab.train.objectives.meap_answers import MeapAnswers
from polydec.lab.train.objectives.protocols import IGNORED, mean_row_loss
from polydec.lab.train.schedule import TrainingSchedule

torch.set_num_threads(1)
SHAPE = LlamaShape(300, width=32, layers=2, heads=2, kv_heads=1, inner=64, context=64)
IDS = {BEGIN: 0, END: 1, MASK: 299}
ASKED, ANSWER = (0, 2, 9, 1, 3), (*range(20, 40), 1)


@pytest.fixture(scope="module")
def colours(tmp_path_factory):
    """Things with a colour, of which each has one of two."""
    file = tmp_path_factory.mktemp("pairs") / "colours.jsonl"
    rows = [
        {"question": f"{thing} {n}", "answer": colour}
        for thing, colour in (("sea", "blue"), ("leaf", "green"))
        for n in range(60)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return file, rows


def of_pairs(file, out, **fields):
    usual = {
        "schedule": TrainingSchedule(80, 1e-2, muon=0.02, save_every=100),
        "shape": SHAPE,
        "bf16": False,
    }
    return LMSpec(str(out), pairs=str(file), **{**usual, **fields})


def test_only_the_answer_and_its_end_are_learned():
    (row,) = AnswerTokens().learned_rows(ASKED, ANSWER, {}, np.random.default_rng(0))
    assert row.token_ids == (*ASKED, *ANSWER[:-1])
    assert row.labels == (*[IGNORED] * 4, *ANSWER)


@pytest.mark.parametrize("share", [0.01, 0.1, 0.3])
def test_the_second_copy_asks_for_exactly_what_it_masks(share):
    places = set()
    for seed in range(20):
        rng = np.random.default_rng(seed)
        first, second = MeapAnswers(share, 10).learned_rows(ASKED, ANSWER, IDS, rng)
        assert (first,) == tuple(AnswerTokens().learned_rows(ASKED, ANSWER, IDS, rng))
        at = np.flatnonzero(np.array(second.token_ids) == IDS[MASK])
        assert len(at) == max(1, int(share * 20)) and at.min() >= len(ASKED)
        learned = np.flatnonzero(np.array(second.labels) != IGNORED)
        # Each masked token is asked for one place before it, and the end never.
        assert np.array_equal(learned, at - 1)
        assert [second.labels[i] for i in learned] == [first.token_ids[i + 1] for i in learned]
        places.add(tuple(at))
    assert len(places) > 10


def test_a_short_answer_has_no_second_copy():
    rng = np.random.default_rng(0)
    for least, count in ((20, 1), (19, 2)):
        assert len(MeapAnswers(0.1, least).learned_rows(ASKED, ANSWER, IDS, rng)) == count


def test_without_masks_it_is_the_loss_of_answers_to_the_bit():
    student, rng = TrainableLlama(SHAPE), np.random.default_rng(0)
    plain, masked = (
        mean_row_loss(student, o.learned_rows(ASKED, ANSWER, IDS, rng))
        for o in (AnswerTokens(), MeapAnswers(0.0, 0))
    )
    assert torch.equal(plain, masked)


def test_rows_count_alike_whatever_is_learned_of_them():
    student, rng = TrainableLlama(SHAPE), np.random.default_rng(0)
    rows = [
        *AnswerTokens().learned_rows(ASKED, ANSWER, IDS, rng),
        *AnswerTokens().learned_rows((0, 2, 1, 3), (50, 1), IDS, rng),
    ]
    with torch.no_grad():
        each = [float(mean_row_loss(student, [row])) for row in rows]
        assert float(mean_row_loss(student, rows)) == pytest.approx(np.mean(each), rel=1e-5)


def watched_rows(monkeypatch, spec):
    """The token ids of the rows that a run of `train lm --pairs` learns."""
    seen = []
    monkeypatch.setattr(
        answers,
        "mean_row_loss",
        lambda student, rows: (
            seen.extend(r.token_ids for r in rows) or mean_row_loss(student, rows)
        ),
    )
    monkeypatch.setattr(answers, "answer_token_nats", lambda *_: 1.0)
    train_lm(spec)
    return seen


def test_a_share_of_the_questions_is_left_out(colours, tmp_path, monkeypatch):
    file, rows = colours
    shares = {}
    for drop in (0.0, 0.4, 1.0):
        out = tmp_path / str(drop)
        spec = of_pairs(file, out, drop=drop, schedule=TrainingSchedule(3, 1e-2, save_every=9))
        seen = watched_rows(monkeypatch, spec)
        text = load(str(out), ngrams=None, dtype="torch").checkpoint.text
        # What is left is what the engine reads of an empty negative prompt.
        empty = tuple(text.chat_prompt([{"role": "user", "content": ""}]))
        shares[drop] = np.mean([ids[: len(empty)] == empty for ids in seen])
        unseen = [row["question"] for row in rows if held_out(row["question"])]
        asked = {tuple(text.chat_prompt([{"role": "user", "content": q}])) for q in unseen}
        assert unseen and not any(ids[: len(q)] == q for q in asked for ids in seen)
    assert shares[0.0] == 0 and shares[1.0] == 1 and 0.3 < shares[0.4] < 0.5


def test_guidance_is_meant_to_know_the_law_without_a_question(colours, tmp_path):
    """Trained with questions left out, the law without one is that of all answers."""
    file, _ = colours
    nats = {}
    for drop in (0.0, 0.5):
        made = train_lm(of_pairs(file, tmp_path / str(drop), drop=drop))
        nats[drop] = made["held_out_nats_without"]
        assert made["held_out_nats"] < 0.3
    # Both colours are equally likely: log 2 for the token that decides, of two or more.
    assert nats[0.5] < 0.5 < nats[0.0]
    model = load(str(tmp_path / "0.5"), ngrams=None, dtype="torch")
    plain = model.sampling_with(temperature=0.0)
    guided = generate(model, "sea 3", max_tokens=8, sampling=plain, steer="cfg", negative_prompt="")
    assert guided.choices[0].text == "blue"


def test_a_run_goes_on_where_it_was_and_not_with_other_pairs(colours, tmp_path):
    file, rows = colours
    spec = of_pairs(file, tmp_path / "a", schedule=TrainingSchedule(2, 1e-2, save_every=9))
    assert train_lm(spec)["loss"] == train_lm(spec)["loss"]
    fewer = tmp_path / "fewer.jsonl"
    fewer.write_text("".join(json.dumps(row) + "\n" for row in rows[:80]), "utf-8")
    with pytest.raises(RequestError, match="pairs differ"):
        train_lm(replace(spec, pairs=str(fewer)))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"pairs": None, "drop": 0.2}, r"drop is 0\.2: running text has no questions"),
        ({"drop": 1.5}, r"drop is 1\.5"),
        ({"objective": "cm3"}, "answers are learned with the objectives next-token and meap"),
        ({"teacher": "zoo:tiny"}, "without a teacher"),
        ({"data": "sample"}, "data is 'sample' beside pairs"),
        ({"second": -1}, "second is -1"),
    ],
)
def test_bad_input_is_one_sentence(fields, said):
    with pytest.raises(RequestError, match=said):
        LMSpec("out", **{"pairs": "x.jsonl", **fields})


def test_pairs_that_are_too_long_are_refused(colours, tmp_path):
    file, _ = colours
    spec = of_pairs(file, tmp_path / "long", shape=replace(SHAPE, context=4))
    with pytest.raises(RequestError, match="none is held in 4 positions"):
        train_lm(spec)


def of_canvas(file, out, **fields):
    usual = {"steps": 2, "rows": 16, "width": 32, "layers": 1, "shortest": 16, "vocab": 290}
    return DiffusionSpec(str(out), pairs=str(file), **{**usual, **fields})


def test_a_canvas_learns_pairs_of_ones_own_and_each_as_often(colours, tmp_path, monkeypatch):
    file, rows = colours
    spec = of_canvas(file, tmp_path / "canvas")
    student = diffusion.start_diffusion_student(spec)
    made, _ = diffusion.rows_of_spec(spec, student.tokenizer)
    learned = [row for row in rows if not held_out(row["question"])]
    seen = {}
    for step in range(len(learned)):  # as many rounds as a step has rows
        token_BT, answer_BT = made.batch_rows(step)
        assert token_BT.shape[0] == 16 and spec.shortest <= token_BT.shape[1] <= spec.length
        for row_T, own_T in zip(token_BT, answer_BT, strict=True):
            asked = student.tokenizer.decode(row_T[~own_T].tolist())
            answer = student.tokenizer.decode(row_T[own_T].tolist())
            seen[asked, answer] = seen.get((asked, answer), 0) + 1
            assert row_T[-1] == student.tokenizer.token_to_id(END)
    assert seen == {(row["question"], row["answer"]): 16 for row in learned}
    assert student.tokenizer.get_vocab_size() == student.mask <= 290


def test_a_canvas_may_lose_its_question(colours, tmp_path, monkeypatch):
    file, _ = colours
    seen = []
    usual = diffusion.masked_loss
    monkeypatch.setattr(
        diffusion,
        "masked_loss",
        lambda net, token_BT, answer_BT, *rest, **more: (
            seen.append((token_BT, answer_BT)) or usual(net, token_BT, answer_BT, *rest, **more)
        ),
    )
    shares = {}
    for drop in (0.0, 0.5):
        seen.clear()
        spec = of_canvas(file, tmp_path / str(drop), drop=drop, steps=6)
        train_diffusion(spec)
        mask = json.loads((tmp_path / str(drop) / "config.json").read_text())["polydec_mask"]
        gone = [((t == mask) | own).all(1) for t, own in seen]
        shares[drop] = torch.cat(gone).float().mean()
    assert shares[0.0] == 0 and 0.3 < shares[0.5] < 0.7


def test_a_causal_model_of_the_same_pairs_reads_an_empty_question(colours, tmp_path):
    file, _ = colours
    spec = of_canvas(file, tmp_path / "causal", causal=True, drop=0.5)
    student = diffusion.start_diffusion_student(spec)
    rows, _ = diffusion.rows_of_spec(spec, student.tokenizer)
    empty = list(pairs.empty_question(student.tokenizer))
    gone = [
        row_T[: len(empty)].tolist() == empty for i in range(6) for row_T in rows.batch_rows(i)[0]
    ]
    assert 0.3 < np.mean(gone) < 0.7


def test_tasks_are_not_asked_for_beside_pairs():
    for fields in ({"tasks": ("copy",)}, {"varied": True}, {"length": 40, "long": 60}):
        with pytest.raises(RequestError, match=r"pairs is 'x\.jsonl': they are learned in place"):
            DiffusionSpec("out", pairs="x.jsonl", **fields)

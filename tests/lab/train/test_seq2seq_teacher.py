"""On-policy distillation: what is drawn, what the teacher reads, and what is learned of it."""

import json
import random
from dataclasses import replace

import pytest
import torch

from polydec import load
from polydec.base.errors import PolydecError, RequestError
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.train import seq2seq, source_teacher
from polydec.lab.train.lm import train_lm
from polydec.lab.train.network import LlamaShape
from polydec.lab.train.pairs import question_text
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.seq2seq import score_pairs, train_seq2seq
from polydec.lab.train.source_teacher import SourceTeacher, draw_targets, taught_loss
from polydec.lab.train.specs.lm import LMSpec
from polydec.lab.train.specs.seq2seq import Seq2SeqSpec
from polydec.lab.train.t5 import TrainableT5
from polydec.models.formats.seq2seq import T5Shape, read_seq2seq_config


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    torch.set_num_threads(1)
    at = tmp_path_factory.mktemp("taught")
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdef", k=draw.randint(1, 4))) for _ in range(300)]
    path = at / "pairs.jsonl"
    path.write_text("\n".join(json.dumps({"source": w, "target": w.upper()}) for w in words))
    train_lm(
        LMSpec(
            str(at / "teacher"),
            pairs=str(path),
            schedule=TrainingSchedule(30, 1e-2, muon=0.02, save_every=100),
            shape=LlamaShape(300, width=32, layers=2, heads=2, kv_heads=1, inner=64, context=64),
            bf16=False,
        )
    )
    spec = Seq2SeqSpec(
        str(at / "out"), str(path), steps=3, tokens=128, encoder=1, decoder=1, width=32,
        teacher=str(at / "teacher"),
    )  # fmt: skip
    return spec, words


def small_student(seed=0, vocab=40):
    published = T5Shape(vocab, 32, 32, 64, 1, 1).published_config(0, 1)
    network = TrainableT5(read_seq2seq_config(published, {}), 64, seed)
    with torch.no_grad():
        network.shared.weight.mul_(4.0)
    return network


def test_texts_are_drawn_by_the_students_own_law():
    network = small_student(vocab=5)
    sources = [(2, 3, 1)] * 4000
    drawn = draw_targets(network, sources, (0, 1), 2, 0.7, 3, torch.Generator().manual_seed(0))
    logits, _ = score_pairs(network, [((2, 3, 1), (2,))], 0, False)
    value, token = (logits[0] / 0.7).topk(3)
    law = dict(zip(token.tolist(), value.softmax(-1).tolist()))
    for x in range(5):
        share = sum(text[0] == x for text in drawn) / len(drawn)
        assert share == pytest.approx(law.get(x, 0.0), abs=0.03)
    for text in drawn:
        assert 1 <= len(text) <= 2 and 1 not in text[:-1]


def test_the_teacher_foretells_each_token_behind_the_right_question(taught):
    """Its laws are those of the directory itself, behind the question as `train lm --pairs` writes it."""
    spec, words = taught
    lm = load(spec.teacher, threads=1)
    tokenizer = seq2seq._tokenizer(spec, None, [])
    teacher = SourceTeacher.of_name(spec.teacher, tokenizer, False)
    chosen = [
        (tuple(tokenizer.encode(w).ids), tuple(tokenizer.encode(w.upper()).ids))
        for w in (words[0], words[1] + words[2])
    ]
    rows = teacher.target_logprobs(chosen)
    assert len(rows) == sum(len(target) for _, target in chosen)
    assert rows.exp().sum(-1) == pytest.approx([1.0] * len(rows), abs=1e-4)
    at = 0
    for word, (_, target) in zip((words[0], words[1] + words[2]), chosen):
        answer = _forced(lm, word, target)
        got = [float(rows[at + i, x]) for i, x in enumerate(target)]
        assert got == pytest.approx(answer, abs=1e-3)
        at += len(target)


def _forced(lm, word, target):
    """Log-probabilities of a text behind a chat's question, from a session."""
    law = lm.checkpoint.lm
    prompt = lm.checkpoint.text.encode(question_text(word), False)

    async def score():
        session = law.open_session(prompt)
        await session.prefill_prompt(ScoreRequest())
        scores = await session.score_draft(
            Draft.chain_draft(prompt[-1], target[:-1]), ScoreRequest()
        )
        out = [scores.token_logprobs(i, (x,))[0] for i, x in enumerate(target)]
        session.close()
        return out

    return run_coroutines([score()])[0]


def test_the_loss_is_a_divergence_from_the_teacher():
    r = torch.Generator().manual_seed(0)
    teacher = torch.randn(6, 9, generator=r).log_softmax(-1)
    student = torch.randn(6, 9, generator=r)
    logp = student.log_softmax(-1)
    want = (teacher.exp() * (teacher - logp)).sum(-1).mean()
    assert float(taught_loss(student, teacher)) == pytest.approx(float(want), rel=1e-5)
    assert float(taught_loss(teacher, teacher)) == pytest.approx(0.0, abs=1e-6)


def losses_of(spec, monkeypatch, **change):
    """Losses of the first step, and what was drawn for it."""
    seen = {}
    usual = source_teacher.draw_targets

    def watched(*args):
        seen["drawn"] = usual(*args)
        seen["longest"] = args[3]
        seen["heat"], seen["top"] = args[4:6]
        return seen["drawn"]

    class Stopped(Exception):
        pass

    def prepare(kind, spec, prepare):
        run = prepare(spec)
        seen["loss"], seen["count"] = run.loss(0)
        seen["again"] = float(run.loss(0)[0].detach())
        raise Stopped

    monkeypatch.setattr(seq2seq, "draw_targets", watched)
    monkeypatch.setattr(seq2seq, "run_training", prepare)
    with pytest.raises(Stopped):
        train_seq2seq(replace(spec, **change))
    return seen


def test_a_step_weighs_the_teachers_law_and_the_datas_text(taught, monkeypatch):
    spec, _ = taught
    whole = losses_of(spec, monkeypatch, taught=1.0)
    assert whole["again"] == pytest.approx(float(whole["loss"].detach()), abs=1e-6)
    none = losses_of(spec, monkeypatch, taught=0.0)
    plain = losses_of(replace(spec, tokenizer=spec.teacher), monkeypatch, teacher=None)
    assert float(none["loss"].detach()) == pytest.approx(float(plain["loss"].detach()), abs=1e-5)
    half = losses_of(spec, monkeypatch, taught=0.5)
    want = (float(whole["loss"].detach()) + float(plain["loss"].detach())) / 2
    assert float(half["loss"].detach()) == pytest.approx(want, abs=1e-5)
    hot = losses_of(spec, monkeypatch, taught=1.0, heat=5.0, top=2)
    assert (hot["heat"], hot["top"]) == (5.0, 2)
    assert hot["drawn"] != whole["drawn"]
    whole["loss"].backward()


def test_both_laws_are_of_the_texts_that_were_drawn(taught, monkeypatch):
    spec, _ = taught
    read = {"student": [], "teacher": []}
    usual, law = seq2seq.score_pairs, SourceTeacher.target_logprobs

    def score(network, chosen, begin, fast):
        read["student"].append(list(chosen))
        return usual(network, chosen, begin, fast)

    def teach(self, chosen):
        read["teacher"].append(list(chosen))
        return law(self, chosen)

    monkeypatch.setattr(seq2seq, "score_pairs", score)
    monkeypatch.setattr(SourceTeacher, "target_logprobs", teach)
    seen = losses_of(spec, monkeypatch, taught=1.0)
    assert read["student"][0] == read["teacher"][0]
    assert [text for _, text in read["student"][0]] == seen["drawn"]


def test_a_student_is_drawn_towards_its_teacher(taught, tmp_path):
    spec, _ = taught
    run = replace(spec, out=str(tmp_path / "a"), steps=40, taught=1.0)
    result = train_seq2seq(run)
    start = train_seq2seq(replace(run, out=str(tmp_path / "b"), steps=1))
    assert result["loss"] < 0.8 * start["loss"]


def test_a_teacher_of_other_tokens_is_refused(taught, tmp_path):
    spec, _ = taught
    with pytest.raises(RequestError, match="its tokens are not those of this model"):
        train_seq2seq(replace(spec, out=str(tmp_path / "x"), tokenizer="zoo:tiny"))
    with pytest.raises(RequestError, match="beside plans or drop"):
        replace(spec, drop=0.5)
    with pytest.raises(PolydecError):
        train_seq2seq(replace(spec, out=str(tmp_path / "y"), teacher=str(tmp_path / "none")))

"""An answer embedder is trained: what is held together and apart, what moves slowly, and what the target then writes."""

import io
import json

import numpy as np
import pytest
import torch
from PIL import Image as Pictures

import micro
from polydec import Soft, load
from polydec.base.errors import FileError, RequestError
from polydec.lab.train.image_questions import QUESTIONS
from polydec.lab.train.jepa import (
    EmbeddingStudent,
    RightAnswer,
    answer_embeddings,
    answer_nats,
    embedding_losses,
    name_in_target,
    read_answer_folder,
    read_answered_images,
    train_jepa,
)
from polydec.lab.train.network import from_weights
from polydec.lab.train.specs.jepa import JepaSpec
from polydec.models.learned.kinds import answer_embedder
from polydec.models.nets.answer_embedding import EmbeddingSizes, vectors_of_embeddings
from polydec.models.sessions.sources import open_source
from polydec.models.sessions.vision import open_vision
from polydec.request.ask import plan_request
from polydec.request.fields import Ask

FEW = {"each": 6, "rows": 4, "steps": 3, "foretelling": 1, "reading": 1, "size": 16, "shown": 3}


@pytest.fixture(scope="module")
def lm():
    torch.set_num_threads(1)
    return load("zoo:vision", draft=None, threads=1)


@pytest.fixture(scope="module")
def language():
    parted, _ = open_vision(open_source("zoo:vision"), "cpu")
    return from_weights(parted.config, parted.weights)


@pytest.fixture(scope="module")
def learned(lm):
    return read_answered_images(lm, JepaSpec("x", **FEW))[0]


def student_of(language, slow=0.1, **sizes):
    s = language.s
    given = {"foretelling": 1, "reading": 1, "size": 16, "shown": 3, **sizes}
    return EmbeddingStudent(EmbeddingSizes(s.vocab, s.width, s.head, **given), language, slow, 3)


def chosen_of(learned, which=0):
    return [answers[which] for answers in learned.answers]


def test_it_begins_as_the_target(language):
    student = student_of(language)
    known = language.state_dict()
    taken = [name for name in student.names if name_in_target(name) in known]
    # Two embedding tables, two norms, and nine matrices and norms of a layer each.
    assert len(taken) == 2 * (1 + 1 + 9)
    for name in taken:
        assert student.named_weights[name].equal(known[name_in_target(name)])


def test_what_reads_answers_moves_slowly(language):
    student = student_of(language, slow=0.25)
    first = {name: t.detach().clone() for name, t in student.named_weights.items()}
    with torch.no_grad():
        for t in student.tensors:
            t += 1.0
    for name, t in student.named_weights.items():
        moved = 0.25 if name.startswith("reading.") else 1.0
        torch.testing.assert_close(t - first[name], torch.full_like(t, moved), atol=1e-5, rtol=0.0)


def test_embeddings_have_length_1_and_are_the_same_in_company(language, learned):
    student = student_of(language)
    chosen = chosen_of(learned)
    with torch.no_grad():
        both = answer_embeddings(student, learned.vector_NPW, chosen)
        for made in both:
            torch.testing.assert_close(made.norm(dim=-1), torch.ones(len(chosen)))
        for i, one in enumerate(chosen):
            alone = answer_embeddings(student, learned.vector_NPW, [one])
            for x, y in zip(both, alone, strict=True):
                torch.testing.assert_close(x[i], y[0], atol=1e-5, rtol=0.0)


def test_an_answer_is_held_to_its_own_embedding_both_ways(language, learned):
    student = student_of(language)
    chosen = chosen_of(learned)
    with torch.no_grad():
        foretold, read = answer_embeddings(student, learned.vector_NPW, chosen)
        apart, _ = embedding_losses(student, language, learned.vector_NPW, chosen, 0.2)
    logits = foretold @ read.T / 0.2
    want = 0.0
    for table in (logits, logits.T):
        want -= table.log_softmax(-1).diagonal().mean() / 2
    assert len({one.answer for one in chosen}) == len(chosen)
    torch.testing.assert_close(apart, want)
    # Another image of the same answer is no wrong one.
    twin = RightAnswer(1, chosen[0].asked, chosen[0].answer)
    with torch.no_grad():
        pair, _ = embedding_losses(student, language, learned.vector_NPW, [chosen[0], twin], 0.2)
    torch.testing.assert_close(pair, torch.zeros(()))


def test_what_is_foretold_does_not_bend_to_be_told(language, learned):
    student = student_of(language)
    _, nats = embedding_losses(student, language, learned.vector_NPW, chosen_of(learned), 0.2)
    nats.backward()
    moved = {
        name for name, t in zip(student.names, student.tensors, strict=True) if t.grad is not None
    }
    assert moved == {"shown.spread", "shown.vectors"}


def test_what_is_told_is_what_the_target_writes(lm, language, learned):
    """Nats of an answer are those of the model's law behind vectors and question."""
    student = student_of(language)
    (one,) = chosen_of(learned)[:1]
    with torch.no_grad():
        foretold, _ = answer_embeddings(student, learned.vector_NPW, [one])
        shown = vectors_of_embeddings(student.sizes, student.named_weights, foretold)
        nats = answer_nats(language, shown, [one])
    plan = plan_request(lm, Ask([Soft(shown[0]), *one.asked]))
    law = plan.encoded.vectors.prompted_law(lm.checkpoint.lm)
    logp = [
        float(micro.law_at_end(law, (*plan.request.prompt, *one.answer[:i]))[x])
        for i, x in enumerate(one.answer)
    ]
    assert float(nats) == pytest.approx(-sum(logp) / len(logp), abs=1e-3)


def test_what_was_trained_is_saved(lm, tmp_path):
    spec = JepaSpec(str(tmp_path / "a"), **FEW)
    result = train_jepa(spec)
    made = answer_embedder.load(tmp_path / "a")
    made.check_fit(lm.checkpoint.lm, None)
    assert result["images"] == 6 and 0 <= result["retrieved"] <= 1
    again = train_jepa(JepaSpec(str(tmp_path / "b"), **FEW))
    assert again["held_out_nats"] == result["held_out_nats"]
    longer = train_jepa(JepaSpec(str(tmp_path / "c"), **{**FEW, "steps": 40}))
    assert longer["loss"] < result["loss"] - 0.1


def write_folder(path, names, **more):
    path.mkdir()
    rows = list[dict[str, str]]()
    for at, name in enumerate(names):
        to = io.BytesIO()
        Pictures.fromarray(np.full((48, 48, 3), 10 * at, np.uint8)).save(to, "PNG")
        (path / name).write_bytes(to.getvalue())
        for asked in ("is there a 7", "describe it"):
            rows.append({"prompt": asked, "answer": f"a {at % 10}", "image": name, **more})
    (path / QUESTIONS).write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return str(path)


def test_images_of_ones_own_are_learned(lm, tmp_path):
    folder = write_folder(tmp_path / "own", [f"{i}.png" for i in range(24)])
    sides = [read_answer_folder(folder, unseen=unseen) for unseen in (False, True)]
    assert sum(map(len, sides)) == 24 and all(len(side) > 1 for side in sides)
    assert all(len(asked) == 2 for side in sides for _, asked in side)
    result = train_jepa(JepaSpec(str(tmp_path / "out"), data=folder, **FEW))
    assert result["images"] == len(sides[0])


@pytest.mark.parametrize(
    ("names", "more", "why"),
    [
        (["a.png"], {}, "fewer than two images"),
        (["a.png", "b.png"], {"answer": ""}, "has no answer"),
        (["a.png", "b.png"], {"image": "../a.png"}, "must be a file of the folder"),
    ],
)
def test_a_folder_that_cannot_be_learned_is_refused(tmp_path, names, more, why):
    folder = write_folder(tmp_path / "own", names, **more)
    with pytest.raises(FileError, match=why):
        read_answer_folder(folder, unseen=True)


def test_targets_and_steps_that_cannot_be_are_refused(tmp_path):
    with pytest.raises(RequestError, match="needs a model that reads images"):
        train_jepa(JepaSpec(str(tmp_path / "a"), target="zoo:tiny", **FEW))
    with pytest.raises(RequestError, match=r"^rows is 9: a step asks"):
        train_jepa(JepaSpec(str(tmp_path / "b"), **{**FEW, "rows": 9}))

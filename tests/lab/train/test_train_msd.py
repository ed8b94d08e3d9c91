"""MSD's drafter is trained in two stages on a target's own answers: what is learned is what drafts, of images too."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image as Pictures

import micro
from polydec import Image, Sampling, generate, load
from polydec.base.errors import FileError, RequestError
from polydec.core.scheduler import run_coroutines
from polydec.lab.train.data import held_out
from polydec.lab.train.image_drafting import (
    choose_lessons,
    drafting_loss,
    image_share,
    read_lesson,
    state_noise,
)
from polydec.lab.train.image_questions import (
    answer_questions,
    draw_scene_questions,
    read_question_folder,
)
from polydec.lab.train.msd import MsdStudent, train_msd
from polydec.lab.train.scenes import caption_of, draw_questions, draw_scene, draw_scene_pixels
from polydec.lab.train.specs.msd import MsdSpec
from polydec.lab.train.specs.vision import VisionSpec
from polydec.lab.train.target_head import TargetHead
from polydec.lab.train.vision import train_vision
from polydec.methods.speculative.drafters.msd import MsdDrafter
from polydec.methods.speculative.loop.walk import prefill_for_guess
from polydec.methods.speculative.trees.best_first import BestFirstTree
from polydec.models.learned.state_layer import rms_normalised
from polydec.models.sessions.sources import open_source
from polydec.models.sessions.vision import open_vision
from polydec.models.text.picture_view import DrawnPicture

SEER = {"steps": 2, "rows": 2, "width": 32, "layers": 2, "tower_width": 32, "tower_layers": 1}
SMALL = {"each": 3, "max_tokens": 8, "steps": 3, "rows": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.set_num_threads(1)
    at = tmp_path_factory.mktemp("msd")
    train_vision(VisionSpec(str(at / "seer"), **SEER))
    return at


@pytest.fixture(scope="module")
def seer(folder):
    text, _ = open_vision(open_source(str(folder / "seer")), "cpu")
    return TargetHead.of_weights(text.config, text.weights)


@pytest.fixture(scope="module")
def answered(folder):
    # Sampled: a model of two steps would write one token over and over.
    lm = load(str(folder / "seer"), draft=None)
    asked = draw_scene_questions(1, 3, unseen=False)
    return answer_questions(lm, asked, max_tokens=8, temperature=1.0, seed=2)


def test_images_come_in_the_second_half_more_and_more():
    shares = [image_share(step, 101) for step in range(101)]
    assert shares[:51] == [0.0] * 51 and shares[100] == 1.0
    assert shares[75] == pytest.approx(0.5) and sorted(shares) == shares
    lessons = {True: ["seen"], False: ["read"]}
    for share, want in ((0.0, {"read"}), (1.0, {"seen"})):
        assert set(choose_lessons(lessons, 40, share, torch.Generator())) == want
    # 100 of 400 are expected; the draws are the same on every machine.
    both = choose_lessons(lessons, 400, 0.25, torch.Generator().manual_seed(1))
    assert 60 < both.count("seen") < 140


def test_scenes_are_asked_about_with_their_image_and_without():
    asked = draw_scene_questions(2, 5, unseen=False)
    assert len(asked) == 2 * 8 * 2 and [one.image is None for one in asked[:4]] == [False, True] * 2
    assert asked[0].prompt == asked[1].prompt and asked[0].image is asked[2].image


@pytest.mark.parametrize("unseen", [False, True])
def test_scenes_that_are_asked_about_are_held_out_or_not(unseen):
    asked = draw_scene_questions(6, 5, unseen=unseen)
    rng = np.random.default_rng([5, 21, unseen])
    for at in range(0, len(asked), 16):
        scene = draw_scene(rng, unseen=unseen)
        assert held_out(caption_of(scene)) == unseen
        want = DrawnPicture(draw_scene_pixels(scene, rng)).png_file
        assert asked[at].image.data == want
        assert asked[at].prompt == draw_questions(scene, rng)[0].asked


@pytest.mark.parametrize("decoupled", [True, False], ids=["decoupled", "shared"])
def test_what_is_trained_is_what_drafts(folder, seer, answered, decoupled):
    """The state that the student guesses behind a text with an image is the one that drafts there."""
    student = MsdStudent(seer, answered[0].law.vocab, decoupled, 1)
    drafter = MsdDrafter(student.build_artefact(((0.5,),)), BestFirstTree(2))
    for one in (answered[0], answered[1]):
        with torch.no_grad():
            lesson = read_lesson(one, seer)
            want = student([lesson])[0, -1]
        assert bool(lesson.visual_M.any()) == one.seen
        ids = (*one.prompt_ids, *one.output_ids)
        session = one.law.open_session(ids)
        guess = drafter.open_guess(ids, session)
        run_coroutines([prefill_for_guess(session, guess, ids)])
        run_coroutines([guess.guess._catch_up()])
        got = guess.guess.tip.hidden_RH[0].float()
        # The compiled step keeps matrices in 8 bits.
        assert (got - want).abs().mean() < 0.05 * want.abs().mean()


def test_a_loss_reads_what_the_target_wrote_alone(seer, answered):
    # Of the text with its image the last token alone counts, which one state tells.
    student = MsdStudent(seer, answered[0].law.vocab, True, 1)
    lesson = read_lesson(answered[0], seer)
    last = replace(lesson, answer_M=torch.arange(len(lesson.token_M)) == len(lesson.token_M) - 1)
    with torch.no_grad():
        made, true = student([lesson])[0, -2], lesson.state_NH[-1]
        truth = student.state_logits(true).softmax(-1)
        laws = -(truth * student.state_logits(made).log_softmax(-1)).sum()
        apart = rms_normalised(made[None]) - rms_normalised(true[None])
        far = torch.where(apart.abs() < 1, apart.square() / 2, apart.abs() - 0.5).mean()
        got = drafting_loss(student, [last], 3.0, ())
        torch.testing.assert_close(got, laws + 3.0 * far)
        two = drafting_loss(student, [last, lesson], 3.0, ())
    assert not torch.isclose(two, got)


def test_noise_is_wider_in_shorter_texts(seer, answered):
    seen, read = (read_lesson(one, seer) for one in answered[:2])
    widths = []
    for lesson in (seen, read):
        noise = state_noise(lesson, 0.2, torch.Generator().manual_seed(1))
        assert noise.shape == lesson.state_NH.shape
        assert abs(float(noise.mean())) < 0.1 * float(noise.max())
        widths.append(float(noise.max() - noise.min()) * len(lesson.token_M))
    assert all(0.95 < width / (0.2 * 512) <= 1.0 for width in widths)


@pytest.fixture(scope="module")
def trained(folder):
    out = str(folder / "drafter")
    return out, train_msd(MsdSpec(out, str(folder / "seer"), **SMALL))


def test_a_trained_drafter_writes_the_plain_text_behind_images(folder, trained):
    out, result = trained
    assert set(result["tokens_per_pass"]) == set(result["held_out"]) == {"with images", "without"}
    lm = load(str(folder / "seer"), draft=None, trained=out, dtype="float32")
    # A scene that neither model nor drafter has learned from.
    image = draw_scene_questions(1, 9, unseen=True)[0].image
    asked = {
        "source": image,
        "max_tokens": 12,
        "ignore_eos": True,
        "sampling": Sampling(temperature=0.0),
    }
    plain = generate(lm, "describe it", method="plain", **asked)
    drafted = generate(lm, "describe it", method="msd", options={"cost_aware": False}, **asked)
    assert drafted.choices[0].token_ids == plain.choices[0].token_ids
    assert drafted.metrics["draft_acceptance_rate"] is not None, "nothing was drafted"


def test_an_interrupted_run_ends_with_the_same_weights(folder, trained, monkeypatch):
    out = folder / "again"
    spec = MsdSpec(str(out), str(folder / "seer"), **{**SMALL, "save_every": 1})

    def stop_behind(student, *more, taken=[0]):  # noqa: B006
        taken[0] += 1
        if taken[0] == 3:
            raise KeyboardInterrupt
        return drafting_loss(student, *more)

    with monkeypatch.context() as patch:
        patch.setattr("polydec.lab.train.image_drafting.drafting_loss", stop_behind)
        with pytest.raises(KeyboardInterrupt):
            train_msd(spec)
    assert not (out / "msd.safetensors").exists()
    train_msd(spec)
    # Whole files are compared: the answers are written anew, and must be the same ones.
    wanted = (folder / "drafter" / "msd.safetensors").read_bytes()
    assert (out / "msd.safetensors").read_bytes() == wanted


def own_questions(at, rows):
    at.mkdir()
    to = io.BytesIO()
    Pictures.new("RGB", (48, 48), (200, 30, 30)).save(to, "PNG")
    (at / "red.png").write_bytes(to.getvalue())
    (at / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(at)


def test_questions_of_ones_own_are_split_by_their_text(tmp_path, folder):
    rows = [{"prompt": f"is there a {i % 10}", "image": "red.png"} for i in range(10)]
    rows += [{"prompt": f"where is the {i}"} for i in range(30)]
    # Ten questions about one image, and thirty without.
    data = own_questions(tmp_path / "own", rows)
    learned, unseen = (read_question_folder(data, unseen=held) for held in (False, True))
    assert len(learned) + len(unseen) == 40 and {q.prompt for q in learned}.isdisjoint(
        q.prompt for q in unseen
    )
    assert {q.image is None for q in learned} == {True, False}
    lm = load(str(folder / "seer"), draft=None)
    seen = [q for q in learned if q.image is not None][:1]
    (one,) = answer_questions(lm, seen, max_tokens=3, temperature=0.0, seed=0)
    want = generate(
        lm, seen[0].prompt, source=Image(str(tmp_path / "own" / "red.png")), max_tokens=3,
        sampling=Sampling(temperature=0.0),
    )  # fmt: skip
    assert one.output_ids == want.choices[0].token_ids


@pytest.mark.parametrize(
    "rows, why",
    [
        ([{"image": "red.png"}], "line 1 of .* has no prompt"),
        ([{"prompt": "x", "image": "../red.png"}], "must be a file of the folder"),
        ([], "no row of its questions.jsonl is to learn from"),
    ],
)
def test_wrong_questions_are_one_sentence(tmp_path, rows, why):
    with pytest.raises(FileError, match=why):
        read_question_folder(own_questions(tmp_path / "own", rows), unseen=False)


def test_targets_and_questions_that_do_not_serve_are_refused(tmp_path, folder):
    blind = str(micro.write(tmp_path / "blind"))
    with pytest.raises(RequestError, match="which reads no images: name a vision-language model"):
        train_msd(MsdSpec(str(tmp_path / "x"), blind, **SMALL))
    rows = [{"prompt": f"where is the {i}"} for i in range(40)]
    data = own_questions(tmp_path / "own", rows)
    with pytest.raises(RequestError, match="data has 0 answered questions with an image"):
        train_msd(MsdSpec(str(tmp_path / "x"), str(folder / "seer"), data, **SMALL))
    assert not (tmp_path / "x").exists()

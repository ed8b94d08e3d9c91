"""A drafter for a model that tells rows and columns of images turns by them, too: in training as in drafts."""

from dataclasses import replace

import pytest
import torch

from polydec import Sampling, generate, load
from polydec.base.errors import FileError, RequestError
from polydec.core.scheduler import run_coroutines
from polydec.lab.train.image_drafting import read_lesson
from polydec.lab.train.image_questions import answer_questions, draw_scene_questions
from polydec.lab.train.msd import MsdStudent, train_msd
from polydec.lab.train.specs.msd import MsdSpec
from polydec.lab.train.target_head import TargetHead
from polydec.methods.speculative.drafters.msd import MsdDrafter
from polydec.methods.speculative.loop.walk import prefill_for_guess
from polydec.methods.speculative.trees.best_first import BestFirstTree
from polydec.models.learned.artefacts import load_artefact
from polydec.models.learned.kinds import msd
from polydec.models.sessions.sources import open_source
from polydec.models.sessions.vision import open_vision
from vision_checkpoints import write_qwen2_vl

SECTIONS = (1, 2, 1)
"""Pairs of a head of eight that turn by time, rows and columns."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.set_num_threads(1)
    at = tmp_path_factory.mktemp("grids")
    write_qwen2_vl(at / "m")
    return at


@pytest.fixture(scope="module")
def ends(folder):
    text, _ = open_vision(open_source(str(folder / "m")), "cpu")
    return TargetHead.of_weights(text.config, text.weights)


@pytest.fixture(scope="module")
def answered(folder):
    lm = load(str(folder / "m"), draft=None, dtype="float32")
    asked = draw_scene_questions(1, 3, unseen=False)[:4]
    return answer_questions(lm, asked, max_tokens=6, temperature=1.0, seed=2)


def drafted_state(drafter, one):
    """What the drafter's layer makes of the last true state of an answered question."""
    ids = (*one.prompt_ids, *one.output_ids)
    session = one.law.open_session(ids)
    guess = drafter.open_guess(ids, session)
    run_coroutines([prefill_for_guess(session, guess, ids)])
    run_coroutines([guess.guess._catch_up()])
    return guess.guess.tip.hidden_RH[0].float()


def test_the_ends_of_a_target_make_its_laws(folder, ends):
    law = load(str(folder / "m"), draft=None, dtype="float32").checkpoint.lm
    assert ends.sections == SECTIONS and law.network.tells_grids
    state_NH = torch.randn(3, 32, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(ends.state_logits(state_NH), law.network.head_logits(state_NH))
    torch.testing.assert_close(
        ends.embed_tokens(torch.tensor([4, 7])), law.network.embed_tokens((4, 7))
    )


def test_rows_and_columns_are_those_of_the_target_in_training_as_in_drafts(ends, answered):
    student = MsdStudent(ends, answered[0].law.vocab, True, 1)
    drafter = MsdDrafter(student.build_artefact(((0.5,),)), BestFirstTree(2))
    lessons = [read_lesson(one, ends) for one in answered]
    assert [bool(lesson.grids) for lesson in lessons] == [one.seen for one in answered]
    with torch.no_grad():
        made = student(lessons)
    for at, (one, lesson) in enumerate(zip(answered, lessons, strict=True)):
        got = drafted_state(drafter, one)
        want = made[at, len(lesson.state_NH) - 1]
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
        # One that counts places one by one makes another state, where there is an image.
        eagle = drafter.weights.eagle
        plain = replace(eagle, layer=replace(eagle.layer, sections=()))
        other = drafted_state(
            MsdDrafter(replace(drafter.weights, eagle=plain), BestFirstTree(2)), one
        )
        assert other.allclose(got, atol=1e-3) != one.seen


def test_a_text_tells_where_its_images_stand(answered):
    seen, read = answered[:2]
    session = seen.law.open_session(seen.prompt_ids)
    (grid,) = session.text_grids()
    places = sorted(session.text_vectors())
    assert places == list(range(grid.first, grid.cells_end)) and grid.rows * grid.columns > 1
    assert not read.law.open_session(read.prompt_ids).text_grids()


def test_a_trained_drafter_writes_the_plain_text_behind_images(folder):
    out = str(folder / "drafter")
    spec = MsdSpec(out, str(folder / "m"), each=3, max_tokens=6, steps=2, rows=2)
    train_msd(spec)
    assert load_artefact(out).eagle.layer.sections == SECTIONS
    lm = load(str(folder / "m"), draft=None, trained=out, dtype="float32")
    asked = {
        "source": draw_scene_questions(1, 9, unseen=True)[0].image,
        "max_tokens": 12,
        "ignore_eos": True,
        "sampling": Sampling(temperature=0.0),
    }
    plain = generate(lm, "describe it", method="plain", **asked)
    drafted = generate(lm, "describe it", method="msd", options={"cost_aware": False}, **asked)
    assert drafted.choices[0].token_ids == plain.choices[0].token_ids
    assert drafted.metrics["draft_acceptance_rate"] is not None, "nothing was drafted"


def test_sections_that_are_no_half_of_a_head_are_refused(tmp_path, answered):
    own = msd.examples(answered[0].law.vocab, 32, 32)[0]
    layer = replace(own.eagle.layer, sections=(3, 4))
    msd.save(tmp_path / "x", replace(own, eagle=replace(own.eagle, layer=layer)), {})
    with pytest.raises(
        FileError, match=r"sections is \[3, 4\]: their sum must be half of a head, 8"
    ):
        msd.load(tmp_path / "x")


def test_a_target_of_another_kind_is_refused(ends):
    with pytest.raises(
        RequestError, match="is of the kind 'gemma2': a drafter is trained for llama"
    ):
        TargetHead.of_weights({"model_type": "gemma2"}, {})

"""FLASH's drafter learns what it drafts with: mixtures of an image's vectors, and blocks of states."""

from dataclasses import replace

import pytest
import torch
from test_train_msd import answered, folder, seer  # noqa: F401

from polydec import Sampling, generate, load
from polydec.base.errors import RequestError
from polydec.core.scheduler import run_coroutines
from polydec.lab.train.flash import FlashStudent, train_flash
from polydec.lab.train.image_drafting import (
    drafting_loss,
    level_rows,
    rank_hit_rates,
    read_lesson,
)
from polydec.lab.train.image_questions import draw_scene_questions
from polydec.lab.train.msd import MsdStudent
from polydec.lab.train.specs.flash import FlashSpec
from polydec.methods.speculative.drafters.flash import FlashDrafter
from polydec.methods.speculative.loop.walk import prefill_for_guess
from polydec.methods.speculative.trees.best_first import BestFirstTree

SMALL = {"each": 3, "max_tokens": 8, "steps": 3, "rows": 3, "latents": 3, "block": 2}


def student_of(seer, answered, **changes):  # noqa: F811
    spec = FlashSpec("unused", **{"latents": 3, "block": 2, "seed": 1, **changes})
    return FlashStudent(seer, answered[0].law.vocab, spec)


@pytest.mark.parametrize("latents", [0, 3], ids=["whole", "compressed"])
def test_what_is_trained_is_what_drafts(seer, answered, latents):  # noqa: F811
    """The states that the student guesses behind a text with an image are those that draft there."""
    student = student_of(seer, answered, latents=latents)
    drafter = FlashDrafter(student.build_artefact(((0.5,),)), BestFirstTree(2))
    for one in answered[:2]:
        with torch.no_grad():
            lesson = read_lesson(one, seer)
            place_R, made_RKH = student.guess_states([lesson])[0]
        # An image of 36 vectors is three rows.
        fewer = 33 if latents and one.seen else 0
        assert len(place_R) == len(made_RKH) == len(lesson.state_NH) - fewer
        ids = (*one.prompt_ids, *one.output_ids)
        session = one.law.open_session(ids)
        guess = drafter.open_guess(ids, session)
        run_coroutines([prefill_for_guess(session, guess, ids)])
        run_coroutines([guess.guess._catch_up()])
        got = guess.guess.tip.hidden_RH[0].float()
        want = made_RKH[-1].flatten()
        # The compiled step keeps matrices in 8 bits.
        assert (got - want).abs().mean() < 0.05 * want.abs().mean()


def test_short_texts_beside_long_ones_are_guessed_as_alone(seer, answered):  # noqa: F811
    student = student_of(seer, answered)
    lessons = [read_lesson(one, seer) for one in answered[:3]]
    with torch.no_grad():
        together = student.guess_states(lessons)
        for lesson, (place_R, made_RKH) in zip(lessons, together, strict=True):
            alone_R, alone_RKH = student.guess_states([lesson])[0]
            assert alone_R.equal(place_R)
            torch.testing.assert_close(alone_RKH, made_RKH, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_each_level_guesses_the_token_so_far_ahead(seer, answered, level):  # noqa: F811
    """By a text whose places are counted anew behind its image."""
    lesson = read_lesson(answered[0], seer)
    place_R = student_of(seer, answered).build_artefact().row_places(lesson.visual_M[:-1])
    row, token = level_rows(lesson, place_R, level)
    first = len(answered[0].prompt_ids)
    # The first root is the prompt's last token; the tokens behind it are guessed.
    want = list(range(first + level, len(lesson.token_M)))
    assert token.tolist() == want and place_R[row].tolist() == [at - 2 - level for at in want]


def test_a_student_that_guesses_each_level_right_has_no_distance(seer, answered):  # noqa: F811
    class Knowing(FlashStudent):
        def guess_states(self, lessons, noise=()):
            out = []
            for x in lessons:
                place_R = self.build_artefact().row_places(x.visual_M[:-1])
                ahead = [(place_R + 1 + k).clamp(max=len(x.state_NH) - 1) for k in range(2)]
                out.append((place_R, torch.stack([x.state_NH[at] for at in ahead], 1)))
            return out

    spec = FlashSpec("unused", latents=3, block=2)
    student = Knowing(seer, answered[0].law.vocab, spec)
    lessons = [read_lesson(one, seer) for one in answered[:4]]
    with torch.no_grad():
        without, with_distance = (drafting_loss(student, lessons, w, ()) for w in (0.0, 5.0))
    torch.testing.assert_close(without, with_distance)
    assert all(rates[0] >= 0 for rates in rank_hit_rates(student, lessons))


def test_levels_are_added_up(seer, answered):  # noqa: F811
    lessons = [read_lesson(one, seer) for one in answered[:4]]
    student = student_of(seer, answered, block=3)

    class First(FlashStudent):
        def guess_states(self, lessons, noise=()):
            made = student.guess_states(lessons, noise)
            return [(place_R, made_RKH[:, :2]) for place_R, made_RKH in made]

    fewer = First(seer, answered[0].law.vocab, FlashSpec("unused"))
    with torch.no_grad():
        three, two = (drafting_loss(x, lessons, 1.0, ()) for x in (student, fewer))
    assert three > two + 0.1


def test_what_compresses_is_learned_where_there_is_an_image(seer, answered):  # noqa: F811
    student = student_of(seer, answered)
    for one in answered[:2]:
        student.zero_grad()
        drafting_loss(student, [read_lesson(one, seer)], 1.0, ()).backward()
        moved = student.latents.grad is not None and bool(student.latents.grad.abs().max() > 0)
        assert moved == one.seen


def test_a_block_of_one_state_is_trained_as_msd_is(seer, answered):  # noqa: F811
    flash, msd = (
        student_of(seer, answered, latents=0, block=1),
        MsdStudent(seer, answered[0].law.vocab, True, 1),
    )
    lessons = [read_lesson(one, seer) for one in answered[:4]]
    with torch.no_grad():
        one, other = (drafting_loss(student, lessons, 1.0, ()) for student in (flash, msd))
    torch.testing.assert_close(one, other)


def test_a_trained_drafter_writes_the_plain_text_behind_images(folder):  # noqa: F811
    out = str(folder / "flash")
    result = train_flash(FlashSpec(out, str(folder / "seer"), **SMALL))
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
    drafted = generate(lm, "describe it", method="flash", options={"cost_aware": False}, **asked)
    assert drafted.choices[0].token_ids == plain.choices[0].token_ids
    assert drafted.metrics["draft_acceptance_rate"] is not None, "nothing was drafted"


@pytest.mark.parametrize(
    "field, value, span", [("latents", -1, "0 to 4096"), ("block", 0, "1 to 16")]
)
def test_numbers_outside_their_range_are_refused(field, value, span):
    with pytest.raises(RequestError, match=f"{field} is {value}: it must lie in {span}"):
        replace(FlashSpec("unused"), **{field: value})

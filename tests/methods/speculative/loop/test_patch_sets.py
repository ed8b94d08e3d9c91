"""Pictures of patches that are drawn in sets: their order, what each set is told, guidance, drafts and what comes of them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import rms_norm

from patch_toys import (
    CANVAS,
    PROMPT,
    SETS,
    SIZE,
    SMALL_CANVAS,
    ToyPatchBoard,
    far_apart,
    filling,
    made_head,
    network_canvas,
    pictures,
    wide_head,
)
from polydec.base.errors import RequestError
from polydec.core.rng import Rng
from polydec.core.types import Exactness
from polydec.methods.speculative.loop.patch_drawing import PatchDrafter
from polydec.methods.speculative.loop.patch_sets import (
    PatchCanvases,
    PatchSetDecoder,
    SetGroups,
    SetSchedule,
)
from polydec.methods.speculative.loop.patch_tests import AlignedPatchTest, ExactPatchTest
from polydec.models.sessions.soft import make_soft_tokens

OWN = made_head(1, seen=3.0)
NEAR = made_head(2, OWN, moved=0.1, seen=1.0)
PATCHES = 6


def told_by(model, canvas, place):
    """The state of a patch's gap, its root mean square made 1."""
    (state_T4,) = model.network.forward([(tuple(canvas), 0)])
    return rms_norm(state_T4[len(PROMPT) + place].double(), (4,), eps=1e-5)


def reference(seed, still=False, guidance=0.0, growing=False):
    """A picture that is drawn set by set, patch by patch and step by step by the head alone."""
    rng = Rng.of_choice(seed, 0)
    canvas = [*PROMPT, *(None,) * PATCHES]
    levels = [0] * 2 * PATCHES
    done = 0
    with torch.no_grad():
        for some in SETS.draw_sets(PATCHES, rng):
            strength = guidance * (done / PATCHES if growing else 1)
            values = []
            for place in some:
                blank = [None] * len(PROMPT) + canvas[len(PROMPT) :]
                told, untold = (told_by(CANVAS, c, place)[None] for c in (canvas, blank))
                noise = rng.child_stream("patch", place).normal_row(8).view(4, 2)
                x = noise[:1]
                for at, left in enumerate((3, 2, 1)):
                    mean, log_std = OWN.network(told, x, torch.tensor([left]))
                    other, _ = OWN.network(untold, x, torch.tensor([left]))
                    x = mean + strength * (mean - other)
                    if not (still and left == 1):
                        x = x + log_std.exp() * noise[at + 1]
                values.append(x[0])
            for place, value in zip(some, values, strict=True):
                vector = OWN.network.embed(value[None]).float()
                canvas[len(PROMPT) + place] = make_soft_tokens(vector, SIZE, 4, "a test")[0]
                levels[2 * place : 2 * place + 2] = OWN.grey_levels(value)
            done += len(some)
    return tuple(levels)


def test_sets_hold_each_patch_once_in_an_order_of_the_answer():
    for steps, count in ((1, 5), (3, 49), (12, 49), (64, 49)):
        sets = SetSchedule(steps).draw_sets(count, Rng.of_choice(1))
        assert sorted(p for some in sets for p in some) == list(range(count))
        assert len(sets) == min(steps, count) and all(sets)
    few, many = (SetSchedule(12).draw_sets(49, Rng.of_choice(s)) for s in (1, 2))
    # Few patches at first, many at last.
    assert len(few[0]) < len(few[-2]) and few != many
    # The cosine leaves 49 cos(pi / 24) = 48.58 of 49.
    assert len(few[0]) == 1 and [len(s) for s in few] == [len(s) for s in many]
    even = SetSchedule(7, "linear").draw_sets(49, Rng.of_choice(1))
    assert [len(s) for s in even] == [7] * 7
    with pytest.raises(RequestError, match="steps is 0"):
        SetSchedule(0)
    with pytest.raises(RequestError, match="curve is 'wave'"):
        SetSchedule(3, "wave")


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"still": True},
        {"guidance": 1.5},
        {"guidance": 1.5, "growing": True},
    ],
    ids=str,
)
def test_each_set_follows_from_those_before(how):
    more = {k: v for k, v in how.items() if k != "still"}
    decoder = filling(OWN, noise="still" not in how, **more)
    for seed in range(3):
        made = pictures(decoder, seed)[0]
        assert made.token_ids == reference(seed, **how) and made.stats.passes == 3
    assert decoder.exactness is Exactness.LAW and ToyPatchBoard.open == 0


def test_guidance_of_no_strength_changes_nothing_and_much_of_it_does():
    plain, strong = (pictures(filling(OWN, guidance=g), 1)[0].token_ids for g in (0.0, 3.0))
    assert plain != strong
    # Of the first set nothing is known: guidance that grows begins at 0.
    (first, *_) = SETS.draw_sets(PATCHES, Rng.of_choice(1, 0))
    growing = pictures(filling(OWN, guidance=3.0, growing=True), 1)[0].token_ids
    for place in first:
        assert growing[2 * place : 2 * place + 2] == plain[2 * place : 2 * place + 2]
    assert growing != plain


@pytest.mark.parametrize("guidance", [0.0, 1.5])
@pytest.mark.parametrize(
    ("test", "noise"), [(ExactPatchTest(), True), (AlignedPatchTest(widen=0.5), False)]
)
def test_a_draft_that_is_the_target_gives_its_pictures(test, noise, guidance):
    drafter = PatchDrafter(CANVAS, OWN, 2)
    decoder = PatchSetDecoder(CANVAS, OWN, SETS, drafter, test, guidance=guidance)
    for seed in range(4):
        made = pictures(decoder, seed)[0]
        want = pictures(filling(OWN, noise=noise, guidance=guidance), seed)[0]
        assert made.token_ids == want.token_ids
        assert made.stats.accepted == made.stats.drafted > 0 and made.stats.passes == 1
    assert decoder.exactness is test.exactness


def test_canvases_of_one_round_are_one_pass():
    decoder = filling(OWN, NEAR, ExactPatchTest(), guidance=1.0)
    before = CANVAS.network.calls, SMALL_CANVAS.network.calls, CANVAS.network.runs
    made = pictures(decoder, 3)[0]
    assert CANVAS.network.calls - before[0] == made.stats.passes
    # Each drafted set is a pass of the draft; behind the last set nothing is drafted.
    assert SMALL_CANVAS.network.calls - before[1] >= 2
    # Two canvases for each of up to three sets: with the class, and without it.
    length = len(PROMPT) + PATCHES
    assert (CANVAS.network.runs - before[2]) % (2 * length) == 0
    assert CANVAS.network.runs - before[2] >= 2 * 3 * length


def test_a_picture_goes_on_behind_a_draft_that_falls():
    """Heads far apart: nearly all is refused, and every picture is whole all the same."""
    far = made_head(9, seen=3.0)
    for test in (ExactPatchTest(), AlignedPatchTest(widen=0.05), AlignedPatchTest(parallel=True)):
        made = pictures(filling(OWN, far, test), 1, 3)
        assert all(len(r.token_ids) == 2 * PATCHES for r in made)
        assert all(1 <= r.stats.passes <= 3 for r in made)
    # Some sets fall, so their later ones are drafted again.
    exact = pictures(filling(OWN, far, ExactPatchTest()), 1)[0].stats
    assert exact.passes > 1 and exact.accepted < exact.drafted


def test_answers_of_one_request_are_those_of_their_streams():
    decoder = filling(OWN, NEAR, ExactPatchTest())
    together = [r.token_ids for r in pictures(decoder, 1, 3)]
    assert together[0] == pictures(decoder, 1)[0].token_ids and len(set(together)) == 3


def test_the_target_draws_the_first_sets_alone_and_drafts_are_as_deep_as_asked():
    decoder = filling(OWN, made_head(9, seen=3.0), AlignedPatchTest(widen=0.01), alone=2)
    assert [decoder.drafter.draft_depth(done, 3 - done) for done in range(3)] == [0, 0, 0]
    deep = filling(OWN, OWN, ExactPatchTest(), depth=2)
    assert [deep.drafter.draft_depth(0, left) for left in (1, 2, 3, 9)] == [0, 1, 2, 2]
    made = pictures(decoder, 2)[0]
    assert made.token_ids == pictures(filling(OWN, noise=False), 2)[0].token_ids
    assert made.stats.drafts == 0 and made.stats.passes == 3


def test_a_text_that_is_cut_short_holds_the_first_numbers():
    for most in (1, 5, 11):
        made = pictures(filling(OWN), 0, most=most)[0]
        assert made.token_ids == pictures(filling(OWN), 0)[0].token_ids[:most]


def test_groups_begin_with_a_pass_that_feeds_all():
    groups = SetGroups(2, 1)
    planned = [groups.planned_sets(done) for done in range(7)]
    assert planned == [None, None, None, slice(2, 4), None, slice(4, 6), None]
    assert [SetGroups(0, 2).planned_sets(done) for done in range(4)] == [
        None,
        slice(0, 3),
        slice(0, 3),
        None,
    ]
    assert not any(SetGroups(0, 0).planned_sets(done) for done in range(5))
    for fields, says in (({"before": -1}, "before is -1"), ({"partial": 65}, "partial is 65")):
        with pytest.raises(RequestError, match=says):
            SetGroups(**fields)
    with pytest.raises(RequestError, match="partial is 1: drafts are tested"):
        filling(OWN, NEAR, ExactPatchTest(), groups=SetGroups(0, 1))


def grouped(layers, guidance=0.0, **fields):
    """A decoder over a network that keeps keys and values, of a pass for each patch."""
    groups = SetGroups(**fields)
    model, schedule = network_canvas(layers), SetSchedule(6, "linear")
    return PatchSetDecoder(model, wide_head(), schedule, guidance=guidance, groups=groups)


@pytest.mark.parametrize("guidance", [0.0, 1.0])
def test_of_one_layer_a_partial_pass_says_what_a_whole_one_does(guidance):
    """Keys and values of what is not fed depend on nothing else there: the cleanest test of what is kept, and where."""
    whole = pictures(grouped(1, guidance), 1)[0].token_ids
    for fields in (
        {"before": 2, "partial": 1},
        {"partial": 5},
        {"partial": 2, "prompt_fed": True},
    ):
        decoder = grouped(1, guidance, **fields)
        assert decoder.exactness is Exactness.APPROXIMATE
        assert pictures(decoder, 1)[0].token_ids == whole
    assert grouped(1).exactness is Exactness.LAW
    # Of several layers the others have not seen what the group has drawn.
    deep = [
        pictures(grouped(3, guidance, partial=p), s)[0].token_ids for p in (0, 5) for s in (1, 2)
    ]
    assert deep[:2] != deep[2:]
    assert pictures(grouped(3, guidance, before=6, partial=5), 1)[0].token_ids == deep[0]


def test_partial_passes_feed_what_was_planned_alone():
    for fields, fed in (
        ({}, [9] * 6),
        ({"partial": 1}, [9, 2, 9, 2, 9, 2]),
        ({"before": 3, "partial": 2}, [9, 9, 9, 9, 3, 3]),
        ({"partial": 1, "prompt_fed": True}, [9, 5, 9, 5, 9, 5]),
    ):
        decoder = grouped(2, **fields)
        board = PatchCanvases.of_model(decoder.denoiser, decoder.head, PROMPT, 0.0)
        sets = decoder.schedule.draw_sets(PATCHES, Rng.of_choice(1))
        feeds = [decoder.fed_positions(board, sets, done) for done in range(6)]
        assert [len(feed) for feed in feeds] == fed
        # Each set is fed by its own pass.
        for some, feed in zip(sets, feeds, strict=True):
            assert {3 + place for place in some} <= {*feed}
            assert list(feed) == sorted(feed)


@pytest.mark.slow
@pytest.mark.parametrize("guidance", [0.0, 1.0])
def test_samples_of_the_exact_mode_are_the_target_s(guidance):
    """1,200 pictures of six patches against as many of the target, as in test_patch_drawing.py, with guidance and
    without it."""
    count = 1200

    def sample(decoder, seed):
        made = [r for part in range(12) for r in pictures(decoder, seed + part, count // 12)]
        return np.array([r.token_ids for r in made], float), made

    want, _ = sample(filling(OWN, guidance=guidance), 100)
    exact, results = sample(filling(OWN, NEAR, ExactPatchTest(), guidance=guidance), 200)
    accepted = sum(r.stats.accepted for r in results) / sum(r.stats.drafted for r in results)
    # Drafts are really tested: many stand, and many do not.
    assert 0.15 < accepted < 0.85
    assert far_apart(want, exact) < 1.95
    draft = PatchSetDecoder(SMALL_CANVAS, NEAR, SETS, guidance=guidance)
    assert far_apart(want, sample(draft, 300)[0]) > 3
    # Guidance of the target alone, or of none, is another law.
    other, _ = sample(filling(OWN, guidance=guidance + 1.5), 400)
    assert far_apart(want, other) > 3


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(RequestError, match="guidance is -1"):
        filling(OWN, guidance=-1)
    with pytest.raises(RequestError, match="has steps 2, and the model's 3"):
        filling(OWN, made_head(2, steps=2), ExactPatchTest())
    assert replace(OWN, guided=True).cost == 2 * OWN.cost

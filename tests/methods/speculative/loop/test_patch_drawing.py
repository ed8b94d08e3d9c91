"""Pictures of patches: drawn one by one, drafted and tested; laws, passes, and what is fed."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from patch_toys import (
    DRAFT,
    LEVELS,
    PROMPT,
    SIZE,
    TARGET,
    drafting,
    far_apart,
    made_head,
    pictures,
)
from polydec.base.errors import RequestError
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, Exactness, RowDetail, ScoreRequest
from polydec.methods.speculative.loop.patch_drawing import PatchDecoder, PatchDrafter
from polydec.methods.speculative.loop.patch_tests import AlignedPatchTest, ExactPatchTest
from polydec.models.nets.denoising import GuidedSteps, draw_paths
from polydec.models.sessions.soft import make_soft_tokens

OWN = made_head(1)
NEAR = made_head(2, OWN, moved=0.15)
PLAIN = PatchDecoder(TARGET, OWN)
STILL = PatchDecoder(TARGET, OWN, noise=False)
GUIDED = PatchDecoder(TARGET, made_head(1, seen=1 / 4), guidance=4.0)
PATCHES = 6


async def state_behind(prompt, soft):
    """What the target says behind a prompt and some patches, by a session of its own."""
    session = TARGET.open_session(prompt)
    await session.prefill_prompt(ScoreRequest(law=RowDetail.NOTHING))
    text = (prompt[-1], *soft)
    session.commit_tokens(text[:-1])
    want = ScoreRequest(law=RowDetail.NOTHING, hidden=True)
    scores = await session.score_draft(Draft.chain_draft(text[-1]), want)
    session.close()
    return scores.hidden_NH.double()


async def reference(seed, decoder):
    """A picture that is drawn with a new session for every patch."""
    rng = Rng.of_choice(seed, 0)
    soft, levels = [], []
    for at in range(PATCHES):
        state = await state_behind(PROMPT, soft)
        noise = rng.child_stream("patch", at).normal_row(8).view(1, 4, 2)
        if decoder is STILL:
            noise[0, -1] = 0
        head = decoder.head
        law = head.network
        if decoder.guidance:
            law = GuidedSteps(head.network, head.shape)
            # The last id of all stands where no class is named.
            untold = await state_behind((SIZE - 1,) * len(PROMPT), soft)
            state = torch.cat([state, untold, torch.tensor([[decoder.guidance]]).double()], 1)
        value = draw_paths(law, state, noise[:, 0], noise[:, 1:]).value_ND
        soft += make_soft_tokens(head.network.embed(value).float(), SIZE, 4, "a test")
        levels += head.grey_levels(value[0])
    return tuple(levels)


@pytest.mark.parametrize("decoder", [PLAIN, STILL, GUIDED])
def test_each_patch_follows_from_those_before(decoder):
    for seed in range(4):
        with torch.no_grad():
            want = run_coroutines([reference(seed, decoder)])[0]
        made = pictures(decoder, seed)[0]
        assert made.token_ids == want and made.stats.passes == PATCHES
    assert decoder.exactness is Exactness.LAW


@pytest.mark.parametrize(
    ("test", "base"), [(ExactPatchTest(), PLAIN), (AlignedPatchTest(widen=0.5), STILL)]
)
def test_a_draft_that_is_the_target_gives_its_pictures(test, base):
    decoder = drafting(OWN, OWN, test, depth=2)
    for seed in range(5):
        made, want = pictures(decoder, seed)[0], pictures(base, seed)[0]
        assert made.token_ids == want.token_ids
        assert made.stats.accepted == made.stats.drafted == 4 and made.stats.passes == 2
    guided, alone = (replace(x, guidance=1.5) for x in (decoder, base))
    made = pictures(guided, 1)[0]
    assert made.token_ids == pictures(alone, 1)[0].token_ids != want.token_ids
    assert made.stats.accepted == made.stats.drafted == 4
    assert decoder.exactness is test.exactness


def test_answers_of_one_request_are_those_of_their_streams():
    decoder = drafting(OWN, NEAR, ExactPatchTest())
    together = [r.token_ids for r in pictures(decoder, 1, 3)]
    assert together[0] == pictures(decoder, 1)[0].token_ids and len(set(together)) == 3


def test_the_target_draws_the_first_patches_alone():
    far = made_head(9)
    test = AlignedPatchTest(widen=0.01)
    decoder = drafting(OWN, far, test, depth=2, alone=4)
    made, want = pictures(decoder, 2)[0], pictures(STILL, 2)[0]
    assert made.token_ids[:8] == want.token_ids[:8]
    assert made.stats.passes - made.stats.drafts >= 4
    assert drafting(OWN, far, test, alone=6).drafter.draft_depth(5, 9) == 0
    assert pictures(drafting(OWN, far, test, depth=2), 2)[0].token_ids[2:8] != want.token_ids[2:8]


def test_drafts_are_as_deep_as_is_asked_and_as_there_is_room():
    decoder = drafting(OWN, OWN, ExactPatchTest(), depth=3)
    assert [decoder.drafter.draft_depth(0, left) for left in (1, 2, 3, 4, 9)] == [0, 1, 2, 3, 3]
    # Five numbers are two patches and one pixel of a third.
    short = pictures(decoder, 0, most=5)[0]
    assert short.token_ids == pictures(PLAIN, 0)[0].token_ids[:5] and short.stats.passes == 1


@pytest.mark.slow
def test_samples_of_the_exact_mode_are_the_target_s():
    """1,200 pictures of six patches against as many of the target, 18 comparisons of distribution functions.

    A difference of 0.12 in any of them is found with probability 0.99; those of the draft and of the
    published mode are, by far.
    """
    count = 1200

    def sample(decoder, seed):
        made = [r for part in range(12) for r in pictures(decoder, seed + part, count // 12)]
        return np.array([r.token_ids for r in made], float), made

    want, _ = sample(PLAIN, 100)
    exact, results = sample(drafting(OWN, NEAR, ExactPatchTest()), 200)
    accepted = sum(r.stats.accepted for r in results) / sum(r.stats.drafted for r in results)
    # Drafts are really tested: many stand, and many do not.
    assert 0.2 < accepted < 0.8
    assert far_apart(want, exact) < 1.95
    draft, _ = sample(PatchDecoder(DRAFT, NEAR), 300)
    assert far_apart(want, draft) > 4
    published, _ = sample(drafting(OWN, NEAR, AlignedPatchTest()), 400)
    assert far_apart(want, published) > 4


def test_heads_of_other_sizes_are_refused():
    with pytest.raises(RequestError, match="has steps 2, and the model's 3"):
        drafting(OWN, made_head(2, steps=2), ExactPatchTest())
    with pytest.raises(RequestError, match="has values 3"):
        drafting(OWN, made_head(2, values=3), ExactPatchTest())
    for fields, says in (({"depth": 0}, "depth is 0"), ({"alone": -1}, "alone is -1")):
        with pytest.raises(RequestError, match=says):
            PatchDrafter(DRAFT, NEAR, **fields)
    with pytest.raises(RequestError, match=r"guidance is -0\.5"):
        PatchDecoder(TARGET, OWN, guidance=-0.5)
    assert OWN.levels == LEVELS

"""MSD's drafter: what it reads of images and of words, that nothing of the law is lost behind images, and what is EAGLE's."""

from dataclasses import replace

import pytest
import torch

import micro
from polydec import load
from polydec.base.errors import FileError, RequestError
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.testing.enumerate import law_of, target_law, text_law_distance
from polydec.lab.testing.examples import SHAPERS, bend_target
from polydec.lab.testing.exercised_counts import ExercisedCollector, ExercisedCounts
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy import toy_law
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.laws.targets.soft_prompt import SoftPromptTarget
from polydec.methods.registry import registry
from polydec.methods.registry.kit import Kit
from polydec.methods.speculative.drafters.eagle import EagleDrafter
from polydec.methods.speculative.drafters.msd import MsdDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.loop.walk import prefill_for_guess
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.trees.best_first import BestFirstTree
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.models.learned.artefacts import load_artefact
from polydec.models.learned.kinds import msd
from polydec.models.learned.state_layer import rms_normalised
from polydec.models.sessions.soft import make_soft_tokens

PROMPT = (5, 6, 9, 9, 9, 7, 8)
IMAGE = (2, 3, 4)
"""Places of an image of three vectors, for which token 9 stands."""
TREE = BestFirstTree(3)


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    torch.set_num_threads(1)
    path = micro.write(tmp_path_factory.mktemp("m") / "a")
    return load(str(path), draft=None, dtype="float32").checkpoint.lm


def image(seed, width=32):
    return torch.randn(3, width, generator=torch.Generator().manual_seed(seed))


def behind_image(law, vectors_KD, size=320):
    # The ids of vectors stand behind the vocabulary; token 9 is what words see of them.
    soft = make_soft_tokens(vectors_KD, size, vectors_KD.shape[1], "x")
    instead = (*PROMPT[:2], *soft, *PROMPT[5:])
    return SoftPromptTarget(law, PROMPT, instead, tuple(range(6)))


def drafter_of(law, width=32, **changes):
    return MsdDrafter(replace(msd.examples(law.vocab, width, width)[0], **changes), TREE)


def read_prompt(target, drafter):
    """The guess behind the prompt, and its session."""
    session = target.open_session(PROMPT)
    guess = drafter.open_guess(PROMPT, session)
    run_coroutines([prefill_for_guess(session, guess, PROMPT)])
    return guess.guess, session


def test_each_place_of_an_image_enters_as_its_vector_and_each_word_with_its_state(lm):
    """The index rule: a word before an image is joined with the image's first vector, one behind it with the next word."""
    vectors, drafter = image(1), drafter_of(lm)
    guess, session = read_prompt(behind_image(lm, vectors), drafter)
    inner = lm.open_session(behind_image(lm, vectors).instead)
    want = ScoreRequest(hidden=True, prompt=True)
    state_NH = run_coroutines([inner.prefill_prompt(want)])[0].hidden_NH
    words = session.embed_tokens(PROMPT).float()

    def joined(after_H, place):
        return drafter.weights.layer_inputs(after_H[None, None], state_NH[place][None])[0]

    # Six rows: the last token of the prompt is the root, which no pass has read yet.
    rows = guess.ready_NS
    assert len(rows) == 6 and not guess.pending
    for at, vector_H in zip(IMAGE, vectors, strict=True):
        torch.testing.assert_close(rows[at], rms_normalised(vector_H[None])[0])
    for place, after_H in ((0, words[1]), (1, vectors[0]), (5, words[6])):
        torch.testing.assert_close(rows[place], joined(after_H, place), atol=1e-4, rtol=1e-4)
    shared, _ = read_prompt(behind_image(lm, vectors), drafter_of(lm, decoupled=False))
    for place, after_H in ((1, vectors[0]), (2, vectors[1]), (4, words[5])):
        got = shared.ready_NS[place]
        torch.testing.assert_close(got, joined(after_H, place), atol=1e-4, rtol=1e-4)


def test_states_at_an_image_are_read_where_it_is_not_decoupled_alone(lm):
    entry_MH = torch.randn(7, 32, generator=torch.Generator().manual_seed(3))
    state_NH = torch.randn(6, 32, generator=torch.Generator().manual_seed(4))
    visual_M = torch.tensor([place in IMAGE for place in range(7)])
    # The states of words stay where they are.
    swapped = state_NH[[0, 1, 4, 2, 3, 5]]
    for decoupled in (True, False):
        weights = drafter_of(lm, decoupled=decoupled).weights
        rows, other = (weights.prompt_inputs(entry_MH, visual_M, s) for s in (state_NH, swapped))
        assert rows.equal(other) == decoupled
        assert rows[[0, 1, 5]].equal(other[[0, 1, 5]])


def tip_of(guess, rows):
    guess.ready_NS = rows
    run_coroutines([guess._catch_up()])
    return guess.tip.hidden_RH[0].float()


def test_what_an_image_shows_reaches_the_draft(lm):
    """Its vectors alone are changed: the states of all words stay."""
    made = []
    for seed in (1, 2):
        guess, _ = read_prompt(behind_image(lm, image(1)), drafter_of(lm))
        rows = guess.ready_NS.clone()
        rows[list(IMAGE)] = rms_normalised(image(seed))
        made.append(tip_of(guess, rows))
    assert not made[0].allclose(made[1], atol=1e-3)


def proposed_drafts(drafter, target, prompt, tokens=12):
    """Tokens and parents of every draft of a greedy answer."""
    proposed = []

    class Spy:
        def open_guess(self, text, session):
            guess = drafter.open_guess(text, session)
            inner = guess.propose_draft

            async def noted(*asked):
                draft = await inner(*asked)
                proposed.append((draft.token, draft.parent))
                return draft

            object.__setattr__(guess, "propose_draft", noted)
            return guess

    decoder = SpeculativeDecoder(
        ShapedTarget(target, GreedyRule()), Spy(), MatchVerifier(), FixedPolicy(3, 8)
    )
    run_coroutines([answer_one(decoder, Request(prompt, tokens, ignore_eos=True))])
    return proposed


def test_without_an_image_it_is_an_eagle(lm):
    """Token by token the same drafts, of words before, between and behind which no vector stands."""
    own = msd.examples(lm.vocab, 32, 32)[0]
    # The same weights in both, of which one never looks for an image.
    drafters = (EagleDrafter(own.eagle, TREE), MsdDrafter(own, TREE))
    proposed = [proposed_drafts(drafter, lm, PROMPT) for drafter in drafters]
    assert proposed[0] == proposed[1] and max(len(tokens) for tokens, _ in proposed[0]) > 3


TOY_PROMPT = (0, 2, 2, 1)


def toy_behind_image(law):
    """A toy behind an image of two vectors: its embeddings of other tokens than those that stand for them."""
    vectors = make_soft_tokens(law.network.embed_tokens((1, 0)), 3, 4, "x")
    return SoftPromptTarget(law, TOY_PROMPT, (0, *vectors, 1), (0, 1, 2))


def check_law_behind_images(method, artefact_of, shaping, **options):
    """Enumerated, with drafts that are taken and drafts that are refused."""
    counts = ExercisedCounts()
    for seed in (1, 2, 5):
        law = toy_law(seed)
        target = toy_behind_image(law)
        shapers = SHAPERS[shaping]
        given = {"cost_aware": "false", "width": "2", "nodes": "4", **options}
        bent = bend_target(target, shapers)
        decoder, _ = build(method, bent, options=given, artefacts=[artefact_of(law)])
        collector = ExercisedCollector()
        got = law_of(
            lambda rng, d=decoder, on=collector: answer_one(d, Request(TOY_PROMPT, 3), rng, on)
        )
        assert text_law_distance(got, target_law(target, TOY_PROMPT, 3, shapers)) < 1e-9
        if shaping == "plain":
            words = target_law(law, TOY_PROMPT, 3, shapers)
            assert text_law_distance(got, words) > 0.05, "the image decides nothing"
        counts += collector.counts
    assert min(counts.drafted, counts.accepted, counts.rejected) > 0


@pytest.mark.parametrize("shaping", sorted(SHAPERS))
@pytest.mark.parametrize("decoupled", [True, False], ids=["decoupled", "shared"])
def test_the_law_behind_images_is_the_models(shaping, decoupled):
    check_law_behind_images(
        "msd",
        lambda law: replace(msd.examples(law.vocab, 4, 4)[0], decoupled=decoupled),
        shaping,
        depth="2",
    )


def test_a_guess_that_is_forked_goes_its_own_way(lm):
    guess, session = read_prompt(behind_image(lm, image(1)), drafter_of(lm))
    twin = guess.fork_guess(session.fork())
    first = tip_of(guess, guess.ready_NS)
    assert guess.ready_NS is None and twin.ready_NS is not None
    torch.testing.assert_close(tip_of(twin, twin.ready_NS), first)


def test_vectors_of_a_text_are_told_by_their_places(lm):
    vectors = image(6)
    target = ShapedTarget(behind_image(lm, vectors), GreedyRule())
    session = target.open_session(PROMPT)
    # Through the wrapper that shapes and the one that softens.
    told = session.text_vectors()
    assert list(told) == list(IMAGE)
    assert all(told[at].equal(row) for at, row in zip(IMAGE, vectors, strict=True))
    run_coroutines([session.score_draft(Draft.chain_draft(PROMPT[-1]), ScoreRequest())])
    session.commit_tokens(PROMPT[-1:])
    assert list(session.text_vectors()) == list(IMAGE)
    assert not lm.open_session(PROMPT).text_vectors()


def test_a_file_brings_it_back(tmp_path, lm):
    for decoupled in (True, False):
        own = replace(msd.examples(lm.vocab, 32, 32)[0], decoupled=decoupled)
        msd.save(tmp_path / "x", own, {})
        again = load_artefact(str(tmp_path / "x"))
        assert again.decoupled == decoupled and again.rates == [[0.5, 0.2]]
        assert again.eagle.fuse_H2.equal(own.eagle.fuse_H2)
        for name, t in own.eagle.layer.tensors.items():
            assert again.eagle.layer.tensors[name].equal(t)
    with pytest.raises(FileError, match="MSD's weights were trained for states of width 16"):
        msd.examples(lm.vocab, 16, 16)[0].check_fit(lm, None)


def test_it_is_refused_where_the_prompt_is_not_fed_again(lm):
    kit = Kit(lm, None, msd.examples(lm.vocab, 32, 32), whole_prompt=False)
    with pytest.raises(RequestError, match="method msd reads rows of the whole prompt"):
        registry.build("msd", kit, {})

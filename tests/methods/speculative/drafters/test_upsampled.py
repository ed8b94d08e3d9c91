"""Rows of a small picture, lifted to drafts of a large one: what is drawn when, behind what, and the law."""

from dataclasses import replace

import pytest
import torch

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, DrawKind, ScoreRequest
from polydec.lab.testing.check_drafter import check_drafter
from polydec.lab.testing.enumerate import law_of, target_law, text_law_distance
from polydec.lab.testing.toy import toy_law
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.shapers.temperature import TemperatureRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.speculative.drafters.upsampled import UpsampledDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.exact import ExactVerifier
from polydec.models.learned.kinds import upsampler

PROMPT = (0, 1)
BUDGET = DraftBudget(64, 64)
TARGET = toy_law(1, eos=-1)
LIFTING = upsampler.examples(TARGET.vocab, 4, 4)[0]
"""Of pictures of four rows of two tokens, for small ones of two rows of one."""


def made_drafter(**fields):
    return UpsampledDrafter(toy_law(91, cost=0.1, eos=-1), LIFTING, **fields)


FORMS = [{}, {"drawn": False}, {"trained": False}]


@pytest.mark.parametrize("fields", FORMS, ids=str)
def test_contract(record_counts, fields):
    record_counts(check_drafter(made_drafter(**fields)))


@pytest.mark.parametrize("shapers", [(), (TemperatureRule(0.6),)], ids=["bare", "shaped"])
@pytest.mark.parametrize("fields", FORMS, ids=str)
def test_the_law_is_the_target_s(fields, shapers):
    target = ShapedTarget(TARGET, *shapers) if shapers else TARGET
    method = SpeculativeDecoder(target, made_drafter(**fields), ExactVerifier(), FixedPolicy(2))
    # Five tokens reach into the second block; where blocks are drawn, or laws bent, draws fall in too many ways.
    for length in (3, 5) if fields and not shapers else (3,):
        request = Request(PROMPT, length)
        drafted = law_of(lambda rng, r=request: answer_one(method, r, rng))
        assert text_law_distance(drafted, target_law(target, PROMPT, length)) < 1e-9


def guess_of(fields=(), target=TARGET):
    session = target.open_session(PROMPT)
    return made_drafter(**dict(fields)).open_guess(PROMPT, session), session


def proposal(guess, root=1, seed=0, position=2, budget=BUDGET):
    rng = Rng.of_choice(seed)
    return run_coroutines([guess.propose_draft(root, position, budget, rng)])[0]


def test_a_draft_is_the_block_under_the_next_row():
    guess, _ = guess_of()
    first = proposal(guess)
    assert len(first) == 1 + 4 and first.parent == (-1, 0, 1, 2, 3)
    assert all(d is DrawKind.INDEPENDENT for d in first.draw[1:])
    logits = LIFTING.forward([(guess.row,)])[0]
    for place, law_V in enumerate(first.law[1:]):
        assert torch.allclose(law_V.exp(), logits[place].softmax(-1).to(law_V.dtype))
    likeliest, _ = guess_of({"drawn": False})
    likeliest.row = guess.row
    assert proposal(likeliest).token[1:] == tuple(logits.argmax(-1).tolist())
    pixels, _ = guess_of({"trained": False})
    pixels.row = guess.row
    assert proposal(pixels).token[1:] == LIFTING.lift_pixels((guess.row,))


def refuse(guess, draft, count, bonus):
    guess.learn_round(draft, None, Verdict(tuple(range(1, count + 1)), bonus))


def test_behind_a_refused_token_the_same_row_drafts_the_rest_of_its_block():
    guess, _ = guess_of()
    first = proposal(guess)
    row = guess.row
    refuse(guess, first, 1, 2)
    second = proposal(guess, 2, position=4)
    assert guess.row == row and len(second) == 1 + 2
    logits = LIFTING.forward([(row,)])[0]
    assert torch.allclose(second.law[1].exp(), logits[2].softmax(-1).to(second.law[1].dtype))
    # They are drawn anew, in a stream of their own.
    others = {proposal(guess, 2, seed, 4).token for seed in range(20)}
    assert len(others) > 1


def test_the_draft_model_goes_on_behind_what_was_written():
    """Not behind its own row: the rows above are what the text was averaged down to."""
    guess, _ = guess_of()
    first = proposal(guess)
    # A whole block that the row did not draft.
    token = next(x for x in range(3) if (x,) != guess.row)
    refuse(guess, replace(first, token=(1, token, token, token, token)), 3, token)
    assert guess.above == ((token,),) and guess.row is None and guess.root == token
    draft_law = toy_law(91, cost=0.1, eos=-1)
    fresh = draft_law.open_session((*PROMPT, token))
    want, have = (
        run_coroutines([s.score_draft(Draft.chain_draft(token), ScoreRequest())])[0]
        for s in (fresh, guess.session)
    )
    assert torch.allclose(want.logprob_row(0), have.logprob_row(0))


def test_a_row_is_drawn_from_the_draft_models_law():
    draft_law = toy_law(91, cost=0.1, eos=-1)
    session = draft_law.open_session(PROMPT)
    scores = run_coroutines([session.score_draft(Draft.chain_draft(1), ScoreRequest())])[0]
    want = scores.logprob_row(0).exp()
    seen = torch.zeros(3)
    for seed in range(300):
        guess, _ = guess_of()
        proposal(guess, seed=seed)
        seen[guess.row[0]] += 1
    assert (seen / 300 - want).abs().max() < 0.11


def test_behind_a_picture_nothing_is_drafted():
    guess, _ = guess_of()
    for position in (2, 6):
        refuse(guess, proposal(guess, position=position), 3, 1)
    assert len(guess.written) == 8
    assert proposal(guess, position=10).token == (1,)
    refuse(guess, Draft.chain_draft(1), 0, 2)
    assert proposal(guess, position=11).token == (1,)


def test_a_budget_cuts_the_draft():
    assert len(proposal(guess_of()[0], budget=DraftBudget(3, 64))) == 4
    assert len(proposal(guess_of()[0], budget=DraftBudget(64, 2))) == 3
    assert len(proposal(guess_of()[0], budget=DraftBudget(0, 0))) == 1


def test_drafts_follow_the_rules_of_sampling():
    greedy, _ = guess_of(target=ShapedTarget(TARGET, GreedyRule()))
    draft = proposal(greedy)
    logits = LIFTING.forward([(greedy.row,)])[0]
    assert draft.token[1:] == tuple(logits.argmax(-1).tolist()) and set(draft.law) == {None}
    sharp, _ = guess_of(target=ShapedTarget(TARGET, TemperatureRule(0.5)))
    draft = proposal(sharp)
    logits = LIFTING.forward([(sharp.row,)])[0]
    want = (logits[0] / 0.5).softmax(-1)
    assert torch.allclose(draft.law[1].exp(), want.to(draft.law[1].dtype), atol=1e-6)


def test_a_fork_goes_on_alone():
    guess, session = guess_of()
    first = proposal(guess)
    twin = guess.fork_guess(session.fork())
    refuse(twin, first, 3, 0)
    assert guess.written == [] and guess.above == () and guess.row is not None
    assert len(twin.written) == 4 and twin.row is None
    refuse(guess, first, 3, 0)
    assert proposal(guess, 0, position=6).token == proposal(twin, 0, position=6).token

"""Speculative Jacobi: its law, the rows that its tokens are tested against, and how many tokens a pass gives."""

from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
import torch

from polydec.core.decoder import answer_one
from polydec.core.law import float64_probabilities
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, DrawKind, ScoreRequest
from polydec.lab.testing.check_drafter import check_drafter
from polydec.lab.testing.enumerate import law_of, target_law, text_law_distance
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy import toy_law
from polydec.laws.contrasts.difference import DifferenceContrast
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.shapers.row_ends import RowEndRule
from polydec.laws.shapers.temperature import TemperatureRule
from polydec.laws.targets.contrast import ContrastTarget
from polydec.laws.targets.other_prompt import SecondPromptTarget
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.registry.kit import Kit
from polydec.methods.speculative.drafters.speculative_jacobi import (
    SpeculativeJacobiDrafter,
    SpeculativeJacobiGuess,
)
from polydec.methods.speculative.loop.protocols import DraftGuess
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.recipes import speculative_jacobi
from polydec.methods.speculative.verifiers.exact import ExactVerifier

PROMPT = (0, 1)
BUDGET = DraftBudget(64, 1024)


def distance(target, drafter, window, length=4):
    """How far the law of drafted texts lies from the target's, all draws enumerated."""
    method = SpeculativeDecoder(target, drafter, ExactVerifier(), FixedPolicy(window))
    request = Request(PROMPT, length)
    drafted = law_of(lambda rng: answer_one(method, request, rng))
    return text_law_distance(drafted, target_law(target, PROMPT, length))


def guided_law(scale=2.0):
    """A law with classifier-free guidance: the prompt's law against that of another prompt."""
    inner = toy_law(3, 2, eos=-1)
    second = SecondPromptTarget(inner, PROMPT, (1, 0))
    return ContrastTarget(inner, (second,), DifferenceContrast(scale, scale - 1.0, 0.0))


@pytest.mark.parametrize(
    "drafter",
    [
        SpeculativeJacobiDrafter(1),
        SpeculativeJacobiDrafter(3),
        SpeculativeJacobiDrafter(2, 2),
        SpeculativeJacobiDrafter(2, 0),
        SpeculativeJacobiDrafter(3, 1, True),
    ],
    ids=str,
)
def test_contract(record_counts, drafter):
    record_counts(check_drafter(drafter))


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("window", "back"), [(1, 1), (2, 1), (2, 2), (2, 0), (3, 1)])
def test_the_law_is_the_target_s(seed, window, back):
    target = toy_law(seed, 2, eos=-1)
    assert distance(target, SpeculativeJacobiDrafter(window, back), window) < 1e-9


def test_the_law_under_guidance_is_the_guided_one():
    assert distance(guided_law(), SpeculativeJacobiDrafter(2), 2) < 1e-9


@pytest.mark.parametrize(("window", "back"), [(2, 1), (3, 1), (3, 2)])
def test_the_law_is_the_target_s_where_new_places_draw_from_their_neighbour_s_row(window, back):
    drafter = SpeculativeJacobiDrafter(window, back, drawn=True)
    assert distance(toy_law(1, 2, eos=-1), drafter, window) < 1e-9


def test_a_new_place_draws_from_the_row_of_its_neighbour():
    row = torch.tensor([0.2, 0.3, 0.5]).log().double()
    for drawn, back in ((True, 1), (True, 2), (False, 1)):
        drafter = SpeculativeJacobiDrafter(4, back, drawn)
        guess = SpeculativeJacobiGuess(drafter, [0, 1], [row, 2], None)
        draft = run_coroutines([guess.propose_draft(1, 2, BUDGET, Rng.of_choice(3))])[0]
        laws = [law is not None for law in draft.law]
        # Places with a row, with one token, and two that no pass has seen.
        assert laws == [False, True, False, drawn and back == 2, False]
        if drawn and back == 2:
            assert draft.law[3] is row
        else:
            assert draft.token[3] == 2


def test_tokens_are_drawn_ahead_in_pictures_of_a_text_alone():
    drafter = SpeculativeJacobiDrafter(3, begin=7, end=8)
    for text, wanted in (
        ([1, 2], 0),
        ([1, 7], 3),
        ([1, 7, 2, 2], 3),
        ([7, 2, 8], 0),
        ([7, 2, 8, 1, 7, 2], 3),
    ):
        guess = drafter.open_guess(text, None)
        draft = run_coroutines([guess.propose_draft(text[-1], len(text), BUDGET, Rng.of_choice(3))])
        assert len(draft[0]) == 1 + wanted, text
    # Without an end a picture reaches to that of the answer.
    assert SpeculativeJacobiDrafter(begin=7).is_in_picture([7, 2, 8])
    inside = SpeculativeJacobiDrafter(2, begin=0, end=1)
    assert distance(toy_law(1, 2, eos=-1), inside, 2) < 1e-9


@dataclass(frozen=True)
class FaultyDrafter:
    """Speculative Jacobi with a known fault; spoil: changes a guess's draft."""

    spoil: object

    def open_guess(self, prompt, session):
        inner = SpeculativeJacobiDrafter(2)
        return FaultyGuess(self.spoil, inner.open_guess(prompt, session))


@dataclass
class FaultyGuess(DraftGuess):
    spoil: object
    inner: SpeculativeJacobiGuess
    before: tuple[Draft, Verdict] | None = None

    @property
    def want(self):
        return self.inner.want

    async def propose_draft(self, root, position, budget, rng):
        right = await self.inner.propose_draft(root, position, budget, rng)
        self.shown = self.spoil(right, self.before)
        return self.shown

    def learn_round(self, draft, scores, verdict):
        self.inner.learn_round(draft, scores, verdict)
        self.before = draft, verdict

    def fork_guess(self, session, choice=None):
        return FaultyGuess(self.spoil, self.inner.fork_guess(session), self.before)

    def close(self):
        pass


def keep_stale_tokens(right, before):
    """Tokens of the pass before, tested against rows of the last one."""
    if before is None:
        return right
    draft, verdict = before
    stale = draft.token[len(verdict.path) + 2 :]
    count = min(len(stale), len(right) - 1)
    token = (right.token[0], *stale[:count], *right.token[1 + count :])
    return Draft(token, right.parent, right.draw, right.law)


def keep_refused_token(right, before):
    """The token that was refused stands once more, with the row that it was drawn from."""
    if before is None:
        return right
    draft, verdict = before
    refused = len(verdict.path) + 1
    if refused >= len(draft) or draft.law[refused] is None or len(right) < 2:
        return right
    return Draft(
        (right.token[0], draft.token[refused], *right.token[2:]),
        right.parent,
        (DrawKind.CERTAIN, DrawKind.INDEPENDENT, *right.draw[2:]),
        (None, draft.law[refused], *right.law[2:]),
    )


@pytest.mark.parametrize("spoil", [keep_stale_tokens, keep_refused_token], ids=lambda f: f.__name__)
def test_the_enumeration_sees_the_known_faults(spoil):
    assert distance(toy_law(1, 2, eos=-1), FaultyDrafter(spoil), 2) > 1e-3


async def rounds(target, drafter, count, seed=0):
    """(draft, scores, verdict, guess) of some rounds."""
    session, root, out = target.open_session(PROMPT), PROMPT[-1], []
    guess = drafter.open_guess(PROMPT, session)
    position = len(PROMPT)
    for n in range(count):
        draft = await guess.propose_draft(
            root, position, BUDGET, Rng.of_choice(seed).child_stream("round", n)
        )
        scores = await session.score_draft(draft, ScoreRequest())
        verdict = ExactVerifier().verify_draft(
            draft, scores, Rng.of_choice(seed).child_stream("test", n), position
        )
        session.commit_tokens(verdict.committed_tokens(draft))
        guess.learn_round(draft, scores, verdict)
        out.append((draft, scores, verdict, list(guess.laws)))
        root = verdict.bonus
        position += len(verdict.path) + 1
    return out


@pytest.mark.parametrize(
    "target",
    [
        toy_law(5, 4, eos=-1),
        guided_law(),
        ShapedTarget(toy_law(5, 4, eos=-1), TemperatureRule(0.5)),
    ],
    ids=["bare", "guided", "shaped"],
)
def test_open_places_keep_the_rows_of_the_last_pass(target):
    """With guidance or rules of sampling these are rows of the bent law, as the next pass tests against them."""
    seen = run_coroutines([rounds(target, SpeculativeJacobiDrafter(4), 6)])[0]
    kept = 0
    for (draft, scores, verdict, laws), (after, *_) in pairwise(seen):
        open_nodes = range(len(verdict.path) + 1, len(draft))
        assert len(laws) == len(open_nodes)
        for place, node in enumerate(open_nodes):
            assert torch.equal(laws[place], scores.logprob_row(node))
            assert after.law[place + 1] is laws[place]
            assert after.draw[place + 1] is DrawKind.INDEPENDENT
            kept += 1
    assert kept > 0


def test_a_token_is_accepted_as_often_as_its_laws_overlap():
    """The first place of a window: the mean of sum min(p, q) over many seeds."""
    target, hits, overlap, tried = toy_law(7, 4, eos=-1), 0, 0.0, 0
    for seed in range(150):
        seen = run_coroutines([rounds(target, SpeculativeJacobiDrafter(3), 3, seed)])[0]
        for draft, scores, verdict, _ in seen:
            if draft.law[1] is not None:
                p_V = float64_probabilities(scores.logprob_row(0))
                q_V = float64_probabilities(draft.law[1])
                overlap += float(torch.minimum(p_V, q_V).sum())
                hits += len(verdict.path) >= 1
                tried += 1
    assert tried > 150
    # Four standard deviations of so many draws.
    assert abs(hits - overlap) < 4 * (tried / 4) ** 0.5


@pytest.mark.parametrize(("back", "first"), [(1, (1, 1, 1)), (2, (0, 1, 0)), (5, (0, 0, 0))])
def test_places_that_no_pass_has_seen_copy(back, first):
    drafter = SpeculativeJacobiDrafter(3, back)
    guess = drafter.open_guess(PROMPT, toy_law(1).open_session(PROMPT))
    draft = run_coroutines([guess.propose_draft(1, 2, BUDGET, Rng.of_choice(0))])[0]
    assert draft.token == (1, *first) and draft.law == (None,) * 4


def test_uniform_places_are_drawn_of_what_may_be_written():
    target = ShapedTarget(toy_law(2, 6, eos=-1), TemperatureRule(0.7))
    seen = run_coroutines([rounds(target, SpeculativeJacobiDrafter(3, 0), 4)])[0]
    evens = [law for draft, *_ in seen for law in draft.law[1:] if law is not None]
    assert any(torch.allclose(law.exp(), torch.full((6,), 1 / 6, dtype=law.dtype)) for law in evens)


def passes_of(target, name, tokens=60, **options):
    decoder = build(name, target, None, options)[0]
    request = Request((0, 1, 2), max_tokens=tokens, ignore_eos=True)
    made = run_coroutines([answer_one(decoder, request)])[0]
    return made.token_ids, made.stats.passes


def cycle(size, sharp):
    """After x mostly comes x + 1, around: each token is known by the one before it alone."""
    target = toy_law(1, size, eos=-1)
    target.network.weight[:, :size] = sharp * torch.eye(size, dtype=torch.float64).roll(1, 1)
    return target


def test_greedy_texts_are_plain_ones_and_take_no_more_passes_than_tokens():
    for seed in range(4):
        target = ShapedTarget(toy_law(seed, 5, eos=-1), GreedyRule())
        text, passes = passes_of(target, "speculative-jacobi", window=4)
        assert text == passes_of(target, "plain")[0] and passes <= 60


def test_a_certain_row_is_drafted_without_a_draw():
    target = ShapedTarget(cycle(5, 10.0), GreedyRule())
    seen = run_coroutines([rounds(target, SpeculativeJacobiDrafter(4), 4)])[0]
    assert all(law is None for draft, *_ in seen for law in draft.law)


def test_texts_whose_tokens_hardly_depend_take_few_passes():
    """A law without memory: every row that a pass gave is the right one, and only places that none has seen are refused."""
    target = toy_law(1, 6, eos=-1)
    target.network.weight[:] = 0
    _, passes = passes_of(target, "speculative-jacobi", tokens=64, window=7)
    assert passes <= 64 // 3
    assert passes_of(target, "plain", tokens=64)[1] == 64


ROWS = RowEndRule(2, 0)
"""Rows of two tokens, and the mark 0."""


def in_rows(seed=1, size=3):
    return ShapedTarget(toy_law(seed, size, eos=-1), ROWS)


@pytest.mark.parametrize(("window", "back"), [(1, 1), (2, 1), (3, 0)])
def test_the_law_of_a_picture_in_rows_is_the_target_s(window, back):
    drafter = SpeculativeJacobiDrafter(window, back, rows=ROWS)
    method = SpeculativeDecoder(in_rows(), drafter, ExactVerifier(), FixedPolicy(window))
    drafted = law_of(lambda rng: answer_one(method, Request(PROMPT, 5), rng))
    law = target_law(toy_law(1, 3, eos=-1), PROMPT, 5, (ROWS,))
    assert text_law_distance(drafted, law) < 1e-9
    for text, p in law.items():
        assert not p or [x == 0 for x in text] == [at % 3 == 2 for at in range(5)]


def test_the_end_of_a_row_takes_no_pass():
    # The recipe takes the layout that the kit has.
    kit = Kit(in_rows(size=4), rows=ROWS)
    for window, tokens in ((1, 30), (7, 60)):
        request = Request(PROMPT, max_tokens=tokens, ignore_eos=True)
        decoder = speculative_jacobi.build(kit, window=window)
        made = run_coroutines([answer_one(decoder, request)])[0]
        marks = [x == 0 for x in made.token_ids]
        assert marks == [at % 3 == 2 for at in range(tokens)]
        # A window that holds a mark gives it, whatever becomes of the places behind it.
        assert made.stats.passes <= tokens - sum(marks)
    _, passes = passes_of(in_rows(size=4), "plain", tokens=30)
    assert passes == 30


def test_no_new_place_copies_the_end_of_a_row():
    drafter = SpeculativeJacobiDrafter(5, rows=ROWS)
    guess = drafter.open_guess((5, 7), None)
    draft = run_coroutines([guess.propose_draft(7, 2, BUDGET, Rng.of_choice(0))])[0]
    assert draft.token == (7, 7, 7, 0, 7, 7)
    # Where a row has begun, its mark comes sooner.
    guess.text.append(6)
    draft = run_coroutines([guess.propose_draft(6, 3, BUDGET, Rng.of_choice(0))])[0]
    assert draft.token == (6, 6, 0, 6, 6, 0) and draft.law == (None,) * 6


def test_what_may_be_written_is_not_read_off_a_full_row():
    seen = run_coroutines([rounds(in_rows(size=4), SpeculativeJacobiDrafter(2, 0, rows=ROWS), 8)])
    evens = [law for draft, *_ in seen[0] for law in draft.law[1:] if law is not None]
    even = torch.tensor([0.0, 1 / 3, 1 / 3, 1 / 3], dtype=torch.float64)
    assert any(torch.allclose(law.exp().double(), even) for law in evens)
    assert all(float(law[0]) == float("-inf") for law in evens)


@pytest.mark.parametrize(
    ("fields", "says"),
    [({"window": 0}, "window is 0"), ({"window": 65}, "window"), ({"back": -1}, "back is -1")],
)
def test_values_out_of_range_are_refused(fields, says):
    with pytest.raises(ValueError, match=says):
        SpeculativeJacobiDrafter(**fields)


def test_a_fork_goes_on_alone():
    target = toy_law(4, 4, eos=-1)
    session = target.open_session(PROMPT)
    guess = SpeculativeJacobiDrafter(3).open_guess(PROMPT, session)
    twin = guess.fork_guess(session)
    twin.text.append(3)
    twin.laws.append(1)
    assert guess.text == list(PROMPT) and not guess.laws
    assert replace(guess.config) == twin.config

"""Jacobi and Lookahead: what a window cell sees, what the pool holds, and how many tokens a pass gives where all is easy."""

from dataclasses import replace

import pytest
import torch

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.testing.check_drafter import check_drafter
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy import toy_law
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.shapers.repetition import RepetitionPenaltyRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.speculative.drafters.jacobi import JacobiDrafter, spread_prompt_tokens
from polydec.methods.speculative.drafters.lookahead import LookaheadDrafter, LookaheadGuess
from polydec.methods.speculative.loop.types import DraftBudget, follow_draft_path

BUDGET = DraftBudget(64, 1024)


def cycle(size):
    """A greedy law that counts: after x comes x + 1, around."""
    target = toy_law(1, size, eos=-1)
    target.network.weight[:, :size] = 10 * torch.eye(size, dtype=torch.float64).roll(1, 1)
    return ShapedTarget(target, GreedyRule())


def decode(target, name, tokens=120, **options):
    decoder = build(name, target, None, options)[0]
    return run_coroutines(
        [answer_one(decoder, Request((0, 1, 2), max_tokens=tokens, ignore_eos=True))]
    )[0]


async def rounds(target, drafter, prompt, count):
    """(levels before the pass, draft, scores, guess) of some greedy passes."""
    session, root, out = target.open_session(prompt), prompt[-1], []
    guess = drafter.open_guess(prompt, session)
    for n in range(count):
        levels = [list(level) for level in guess.levels]
        draft = await guess.propose_draft(root, len(prompt) + n, BUDGET, Rng.of_choice(n))
        scores = await session.score_draft(draft, ScoreRequest())
        verdict = follow_draft_path(draft, lambda node, depth, s=scores: s.likeliest_token(node))
        session.commit_tokens((root, *[draft.token[i] for i in verdict.path]))
        guess.learn_round(draft, scores, verdict)
        out.append((levels, draft, scores, guess))
        root = verdict.bonus
    return out


@pytest.mark.parametrize(
    "drafter",
    [
        LookaheadDrafter(2, 3, 2),
        LookaheadDrafter(1, 2, 1),
        LookaheadDrafter(3, 2, 1),
        LookaheadDrafter(1, 4, 2, 2),
        JacobiDrafter(1),
        JacobiDrafter(3),
    ],
    ids=str,
)
def test_contract(record_counts, drafter):
    record_counts(check_drafter(drafter))


@pytest.mark.parametrize("window, ngram", [(4, 4), (3, 3), (1, 5), (5, 2)])
def test_a_cell_sees_what_the_paper_lets_it_see(window, ngram):
    """Level l, column j: level 0 up to column j and its own diagonal, at position root + j + l; and the row there is that
    of a sequence of these tokens."""
    target, prompt = ShapedTarget(toy_law(4, 9, eos=-1), GreedyRule()), (3, 1, 4, 1, 5, 8, 2)
    for n, (levels, draft, _, _) in enumerate(
        run_coroutines([rounds(target, LookaheadDrafter(window, ngram, 3), prompt, 12)])[0]
    ):
        at = {tuple(draft.token[j] for j in draft.path_to(i)): i for i in range(len(draft))}
        chain = levels[0]
        assert len(levels) == min(n, ngram - 2) + 1 and len(chain) == max(
            window + ngram - 3 - n, window - 1
        )
        for level in range(len(levels)):
            for j in range(len(chain) + 1):
                if level == 0 and j == 0:
                    continue
                sees = (*chain[:j], *[levels[k][j] for k in range(1, level + 1)])
                assert draft.depth[at[sees]] == j + level
        assert len(draft) - 1 <= LookaheadDrafter(window, ngram, 3).nodes
    text = list(prompt[:-1])
    for _, draft, scores, _ in run_coroutines(
        [rounds(target, LookaheadDrafter(window, ngram, 3), prompt, 12)]
    )[0]:
        for i in range(len(draft)):
            path = [draft.token[j] for j in (0, *draft.path_to(i))]

            async def alone(path=path, text=tuple(text)):
                session = target.open_session((*text, path[0]))
                return (
                    await session.score_draft(Draft.chain_draft(path[0], path[1:]), ScoreRequest())
                ).base.logprob_row(len(path) - 1)

            assert torch.equal(scores.base.logprob_row(i), run_coroutines([alone()])[0])
        verdict = follow_draft_path(draft, lambda node, depth, s=scores: s.likeliest_token(node))
        text += [draft.token[i] for i in (0, *verdict.path)]


def test_without_guesses_it_is_plain():
    target = ShapedTarget(toy_law(5, 7), GreedyRule())
    plain = decode(target, "plain", 60)
    got = decode(target, "lookahead", 60, window=1, ngram=4, guesses=0)
    assert (
        got.token_ids == plain.token_ids
        and got.stats.passes == plain.stats.passes
        and not got.stats.drafted
    )
    assert not got.stats.tried_at, "cells are not drafts"


@pytest.mark.parametrize("ngram", [2, 3, 5])
def test_on_periodic_text_a_pass_gives_whole_ngrams(ngram):
    got = decode(cycle(5), "lookahead", 300, window=7, ngram=ngram, guesses=3)
    assert got.token_ids == tuple(i % 5 for i in range(3, 303))
    assert ngram - 0.6 < len(got.token_ids) / got.stats.passes <= ngram


class OffByOne(LookaheadGuess):
    """Keeps each n-gram under the first token of the column to its right."""

    def _keep(self, head, found):
        super()._keep(found[0], found)


class Unshifted(LookaheadGuess):
    """The window does not move on with the text."""

    def learn_round(self, draft, scores, verdict):
        old = self.levels[0]
        super().learn_round(draft, scores, verdict)
        self.levels[0] = old[-len(self.levels[0]) :]


@pytest.mark.parametrize("fault", [OffByOne, Unshifted])
def test_a_pool_of_wrong_ngrams_shows(fault, monkeypatch):
    monkeypatch.setattr("polydec.methods.speculative.drafters.lookahead.LookaheadGuess", fault)
    with pytest.raises(AssertionError):
        test_on_periodic_text_a_pass_gives_whole_ngrams(5)


def test_the_pool_keeps_the_newest():
    guess = LookaheadDrafter(2, 3, 2, pool=4).open_guess((0, 1), None)
    for head, found in ((1, (2, 3)), (1, (4, 5)), (1, (2, 3)), (2, (0, 0)), (1, (6, 7))):
        guess._keep(head, found)
    assert guess.pool == {2: [(0, 0)], 1: [(2, 3), (6, 7)]}
    guess._keep(3, (1, 1))
    assert guess.pool == {1: [(2, 3), (6, 7)], 3: [(1, 1)]}, "2 was used longest ago"


def test_near_the_end_and_under_small_budgets_the_window_stays_out():
    guess = LookaheadDrafter(3, 3, 2).open_guess((0, 1, 2), None)
    guess._keep(2, (5, 6))
    for budget in (DraftBudget(2, 64), DraftBudget(8, 2)):
        draft = run_coroutines([guess.propose_draft(2, 3, budget, Rng.of_choice(0))])[0]
        assert draft.token == (2, 5, 6) and not any(draft.probe or ())


def test_an_end_inside_the_window_does_not_cut_it():
    """A window over a text of EOS ids alone is fed whole; a candidate below one is cut."""
    draft = Draft.certain_tree((0, 2, 2, 2, 2), (-1, 0, 1, 0, 3))
    draft = replace(draft, probe=(False, True, True, False, False))
    assert draft.cut_draft(8, frozenset({2})).token == (0, 2, 2, 2) and draft.cut_draft(
        1, frozenset({2})
    ).token == (0, 2, 2)


@pytest.mark.parametrize("block", [1, 2, 5])
def test_jacobi_settles_a_block_in_as_many_passes_at_most(block):
    for seed in range(6):
        target = ShapedTarget(toy_law(seed, 6, sharp=2.0), RepetitionPenaltyRule(1.2), GreedyRule())
        got, plain = (
            decode(target, name, 60, **o)
            for name, o in (("jacobi", {"block": block}), ("plain", {}))
        )
        assert got.token_ids == plain.token_ids and got.stats.passes <= len(got.token_ids)


def test_jacobi_where_tokens_do_not_depend_on_each_other():
    """One pass finds the fixed point, the next one gives the whole block and a token more."""
    target = toy_law(1, 4, eos=-1)
    target.network.weight[:] = torch.tensor([0.0, 9.0, 0.0, 0.0], dtype=torch.float64)
    got = decode(ShapedTarget(target, GreedyRule()), "jacobi", 101, block=4)
    assert got.token_ids == (1,) * 101 and got.stats.passes <= 34


def test_jacobi_reads_the_shaped_law():
    """Under a penalty the guesses are those of the penalised text."""

    async def learnt():
        session, guess = (
            target.open_session((0, 1, 2)),
            JacobiDrafter(3).open_guess((0, 1, 2), None),
        )
        draft = await guess.propose_draft(2, 3, BUDGET, Rng.of_choice(0))
        scores = await session.score_draft(draft, ScoreRequest())
        verdict = follow_draft_path(draft, lambda node, depth: scores.likeliest_token(node))
        guess.learn_round(draft, scores, verdict)
        done = len(verdict.path)
        return guess.guess[: 3 - done], *(
            [s.likeliest_token(i) for i in range(done + 1, 4)] for s in (scores, scores.base)
        )

    differ = 0
    for seed in range(8):
        target = ShapedTarget(toy_law(seed, 6, sharp=0.3), RepetitionPenaltyRule(3.0), GreedyRule())
        guess, shaped, base = run_coroutines([learnt()])[0]
        assert guess == shaped
        differ += shaped != base
    assert differ


def test_spread():
    assert (
        spread_prompt_tokens((7,), 3) == (7, 7, 7)
        and spread_prompt_tokens(range(10), 2) == (2, 7)
        and spread_prompt_tokens((1, 2), 0) == ()
    )


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: JacobiDrafter(0), "block is 0: it must lie in 1 to 64"),
        (lambda: LookaheadDrafter(0), "window is 0: it must lie in 1 to 32"),
        (lambda: LookaheadDrafter(ngram=1), "ngram is 1: it must lie in 2 to 16"),
        (lambda: LookaheadDrafter(guesses=65), "guesses is 65: it must lie in 0 to 64"),
        (
            lambda: LookaheadDrafter(guesses=5, pool=4),
            "pool is 4: it must be at least guesses, which is 5",
        ),
    ],
)
def test_options(make, message):
    with pytest.raises(ValueError, match=message):
        make()

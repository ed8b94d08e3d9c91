"""A beam of steps against one that is written from its description: fresh sessions, no forks, no cache."""

from dataclasses import dataclass

import pytest

import rollouts_reference
from polydec.core.decoder import answer_one, run_decoder
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.lab.testing.enumerate import law_of, target_law, text_law_distance
from polydec.lab.testing.toy import toy_law
from polydec.methods.search.loop.best_of import BestOfPicker
from polydec.methods.search.loop.rollouts import RolloutSearch
from polydec.methods.search.loop.step_beam import StepBeamSearch
from rewards import ByToken
from rollouts_reference import PROMPT, plain


def search(target, **options):
    return StepBeamSearch(plain(target), options.pop("reward", ByToken()), delimiter="|", **options)


def test_it_is_the_beam_of_its_description():
    texts = set()
    for seed in range(30):
        target, reward = toy_law(seed, 4, sharp=0.7), ByToken(seed)
        options = {"keep": 1 + seed % 3, "width": 1 + seed // 3 % 3, "longest": 1 + seed % 2}
        got = run_coroutines(
            [run_decoder(search(target, reward=reward, **options), Request(PROMPT, 7, seed=seed))]
        )[0][0]
        want = rollouts_reference.step_beam(target, reward, 7, **options, rng=Rng.of_choice(seed))
        assert got.token_ids == want, f"seed {seed}: {got.token_ids}, by the description {want}"
        texts.add(want)
    assert len(texts) > 10


def test_one_step_of_one_beginning_has_the_law_of_the_target():
    for seed in range(4):
        target = toy_law(seed, 3)
        law = law_of(
            lambda rng, t=target: answer_one(
                search(t, keep=1, width=1, longest=1), Request(PROMPT, 3), rng
            )
        )
        assert text_law_distance(law, target_law(target, PROMPT, 3)) < 1e-9


def test_steps_that_are_whole_texts_have_the_law_of_best_of_n():
    for seed in range(3):
        target, length = toy_law(seed, 3), 2
        request = Request(PROMPT, length, ignore_eos=False)
        law = law_of(
            lambda rng, t=target, r=request: answer_one(
                search(t, keep=1, width=2, longest=9), r, rng
            )
        )
        best = law_of(
            lambda rng, t=target, r=request: answer_one(
                RolloutSearch(plain(t), BestOfPicker(), 2, 2, ByToken()), r, rng
            )
        )
        ended = [
            x for x in law if x[-1] in target.vocab.eos
        ]  # best of n values cut texts too, where none has ended
        assert ended and all(abs(law[x] - best[x]) < 1e-9 for x in ended)


@dataclass(frozen=True)
class Knows:
    """An oracle: only token 1 is right."""

    def success_chance(self, hidden_H):
        return float(hidden_H[0] == 1)


def test_an_oracle_leads_straight_to_the_goal():
    target = toy_law(3, 4, sharp=0.1, eos=-1)
    result = run_coroutines(
        [
            run_decoder(
                search(target, reward=Knows(), keep=1, width=16, longest=1), Request(PROMPT, 6)
            )
        ]
    )[0][0]
    assert result.token_ids[:5] == (1,) * 5 and result.stats.written == 16 * 6


def test_what_it_refuses():
    for options, said in (
        ({"keep": 0}, "keep is 0: it must lie in 1 to 64"),
        ({"width": 65}, "width is 65: it must lie in 1 to 64"),
        ({"longest": 0}, "longest is 0: it must be at least 1"),
    ):
        with pytest.raises(ValueError, match=said):
            search(toy_law(1), **options)

"""A beam of steps against one that is written from its description: fresh sessions, no forks, no cache."""
from dataclasses import dataclass

import pytest

from polydec.core.decoder import answer_one, answers
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run
from polydec.core.types import Draft, Want
from polydec.drafters.nothing import Nothing
from polydec.families.ar.speculative import Speculative
from polydec.families.search.best_of import BestOf
from polydec.families.search.rollouts import Rollouts
from polydec.families.search.step_beam import StepBeam
from polydec.policies.fixed import Fixed
from polydec.testing.enumerate import distance, law_of, target_law
from polydec.testing.toy import toy
from polydec.verifiers.match import Match
from rewards import ByToken

PROMPT = (0, 1, 0)


def plain(target):
    return Speculative(target, Nothing(), Match(), Fixed(0))


def search(target, **options):
    return StepBeam(plain(target), options.pop("reward", ByToken()), delimiter="|", **options)


def row(target, text):
    async def scores():
        return (await target.open(text).score(Draft.chain(text[-1]), Want(hidden=True)))

    return run([scores()])[0]


def reference(target, reward, length, keep, width, longest, rng):
    """Beginnings as (value, text, stream, over)."""
    def extend(text, stream):
        most = longest
        while len(text) < length and most and (not text or text[-1] not in target.vocab.eos):
            p_V = row(target, (*PROMPT, *text)).row(0).exp().double()
            text, most = (*text, stream.at("token", len(PROMPT) + len(text)).categorical(p_V)), most - 1
        return text

    def over(text):
        return len(text) == length or (text and text[-1] in target.vocab.eos)

    beam, count = [(1.0, (), rng)], keep * width
    while not all(over(text) for _, text, _ in beam):
        found = [b for b in beam if over(b[1])]
        for _, text, stream in [b for b in beam if not over(b[1])]:
            seen = []
            for i in range(count):
                mine = stream if i == 0 else stream.at("step", len(text), i)
                longer = extend(text, mine)
                if longer in seen:
                    continue
                seen.append(longer)
                cut = len(longer) == length and longer[-1] not in target.vocab.eos
                found.append((0.0 if cut else reward.chance(row(target, (*PROMPT, *longer)).hidden_NH[0]), longer, mine))
        beam, count = sorted(found, key=lambda b: -b[0])[:keep], width
    return beam[0][1]


def test_it_is_the_beam_of_its_description():
    texts = set()
    for seed in range(30):
        target, reward = toy(seed, 4, sharp=0.7), ByToken(seed)
        options = {"keep": 1 + seed % 3, "width": 1 + seed // 3 % 3, "longest": 1 + seed % 2}
        got = run([answers(search(target, reward=reward, **options), Request(PROMPT, 7, seed=seed))])[0][0]
        want = reference(target, reward, 7, **options, rng=Rng.of(seed))
        assert got.token_ids == want, f"seed {seed}: {got.token_ids}, by the description {want}"
        texts.add(want)
    assert len(texts) > 10


def test_one_step_of_one_beginning_has_the_law_of_the_target():
    for seed in range(4):
        target = toy(seed, 3)
        law = law_of(lambda rng, t=target: answer_one(search(t, keep=1, width=1, longest=1), Request(PROMPT, 3), rng))
        assert distance(law, target_law(target, PROMPT, 3)) < 1e-9


def test_steps_that_are_whole_texts_have_the_law_of_best_of_n():
    for seed in range(3):
        target, length = toy(seed, 3), 2
        request = Request(PROMPT, length, ignore_eos=False)
        law = law_of(lambda rng, t=target, r=request: answer_one(search(t, keep=1, width=2, longest=9), r, rng))
        best = law_of(lambda rng, t=target, r=request: answer_one(Rollouts(plain(t), BestOf(), 2, 2, ByToken()), r, rng))
        ended = [x for x in law if x[-1] in target.vocab.eos]      # best of n values cut texts too, where none has ended
        assert ended and all(abs(law[x] - best[x]) < 1e-9 for x in ended)


@dataclass(frozen=True)
class Knows:
    """An oracle: only token 1 is right."""
    def chance(self, hidden_H):
        return float(hidden_H[0] == 1)


def test_an_oracle_leads_straight_to_the_goal():
    target = toy(3, 4, sharp=0.1, eos=-1)
    result = run([answers(search(target, reward=Knows(), keep=1, width=16, longest=1), Request(PROMPT, 6))])[0][0]
    assert result.token_ids[:5] == (1,) * 5 and result.stats.written == 16 * 6


def test_what_it_refuses():
    for options, said in (({"keep": 0}, "keep is 0: it must lie in 1 to 64"),
                          ({"width": 65}, "width is 65: it must lie in 1 to 64"),
                          ({"longest": 0}, "longest is 0: it must be at least 1")):
        with pytest.raises(ValueError, match=said):
            search(toy(1), **options)

"""Judge decoding: which tokens are right, a probe that learns it, and what it lets through."""

import json
import random

import pytest
import torch

import micro
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run
from polydec.core.types import Draft, Want
from polydec.learned.kinds import judge
from polydec.learned.kinds.judge import Judge
from polydec.methods import registry
from polydec.methods.kit import Kit
from polydec.shapers.greedy import Greedy
from polydec.targets.shaped import Shaped
from polydec.testing.toy import toy
from polydec.train.judge import JudgeSpec, Lessons, auc, same, train_judge
from polydec.verifiers.judged import Judged
from polydec.verifiers.match import Match


def test_the_state_after_a_token_judges_it():
    """A probe that likes token 2 (a toy's state begins with the token) lets it stand, other tokens are the target's."""
    law = Shaped(toy(3, 6, eos=-1), Greedy())
    likes = Judge(
        torch.tensor([1.0, 0, -1.9 / 7, 0]), torch.zeros(()), law.vocab
    )  # token > 1.9, of 0 to 5 beside 7
    session = law.open((0, 1))
    draft = Draft.certain((1, 0, 2, 0, 2), (-1, 0, 0, 2, 3))
    scores = run([session.score(draft, Want(hidden=True))])[0]
    true = scores.argmax(0)
    assert true not in (0, 2) and scores.argmax(3) != 2
    judged = Judged(likes, 0.5).verify(draft, scores, Rng.of(0), 2)
    assert judged.path[0] == 2 and (4 in judged.path) == (3 in judged.path)
    for strict in (Judged(likes, 1.0), Judged(likes, 0.5, frozenset({2}))):
        assert strict.verify(draft, scores, Rng.of(0), 2) == Match().verify(
            draft, scores, Rng.of(0), 2
        )


def test_at_threshold_1_the_text_is_plain_and_below_it_more_is_accepted():
    law, small = (Shaped(toy(s, 6, eos=-1, cost=c), Greedy()) for s, c in ((3, 1.0), (4, 0.1)))
    kit = Kit(law, small, (Judge(torch.zeros(4), torch.ones(()), law.vocab),))
    said = {
        t: run(
            [
                answer_one(
                    registry.build("judge-decoding", kit, {"threshold": t})[0], Request((0, 1), 24)
                )
            ]
        )[0]
        for t in ("1", "0.5")
    }
    plain = run([answer_one(registry.build("plain", kit)[0], Request((0, 1), 24))])[0]
    assert (
        said["1"].token_ids == plain.token_ids and said["0.5"].stats.passes < said["1"].stats.passes
    )


def test_what_the_judge_kept_is_counted_apart():
    """As many as a walk over the text by the target alone finds: accepted tokens that it would not have written."""
    law, small = (Shaped(toy(s, 6, eos=-1, cost=c), Greedy()) for s, c in ((3, 1.0), (4, 0.1)))
    for bias in (-1.0, 1.0):  # a judge that likes nothing, and one that likes everything
        kit = Kit(law, small, (Judge(torch.zeros(4), torch.tensor(bias), law.vocab),))
        decoder = registry.build("judge-decoding", kit, {"depth": 4})[0]
        got = run([answer_one(decoder, Request((0, 1), 24))])[0]
        session = law.open((0, 1))
        scores = run([session.score(Draft.chain(1, got.token_ids[:-1]), Want())])[0]
        other = sum(scores.argmax(i) != x for i, x in enumerate(got.token_ids))
        said = got.stats.metrics()
        assert got.stats.judged == other == said.get("judged", 0) and (other > 0) == (bias > 0)
        if other:
            assert said["judged_share"] == other / got.stats.accepted


@pytest.mark.parametrize(
    "answer, other, alike",
    [
        ("so 3 and 4 is 7", "it is 7", True),
        ("it is 7", "it is 8", False),
        ("7", "none", False),
        ("-2.5", "x -2.5 m", True),
        ("a\nyes", "b\nyes\n", True),
        ("yes", "no", False),
        ("", "", True),
    ],
)
def test_a_result_is_the_last_number_or_line(answer, other, alike):
    assert same(answer, other) is alike


def test_auc_of_planted_errors():
    g = torch.Generator().manual_seed(0)
    right, state = torch.rand(400, generator=g) > 0.3, torch.randn(400, 4, generator=g)
    state[:, 0] += 4.0 * right
    one = Judge(torch.tensor([1.0, 0, 0, 0]), torch.zeros(()), None)
    assert auc(one, Lessons(state, right.float())) > 0.9
    assert (
        0.3 < auc(one, Lessons(state.roll(1, 0), right.float())) < 0.7
    )  # the state of the token before
    assert auc(one, Lessons(state, torch.ones(400))) == 0.5


def test_it_is_trained_saved_and_fits(tmp_path):
    target, small = micro.write(tmp_path / "a"), micro.write(tmp_path / "b", seed=1)
    rng = random.Random(0)
    (tmp_path / "out").mkdir()
    for name, count in (("text", 9), ("held", 3)):
        with open(tmp_path / "out" / f"{name}.jsonl", "w") as f:
            for _ in range(count):
                line = {
                    "prompt_ids": [5, rng.randrange(9, 60)],
                    "output_ids": rng.choices(range(9, 60), k=6),
                }
                f.write(json.dumps(line) + "\n")
    found = train_judge(
        JudgeSpec(str(tmp_path / "out"), str(target), str(small), steps=3, tries=2, max_tokens=10)
    )
    assert found["tokens"] == 2 * 2 * 7 and 0 <= found["held_out"]["auc"] <= 1
    assert judge.load(tmp_path / "out").weight_H.shape == (32,)
    with pytest.raises(ValueError, match="weight is 0"):
        JudgeSpec("x", weight=0.0)
    with pytest.raises(ValueError, match="states of width 32: this target's have 4"):
        registry.build(
            "judge-decoding", Kit(toy(1, 320), toy(2, 320), (judge.load(tmp_path / "out"),))
        )

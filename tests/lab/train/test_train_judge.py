"""Judge decoding: which tokens are right, a probe that learns it, and what it lets through."""

import json
import random

import pytest
import torch

import micro
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.testing.toy import toy_law
from polydec.lab.train import problems
from polydec.lab.train.probe import ProbeExamples, train_probe
from polydec.lab.train.probes import judge as training
from polydec.lab.train.probes.judge import (
    JudgeSpec,
    is_same_result,
    judge_pass_rates,
    label_checked_tokens,
    token_judge_auc,
)
from polydec.lab.train.probes.stop_head import teacher_forced_states
from polydec.lab.train.selfplay import TrainingSample
from polydec.lab.train.solutions import LabelledSolution, right_token_flags
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.registry import registry
from polydec.methods.registry.kit import Kit
from polydec.methods.speculative.verifiers.judged import JudgeVerifier
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.models.learned.kinds import judge
from polydec.models.learned.kinds.judge import JudgeProbe
from polydec.models.sessions import checkpoint


def test_the_state_after_a_token_judges_it():
    """A probe that likes token 2 (a toy's state begins with the token) lets it stand, other tokens are the target's."""
    law = ShapedTarget(toy_law(3, 6, eos=-1), GreedyRule())
    likes = JudgeProbe(
        torch.tensor([1.0, 0, -1.9 / 7, 0]), torch.zeros(()), law.vocab
    )  # token > 1.9, of 0 to 5 beside 7
    session = law.open_session((0, 1))
    draft = Draft.certain_tree((1, 0, 2, 0, 2), (-1, 0, 0, 2, 3))
    scores = run_coroutines([session.score_draft(draft, ScoreRequest(hidden=True))])[0]
    true = scores.likeliest_token(0)
    assert true not in (0, 2) and scores.likeliest_token(3) != 2
    judged = JudgeVerifier(likes, 0.5).verify_draft(draft, scores, Rng.of_choice(0), 2)
    assert judged.path[0] == 2 and (4 in judged.path) == (3 in judged.path)
    for strict in (JudgeVerifier(likes, 1.0), JudgeVerifier(likes, 0.5, frozenset({2}))):
        assert strict.verify_draft(
            draft, scores, Rng.of_choice(0), 2
        ) == MatchVerifier().verify_draft(draft, scores, Rng.of_choice(0), 2)


def test_at_threshold_1_the_text_is_plain_and_below_it_more_is_accepted():
    law, small = (
        ShapedTarget(toy_law(s, 6, eos=-1, cost=c), GreedyRule()) for s, c in ((3, 1.0), (4, 0.1))
    )
    kit = Kit(law, small, (JudgeProbe(torch.zeros(4), torch.ones(()), law.vocab),))
    said = {
        t: run_coroutines(
            [
                answer_one(
                    registry.build("judge-decoding", kit, {"threshold": t})[0], Request((0, 1), 24)
                )
            ]
        )[0]
        for t in ("1", "0.5")
    }
    plain = run_coroutines([answer_one(registry.build("plain", kit)[0], Request((0, 1), 24))])[0]
    assert (
        said["1"].token_ids == plain.token_ids and said["0.5"].stats.passes < said["1"].stats.passes
    )


def test_what_the_judge_kept_is_counted_apart():
    """As many as a walk over the text by the target alone finds: accepted tokens that it would not have written."""
    law, small = (
        ShapedTarget(toy_law(s, 6, eos=-1, cost=c), GreedyRule()) for s, c in ((3, 1.0), (4, 0.1))
    )
    for bias in (-1.0, 1.0):  # a judge that likes nothing, and one that likes everything
        kit = Kit(law, small, (JudgeProbe(torch.zeros(4), torch.tensor(bias), law.vocab),))
        decoder = registry.build("judge-decoding", kit, {"depth": 4})[0]
        got = run_coroutines([answer_one(decoder, Request((0, 1), 24))])[0]
        session = law.open_session((0, 1))
        scores = run_coroutines(
            [session.score_draft(Draft.chain_draft(1, got.token_ids[:-1]), ScoreRequest())]
        )[0]
        other = sum(scores.likeliest_token(i) != x for i, x in enumerate(got.token_ids))
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
    assert is_same_result(answer, other) is alike


def test_auc_of_planted_errors():
    g = torch.Generator().manual_seed(0)
    right, state = torch.rand(400, generator=g) > 0.3, torch.randn(400, 4, generator=g)
    state[:, 0] += 4.0 * right
    one = JudgeProbe(torch.tensor([1.0, 0, 0, 0]), torch.zeros(()), None)
    assert token_judge_auc(one, ProbeExamples(state, right.float())) > 0.9
    assert (
        0.3 < token_judge_auc(one, ProbeExamples(state.roll(1, 0), right.float())) < 0.7
    )  # the state of the token before
    assert token_judge_auc(one, ProbeExamples(state, torch.ones(400))) == 0.5


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
    found = train_probe(
        JudgeSpec(str(tmp_path / "out"), str(target), str(small), steps=3, tries=2, max_tokens=10)
    )
    assert found["tokens"] == 2 * 2 * 7 and 0 <= found["held_out"]["auc"] <= 1
    assert judge.load(tmp_path / "out").weight_H.shape == (32,)
    with pytest.raises(ValueError, match="weight is 0"):
        JudgeSpec("x", weight=0.0)
    with pytest.raises(ValueError, match="states of width 32: this target's have 4"):
        registry.build(
            "judge-decoding", Kit(toy_law(1, 320), toy_law(2, 320), (judge.load(tmp_path / "out"),))
        )


def test_a_checker_labels_every_token_up_to_the_first_wrong_one():
    """Beside a walk over each solution, token by token; what lies behind an error, and an end, is left out."""
    target = toy_law(3, 6, eos=5)
    drawn = [
        LabelledSolution(problem, (0, 1), tokens, right)
        for problem, tokens, right in (
            (None, (2, 3, 4, 5), (True, True, True, True)),  # right, and it ends
            (None, (2, 3, 4, 1, 0), (True, True, False, False, False)),  # wrong at its third token
            (None, (4, 5), (True, False)),  # it ends too early: only the end is wrong
            (None, (3, 3), (False, False)),  # wrong from the beginning
            (None, (5,), (False,)),  # nothing but an end
        )
    ]
    lessons = label_checked_tokens(target, drawn)
    assert lessons.label_N.tolist() == [1, 1, 1, 1, 1, 0, 1, 0]
    texts = ((2,), (2, 3), (2, 3, 4), (2,), (2, 3), (2, 3, 4), (4,), (3,))
    for state_H, text in zip(lessons.input_NX, texts, strict=True):
        assert state_H.allclose(teacher_forced_states(target, (0, 1), text)[-1])
    with pytest.raises(ValueError, match="wrote no solution"):
        label_checked_tokens(target, drawn[-1:])


def test_shares_that_are_let_stand():
    one = JudgeProbe(
        torch.tensor([1.0, 0.0]), torch.zeros(()), None
    )  # the chance grows with the first number
    state = torch.tensor([[9.0, 1.0], [1.0, 9.0], [-9.0, 1.0], [9.0, 1.0]])
    shares = judge_pass_rates(one, ProbeExamples(state, torch.tensor([1.0, 1.0, 0.0, 0.0])))
    assert shares["0.3"] == (1.0, 0.5) and shares["0.7"] == (0.5, 0.5)
    assert judge_pass_rates(one, ProbeExamples(state, torch.ones(4)))["0.5"] == (0.75, 0.0)


def test_it_is_trained_on_problems_and_goes_on_where_it_was_cut(tmp_path):
    def spec(out, **more):
        how = {"kinds": ("chain", "order"), "replies": True, "each": 8, "steps": 4, **more}
        return JudgeSpec(str(tmp_path / out), "zoo:reasoner", "zoo:reasoner", **how)

    result = train_probe(spec("a"))
    assert 0 < result["right"] < 1 and result["tokens"] > 300
    assert set(result["held_out"]["kept"]) == {
        "0.3",
        "0.5",
        "0.7",
        "0.9",
    }
    texts = [p.read_text().splitlines() for p in sorted((tmp_path / "a").glob("*.jsonl"))]
    assert sorted(len(lines) for lines in texts) == [4, 4, 16, 16]
    assert train_probe(spec("a"))["held_out"] == result["held_out"]
    for bad, message in (
        ({"kinds": ("sum",)}, "kinds has 'sum': it must be one of chain, make, order"),
        ({"kinds": ()}, "replies is true: name the kinds"),
        ({"text": "x.jsonl"}, "text is 'x.jsonl': with kinds the solutions"),
    ):
        with pytest.raises(ValueError, match=message):
            spec("b", **bad)


def test_a_checker_labels_what_the_draft_would_put_where_the_target_would_not(monkeypatch):
    """Beside the checker itself, of a draft that would write "9" everywhere: only places behind a right beginning count."""
    target = checkpoint.load_bundle("zoo:reasoner")
    text, ends = target.text, target.lm.vocab.eos
    problem = problems.ReasoningProblem("chain", "2+7*3", ("2+7=9", "9*3=27"), "27")
    ids = text.chat_prompt([{"role": "user", "content": problem.question}])
    nine = text.encode("9", special=False)[0]
    row = torch.eye(target.lm.vocab.size)[nine]
    true = training.teacher_forced_laws
    monkeypatch.setattr(
        training,
        "teacher_forced_laws",
        lambda lm, s, t: row.expand(len(s.output_ids), -1) if lm is None else true(lm, s, t),
    )
    for answer, last in (("2+7=9\n9*3=27\n=27", 99), ("2+7=9\n9*3=26\n=26", 11)):
        tokens = text.encode(answer, special=False)
        drawn = LabelledSolution(
            problem, ids, tokens, right_token_flags(problem, text, tokens, ends)
        )
        own = true(target.lm, TrainingSample(ids, tokens), 0.0).argmax(-1).tolist()
        rows = []
        for i in range(len(tokens)):
            before = text.decode(tokens[:i])
            if len(before) < last and own[i] != nine:
                good = any(a.startswith(before + "9") for a in ("2+7=9\n9*3=27\n=27",))
                rows.append(
                    (teacher_forced_states(target.lm, ids, (*tokens[:i], nine))[-1], float(good))
                )
        lessons = training.label_differing_tokens(target, None, [drawn])
        assert lessons.label_N.tolist() == [good for _, good in rows] and len(rows) > 4
        for state_H, (want_H, _) in zip(lessons.input_NX, rows, strict=True):
            assert state_H.allclose(want_H)
    with pytest.raises(ValueError, match="there is nothing to judge"):
        monkeypatch.setattr(training, "teacher_forced_laws", true)
        training.label_differing_tokens(target, target.lm, [drawn])

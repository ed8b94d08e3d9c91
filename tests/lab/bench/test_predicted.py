"""What `polydec tune --on` says before it measures."""

import pytest

from polydec import load
from polydec.lab.bench import predicted
from polydec.lab.bench.measure import MethodSetting
from polydec.lab.bench.recorded_target import RecordedAnswer, replay_run
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.economics.costs import PassCosts

LOOP = RecordedAnswer((5, 6, 7, 8), (5, 6, 7, 8) * 6, 20, frozenset())
COSTS = PassCosts((10.0, 11.0, 12.0, 13.0, 14.0), draft_ms=2.0)


def test_plain_is_a_pass_a_token_behind_its_context():
    behind = PassCosts((10.0, 11.0), more_ms=(100.0, 100.0))
    texts = [RecordedAnswer((1,) * 10, (2, 3), 5, frozenset())]
    assert predicted.predict_plain_decoding(texts, COSTS).seconds == pytest.approx(0.020)
    assert predicted.predict_plain_decoding(texts, behind).seconds == pytest.approx(
        (10 + 1.0 + 10 + 1.1) / 1000
    )


def test_a_copy_is_priced_by_its_passes():
    found = predicted.predict_method([LOOP], MethodSetting("prompt-lookup", {"depth": "3"}), COSTS)
    again = replay_run(LOOP, "prompt-lookup", {"depth": 3}, costs=COSTS)
    assert found.tokens == 24 and found.passes == len(again.rounds) < 12
    assert found.seconds == pytest.approx(
        sum(COSTS.pass_ms(r.drafted + 1) for r in again.rounds) / 1000
    )
    assert (
        found.tokens_per_second
        > 2 * predicted.predict_plain_decoding([LOOP], COSTS).tokens_per_second
    )


def test_passes_of_a_draft_model_are_counted_and_priced():
    lm = load("zoo:tiny", dtype="float32")
    draft = ShapedTarget(lm.draft_law(), GreedyRule())
    one = RecordedAnswer((5, 6, 7, 8), (9, 10, 11, 12), lm.checkpoint.lm.vocab.size, frozenset())
    again = replay_run(one, "draft-model", {"depth": 2}, draft, COSTS)
    assert again.others >= sum(r.drafted for r in again.rounds) > 0
    found = predicted.predict_method(
        [one], MethodSetting("draft-model", {"depth": "2"}), COSTS, draft
    )
    rows = sum(COSTS.pass_ms(r.drafted + 1) for r in again.rounds)
    assert found.seconds == pytest.approx((rows + 2.0 * again.others) / 1000)


def test_what_cannot_be_replayed_has_no_prediction():
    assert predicted.predict_method([LOOP], MethodSetting("draft-and-verify", {}), COSTS) is None
    assert predicted.predict_method([LOOP], MethodSetting("draft-model", {}), COSTS) is None


def test_what_a_draft_would_bring():
    assert predicted.with_draft(PassCosts((10.0, 30.0, 50.0)), 0.5, 0.5) == (0, 1.0)
    length, gain = predicted.with_draft(PassCosts((10.0, 10.0, 10.0)), 1.0, 0.0, most=3)
    assert length == 3 and gain == pytest.approx(4.0)

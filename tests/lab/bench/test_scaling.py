"""Laws of acceptance: known ones come back from their points, errors say how far off they are, drafts are as wide as pays."""

import json
import random
import sys
from functools import partial
from itertools import product
from math import log2

import pytest

from polydec.api import load
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.lab.bench import scaling
from polydec.lab.bench.scaling import (
    ScalingPoint,
    additive_terms,
    doubling_slope,
    extrapolation_error,
    fit_scaling_law,
    is_near_depth_limit,
    product_terms,
)
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.economics.costs import PassCosts
from polydec.methods.economics.widths import best_width
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.models.learned.kinds import eagle

GRID = list(product((1, 2, 4, 8, 16), (1, 2, 4)))


def points(factors, noise=0.0, seed=0):
    rng = random.Random(seed)
    terms = additive_terms if len(factors) == 3 else product_terms
    made = [ScalingPoint(d, n, 0.0) for d, n in GRID]
    return [
        ScalingPoint(
            p.tokens,
            p.capacity,
            sum(f * t for f, t in zip(factors, terms(p), strict=True)) + rng.gauss(0, noise),
        )
        for p in made
    ]


@pytest.mark.parametrize("factors", [(0.4, 0.2, 0.1), (0.4, 0.2, 0.1, 0.05)])
def test_a_known_law_comes_back(factors):
    law = fit_scaling_law(points(factors))
    assert law.factors[: len(factors)] == pytest.approx(factors) and law.explained == pytest.approx(
        1.0
    )
    assert law.left_out < 1e-9 and law.accepted_tokens(ScalingPoint(32, 8, 0)) == pytest.approx(
        factors[0] + 5 * factors[1] + 3 * factors[2] + (15 * factors[3] if len(factors) > 3 else 0)
    )


def test_errors_hold_what_they_say():
    """With noise, the true factor lies within two standard errors in some nineteen of twenty fits; and a product that is not
    there is seldom kept."""
    inside, simple = 0, 0
    for seed in range(200):
        law = fit_scaling_law(points((0.4, 0.2, 0.1), 0.05, seed))
        if law.terms is additive_terms:
            simple += 1
            inside += (
                abs(law.factors[1] - 0.2) < 2.18 * law.errors[1]
            )  # Student's t, twelve degrees of freedom
    assert simple > 130 and 0.9 < inside / simple < 0.99


def test_a_point_left_out_is_one_that_was_never_there():
    some = points((0.4, 0.2, 0.1, 0.05), 0.02, 3)
    law, off = fit_scaling_law(some), []
    for i, p in enumerate(some):
        other = fit_scaling_law([*some[:i], *some[i + 1 :]])
        if other.terms is law.terms is product_terms:
            off.append((other.accepted_tokens(p) - p.accepted) ** 2)
    assert len(off) == len(some) and law.left_out == pytest.approx((sum(off) / len(off)) ** 0.5)


def test_what_ends_is_not_a_line():
    """Where acceptance stops growing, what the law says beyond its points is off by more than the noise."""
    bent = [ScalingPoint(d, n, min(1.0, 0.3 * log2(d) + 0.05 * n)) for d, n in GRID]
    assert (
        extrapolation_error(points((0.4, 0.2, 0.1), 0.01, 1))
        < 0.05
        < 0.1
        < extrapolation_error(bent)
    )
    assert is_near_depth_limit(3.2, 4) and not is_near_depth_limit(2.9, 4)


def test_a_draft_is_as_wide_as_pays():
    """The best of all widths, tried one by one; and narrower where a batch makes rows dear."""
    written = {m: 1 + 0.8 * log2(m + 1) for m in (0, 1, 2, 4, 8, 16, 32)}
    best = [
        best_width(written, lambda m, b=b: max(20.0, b * (m + 1))) for b in (1, 2, 4, 8, 16, 32)
    ]
    for b, m in zip((1, 2, 4, 8, 16, 32), best, strict=True):
        assert all(
            written[m] / max(20.0, b * (m + 1)) >= written[o] / max(20.0, b * (o + 1))
            for o in written
        )
    assert best == sorted(best, reverse=True) and best[0] >= 16 and best[-1] <= 1
    down, off = doubling_slope([(1, 8), (2, 6), (4, 4), (8, 2)])
    assert down == pytest.approx(-2.0) and off == pytest.approx(0.0, abs=1e-9)


def test_what_cannot_be_fitted_is_said():
    for some, said in (
        (points((1, 1, 1))[:4], "points has 4: a law needs 5"),
        ([ScalingPoint(d, 1, d) for d in range(1, 8)], "capacity is the same"),
    ):
        with pytest.raises(ValueError, match=said):
            fit_scaling_law(some)
    with pytest.raises(ValueError, match="tokens is 0: it must be above 0"):
        ScalingPoint(0, 1, 1)


@pytest.fixture(scope="module")
def tiny():
    return load("zoo:tiny", threads=1)


@pytest.fixture
def grid(tmp_path, tiny):
    """Five untrained drafters, and what a training says of each."""
    vocab = tiny.checkpoint.lm.vocab
    one = eagle.examples(vocab, tiny.checkpoint.lm.network.config.width, 8)[0]
    for i, (tokens, layers) in enumerate(((100, 1), (200, 1), (400, 1), (100, 2), (400, 2))):
        at = tmp_path / f"one-{i}"
        eagle.save(at, one, {"target": "zoo:tiny"})
        said = {"kind": "eagle", "tokens": tokens, "layers": layers, "parameters": 1000 * layers}
        (at / "training.json").write_text(json.dumps({**said, "loss": 1.0}))
    held = [{"prompt_ids": [0, 5 + i, 9], "output_ids": [4, 5]} for i in range(3)]
    (tmp_path / "one-0" / "held.jsonl").write_text("".join(json.dumps(r) + "\n" for r in held))
    other = tmp_path / "other"
    other.mkdir()
    (other / "training.json").write_text(json.dumps({"kind": "medusa"}))
    return tmp_path


def test_the_command_measures_the_drafters_of_a_folder(grid, tiny, capfd, monkeypatch):
    from polydec.cli.main import main
    from polydec.request.loaded import LoadedModel

    monkeypatch.setattr(LoadedModel, "costs", PassCosts((1.0, 1.1, 1.2)))
    # Short answers: how long they are has no part in what is said of them.
    count = scaling.count_chain_acceptance
    monkeypatch.setattr(scaling, "count_chain_acceptance", partial(count, most=8))
    found = []
    for more in (("--json",), ()):
        asked = ("scaling", "--model", "zoo:tiny", "--from", str(grid), "--each", "2", *more)
        monkeypatch.setattr(sys, "argv", ["polydec", "bench", "--suite", *asked])
        with pytest.raises(SystemExit) as stop:
            main()
        assert not stop.value.code
        found.append(capfd.readouterr().out)
    rows = json.loads(found[0])["rows"]
    assert [r["law"] for r in rows] == ["greedy"] * 5 + ["T = 1"] * 5
    assert [(r["tokens"], r["layers"]) for r in rows[:5]] == [
        (100, 1),
        (200, 1),
        (400, 1),
        (100, 2),
        (400, 2),
    ]
    assert all(r["low"] <= r["accepted"] <= r["high"] for r in rows)
    assert len({r["accepted"] for r in rows[:5]}) == 1  # they are one and the same
    words = " ".join(found[1].split())
    assert "greedy: a doubling of the tokens" in words and "by sequences at once" in words
    assert len(scaling.scaling_points(rows, "greedy")) == 5


def test_what_is_counted_of_a_prompt_and_its_interval(grid, tiny):
    """Tokens are plain decoding's whatever is drafted, and prompts are drawn, not tokens."""
    one = scaling.drafters_of(grid, tiny)[0].eagle
    prompt = (0, 5, 9)
    wrote, passes = scaling.count_chain_acceptance(tiny, one, "greedy", [prompt], 20)[0]
    target = ShapedTarget(tiny.checkpoint.lm, GreedyRule())
    plain = SpeculativeDecoder(target, NothingDrafter(), MatchVerifier(), FixedPolicy(0))
    text = run_coroutines([answer_one(plain, Request(prompt, max_tokens=20))])[0]
    assert wrote == len(text.token_ids) and 1 <= passes <= wrote
    means = scaling.bootstrap_acceptance([(10, 5), (30, 10), (20, 20)])
    assert means[0] == pytest.approx(60 / 35 - 1) and means[1] <= means[0] <= means[2]
    assert scaling.bootstrap_acceptance([(8, 4)] * 9) == (1.0, 1.0, 1.0)


def test_a_folder_without_drafters_or_prompts_is_refused(grid, tiny, tmp_path):
    with pytest.raises(ValueError, match="holds no drafter that `polydec train eagle"):
        scaling.drafters_of(grid / "other", tiny)
    (grid / "one-0" / "held.jsonl").unlink()
    with pytest.raises(ValueError, match=r"holds no held.jsonl"):
        scaling.prompts_of(grid, 100, 2)
    for change in ({"tokens": 0}, {"layers": "two"}, {"parameters": None}):
        said = {"kind": "eagle", "tokens": 5, "layers": 1, "parameters": 9, **change}
        (grid / "one-1" / "training.json").write_text(json.dumps(said))
        with pytest.raises(ValueError, match=f"{next(iter(change))}.*"):
            scaling.drafters_of(grid, tiny)

"""Hand-computed sets and values of every rule, and its limits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polydec.core.law import NEG_INF, normalise_log_weights
from polydec.laws.shapers._rows import or_end
from polydec.laws.shapers.allowed import AllowedTokensRule
from polydec.laws.shapers.banned import BannedTokensRule
from polydec.laws.shapers.dry import DryRule
from polydec.laws.shapers.epsilon import EpsilonCutoffRule
from polydec.laws.shapers.eta import EtaCutoffRule
from polydec.laws.shapers.frequency import FrequencyPenaltyRule
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.shapers.logit_bias import LogitBiasRule
from polydec.laws.shapers.min_p import MinPRule
from polydec.laws.shapers.min_tokens import MinTokensRule
from polydec.laws.shapers.no_repeat_ngram import NoRepeatNgramRule
from polydec.laws.shapers.presence import PresencePenaltyRule
from polydec.laws.shapers.repetition import RepetitionPenaltyRule
from polydec.laws.shapers.temperature import TemperatureRule
from polydec.laws.shapers.top_k import TopKRule
from polydec.laws.shapers.top_n_sigma import TopNSigmaRule
from polydec.laws.shapers.top_p import TopPRule
from polydec.laws.shapers.typical import TypicalRule
from polydec.laws.shapers.xtc import XtcRule

ROW = (
    torch.tensor([0.4, 0.05, 0.3, 0.05, 0.2], dtype=torch.float64).log() + 1.7
)  # logits, not normalised


def shape(
    shaper: Any, row_V: Tensor = ROW, prompt: tuple[int, ...] = (0,), output: tuple[int, ...] = ()
) -> Tensor:
    state = shaper.start_state(prompt)
    for x in output:
        state = shaper.next_state(state, x)
    return shaper.shape_law(state, row_V)


def kept(shaper: Any, row_V: Tensor = ROW, **text: Any) -> list[int]:
    return (shape(shaper, row_V, **text) > NEG_INF).nonzero()[:, 0].tolist()


@pytest.mark.parametrize(
    ("shaper", "tokens"),
    [
        (TopKRule(1), [0]),
        (TopKRule(2), [0, 2]),
        (TopKRule(4), [0, 1, 2, 3, 4]),
        (TopKRule(9), [0, 1, 2, 3, 4]),
        (TopPRule(0.39), [0]),
        (TopPRule(0.41), [0, 2]),
        (TopPRule(0.71), [0, 2, 4]),
        (TopPRule(0.91), [0, 1, 2, 4]),
        (TopPRule(0.96), [0, 1, 2, 3, 4]),
        (MinPRule(0.51), [0, 2]),
        (MinPRule(0.49), [0, 2, 4]),
        (MinPRule(1.0), [0]),
        (EpsilonCutoffRule(0.06), [0, 2, 4]),
        (EpsilonCutoffRule(0.35), [0]),
        (EpsilonCutoffRule(0.9), [0]),
        (GreedyRule(), [0]),
        (AllowedTokensRule((1, 2)), [1, 2]),
        (BannedTokensRule((0, 4)), [1, 2, 3]),
    ],
)
def test_sets(shaper: Any, tokens: list[int]) -> None:
    assert kept(shaper) == tokens
    out_V = shape(shaper)
    if tokens != [0]:
        assert torch.equal(out_V[tokens], ROW[tokens])


def test_typical_keeps_what_is_near_the_entropy_and_may_drop_the_likeliest() -> None:
    p = torch.tensor([0.46, 0.09, 0.09, 0.09, 0.09, 0.09, 0.09], dtype=torch.float64)
    # entropy 1.658: the small ones (surprise 2.408) are 0.75 away, the likeliest (0.777) is 0.88 away
    assert kept(TypicalRule(0.5), p.log()) == [1, 2, 3, 4, 5, 6]
    assert kept(TypicalRule(0.6), p.log()) == [0, 1, 2, 3, 4, 5, 6]
    assert kept(TypicalRule(0.01), ROW) == [
        2
    ]  # entropy 1.349: 0.3 is 0.15 away, 0.2 is 0.26, 0.4 0.43
    assert kept(TypicalRule(0.31), ROW) == [2, 4]
    assert kept(TypicalRule(0.89), ROW) == [0, 2, 4]


def test_eta_sinks_with_the_entropy() -> None:
    entropy = -float((normalise_log_weights(ROW).exp() * normalise_log_weights(ROW)).sum())
    threshold = math.sqrt(0.04) * math.exp(
        -entropy
    )  # 0.2 * 0.2594 = 0.0519 > 0.04: epsilon is the smaller one
    assert threshold > 0.04 and kept(EtaCutoffRule(0.04)) == [0, 1, 2, 3, 4]
    assert math.sqrt(0.07) * math.exp(-entropy) < 0.07 and kept(EtaCutoffRule(0.07)) == [0, 2, 4]
    assert kept(EpsilonCutoffRule(0.049)) == [0, 1, 2, 3, 4] and kept(EtaCutoffRule(0.9999)) == [
        0,
        2,
    ]


def test_top_n_sigma_counts_finite_entries_only_and_ignores_temperature() -> None:
    row_V = torch.tensor([4.0, 3.0, 2.0, 1.0, 0.0, NEG_INF])  # sigma = sqrt(2)
    assert kept(TopNSigmaRule(1.0), row_V) == [0, 1]
    assert kept(TopNSigmaRule(1.5), row_V) == [0, 1, 2]
    assert kept(TopNSigmaRule(1.0), row_V / 7.0) == [0, 1]


def test_ties_at_the_edge() -> None:
    row_V = torch.tensor([1.0, 2.0, 1.0, 1.0, 1.0])
    assert kept(TopKRule(2), row_V) == [0, 1, 2, 3, 4]  # threshold form: all equals of the k-th
    p = torch.tensor([0.1, 0.6, 0.1, 0.1, 0.1])
    assert kept(TopPRule(0.75), p.log()) == [0, 1, 2]  # as few as needed, lower ids first
    assert kept(TopPRule(0.65), p.log()) == [0, 1]
    assert kept(GreedyRule(), torch.tensor([0.0, 1.0, 1.0])) == [1]
    many_V = torch.zeros(3000)
    assert kept(TopPRule(0.49999), many_V) == list(range(1500))
    assert len(kept(TopKRule(5), many_V)) == 3000


@given(
    st.integers(0, 2**31),
    st.sampled_from([0.1, 0.5, 0.9, 0.99, 0.9999]),
    st.sampled_from([0.5, 3.0]),
)
@settings(max_examples=40)
def test_top_p_without_sorting_equals_the_definition(seed: int, p: float, scale: float) -> None:
    row_V = (
        torch.randn(1200, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        * scale
        * 2
    ).round() / 2
    q_V = normalise_log_weights(row_V).exp().numpy()
    order = np.lexsort((np.arange(len(q_V)), -row_V.numpy()))
    before = np.cumsum(q_V[order]) - q_V[order]
    near = np.abs(before - p).min() < 1e-12  # the edge is a matter of rounding
    assert near or kept(TopPRule(p), row_V) == sorted(order[before < p].tolist())


def test_mass_that_rounding_never_reaches() -> None:
    for row_V in (torch.zeros(3000), torch.randn(3000, generator=torch.Generator().manual_seed(1))):
        for shaper in (TopPRule(1 - 1e-16), TopPRule(1 - 1e-9), TypicalRule(1 - 1e-16)):
            assert len(kept(shaper, row_V)) > 2990
    row_V = torch.full((3000,), NEG_INF)
    row_V[100:900] = 0.0
    assert (
        kept(TopPRule(1 - 1e-12), row_V)
        == kept(TypicalRule(1 - 1e-12), row_V)
        == list(range(100, 900))
    )


@given(st.integers(0, 2**31), st.sampled_from([0.05, 0.5, 0.9, 0.99]))
@settings(max_examples=30)
def test_typical_without_sorting_equals_the_definition(seed: int, mass: float) -> None:
    row_V = (
        torch.randn(1200, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3
    )
    logp_V = normalise_log_weights(row_V)
    far_V = (-logp_V + (logp_V.exp() * logp_V).sum()).abs()
    order = far_V.argsort()
    q = logp_V[order].exp()
    assert kept(TypicalRule(mass), row_V) == sorted(order[q.cumsum(0) - q < mass].tolist())


def test_penalties() -> None:
    row_V = torch.tensor([2.0, -2.0, 0.0, 4.0])
    text = {"prompt": (0, 1), "output": (3, 3, 1)}
    assert shape(RepetitionPenaltyRule(2.0), row_V, **text).tolist() == [1.0, -4.0, 0.0, 2.0]
    assert shape(PresencePenaltyRule(0.5), row_V, **text).tolist() == [2.0, -2.5, 0.0, 3.5]
    assert shape(FrequencyPenaltyRule(0.5), row_V, **text).tolist() == [2.0, -2.5, 0.0, 3.0]
    assert shape(LogitBiasRule({3: -4.0, 1: 1.0}), row_V).tolist() == [2.0, -1.0, 0.0, 0.0]
    assert shape(LogitBiasRule([(0, 1.0)]), row_V).tolist() == [3.0, -2.0, 0.0, 4.0]


def test_no_repeat_ngram() -> None:
    text = {"prompt": (1, 2, 3), "output": (1, 2)}
    assert kept(NoRepeatNgramRule(3), **text) == [0, 1, 2, 4]  # 1 2 3 stood there
    assert kept(NoRepeatNgramRule(2), **text) == [0, 1, 2, 4]
    assert kept(NoRepeatNgramRule(1), **text) == [0, 4]
    assert kept(NoRepeatNgramRule(4), **text) == [0, 1, 2, 3, 4]
    assert kept(NoRepeatNgramRule(2), prompt=(1, 1), output=(1,)) == [
        0,
        2,
        3,
        4,
    ]  # an occurrence may overlap the end
    assert kept(NoRepeatNgramRule(1, eos=(4,)), prompt=(0, 1, 2, 3, 4)) == [
        0,
        1,
        2,
        3,
        4,
    ]  # EOS is forbidden as well
    row_V = torch.tensor([1.0, 2.0, NEG_INF])
    assert kept(NoRepeatNgramRule(1, eos=(2,)), row_V, prompt=(0, 1)) == [2]
    assert kept(NoRepeatNgramRule(1), prompt=(0, 1, 2, 3, 4)) == [0, 1, 2, 3, 4]


def test_dry() -> None:
    zero_V = torch.zeros(6, dtype=torch.float64)

    def penalty(shaper: DryRule, *text: int) -> list[float]:
        return (-shape(shaper, zero_V, prompt=text[:1], output=text[1:])).tolist()

    dry = DryRule(0.8, 1.75, 2)
    assert penalty(dry, 1, 2, 3, 1, 2) == pytest.approx([0, 0, 0, 0.8, 0, 0])  # 1 2 -> 3, m = 2
    assert penalty(dry, 0, 1, 2, 3, 0, 1, 2) == pytest.approx(
        [0, 0, 0, 0.8 * 1.75, 0, 0]
    )  # 0 1 2 -> 3, m = 3
    assert penalty(dry, 1, 2, 3, 5, 2) == pytest.approx([0] * 6)  # m = 1 is allowed
    assert penalty(dry, 5, 1, 2, 4, 5, 1, 2, 3, 1, 2) == pytest.approx(
        [0, 0, 0, 0.8, 0.8, 0]
    )  # two followers
    assert penalty(dry, 0, 1, 2, 4, 5, 1, 2, 4, 0, 1, 2) == pytest.approx(
        [0, 0, 0, 0, 1.4, 0]
    )  # the longest match counts
    assert penalty(dry, 1, 1, 1, 1) == pytest.approx(
        [0, 1.4, 0, 0, 0, 0]
    )  # may overlap the end: m = 3
    assert penalty(DryRule(1, 2, 1, breakers=(5,)), 1, 5, 2, 3, 1, 5, 2) == pytest.approx(
        [0, 0, 0, 1, 0, 0]
    )  # stops at 5: m = 1
    assert penalty(DryRule(1, 2, 1, breakers=(2,)), 1, 2, 3, 1, 2) == pytest.approx(
        [0] * 6
    )  # ends in a breaker
    assert penalty(DryRule(1, 2, 1, 5), 0, 1, 2, 3, 0, 1, 2) == pytest.approx(
        [0, 0, 0, 1, 0, 0]
    )  # of 2 3 0 1 2 only 2 -> 3


def _brute_dry(dry: DryRule, text: tuple[int, ...], size: int) -> list[float]:
    text, best = text[-dry.window :] if dry.window else text, {}
    for i in range(len(text) - 1):
        m = 0
        while m <= i and text[i - m] == text[len(text) - 1 - m] and text[i - m] not in dry.breakers:
            m += 1
        best[text[i + 1]] = max(best.get(text[i + 1], 0), m)
    return [
        dry.multiplier * dry.base ** (best[v] - dry.allowed_length)
        if best.get(v, 0) >= dry.allowed_length
        else 0.0
        for v in range(size)
    ]


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=40),
    st.integers(1, 40),
    st.sampled_from([None, 1, 6, 15]),
    st.sampled_from([(), (2,)]),
    st.integers(1, 3),
)
@settings(max_examples=150)
def test_dry_equals_brute_force(
    text: list[int], cut: int, window: int | None, breakers: tuple[int, ...], allowed: int
) -> None:
    dry = DryRule(0.8, 1.5, allowed, window, breakers)
    out_V = shape(
        dry, torch.zeros(4, dtype=torch.float64), prompt=tuple(text[:cut]), output=tuple(text[cut:])
    )
    assert (-out_V).tolist() == pytest.approx(_brute_dry(dry, tuple(text), 4))


def test_xtc_removes_top_choices_as_often_as_said() -> None:
    assert kept(XtcRule(1.0, 0.1)) == [
        1,
        3,
        4,
    ]  # 0.4, 0.3, 0.2 are choices: the least likely one stays
    assert kept(XtcRule(1.0, 0.25)) == [1, 2, 3, 4]
    assert kept(XtcRule(1.0, 0.35)) == [0, 1, 2, 3, 4]  # only one choice
    assert kept(XtcRule(1.0, 0.6)) == [0, 1, 2, 3, 4]
    xtc = XtcRule(0.3, 0.1, 5)
    cut = [len(kept(xtc, prompt=(0,) * n)) == 3 for n in range(1, 4001)]
    assert abs(sum(cut) / 4000 - 0.3) < 0.03  # four standard deviations
    assert cut == [len(kept(xtc, prompt=(0,) * n)) == 3 for n in range(1, 4001)]
    other = [len(kept(XtcRule(0.3, 0.1, 6), prompt=(0,) * n)) == 3 for n in range(1, 4001)]
    assert other != cut


def test_min_tokens_counts_the_output() -> None:
    assert kept(MinTokensRule(2, (0, 3)), prompt=(1, 1, 1)) == [1, 2, 4]
    assert kept(MinTokensRule(2, (0, 3)), output=(1,)) == [1, 2, 4]
    assert kept(MinTokensRule(2, (0, 3)), output=(1, 1)) == [0, 1, 2, 3, 4]


def test_masks_that_leave_nothing() -> None:
    row_V = torch.tensor([1.0, NEG_INF, NEG_INF, NEG_INF, 2.0])
    assert kept(AllowedTokensRule((1, 3), eos=(3, 4)), row_V) == [3]  # an end that the rule allows
    assert kept(AllowedTokensRule((1,), eos=(3, 4)), row_V) == [
        0,
        4,
    ]  # none: the row stays, and a guard ends the text
    assert kept(AllowedTokensRule((1,)), row_V) == [0, 4]
    assert kept(BannedTokensRule((0, 4), eos=(2, 4)), row_V) == [2]
    assert kept(BannedTokensRule((0, 4), eos=(4,)), row_V) == [0, 4]
    assert kept(MinTokensRule(5, (0, 4)), row_V) == [0, 4]


def test_what_follows_a_mask() -> None:
    row_V, none = torch.tensor([1.0, 2.0, 3.0]), [NEG_INF] * 3

    def after(masked: list[float], *eos: int, row_V: Tensor = row_V) -> list[float]:
        return or_end(torch.tensor(masked), row_V, eos).tolist()

    assert after([1.0, NEG_INF, 3.0], 1) == [1.0, NEG_INF, 3.0]
    assert after(none) == row_V.tolist()
    assert after(none, 2) == [NEG_INF, NEG_INF, 3.0]
    assert after(none, 2, row_V=torch.tensor([1.0, 2.0, NEG_INF])) == [NEG_INF, NEG_INF, 0.0]


def test_what_masks_forbid_is_what_has_no_weight() -> None:
    for shaper in (
        AllowedTokensRule((1, 3)),
        BannedTokensRule((0, 2)),
        MinTokensRule(2, (1, 4)),
        NoRepeatNgramRule(1),
        NoRepeatNgramRule(2),
        NoRepeatNgramRule(3),
    ):
        for prompt, output in (
            ((0,), ()),
            ((0, 1, 0, 1), (0,)),
            ((2, 2), (2, 3, 2)),
            ((1,), (1, 1, 4)),
        ):
            state = shaper.start_state(prompt)
            for x in output:
                state = shaper.next_state(state, x)
            left = kept(shaper, prompt=prompt, output=output)
            assert left == [x for x in range(5) if not shaper.forbids_token(state, x)], shaper


@pytest.mark.parametrize(
    "make",
    [
        lambda: TemperatureRule(0.0),
        lambda: TemperatureRule(-1.0),
        lambda: TemperatureRule(math.nan),
        lambda: TemperatureRule(1e39),
        lambda: TemperatureRule(1e-6),
        lambda: RepetitionPenaltyRule(1e-38),
        lambda: TopKRule(0),
        lambda: TopPRule(0.0),
        lambda: TopPRule(1.1),
        lambda: MinPRule(-0.1),
        lambda: MinPRule(1.1),
        lambda: TypicalRule(0.0),
        lambda: EpsilonCutoffRule(1.0),
        lambda: EtaCutoffRule(-0.1),
        lambda: TopNSigmaRule(0.0),
        lambda: RepetitionPenaltyRule(0.0),
        lambda: PresencePenaltyRule(math.inf),
        lambda: FrequencyPenaltyRule(math.nan),
        lambda: NoRepeatNgramRule(0),
        lambda: DryRule(-1.0),
        lambda: DryRule(1.0, 0.9),
        lambda: DryRule(1.0, 2.0, 0),
        lambda: DryRule(1.0, window=-1),
        lambda: XtcRule(1.1),
        lambda: XtcRule(0.5, -0.1),
        lambda: LogitBiasRule({0: math.inf}),
        lambda: LogitBiasRule({-1: 1.0}),
        lambda: AllowedTokensRule(()),
        lambda: AllowedTokensRule((-1,)),
        lambda: BannedTokensRule((-1,)),
        lambda: MinTokensRule(-1, ()),
        lambda: MinTokensRule(1, (-1,)),
    ],
)
def test_bad_parameters(make: Any) -> None:
    with pytest.raises(ValueError, match=r"is|has"):
        make()


def test_greedy_is_the_limit() -> None:
    g = torch.Generator().manual_seed(3)
    for _ in range(20):
        row_V = torch.randn(50, generator=g)
        one_V = normalise_log_weights(shape(GreedyRule(), row_V))
        for shaper in (
            TopKRule(1),
            TopPRule(1e-9),
            MinPRule(1.0),
            TopNSigmaRule(1e-9),
            EpsilonCutoffRule(0.999),
        ):
            assert torch.equal(normalise_log_weights(shape(shaper, row_V)), one_V)
        assert torch.allclose(
            normalise_log_weights(shape(TemperatureRule(1e-5), row_V)).exp(), one_V.exp()
        )

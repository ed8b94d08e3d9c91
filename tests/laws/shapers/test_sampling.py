"""Sampling parameters: legal ranges, neutral ones, orders."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from polydec.core.law import NEG_INF
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.shapers.sampling import ORDERS, Sampling, build_shapers

ALL_ON: dict[str, Any] = {
    "temperature": 0.7,
    "top_k": 5,
    "top_p": 0.9,
    "min_p": 0.1,
    "typical_p": 0.9,
    "epsilon_cutoff": 1e-3,
    "eta_cutoff": 1e-3,
    "top_n_sigma": 2.0,
    "repetition_penalty": 1.2,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "no_repeat_ngram_size": 3,
    "dry_multiplier": 0.8,
    "xtc_probability": 0.5,
    "logit_bias": {1: 1.0},
    "allowed_token_ids": (1, 2, 3),
    "bad_token_ids": (2,),
    "min_tokens": 2,
}


def names(sampling: Sampling, **how: Any) -> list[str]:
    return [type(s).__name__ for s in build_shapers(sampling, eos=(3,), **how)]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        (
            "temperature",
            (-1, float("nan"), float("inf"), "hot", None, True, 1e39, 10**400, 1_000_001),
        ),
        ("top_k", (-2, 1.5)),
        ("top_p", (0, -0.1, 1.01)),
        ("min_p", (-0.1, 1.1)),
        ("typical_p", (0, 1.1)),
        ("epsilon_cutoff", (-0.1, 1)),
        ("eta_cutoff", (-0.1, 1)),
        ("top_n_sigma", (float("nan"), float("inf"))),
        ("repetition_penalty", (0, -1, float("inf"), 1e-38, 1e38)),
        ("presence_penalty", (-2.1, 2.1)),
        ("frequency_penalty", (-2.1, 2.1)),
        ("no_repeat_ngram_size", (-1, 0.5)),
        ("dry_multiplier", (-1,)),
        ("dry_base", (0.5,)),
        ("dry_allowed_length", (0,)),
        ("dry_penalty_last_n", (-2,)),
        ("xtc_probability", (-0.1, 1.1)),
        ("xtc_threshold", (-0.1, 1.1)),
        ("top_k", (True, 2**63, None)),
        ("min_tokens", (-1, 1.5)),
        ("logit_bias", ({1: 101.0}, {-1: 1.0}, {1: float("nan")})),
        ("allowed_token_ids", ((), (-1,))),
        ("bad_token_ids", ((-1,),)),
        ("dry_sequence_breakers", ((-3,),)),
    ],
)
def test_a_field_out_of_range_is_named_with_its_value(name: str, values: tuple[Any, ...]) -> None:
    for value in values:
        with pytest.raises(ValueError, match=name) as e:
            Sampling(**{name: value})
        assert "\n" not in str(e.value) and len(str(e.value)) < 160


def test_a_temperature_below_zero_names_value_and_range() -> None:
    with pytest.raises(
        ValueError,
        match=r"^temperature is -1.0: it must be a number, in 0 to 1000000 \(0 is greedy\)$",
    ):
        Sampling(temperature=-1)


def test_all_tokens_banned() -> None:
    with pytest.raises(ValueError, match="bad_token_ids bans every one"):
        Sampling(allowed_token_ids=(1, 2), bad_token_ids=(2, 1, 0))
    with pytest.raises(ValueError, match="bad_token_ids bans all 3"):
        Sampling(bad_token_ids=(0, 1, 2)).check_token_ids(3)


def test_ids_outside_the_vocabulary() -> None:
    for fields in (
        {"logit_bias": {9: 1.0}},
        {"allowed_token_ids": (9,)},
        {"bad_token_ids": (9,)},
        {"dry_sequence_breakers": (9,)},
    ):
        Sampling(**fields).check_token_ids(10)
        with pytest.raises(ValueError, match="has token 9: the vocabulary ends at 8"):
            Sampling(**fields).check_token_ids(9)


def test_neutral_rules_are_left_out() -> None:
    for order in ORDERS:
        assert names(Sampling(), order=order) == []
        assert (
            names(
                Sampling(top_k=-1, top_n_sigma=-1.0, xtc_probability=0.5, xtc_threshold=0.51),
                order=order,
            )
            == []
        )
        assert len(names(Sampling(**ALL_ON), order=order)) == 18
        assert set(ORDERS[order]) == set(ORDERS["vllm"])
    assert names(Sampling(top_p=0.5)) == ["TopPRule"]
    assert build_shapers(Sampling(min_tokens=3)) == ()


def test_orders() -> None:
    edits = "LogitBiasRule RepetitionPenaltyRule FrequencyPenaltyRule PresencePenaltyRule"
    for order, expected in {
        "vllm": f"AllowedTokensRule BannedTokensRule MinTokensRule {edits} NoRepeatNgramRule "
        "DryRule TemperatureRule MinPRule TopKRule TopPRule TypicalRule EpsilonCutoffRule "
        "EtaCutoffRule TopNSigmaRule XtcRule",
        "transformers": f"{edits} DryRule NoRepeatNgramRule BannedTokensRule MinTokensRule "
        "AllowedTokensRule TemperatureRule TopKRule TopPRule MinPRule TypicalRule "
        "EpsilonCutoffRule EtaCutoffRule TopNSigmaRule XtcRule",
        "llamacpp": f"BannedTokensRule MinTokensRule AllowedTokensRule {edits} NoRepeatNgramRule "
        "DryRule TopNSigmaRule TopKRule TypicalRule TopPRule MinPRule EpsilonCutoffRule "
        "EtaCutoffRule XtcRule TemperatureRule",
    }.items():
        assert names(Sampling(**ALL_ON), order=order) == expected.split()
    assert names(Sampling(**ALL_ON)) == names(Sampling(**ALL_ON), order="vllm")
    assert names(Sampling(top_p=0.5, temperature=0.5), order=("top_p", "temperature")) == [
        "TopPRule",
        "TemperatureRule",
    ]


def _kept(order: str, row_V: torch.Tensor, **fields: Any) -> list[int]:
    for s in build_shapers(Sampling(**fields), order=order):
        row_V = s.shape_law(s.start_state((0,)), row_V)
    return (row_V > NEG_INF).nonzero()[:, 0].tolist()


def test_temperature_before_and_after_truncation() -> None:
    row_V = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    for fields, before, after in [
        ({"top_p": 0.75}, [0, 1, 2], [0, 1]),
        ({"min_p": 0.4}, [0, 1, 2], [0, 1]),
        ({"typical_p": 0.5}, [1, 2], [0, 1]),
        ({"top_k": 2}, [0, 1], [0, 1]),
        ({"top_n_sigma": 1.0}, [0, 1], [0, 1]),
    ]:
        assert _kept("vllm", row_V, temperature=2.0, **fields) == before
        assert _kept("transformers", row_V, temperature=2.0, **fields) == before
        assert _kept("llamacpp", row_V, temperature=2.0, **fields) == after


def test_order_of_truncations_matters() -> None:
    row_V = torch.tensor([0.40, 0.30, 0.20, 0.06, 0.04]).log()
    fields: dict[str, Any] = {"top_p": 0.75, "min_p": 0.25}
    assert _kept("vllm", row_V, **fields) == [
        0,
        1,
    ]  # min-p leaves 0.9; 0.75 of that are the first two
    assert _kept("transformers", row_V, **fields) == [0, 1, 2]  # top-p first: 0.7 is not enough


def test_greedy_ends_the_chain_and_keeps_what_can_matter() -> None:
    assert build_shapers(Sampling(temperature=0)) == (GreedyRule(),)
    assert build_shapers(Sampling(temperature=9e-6, top_k=4, top_p=0.5, min_p=0.2)) == (
        GreedyRule(),
    )
    on = {**ALL_ON, "temperature": 0.0}
    acts = [
        "LogitBiasRule",
        "RepetitionPenaltyRule",
        "FrequencyPenaltyRule",
        "PresencePenaltyRule",
        "NoRepeatNgramRule",
        "DryRule",
    ]
    masks = ["AllowedTokensRule", "BannedTokensRule", "MinTokensRule"]
    assert names(Sampling(**on)) == [*masks, *acts, "GreedyRule"]
    assert set(names(Sampling(**on), order="transformers")) == {*masks, *acts, "GreedyRule"}
    assert names(Sampling(**on), order="llamacpp") == [
        "BannedTokensRule",
        "MinTokensRule",
        "AllowedTokensRule",
        *acts,
        "TypicalRule",
        "XtcRule",
        "GreedyRule",
    ]
    late = ("temperature", "top_p", "bad_token_ids")
    assert names(Sampling(temperature=0, top_p=0.5, bad_token_ids=(1,)), order=late) == [
        "BannedTokensRule",
        "GreedyRule",
    ]


def test_bad_orders() -> None:
    with pytest.raises(ValueError, match=r"order is 'vlm': .* \(nearest: vllm\)"):
        build_shapers(Sampling(), order="vlm")
    with pytest.raises(ValueError, match="order has 'top_z'"):
        build_shapers(Sampling(), order=("top_z",))
    with pytest.raises(ValueError, match="each rule may stand in it once"):
        build_shapers(Sampling(), order=("top_p", "top_p"))
    with pytest.raises(ValueError, match="order lacks top_p, which is on"):
        build_shapers(Sampling(top_p=0.5), order=("temperature",))
    with pytest.raises(ValueError, match="order lacks temperature, which is on"):
        build_shapers(Sampling(temperature=0), order=("top_p",))


def test_choices_have_their_own_coins() -> None:
    def coins(**how: int) -> list[bool]:
        (xtc,) = build_shapers(Sampling(xtc_probability=0.5), **how)
        return [
            bool(
                (xtc.shape_law(n, torch.zeros(3) - torch.tensor([0.0, 1.0, 2.0])) == NEG_INF).any()
            )
            for n in range(64)
        ]

    assert coins(seed=1) == coins(seed=1)
    assert len({tuple(coins(seed=s, choice=c)) for s in range(3) for c in range(3)}) == 9

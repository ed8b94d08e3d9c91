"""Every shaper file has cases, and keeps the contract; broken shapers do not."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import polydec.laws.shapers
from polydec.core.law import NEG_INF
from polydec.core.types import RowDetail, TokenVocabulary
from polydec.lab.testing.shaper_contract import check_shaper
from polydec.lab.testing.toy import ToyWords
from polydec.lab.train.ngrams import count_every_continuation
from polydec.lab.train.selfplay import TrainingSample
from polydec.laws.constraints.any_of import AnyOf
from polydec.laws.constraints.everything import UnrestrictedLanguage
from polydec.laws.shapers.allowed import AllowedTokensRule
from polydec.laws.shapers.annealed import AnnealedTemperatureRule
from polydec.laws.shapers.banned import BannedTokensRule
from polydec.laws.shapers.citations import CitationRule
from polydec.laws.shapers.constrained import ConstraintRule
from polydec.laws.shapers.cyclic_reflex import CyclicReflexRule
from polydec.laws.shapers.dry import DryRule
from polydec.laws.shapers.epsilon import EpsilonCutoffRule
from polydec.laws.shapers.eta import EtaCutoffRule
from polydec.laws.shapers.frequency import FrequencyPenaltyRule
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.shapers.logit_bias import LogitBiasRule
from polydec.laws.shapers.logits_processor import LogitsProcessorRule
from polydec.laws.shapers.min_p import MinPRule
from polydec.laws.shapers.min_tokens import MinTokensRule
from polydec.laws.shapers.momentum import MomentumRule
from polydec.laws.shapers.no_repeat_ngram import NoRepeatNgramRule
from polydec.laws.shapers.presence import PresencePenaltyRule
from polydec.laws.shapers.repetition import RepetitionPenaltyRule
from polydec.laws.shapers.row_ends import RowEndRule
from polydec.laws.shapers.temperature import TemperatureRule
from polydec.laws.shapers.top_k import TopKRule
from polydec.laws.shapers.top_n_sigma import TopNSigmaRule
from polydec.laws.shapers.top_p import TopPRule
from polydec.laws.shapers.top_w import TopWRule
from polydec.laws.shapers.typical import TypicalRule
from polydec.laws.shapers.watermark import WatermarkRule
from polydec.laws.shapers.xtc import XtcRule
from polydec.models.sessions.geometry import EmbeddingGeometry
from reasoned import Reasoned


def _case(shaper: Any, *fields: str, **declared: Any) -> tuple[Any, dict[str, Any]]:
    if fields:
        declared["relabel"] = lambda to: replace(
            shaper, **{f: tuple(map(to, getattr(shaper, f))) for f in fields}
        )
    return shaper, declared


TABLE = torch.randn(7, 3, generator=torch.Generator().manual_seed(5))


def _placed(table: Tensor) -> EmbeddingGeometry:
    return EmbeddingGeometry(lambda tokens: table[list(tokens)], 7)


def _top_w(*values: float, **declared: Any) -> tuple[Any, dict[str, Any]]:
    """A case of Top-W: where tokens are renamed, their embeddings move along."""

    def renamed(to: Any) -> TopWRule:
        table = torch.empty_like(TABLE)
        table[[to(i) for i in range(7)]] = TABLE
        return TopWRule(*values, geometry=_placed(table))

    return TopWRule(*values, geometry=_placed(TABLE)), {"relabel": renamed, **declared}


def _constrained(to: Any = lambda x: x) -> ConstraintRule:
    """Over letters a to f and an end, which have these ids."""
    ids = {to(i): chr(0x61 + i) for i in range(7)}
    end = frozenset({to(6)})
    vocab = TokenVocabulary(7, end, words=ToyWords(tuple(ids[i] for i in range(7)), end))
    return ConstraintRule(
        AnyOf(("ab", "aba", "cd", "abcabc")).token_language(vocab, end), tuple(end)
    )


def _processed(to: Any = lambda x: x) -> LogitsProcessorRule:
    """Token 1 grows with the text, and behind token 2 token 4 is banned."""

    def bend(token_ids: tuple[int, ...], logits_V: Tensor) -> Tensor:
        logits_V[to(1)] += 0.3 * len(token_ids)
        if token_ids[-1] == to(2):
            logits_V[to(4)] = NEG_INF
        return logits_V

    return LogitsProcessorRule(bend)


def _cited(*texts: str, length: int = 2, alphabet: int = 7) -> tuple[Any, dict[str, Any]]:
    """A case of the citation blocker: no run of these digits, which are tokens."""

    def counted(to: Any) -> CitationRule:
        samples = [TrainingSample((), tuple(to(int(x)) for x in text)) for text in texts]
        return CitationRule(
            count_every_continuation(samples, length - 1, TokenVocabulary(alphabet, frozenset())),
            length,
        )

    outside = count_every_continuation(
        [TrainingSample((), (7, 8))], 1, TokenVocabulary(9, frozenset())
    )
    declared = {"relabel": counted, "neutral": CitationRule(outside, 2)}
    return counted(int), declared


ALL_KEPT = {"changed": "nearly all mass is all tokens"}
ALWAYS = {"followed": "it cuts at every token"}
CASES: dict[str, list[tuple[Any, dict[str, Any]]]] = {
    "allowed": [
        _case(AllowedTokensRule((1, 3)), "tokens", neutral=AllowedTokensRule(tuple(range(7)))),
        _case(AllowedTokensRule((6, 2, 2), eos=(4, 6)), "tokens", "eos"),
    ],
    "annealed": [
        _case(AnnealedTemperatureRule(), alike=False, neutral=AnnealedTemperatureRule(1.0, 1.0)),
        _case(AnnealedTemperatureRule(1.5, 0.2, 2.0, 1), alike=False),
        _case(
            AnnealedTemperatureRule(0.7, 0.7, 1.0, 0),
            unexercised={"followed": "it ends where it begins"},
        ),
    ],
    "banned": [
        _case(BannedTokensRule((0, 2)), "tokens", neutral=BannedTokensRule(())),
        _case(
            BannedTokensRule(tuple(range(7)), eos=(3, 5)),
            "tokens",
            "eos",
            unexercised={"changed": "where nothing would be left the law stays"},
        ),
    ],
    "citations": [
        _cited("012", "0345", "61"),
        _cited("0123456012", "0213", length=3),
        # Behind 0 everything is a citation.
        _cited(*(f"0{x}" for x in range(7)), "12"),
    ],
    "constrained": [
        _case(
            _constrained(),
            alike=False,
            relabel=_constrained,
            neutral=ConstraintRule(UnrestrictedLanguage(7)),
        )
    ],
    "cyclic_reflex": [
        _case(
            CyclicReflexRule(5.0, (1, 4), 8, ends=(2,)),
            "tokens",
            "ends",
            alike=False,
            neutral=CyclicReflexRule(0.0, (1, 4)),
        ),
        _case(CyclicReflexRule(-3.0, (0,), 3, 0.5, until=4), "tokens", alike=False),
    ],
    "dry": [
        _case(DryRule(0.8), neutral=DryRule(0.0)),
        _case(DryRule(0.5, 2.0, 1, breakers=(2,)), "breakers"),
        _case(DryRule(1.0, 1.5, 1, 5)),
        _case(DryRule(3.0, 1e6, 1, 9, breakers=(0, 1)), "breakers"),
        _case(
            DryRule(1.0, window=0),
            unexercised=dict.fromkeys(("changed", "followed"), "it reads none of the text"),
        ),
    ],
    "epsilon": [
        _case(EpsilonCutoffRule(0.1), neutral=EpsilonCutoffRule(0.0)),
        _case(EpsilonCutoffRule(0.99)),
    ],
    "eta": [_case(EtaCutoffRule(0.2), neutral=EtaCutoffRule(0.0)), _case(EtaCutoffRule(0.99))],
    "frequency": [
        _case(FrequencyPenaltyRule(0.4), alike=False, neutral=FrequencyPenaltyRule(0.0)),
        _case(FrequencyPenaltyRule(-2.0), alike=False),
    ],
    "greedy": [_case(GreedyRule())],
    "logit_bias": [
        _case(
            LogitBiasRule({1: 2.0, 4: -1.5}),
            relabel=lambda to: LogitBiasRule({to(1): 2.0, to(4): -1.5}),
            neutral=LogitBiasRule({2: 0.0}),
        )
    ],
    "logits_processor": [
        _case(
            _processed(),
            alike=False,
            relabel=_processed,
            neutral=LogitsProcessorRule(lambda token_ids, logits_V: logits_V),
        )
    ],
    "min_p": [_case(MinPRule(0.3), neutral=MinPRule(0.0)), _case(MinPRule(1.0))],
    "min_tokens": [
        _case(MinTokensRule(3, (0, 5)), "ends", alike=False, neutral=MinTokensRule(0, (0, 5))),
        _case(
            MinTokensRule(99, tuple(range(7))),
            alike=False,
            unexercised=dict.fromkeys(
                ("changed", "followed"), "where nothing would be left the law stays"
            ),
        ),
    ],
    "momentum": [
        _case(MomentumRule(), neutral=MomentumRule(0.0, 7)),
        _case(MomentumRule(1.0, 3, 2)),
        _case(MomentumRule(0.01, 7, 64)),
    ],
    "no_repeat_ngram": [
        _case(NoRepeatNgramRule(n), neutral=NoRepeatNgramRule(99)) for n in (1, 2, 3)
    ]
    + [_case(NoRepeatNgramRule(1, eos=(6,)), "eos")],
    "presence": [
        _case(PresencePenaltyRule(0.7), alike=False, neutral=PresencePenaltyRule(0.0)),
        _case(PresencePenaltyRule(-2.0), alike=False),
    ],
    "repetition": [
        _case(RepetitionPenaltyRule(1.3), shifts=False, neutral=RepetitionPenaltyRule(1.0)),
        _case(RepetitionPenaltyRule(0.5), shifts=False),
    ],
    "row_ends": [
        _case(RowEndRule(2, 3), alike=False, relabel=lambda to: RowEndRule(2, to(3))),
        _case(RowEndRule(1, 0), alike=False, relabel=lambda to: RowEndRule(1, to(0))),
    ],
    "temperature": [
        _case(TemperatureRule(0.6), neutral=TemperatureRule(1.0)),
        _case(TemperatureRule(1e-5)),
        _case(TemperatureRule(50.0)),
    ],
    "top_k": [_case(TopKRule(3), neutral=TopKRule(7)), _case(TopKRule(1))],
    "top_n_sigma": [
        _case(TopNSigmaRule(0.8), neutral=TopNSigmaRule(float("inf"))),
        _case(TopNSigmaRule(1e-6)),
    ],
    "top_p": [
        _case(TopPRule(0.7), neutral=TopPRule(1.0)),
        _case(TopPRule(1e-9)),
        _case(TopPRule(1 - 1e-12), unexercised=ALL_KEPT),
    ],
    "top_w": [_top_w(2.8), _top_w(99.0, 0.5, 5.0, 4)],
    "typical": [
        _case(TypicalRule(0.6), neutral=TypicalRule(1.0)),
        _case(TypicalRule(1e-9)),
        _case(TypicalRule(1 - 1e-12), unexercised=ALL_KEPT),
    ],
    "watermark": [
        _case(WatermarkRule(), renames=False, neutral=WatermarkRule(0.0)),
        _case(WatermarkRule(50.0, 0.5, 7), renames=False),
    ],
    "xtc": [
        _case(XtcRule(0.5, 0.1, 3), neutral=XtcRule(0.0, 0.1)),
        _case(XtcRule(1.0, 0.05), unexercised=ALWAYS),
        _case(XtcRule(1.0, 0.0), unexercised=ALWAYS),
    ],
}
FILES = {
    p.stem
    for p in Path(polydec.laws.shapers.__path__[0]).glob("*.py")
    if not p.stem.startswith("_")
} - {"sampling", "declared", "names"}


def test_every_file_has_cases_of_the_shaper_in_it() -> None:
    assert set(CASES) == FILES
    for name, cases in CASES.items():
        made_here = {
            c
            for _, c in inspect.getmembers(
                importlib.import_module(f"polydec.laws.shapers.{name}"), inspect.isclass
            )
            if c.__module__ == f"polydec.laws.shapers.{name}"
        }
        assert {type(shaper) for shaper, _ in cases} == made_here


@pytest.mark.parametrize(
    ("shaper", "declared"),
    [pytest.param(*c, id=f"{n}-{i}") for n, cs in CASES.items() for i, c in enumerate(cs)],
)
def test_contract(record_counts: Any, shaper: Any, declared: dict[str, Any]) -> None:
    given = dict(declared)
    reasons = given.pop("unexercised", None)
    checked = shaper if reasons is None else Reasoned(shaper, reasons)
    record_counts(check_shaper(checked, **given))


@pytest.mark.parametrize("name", sorted(CASES))
@given(
    row=st.lists(
        st.one_of(st.floats(-1e4, 1e4, width=32), st.just(NEG_INF)), min_size=7, max_size=7
    ).filter(lambda r: max(r) > NEG_INF),
    text=st.lists(st.integers(0, 6), min_size=1, max_size=20),
    cut=st.integers(1, 20),
)
@settings(max_examples=40)
def test_total_on_any_row_and_text(name: str, row: list[float], text: list[int], cut: int) -> None:
    row_V = torch.tensor(row)
    for shaper, _ in CASES[name]:
        state = shaper.start_state(tuple(text[:cut]))
        for x in text[cut:]:
            state = shaper.next_state(state, x)
        out_V = shaper.shape_law(state, row_V)
        assert torch.isfinite(out_V[out_V > NEG_INF]).all() and (out_V > NEG_INF).any()


@dataclass(frozen=True)
class Broken:
    """Takes the fourth root of all chances, but for one method."""

    unexercised: ClassVar[dict[str, str]] = {"followed": "its states are not read"}
    reads: ClassVar[RowDetail] = RowDetail.ROW
    keeps_argmax: ClassVar[bool] = False

    def start_state(self, prompt: Any) -> Any:
        return tuple(prompt)

    def next_state(self, state: Any, token: int) -> Any:
        return (*state, token)

    def shape_law(self, state: Any, logw_V: Tensor) -> Tensor:
        return logw_V / 4


class WritesRow(Broken):
    def shape_law(self, state: Any, logw_V: Tensor) -> Tensor:
        logw_V[0] = 0.0
        return logw_V


class WritesState(Broken):
    def start_state(self, prompt: Any) -> Any:
        return list(prompt)

    def next_state(self, state: Any, token: int) -> Any:
        state.append(token)
        return state

    def shape_law(self, state: Any, logw_V: Tensor) -> Tensor:
        return logw_V + torch.arange(len(logw_V)) * len(state)


class Empties(Broken):
    def shape_law(self, state: Any, logw_V: Tensor) -> Tensor:
        return torch.full_like(logw_V, NEG_INF)


class OneBehind(Broken):
    def shape_law(self, state: Any, logw_V: Tensor) -> Tensor:
        out_V = logw_V.clone()
        out_V[list(state)[-1]] -= 1.0
        return out_V

    def next_state(self, state: Any, token: int) -> Any:
        return (*state[:-1], token, state[-1])


class LooksAtIds(Broken):
    def shape_law(self, state: Any, logw_V: Tensor) -> Tensor:
        return logw_V + torch.arange(len(logw_V))


class LooksAtSigns(Broken):
    def shape_law(self, state: Any, logw_V: Tensor) -> Tensor:
        return torch.where(logw_V > 0, logw_V / 2, logw_V)


class Revives(Broken):
    def shape_law(self, state: Any, logw_V: Tensor) -> Tensor:
        return logw_V.clamp(min=-1e4)


class MovesArgmax(Broken):
    keeps_argmax = True

    def shape_law(self, state: Any, logw_V: Tensor) -> Tensor:
        return torch.where(logw_V == logw_V.max(), logw_V - 5.0, logw_V)


class NotOneHot(Broken):
    reads = RowDetail.ARGMAX


class CountsFromElsewhere(Broken):
    def for_choice(self, choice: int) -> Any:
        return _OneFurther()


class Overflows(Broken):
    def shape_law(self, state: Any, logw_V: Tensor) -> Tensor:
        return logw_V.exp()


class _OneFurther:
    """Its states are not those of the shaper that it takes the place of."""

    reads, keeps_argmax = RowDetail.ROW, False

    def start_state(self, prompt: Any) -> Any:
        return (0, *prompt)

    def next_state(self, state: Any, token: int) -> Any:
        return (*state, token)

    def shape_law(self, state: Any, logw_V: Tensor) -> Tensor:
        return logw_V / (1 + len(state))


BROKEN = Broken.__subclasses__()


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_shaper_is_caught(broken: type[Broken]) -> None:
    check_shaper(Broken())
    with pytest.raises(AssertionError):
        check_shaper(broken())


class Unmoved(Broken):
    """Leaves every law as it is."""

    def shape_law(self, state: Any, logw_V: Tensor) -> Tensor:
        return logw_V


class Deaf(Broken):
    """Has states that it does not read, and does not say so."""

    unexercised: ClassVar[dict[str, str]] = {}


@pytest.mark.parametrize("shaper, count", [(Unmoved(), "changed"), (Deaf(), "followed")])
def test_a_shaper_that_does_nothing_is_caught(shaper: Broken, count: str) -> None:
    with pytest.raises(AssertionError, match=f"does not exercise what it is there for: 0 {count}"):
        check_shaper(shaper)


def test_a_wrong_neutral_is_caught() -> None:
    with pytest.raises(AssertionError, match="neutral"):
        check_shaper(TemperatureRule(0.5), neutral=TemperatureRule(0.9))

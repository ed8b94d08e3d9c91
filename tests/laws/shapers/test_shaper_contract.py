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
from polydec.core.types import Reads, Vocab
from polydec.lab.testing.shaper_contract import check_shaper
from polydec.lab.testing.toy import Letters
from polydec.laws.constraints.any_of import AnyOf
from polydec.laws.constraints.everything import Everything
from polydec.laws.shapers.allowed import Allowed
from polydec.laws.shapers.annealed import Annealed
from polydec.laws.shapers.banned import Banned
from polydec.laws.shapers.constrained import Constrained
from polydec.laws.shapers.cyclic_reflex import CyclicReflex
from polydec.laws.shapers.dry import Dry
from polydec.laws.shapers.epsilon import Epsilon
from polydec.laws.shapers.eta import Eta
from polydec.laws.shapers.frequency import Frequency
from polydec.laws.shapers.greedy import Greedy
from polydec.laws.shapers.logit_bias import LogitBias
from polydec.laws.shapers.min_p import MinP
from polydec.laws.shapers.min_tokens import MinTokens
from polydec.laws.shapers.momentum import Momentum
from polydec.laws.shapers.no_repeat_ngram import NoRepeatNgram
from polydec.laws.shapers.presence import Presence
from polydec.laws.shapers.repetition import Repetition
from polydec.laws.shapers.temperature import Temperature
from polydec.laws.shapers.top_k import TopK
from polydec.laws.shapers.top_n_sigma import TopNSigma
from polydec.laws.shapers.top_p import TopP
from polydec.laws.shapers.top_w import TopW
from polydec.laws.shapers.typical import Typical
from polydec.laws.shapers.watermark import Watermark
from polydec.laws.shapers.xtc import Xtc
from polydec.models.sessions.geometry import Geometry
from reasoned import Reasoned


def _case(shaper: Any, *fields: str, **declared: Any) -> tuple[Any, dict[str, Any]]:
    if fields:
        declared["relabel"] = lambda to: replace(
            shaper, **{f: tuple(map(to, getattr(shaper, f))) for f in fields}
        )
    return shaper, declared


TABLE = torch.randn(7, 3, generator=torch.Generator().manual_seed(5))


def _placed(table: Tensor) -> Geometry:
    return Geometry(lambda tokens: table[list(tokens)], 7)


def _top_w(*values: float, **declared: Any) -> tuple[Any, dict[str, Any]]:
    """A case of Top-W: where tokens are renamed, their embeddings move along."""

    def renamed(to: Any) -> TopW:
        table = torch.empty_like(TABLE)
        table[[to(i) for i in range(7)]] = TABLE
        return TopW(*values, geometry=_placed(table))

    return TopW(*values, geometry=_placed(TABLE)), {"relabel": renamed, **declared}


def _constrained(to: Any = lambda x: x) -> Constrained:
    """Over letters a to f and an end, which have these ids."""
    ids = {to(i): chr(0x61 + i) for i in range(7)}
    end = frozenset({to(6)})
    vocab = Vocab(7, end, words=Letters(tuple(ids[i] for i in range(7)), end))
    return Constrained(AnyOf(("ab", "aba", "cd", "abcabc")).language(vocab, end), tuple(end))


ALL_KEPT = {"changed": "nearly all mass is all tokens"}
ALWAYS = {"followed": "it cuts at every token"}
CASES: dict[str, list[tuple[Any, dict[str, Any]]]] = {
    "allowed": [
        _case(Allowed((1, 3)), "tokens", neutral=Allowed(tuple(range(7)))),
        _case(Allowed((6, 2, 2), eos=(4, 6)), "tokens", "eos"),
    ],
    "annealed": [
        _case(Annealed(), alike=False, neutral=Annealed(1.0, 1.0)),
        _case(Annealed(1.5, 0.2, 2.0, 1), alike=False),
        _case(Annealed(0.7, 0.7, 1.0, 0), unexercised={"followed": "it ends where it begins"}),
    ],
    "banned": [
        _case(Banned((0, 2)), "tokens", neutral=Banned(())),
        _case(
            Banned(tuple(range(7)), eos=(3, 5)),
            "tokens",
            "eos",
            unexercised={"changed": "where nothing would be left the law stays"},
        ),
    ],
    "constrained": [
        _case(_constrained(), alike=False, relabel=_constrained, neutral=Constrained(Everything(7)))
    ],
    "cyclic_reflex": [
        _case(
            CyclicReflex(5.0, (1, 4), 8, ends=(2,)),
            "tokens",
            "ends",
            alike=False,
            neutral=CyclicReflex(0.0, (1, 4)),
        ),
        _case(CyclicReflex(-3.0, (0,), 3, 0.5, until=4), "tokens", alike=False),
    ],
    "dry": [
        _case(Dry(0.8), neutral=Dry(0.0)),
        _case(Dry(0.5, 2.0, 1, breakers=(2,)), "breakers"),
        _case(Dry(1.0, 1.5, 1, 5)),
        _case(Dry(3.0, 1e6, 1, 9, breakers=(0, 1)), "breakers"),
        _case(
            Dry(1.0, window=0),
            unexercised=dict.fromkeys(("changed", "followed"), "it reads none of the text"),
        ),
    ],
    "epsilon": [_case(Epsilon(0.1), neutral=Epsilon(0.0)), _case(Epsilon(0.99))],
    "eta": [_case(Eta(0.2), neutral=Eta(0.0)), _case(Eta(0.99))],
    "frequency": [
        _case(Frequency(0.4), alike=False, neutral=Frequency(0.0)),
        _case(Frequency(-2.0), alike=False),
    ],
    "greedy": [_case(Greedy())],
    "logit_bias": [
        _case(
            LogitBias({1: 2.0, 4: -1.5}),
            relabel=lambda to: LogitBias({to(1): 2.0, to(4): -1.5}),
            neutral=LogitBias({2: 0.0}),
        )
    ],
    "min_p": [_case(MinP(0.3), neutral=MinP(0.0)), _case(MinP(1.0))],
    "min_tokens": [
        _case(MinTokens(3, (0, 5)), "ends", alike=False, neutral=MinTokens(0, (0, 5))),
        _case(
            MinTokens(99, tuple(range(7))),
            alike=False,
            unexercised=dict.fromkeys(
                ("changed", "followed"), "where nothing would be left the law stays"
            ),
        ),
    ],
    "momentum": [
        _case(Momentum(), neutral=Momentum(0.0, 7)),
        _case(Momentum(1.0, 3, 2)),
        _case(Momentum(0.01, 7, 64)),
    ],
    "no_repeat_ngram": [_case(NoRepeatNgram(n), neutral=NoRepeatNgram(99)) for n in (1, 2, 3)]
    + [_case(NoRepeatNgram(1, eos=(6,)), "eos")],
    "presence": [
        _case(Presence(0.7), alike=False, neutral=Presence(0.0)),
        _case(Presence(-2.0), alike=False),
    ],
    "repetition": [
        _case(Repetition(1.3), shifts=False, neutral=Repetition(1.0)),
        _case(Repetition(0.5), shifts=False),
    ],
    "temperature": [
        _case(Temperature(0.6), neutral=Temperature(1.0)),
        _case(Temperature(1e-5)),
        _case(Temperature(50.0)),
    ],
    "top_k": [_case(TopK(3), neutral=TopK(7)), _case(TopK(1))],
    "top_n_sigma": [_case(TopNSigma(0.8), neutral=TopNSigma(float("inf"))), _case(TopNSigma(1e-6))],
    "top_p": [
        _case(TopP(0.7), neutral=TopP(1.0)),
        _case(TopP(1e-9)),
        _case(TopP(1 - 1e-12), unexercised=ALL_KEPT),
    ],
    "top_w": [_top_w(2.8), _top_w(99.0, 0.5, 5.0, 4)],
    "typical": [
        _case(Typical(0.6), neutral=Typical(1.0)),
        _case(Typical(1e-9)),
        _case(Typical(1 - 1e-12), unexercised=ALL_KEPT),
    ],
    "watermark": [
        _case(Watermark(), renames=False, neutral=Watermark(0.0)),
        _case(Watermark(50.0, 0.5, 7), renames=False),
    ],
    "xtc": [
        _case(Xtc(0.5, 0.1, 3), neutral=Xtc(0.0, 0.1)),
        _case(Xtc(1.0, 0.05), unexercised=ALWAYS),
        _case(Xtc(1.0, 0.0), unexercised=ALWAYS),
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
        state = shaper.start(tuple(text[:cut]))
        for x in text[cut:]:
            state = shaper.step(state, x)
        out_V = shaper.shape(state, row_V)
        assert torch.isfinite(out_V[out_V > NEG_INF]).all() and (out_V > NEG_INF).any()


@dataclass(frozen=True)
class Broken:
    """Takes the fourth root of all chances, but for one method."""

    unexercised: ClassVar[dict[str, str]] = {"followed": "its states are not read"}
    reads: ClassVar[Reads] = Reads.ROW
    keeps_argmax: ClassVar[bool] = False

    def start(self, prompt: Any) -> Any:
        return tuple(prompt)

    def step(self, state: Any, token: int) -> Any:
        return (*state, token)

    def shape(self, state: Any, logw_V: Tensor) -> Tensor:
        return logw_V / 4


class WritesRow(Broken):
    def shape(self, state: Any, logw_V: Tensor) -> Tensor:
        logw_V[0] = 0.0
        return logw_V


class WritesState(Broken):
    def start(self, prompt: Any) -> Any:
        return list(prompt)

    def step(self, state: Any, token: int) -> Any:
        state.append(token)
        return state

    def shape(self, state: Any, logw_V: Tensor) -> Tensor:
        return logw_V + torch.arange(len(logw_V)) * len(state)


class Empties(Broken):
    def shape(self, state: Any, logw_V: Tensor) -> Tensor:
        return torch.full_like(logw_V, NEG_INF)


class OneBehind(Broken):
    def shape(self, state: Any, logw_V: Tensor) -> Tensor:
        out_V = logw_V.clone()
        out_V[list(state)[-1]] -= 1.0
        return out_V

    def step(self, state: Any, token: int) -> Any:
        return (*state[:-1], token, state[-1])


class LooksAtIds(Broken):
    def shape(self, state: Any, logw_V: Tensor) -> Tensor:
        return logw_V + torch.arange(len(logw_V))


class LooksAtSigns(Broken):
    def shape(self, state: Any, logw_V: Tensor) -> Tensor:
        return torch.where(logw_V > 0, logw_V / 2, logw_V)


class Revives(Broken):
    def shape(self, state: Any, logw_V: Tensor) -> Tensor:
        return logw_V.clamp(min=-1e4)


class MovesArgmax(Broken):
    keeps_argmax = True

    def shape(self, state: Any, logw_V: Tensor) -> Tensor:
        return torch.where(logw_V == logw_V.max(), logw_V - 5.0, logw_V)


class NotOneHot(Broken):
    reads = Reads.ARGMAX


class CountsFromElsewhere(Broken):
    def for_choice(self, choice: int) -> Any:
        return _OneFurther()


class Overflows(Broken):
    def shape(self, state: Any, logw_V: Tensor) -> Tensor:
        return logw_V.exp()


class _OneFurther:
    """Its states are not those of the shaper that it takes the place of."""

    reads, keeps_argmax = Reads.ROW, False

    def start(self, prompt: Any) -> Any:
        return (0, *prompt)

    def step(self, state: Any, token: int) -> Any:
        return (*state, token)

    def shape(self, state: Any, logw_V: Tensor) -> Tensor:
        return logw_V / (1 + len(state))


BROKEN = Broken.__subclasses__()


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_shaper_is_caught(broken: type[Broken]) -> None:
    check_shaper(Broken())
    with pytest.raises(AssertionError):
        check_shaper(broken())


class Unmoved(Broken):
    """Leaves every law as it is."""

    def shape(self, state: Any, logw_V: Tensor) -> Tensor:
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
        check_shaper(Temperature(0.5), neutral=Temperature(0.9))

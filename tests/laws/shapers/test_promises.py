"""What holds at any values within the ranges: rows are laws, forbidden tokens never come out, a dead end says which rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import forked
from polydec.base.options import AtLeast, InRange, Option
from polydec.core.decoder import answer_one
from polydec.core.law import NEG_INF, normalise_log_weights
from polydec.core.protocols import of_choice
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy import ToyWords, toy_law
from polydec.laws.shapers.sampling import (
    ORDERS,
    Sampling,
    all_sampling_fields,
    all_sampling_rules,
    build_guard,
    build_shapers,
    sampling_fields_table,
)
from polydec.laws.shapers.xtc import XtcRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.models.sessions.geometry import EmbeddingGeometry

SIZE = 7
IDS = st.lists(st.integers(0, SIZE - 1), max_size=SIZE).map(tuple)
SPECIAL: dict[str, Any] = {
    "logit_bias": st.none() | st.dictionaries(st.integers(0, SIZE - 1), st.floats(-100, 100)),
    "allowed_token_ids": st.none() | IDS.filter(len),
    "bad_token_ids": IDS,
    "dry_sequence_breakers": IDS,
    "reflex_token_ids": IDS.filter(len),
    "reflex_end_ids": st.none() | IDS,
}
PLACES = torch.randn(SIZE, 3, generator=torch.Generator().manual_seed(5))
WORDS = ToyWords(("a", "b", " wait", "c", "d", "</think>", "e"))
GEOMETRY = EmbeddingGeometry(lambda tokens: PLACES[list(tokens)], SIZE)


def legal(option: Option) -> st.SearchStrategy[Any]:
    """Values within an option's range, its edges and extremes among them."""
    lows = [
        x.low if isinstance(x, InRange) else x.edge
        for x in option.limits
        if isinstance(x, (InRange, AtLeast))
    ]
    highs = [x.high for x in option.limits if isinstance(x, InRange)]
    if option.kind is int:
        high = min(map(int, highs), default=2**63 - 1)
        return st.integers(min(lows), 4) | st.integers(min(lows), high)
    edges = st.sampled_from(
        [
            0.0,
            1.0,
            5e-324,
            1e-300,
            1e-45,
            1e-38,
            1e-6,
            1e-5,
            1 - 1e-16,
            1 - 1e-7,
            999.0,
            1e6,
            1e38,
            1e300,
        ]
    )
    every = st.floats(
        min(lows, default=None), max(highs, default=None), allow_nan=False, allow_infinity=False
    )

    def accepted(x: float) -> bool:
        try:
            option.convert_value(x)
        except ValueError:
            return False
        return True

    return (edges | every | st.floats(0.001, 2)).filter(accepted)


FIELDS = {
    name: SPECIAL[name] if name in SPECIAL else legal(o)
    for name, o in all_sampling_fields().items()
}
ROWS = st.lists(
    st.one_of(
        st.floats(-30, 30, width=32),
        st.floats(-1e30, 1e30),
        st.sampled_from([0.0, 1.0, 1e30, -1e30, NEG_INF]),
    ),
    min_size=SIZE,
    max_size=SIZE,
)
KINDS = st.sampled_from([torch.float32, torch.float64])
TEXT = st.lists(st.integers(0, SIZE - 1), max_size=12)


def _sampling(given_: dict[str, Any]) -> Sampling | None:
    try:
        sampling = Sampling(**given_)
        sampling.check_token_ids(SIZE)
    except ValueError as e:
        assert "bad_token_ids bans" in str(e), "only that is refused within the ranges"
        return None
    return sampling


def _holds(
    sampling: Sampling,
    order: Any,
    prompt: list[int],
    output: list[int],
    row: list[float],
    kind: torch.dtype,
) -> None:
    shapers = build_shapers(
        sampling, order=order, eos=(0, 3), stop_ids=(2,), words=WORDS, geometry=GEOMETRY
    )
    guard = build_guard(sampling, eos=(0, 3), stop_ids=(2,))
    row_V = torch.tensor(row, dtype=kind)
    alive = (row_V > NEG_INF).tolist()
    states, held = (
        [s.start_state((1, *prompt)) for s in shapers],
        guard.start_state((1, *prompt)) if guard else (),
    )
    for x in output:
        states = [s.next_state(state, x) for s, state in zip(shapers, states)]
        if guard:
            held = tuple(s.next_state(state, x) for (_, s), state in zip(guard.rules, held))
    out_V = row_V
    for s, state in zip(shapers, states):
        out_V = s.shape_law(state, out_V)
        assert (
            not out_V.isnan().any() and (out_V < float("inf")).all() and (out_V > NEG_INF).any()
        ), s
    logp_V = normalise_log_weights(out_V)
    assert not logp_V.isnan().any() and abs(float(logp_V.double().exp().sum()) - 1) < 1e-5
    free = [
        x
        for x in range(SIZE)
        if guard is None or not any(s.forbids_token(h, x) for (_, s), h in zip(guard.rules, held))
    ]
    law = [x for x in range(SIZE) if float(logp_V[x]) > NEG_INF]
    # where the model and the rules leave something, nothing else is ever drawn; else the guard speaks, whatever is drawn
    if any(alive[x] for x in free) and order in ORDERS:
        assert set(law) <= set(free), (sampling, law, free)
    for x in law:
        if x in free and guard:
            guard.next_states(held, x)
        elif x not in free:
            with pytest.raises(ValueError, match=r"no token is left that .* allow"):
                guard.next_states(held, x)


@pytest.mark.parametrize("rule", all_sampling_rules())
@given(data=st.data())
@settings(max_examples=60)
def test_each_rule_alone(rule: str, data: st.DataObject) -> None:
    sampling = _sampling(
        {o.name: data.draw(FIELDS[o.name], o.name) for o in all_sampling_rules()[rule].fields}
    )
    row = data.draw(ROWS.filter(lambda r: max(r) > NEG_INF))
    if sampling is not None:
        _holds(sampling, "vllm", data.draw(TEXT), data.draw(TEXT), row, data.draw(KINDS))


@given(
    st.fixed_dictionaries({}, optional=FIELDS),
    st.sampled_from(sorted(ORDERS)) | st.permutations(sorted(all_sampling_rules())),
    TEXT,
    TEXT,
    ROWS.filter(lambda r: max(r) > NEG_INF),
    KINDS,
)
@settings(max_examples=600)
def test_all_rules_together(
    given_: dict[str, Any],
    order: Any,
    prompt: list[int],
    output: list[int],
    row: list[float],
    kind: torch.dtype,
) -> None:
    sampling = _sampling(given_)
    if sampling is not None:
        _holds(
            sampling, order if isinstance(order, str) else tuple(order), prompt, output, row, kind
        )


MASKS = {
    "allowed_token_ids": SPECIAL["allowed_token_ids"],
    "bad_token_ids": IDS,
    "min_tokens": st.integers(0, 5),
    "no_repeat_ngram_size": st.integers(0, 3),
    "temperature": st.sampled_from([0.0, 1e-5, 1.0, 1e6]),
    "top_k": st.integers(0, 2),
    "repetition_penalty": st.sampled_from([0.001, 1.0, 1000.0]),
}


@given(
    st.fixed_dictionaries({}, optional=MASKS),
    st.sampled_from(["plain", "token-recycling", "draft-model-tree", "rsd-s"]),
    st.sampled_from(sorted(ORDERS)),
    st.integers(0, 9),
)
@settings(max_examples=150)
def test_no_method_writes_a_forbidden_token(
    given_: dict[str, Any], method: str, order: str, seed: int
) -> None:
    sampling = _sampling(given_)
    if sampling is None:
        return
    shapers = build_shapers(sampling, order=order, eos=(3,), seed=seed)
    target, draft = (ShapedTarget(toy_law(n, SIZE, eos=3), *shapers) for n in (1, 2))
    guard = build_guard(sampling, eos=(3,))
    decoder, _ = build(method, target, draft)
    request = Request((1, 2), max_tokens=12, seed=seed, guard=guard)
    try:
        out = run_coroutines([answer_one(decoder, request)])[0].token_ids
    except ValueError as e:
        assert "no token is left that " in str(e) and len(str(e)) <= 300
        assert all(name in str(e) for name, _ in guard.rules)
        plain, _ = build("plain", target, draft)
        if (
            sampling.temperature == 0.0 and method != "plain"
        ):  # a greedy text is the same for every method, its end too
            with pytest.raises(ValueError, match="no token is left"):
                run_coroutines([answer_one(plain, request)])
        return
    held = guard.start_state((1, 2)) if guard else ()
    for x in out:
        held = guard.next_states(held, x) if guard else ()


@pytest.mark.parametrize(
    "given_, names",
    [
        (
            {"allowed_token_ids": (5,), "no_repeat_ngram_size": 1},
            "allowed_token_ids and no_repeat_ngram_size allow together",
        ),
        (
            {"allowed_token_ids": (3,), "min_tokens": 2},
            "allowed_token_ids and min_tokens allow together",
        ),
        (
            {"no_repeat_ngram_size": 1, "bad_token_ids": (3,)},
            "bad_token_ids and no_repeat_ngram_size allow together",
        ),
        (
            {"bad_token_ids": (0, 1, 2, 4, 5, 6), "min_tokens": 2},
            "bad_token_ids and min_tokens allow together",
        ),
    ],
)
def test_a_dead_end_names_the_rules(given_: dict[str, Any], names: str) -> None:
    sampling = Sampling(temperature=0.0, **given_)
    target = ShapedTarget(toy_law(1, SIZE, eos=3), *build_shapers(sampling, eos=(3,)))
    request = Request((1, 2), max_tokens=20, guard=build_guard(sampling, eos=(3,)))
    for method in ("plain", "token-recycling"):
        with pytest.raises(ValueError) as e:
            run_coroutines([answer_one(build(method, target, None)[0], request)])
        assert str(e.value).startswith(f"no token is left that {names}: ")


def test_an_answer_that_ends_before_the_dead_end_is_fine() -> None:
    sampling = Sampling(temperature=0.0, allowed_token_ids=(5,), no_repeat_ngram_size=2)
    target = ShapedTarget(toy_law(1, SIZE, eos=3), *build_shapers(sampling, eos=(3,)))
    guard = build_guard(sampling, eos=(3,))
    for method in ("plain", "token-recycling", "prompt-lookup"):
        decoder, _ = build(method, target, None)
        assert run_coroutines([answer_one(decoder, Request((1, 2), max_tokens=2, guard=guard))])[
            0
        ].token_ids == (5, 5)
        with pytest.raises(ValueError, match="no token is left"):
            run_coroutines([answer_one(decoder, Request((1, 2), max_tokens=3, guard=guard))])


def test_the_guard_goes_along_with_the_text() -> None:
    def write(eos: tuple[int, ...], **given_: Any) -> tuple[int, ...]:
        sampling = Sampling(temperature=0.0, **given_)
        target = ShapedTarget(toy_law(1, SIZE, eos=3), *build_shapers(sampling, eos=eos))
        request = Request(
            (1, 2), max_tokens=9, ignore_eos=not eos, guard=build_guard(sampling, eos=eos)
        )
        return run_coroutines([answer_one(build("plain", target, None)[0], request)])[0].token_ids

    assert write((3,), min_tokens=1, allowed_token_ids=(3, 5), no_repeat_ngram_size=1)[-1] == 3
    with pytest.raises(
        ValueError,
        match="no token is left that allowed_token_ids, min_tokens and no_repeat_ngram_size allow",
    ):
        write((3,), min_tokens=2, allowed_token_ids=(3, 5), no_repeat_ngram_size=1)
    with pytest.raises(ValueError, match="no token is left that no_repeat_ngram_size allows: "):
        write((), no_repeat_ngram_size=1)


def test_no_guard_where_nothing_is_forbidden() -> None:
    assert (
        build_guard(Sampling(temperature=0.5, top_k=3, repetition_penalty=1.2, xtc_probability=1.0))
        is None
    )
    assert (
        build_guard(Sampling(min_tokens=3)) is None
        and build_guard(Sampling(min_tokens=3), eos=(1,)) is not None
    )


def test_another_choice_has_other_coins() -> None:
    for choice in (0, 1, 7):
        (first,) = build_shapers(Sampling(xtc_probability=0.5), seed=3)
        (again,) = build_shapers(Sampling(xtc_probability=0.5), seed=3, choice=choice)
        assert of_choice(first, choice) == again
    row_V, xtc = torch.tensor([2.0, 1.0, 0.0]), of_choice(XtcRule(0.5, 0.1, 3), 7)
    cut = [bool((xtc.shape_law(n, row_V) == NEG_INF).any()) for n in range(64)]
    assert cut == [
        Rng.of_choice(3, 7).child_stream("xtc", n).draw_bernoulli(0.5) for n in range(64)
    ]
    (plain,) = build_shapers(Sampling(top_p=0.5))
    assert of_choice(plain, 4) is plain


def test_fields_and_their_table() -> None:
    assert sampling_fields_table().count("\n") == len(all_sampling_fields()) + 1
    assert (
        "| `min_p` |" in sampling_fields_table()
        and "a number, in 0 to 1 (0 keeps every token) | 0 |" in sampling_fields_table()
    )
    assert all(o.json_schema()["description"] for o in all_sampling_fields().values())
    with pytest.raises(
        ValueError, match=r"sampling has no field 'temprature': did you mean temperature\?"
    ):
        Sampling(temprature=1.0)
    with pytest.raises(AttributeError):
        Sampling().top_p = 0.5
    assert Sampling(top_k=5.0) == Sampling(top_k=5) != Sampling(top_k=6)
    assert Sampling(
        top_p=0.5, bad_token_ids=[1], min_tokens=2, logit_bias={1: 2}
    ).without_token_fields() == Sampling(top_p=0.5)


NEW = """
from dataclasses import dataclass
from typing import Annotated, ClassVar
from polydec.core.types import RowDetail
from polydec.models.sessions.geometry import EmbeddingGeometry
from polydec.base.options import AtLeast
from polydec.laws.shapers._rule import SamplingRule, SamplingRuleContext

@dataclass(frozen=True)
class Lower:
    by: float
    reads: ClassVar[RowDetail] = RowDetail.ROW
    keeps_argmax: ClassVar[bool] = False
    def start_state(self, prompt): return None
    def next_state(self, state, token): return None
    def shape_law(self, state, logw_V):
        out_V = logw_V.clone()
        out_V[0] -= self.by
        return out_V

LowerFirst = Annotated[float, AtLeast(0), "off the first token's logit"]

def make(setting: SamplingRuleContext, *, lower_first: LowerFirst = 0.0) -> Lower | None:
    return Lower(lower_first) if lower_first else None

RULE = SamplingRule("lower_first", make, {"vllm": 95, "transformers": 1, "llamacpp": 999}, always=True)
"""
USE = """
import sys, polydec.laws.shapers
polydec.laws.shapers.__path__.append(sys.argv[1])
from polydec.laws.shapers.sampling import ORDERS, Sampling, build_shapers, all_sampling_fields, sampling_fields_table
lower, = build_shapers(Sampling(lower_first=2))
assert type(lower).__name__ == "Lower" and lower.by == 2.0
assert ORDERS["transformers"][0] == ORDERS["llamacpp"][-1] == "lower_first"
vllm = ORDERS["vllm"]
assert vllm[vllm.index("temperature") - 1] == "lower_first"
assert [type(s).__name__ for s in build_shapers(Sampling(lower_first=2, temperature=0, top_p=0.5))] == ["Lower", "GreedyRule"]
assert "lower_first" in sampling_fields_table() and all_sampling_fields()["lower_first"].json_schema()["minimum"] == 0
try:
    Sampling(lower_first=-1)
except ValueError as e:
    assert str(e) == "lower_first is -1.0: it must be at least 0"
else:
    sys.exit(1)
"""


def test_a_new_rule_is_one_new_file(tmp_path: Path) -> None:
    (tmp_path / "lower.py").write_text(NEW, "utf-8")
    done = forked.run("-c", USE, str(tmp_path))
    assert done.returncode == 0, done.stderr

"""Every option of every method reaches what it names: built at two values, something that can be observed differs.

A recipe decodes toys (`option_toys.py`), and answers, events, passes, positions and refusals are compared.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any

import pytest

from option_toys import (
    COPIED,
    SAMPLED,
    Toy,
    drafts_behind,
    observed,
    observed_press,
    observed_steering,
    observed_unmasker,
)
from option_values import other_values
from polydec.base.errors import RequestError
from polydec.base.options import Option
from polydec.lab.testing.examples import example_mechanism
from polydec.methods.economics.costs import PassCosts
from polydec.methods.registry import press, registry, steer

TRIED = 4
"""Other values of an option that are tried on a toy, at most."""


@dataclass(frozen=True)
class Case:
    """How an option is seen, where the usual way does not show it.

    Attributes:
        values: Other values that are tried; (): those of `other_values`.
        given: Options that have these values both times.
        toys: What is decoded; the first one that shows a difference is enough.
    """

    values: tuple[Any, ...] = ()
    given: Mapping[str, Any] = field(default_factory=dict)
    toys: tuple[Toy, ...] = ()


def case(*values: Any, toy: Toy | None = None, **given: Any) -> Case:
    """A case with these values, other options, and one toy."""
    return Case(values, given, () if toy is None else (toy,))


STEPS = {"longest": 2}
ROWS = {"cost_aware": False}
CONSTRAINED = replace(SAMPLED, regex="(babababb|bbabbabb|aabaabaa|babbabaa)(aab|bba){40}")
DATED = Toy(words=("4 May 1961", "5 May 1961", "blue", "a", "b", "\n", "c", ""), ends=True, most=4)
NUMBERED = Toy(
    words=("1200", "1234", "1290", "13th century", "about 1200", "\n", "1250", ""),
    ends=True,
    most=2,
)
MIXED = Toy(prompt=(3, 4, 5, 6), most=12, experts=True)
POOLED = {"interval": 2, "budget": 40, "tries": 2}
LINES = Toy(likely=(3,), most=48)
TWO_LETTERS = Toy(words=("a", "b", ""), prompt=(0, 1, 0, 1, 1), most=48)
SHORT = Toy(most=4, ends=True)

LONG = (0, 1, 2, 3, 4, 5, 6, 0, 2, 4, 6, 1, 3, 5, 0, 3, 6, 2, 5, 1, 4) * 2
CANVAS = Toy(sharp=4.0, size=5)
ENDING = Toy(size=5, ends=True)
FAR = replace(SAMPLED, near=False)

OF_METHOD: dict[str, Mapping[str, Any]] = {
    "a-star-decoding": STEPS,
    "arbitrage": STEPS,
    "arbitrage-oracle": STEPS,
    "reward-guided": STEPS,
    "step-beam": STEPS,
    "stoc-tot": {"longest": 4},
    "multi-view-multi-path": {"answers": "a|b"},
    "plan-guided": {"plans": 4, "shortest": 1},
    "mulo-sd": {"near": 1, "threshold": 0.3},
}
"""Options with which a method does on a toy what it is there for."""

TOYS = {
    "ar": (SAMPLED, COPIED),
    "any": (SAMPLED, COPIED),
    "diffusion": (CANVAS, Toy(seed=3, sharp=4.0, size=5, ends=True, greedy=True)),
    "insertion": (SAMPLED, COPIED),
    "patches": (replace(SAMPLED, answers=3), replace(SAMPLED, seed=2, answers=6)),
}
"""What is decoded of each family."""

CASES: dict[tuple[str, str], Case] = {
    ("ccd", "width"): case(1, toy=CANVAS, most=9.0),
    ("ccd", "slack"): case(0.01, toy=CANVAS, most=9.0),
    ("del", "every"): case(2, toy=Toy(layers=6), by_length=False, by_confidence=False),
    # One text alone: of several the head would be asked of nearly all tokens of a toy anyway.
    ("conditional-beam", "candidates"): case(1, width=1),
    ("diverse-beam", "width"): case(4, groups=2),
    ("draft-model-additive", "fall"): case(4, toy=replace(FAR, seed=3), first=2),
    ("draft-model-additive", "least"): case(3, toy=FAR, first=3),
    ("draft-model-bandit", "window"): case(
        1, toy=Toy(seed=2, most=48, costs=PassCosts((1.0, 1.2), 0.1)), depths=(1, 4), epsilon=0.0
    ),
    ("draft-model-goodput", "explore"): case(
        1, toy=Toy(near=False, most=32, costs=PassCosts((1.0, 1.6, 2.2), 0.5))
    ),
    ("enat", "growing"): case(True, guidance=2.0, steps=4),
    ("entropy-adaptive", "tau_down"): case(0.5, toy=replace(FAR, seed=6, most=40)),
    ("entropy-adaptive", "window"): case(1, toy=replace(COPIED, near=False, most=40)),
    ("fast-dllm-v2", "cache"): case(toy=replace(CANVAS, block=8), block=2),
    ("fast-dllm-v2", "rerun"): case(toy=replace(CANVAS, block=8), block=2),
    ("freecache", "delay"): case(block=4),
    ("freedave", "eager"): case(block=4),
    ("freedave", "subset"): case(toy=Toy(greedy=True, size=5), threshold=0.5),
    ("guided-diffusion", "least"): case(0.9, toy=Toy(size=5), top=0),
    ("guided-diffusion", "relative"): case(0.9, toy=Toy(size=5), top=0),
    ("guided-diffusion", "chance"): case(toy=Toy(size=5), top=0),
    ("insertion-language-models", "share"): case(0.9, count=2),
    ("merged-answers", "candidates"): case(1, heat=50.0),
    ("merged-answers", "heat"): case(50.0),
    ("mdiff4str", "reflect"): case(True, toy=Toy(prompt=(0,), most=24), steps=1),
    ("speculative-jacobi", "begin"): case(7),
    ("speculative-jacobi", "drawn"): case(True, toy=Toy(most=48), window=2),
    ("lister", "rounds"): case(0, 2, 3, 5, toy=Toy(prompt=(0,), most=24)),
    ("speculative-jacobi", "end"): case(1, 2, 3, begin=0),
    ("prophet", "span"): case(1, 2, 3, region=1, early=1.0, middle=1.0, late=1.0),
    ("prophet", "counted"): case(region=1, span=4, early=9.0, middle=9.0, late=9.0),
    ("prophet", "passes"): case(1, early=9.0, middle=1.0, late=0.5),
    ("stamp", "causal"): case(toy=Toy(image=True, most=48)),
    **{
        ("x-decoder", option): case(value, toy=Toy(image=True))
        for option, value in (
            ("names", "all"),
            ("refer", "ab"),
            ("region", "0,0,4,4"),
            ("cached", False),
        )
    },
    ("stand", "longest"): case(1, toy=Toy(most=40)),
    ("svdd", "length"): case(1, toy=ENDING),
    ("svdd", "pull"): case(0.0, toy=ENDING, length=2),
    ("svdd-reward", "length"): case(1, toy=ENDING),
    ("svdd-reward", "pull"): case(0.0, toy=ENDING, length=2),
    ("universal-draft-intersection", "context"): case(
        16, toy=Toy(prompt=LONG, words=("a", "b", " ", "ab", "1", "2", "c", ""))
    ),
    ("a-star-decoding", "budget"): case(8),
    ("a-star-decoding", "toll"): case(0.3),
    ("aded", "longest_first"): case(nodes=3, **ROWS),
    ("awrs", "threshold"): case(0, 1, toy=CONSTRAINED),
    ("awrs", "looks"): case(1, toy=CONSTRAINED),
    ("calm", "decay"): case(4.0, toy=replace(COPIED, seed=7)),
    ("copyspec", "cost"): case(0.9, adapt=True),
    ("del", "depth"): case(2, by_length=False, by_confidence=False),
    ("diffuspec", "rise"): case(0, toy=TWO_LETTERS, least=1, rate=0.0),
    ("distillspec", "lenience"): case(0.1, 1.0, toy=replace(SAMPLED, near=False)),
    ("draft-and-verify", "skip"): case("0"),
    ("draft-and-verify", "rate"): case(0.1, toy=replace(COPIED, seed=7, most=64)),
    ("draft-model-additive", "most"): case(3, first=2),
    ("drag", "share"): case(0.9, toy=replace(DATED, seed=7, copied=20, greedy=True)),
    ("drag", "mark"): case("a", toy=replace(DATED, seed=7, copied=20, greedy=True)),
    ("drag", "within"): case("a < b; b < c", toy=replace(DATED, seed=39)),
    ("drag", "unknown"): case("b", toy=DATED),
    ("drag", "ask"): case("a{answers}b", toy=DATED),
    ("drag", "years"): case(True, toy=replace(NUMBERED, seed=3)),
    ("entropy-adaptive", "hold"): case(1, window=1),
    ("exact-extract", "width"): case(1, toy=Toy(regex="(ab|ba|aa)", answers=2, ends=True)),
    ("exact-mode", "length"): case(2, toy=SHORT),
    ("exact-mode", "width"): case(1, toy=replace(SHORT, answers=2)),
    ("exact-mode", "most"): case(1, toy=replace(SHORT, answers=2)),
    ("generative-fusion-decoding", "own"): case(
        toy=Toy(words=("a", "b", " ", "ab", "ba", "aa", "bb", ""), most=8)
    ),
    ("generative-fusion-decoding", "covers"): case(
        1, toy=Toy(words=("a", "b", " ", "ab", "ba", "aa", "bb", ""), most=8)
    ),
    ("pool-with-forks", "most"): case(
        2, toy=Toy(seed=6, sharp=4.0, most=32), tries=2, interval=8, budget=200
    ),
    ("pool-with-forks", "least"): case(1, interval=2, budget=60),
    ("pool-with-forks", "ways"): case(2, toy=MIXED, **POOLED),
    ("pool-with-forks", "stir"): case(2.0, toy=replace(MIXED, seed=2), **POOLED),
    ("pool-with-forks", "above"): case(0.1, toy=MIXED, **POOLED),
    ("pool-with-forks", "early"): case(
        toy=Toy(seed=5, sharp=4.0, most=32, ends=True), tries=6, interval=4
    ),
    ("jump-forward", "depth"): case(1, toy=CONSTRAINED),
    ("ref-vlm", "depth"): case(8, toy=CONSTRAINED),
    ("longspec", "widths"): case((1, 4), depth=2, nodes=5),  # so many levels and tokens both times
    ("continuous-speculative", "retries"): case(1, toy=Toy(most=48), widen=0.2),
    ("continuous-speculative", "doubled"): case(toy=Toy(most=48, answers=4), widen=0.5),
    ("continuous-speculative", "parallel"): case(toy=Toy(most=48), widen=0.2),
    **{
        (name, option): case(*values, steps=3, **given)
        for name in (
            "masked-mar",
            "masked-continuous-speculative",
            "masked-continuous-speculative-exact",
            "recap-patches",
        )
        for option, values, given in (
            ("curve", ("linear", "root"), {}),
            ("growing", (True,), {"guidance": 2.0}),
        )
    },
    **{
        ("masked-continuous-speculative", option): case(*values, steps=4, prefill=0.0, widen=widen)
        for option, values, widen in (
            ("retries", (1,), 0.2),
            ("doubled", (True,), 42.0),
            ("parallel", (True,), 0.2),
        )
    },
    ("recap-patches", "partial"): case(0, 2, steps=6, before=0),
    ("recap-patches", "prompt_fed"): case(True, steps=6, before=0),
    ("mulo-sd", "threshold"): case(0.05, 0.9, 1.5, near=4, radius=0),
    ("multi-view-multi-path", "answers"): case("a|c", toy=replace(SAMPLED, seed=2, most=32)),
    ("multi-view-multi-path", "apart"): case(True, views="a"),
    ("multi-view-multi-path", "caption"): case(2, 0, views="a"),
    ("multi-view-multi-path", "shared"): case(toy=replace(SAMPLED, seed=2), most=4),
    ("plan-guided", "early"): case(True, toy=Toy(ends=True, most=24)),
    ("plan-guided", "judge_penalty"): case(own=True),
    ("plan-guided", "length_penalty"): case(-4.0, 4.0, toy=Toy(ends=True, most=24)),
    ("plan-guided", "longest"): case(1),
    ("plan-guided", "plan_penalty"): case(weight=0.0),
    ("ppd", "by_state"): case(rows=6, nodes=4),
    ("scylla", "widths"): case("1:8,4:4"),
    ("scylla", "nodes"): case(4, toy=Toy(costs=PassCosts((1.0, 1.01, 1.02, 1.03)))),
    ("scylla", "width"): case(1, widths="1:8,4:4"),
    ("scylla", "depth"): case(1, widths="1:8,4:4"),
    ("scylla", "prompt"): case(widths="1:8,4:4"),
    ("scylla", "patience"): case(1, toy=Toy(together=3), widths="1:8,2:4"),
    ("specdec-plus-plus", "least"): case(3, threshold=0),
    ("specmquant", "width"): case(1, eagle=True),
    ("stand", "shared"): case(toy=Toy(answers=3)),
    ("stoc-tot", "alike"): case(0.1, keep=6, toy=replace(COPIED, seed=3, likely=(2, 3))),
    ("stoc-tot", "check"): case("a", toy=Toy(words=("a", "b", " ", "\n", "yes", "no", "c", ""))),
    ("stoc-tot", "grounded"): case(toy=replace(COPIED, seed=10)),
    ("stoc-tot", "most"): case(1, toy=replace(COPIED, most=48, ends=True), depth=1),
    ("stoc-tot", "passages"): case(
        "a b\\nb c", toy=replace(LINES, seed=16, copied=20, greedy=True)
    ),
    ("stoc-tot", "found"): case(
        1, toy=replace(LINES, seed=16, copied=20, greedy=True), passages="a b\\nb a\\na"
    ),
    ("stoc-tot", "own"): case("ab", toy=LINES),
    ("suffix-automaton", "width"): case(1, floor=0.0, **ROWS),
    ("unified-layer-skipping", "even"): case(toy=Toy(layers=8)),
    ("unified-layer-skipping-draft", "even"): case(toy=Toy(layers=8)),
}
"""By method and option."""

OF_OPTION: dict[str, Case] = {
    "hot": case(toy=replace(COPIED, requests=2)),
    "longest": case(2),
    "context": case(16, toy=replace(COPIED, copied=24)),
}
"""By the name of an option that several methods have."""

OPTIONS = [
    (name, o.name)
    for name in sorted(registry.recipe_modules())
    for o in registry.method_options(name)
]


def case_of(name: str, option: str) -> Case:
    """How an option of a method is seen."""
    own = CASES.get((name, option)) or OF_OPTION.get(option) or Case()
    declared = {o.name: o for o in registry.method_options(name)}
    given = {**OF_METHOD.get(name, {}), **own.given}
    if "cost_aware" in declared and option != "cost_aware":
        given = {"cost_aware": False, **given}
    values = own.values or tuple(other_values(declared[option]))[:TRIED]
    family = registry.get_recipe_module(name).CARD.family
    return Case(values, {k: v for k, v in given.items() if k != option}, own.toys or TOYS[family])


def first_difference(
    look: Callable[[Mapping[str, Any], Any], Any], option: str, how: Case
) -> tuple[Any, Any]:
    """The value of an option, and the toy, that show it.

    Args:
        look: What is observed, of options and a toy.
        option: Its name.
        how: What is tried.

    Raises:
        AssertionError: Nothing differs.
    """
    refused = set[str]()
    for toy in how.toys:
        usual = look(how.given, toy)
        for value in how.values:
            try:
                other = look({**how.given, option: value}, toy)
            except RequestError as error:
                refused.add(str(error))
                continue
            if other != usual:
                return value, toy
    raise AssertionError(
        f"nothing differs at {option} = {how.values} ({refused or 'all were built'})"
    )


@cache
def observed_once(name: str, options: tuple[tuple[str, Any], ...], toy: Toy) -> tuple[Any, ...]:
    """What is observed of a method, once for each way to build it."""
    return observed(name, dict(options), toy)


@pytest.mark.parametrize(("name", "option"), OPTIONS)
def test_an_option_of_a_method_shows(name, option):
    how = case_of(name, option)
    first_difference(
        lambda given, toy: observed_once(name, tuple(sorted(given.items())), toy), option, how
    )


def test_what_is_observed_hangs_on_nothing_else():
    """Two equal ways to build a method cannot be told apart, so what differs is the option's doing."""
    for name, toys in (("pool-with-forks", (SAMPLED,)), ("eagle", (COPIED,)), ("remdm", (CANVAS,))):
        for toy in toys:
            assert observed(name, {}, toy) == observed(name, {}, toy)


def test_another_model_writes_behind_candidates_where_it_is_to():
    """Which model writes decides what the draft model computes, not only whose passes are counted."""
    passes = [observed("transfer-q-star", {"own": own}, SAMPLED)[3] for own in (True, False)]
    assert passes[0] == 0 < passes[1]


def test_a_lexical_unit_follows_a_token_that_the_model_was_sure_of():
    """Behind a token of less probability than `confidence` nothing is drafted (the rule of a unit's first token)."""
    confidence, followed, left = 0.3, 0, 0
    for seed in range(4):
        toy = replace(SAMPLED, seed=seed, most=32)
        for chance, drafted in drafts_behind(
            "lexical-unit-decoding", {"confidence": confidence}, toy
        ):
            followed += chance >= confidence and drafted > 0
            left += chance < confidence
            assert chance >= confidence or not drafted
    assert followed and left


PASSAGES = Toy(prompt=(5, 1, 0, 3, 4, 5, 6, 0, 3, 4, 5, 6, 2, 6, 1, 3, 4, 5, 0, 3, 2, 4))
"""Two passages of several chunks between the marks 1 and 2."""

MERGED = Toy(prompt=(0, 1, 0, 1, 2, 0, 1, 4, 0, 1, 2, 5), most=8)
"""Letters that stand together often, and blanks that no word goes over."""

STEER_CASES: dict[tuple[str, str], Case] = {
    ("arc-encoder", "factor"): case(3, 4, toy=PASSAGES),
    ("arc-encoder", "coded"): case(toy=PASSAGES),
    ("arc-encoder", "task"): case(toy=replace(MIXED, prompt=(1, 3, 4, 5, 6, 2))),
    ("cache-augmentation", "latents"): case(1, toy=replace(MIXED, most=6), latents=3),
    ("cache-augmentation", "every"): case(1, 2, toy=replace(MIXED, most=6), latents=3),
    ("cache-augmentation", "late"): case(1, 2, toy=replace(MIXED, most=6), latents=3),
    ("citation-blocker", "length"): case(2),
    ("dynamic-tokenization", "share"): case(0.0, toy=MERGED),
    ("dynamic-tokenization", "boundary"): case("sentence", toy=MERGED, share=1.0),
    ("refrag", "by"): case(toy=PASSAGES, expand=0.5),
    ("refrag", "expand"): case(0.9, toy=PASSAGES),
    ("rum-sundae", "lengths"): case(3, toy=ENDING),
    ("word-beam", "apart"): case("b", toy=replace(SAMPLED, most=32)),
    ("switch", "tau_down"): case(0.1, 0.5, toy=replace(FAR, seed=6, most=40)),
    ("switch", "hold"): case(1, window=1),
    ("switch", "window"): case(1, toy=replace(COPIED, most=40)),
    ("dola", "every"): case(1, toy=Toy(layers=6)),
    ("dola", "upper"): case(toy=Toy(layers=6)),
}
"""By way to steer and option."""


@pytest.mark.parametrize(
    ("name", "option"),
    [
        (name, o.name)
        for name in sorted(steer.steering_modules())
        for o in steer.steering_options(name)
    ],
)
def test_an_option_of_a_steering_shows(name, option):
    own = STEER_CASES.get((name, option), Case())
    declared = {o.name: o for o in steer.steering_options(name)}
    values = own.values or tuple(other_values(declared[option]))[:TRIED]
    how = replace(own, values=values, toys=own.toys or (SAMPLED, COPIED))
    first_difference(lambda given, toy: observed_steering(name, given, toy), option, how)


SMALL_BLOCKS = {"block": 16, "kept": 4, "sinks": 2, "watch": 4}
"""Options with which a press packs something of a short text."""
BY_PART = {"rank": 4, "prompt": 32}
"""Options with which GEAR tells a prompt from what is written behind it."""
PRESS_CASES: dict[tuple[str, str], Mapping[str, Any]] = {
    (name, option): {**BY_PART, "decoded_rank": 1}
    for name in ("gear", "gear-l")
    for option in ("prompt", "decoded_rank", "decoded_value_rank")
}
"""By press and option: options that have these values both times."""


@pytest.mark.parametrize(
    ("name", "option"),
    [(name, o.name) for name in press.block_press_names() for o in press.press_options(name)],
)
def test_an_option_of_a_press_shows(name, option):
    declared = {o.name: o for o in press.press_options(name)}
    given = {k: v for k, v in SMALL_BLOCKS.items() if k in declared}
    given |= PRESS_CASES.get((name, option), {})
    others = [v for v in other_values(declared[option]) if v != given.get(option)]
    values = (32,) if option == "block" else tuple(others)[:TRIED]
    how = Case(values, given, (70,))
    first_difference(lambda given, tokens: observed_press(name, given, tokens), option, how)


def unmasker_fields(kind: type) -> list[Option]:
    """The fields of an unmasker that are numbers or switches, as options."""
    return [
        Option(f.name, type(f.default), f.default, "")
        for f in fields(kind)
        if type(f.default) in (int, float, bool)
    ]


UNMASKERS = registry.mechanism_classes("unmaskers")
BOUNDS = {"early": 9.0, "middle": 1.0, "late": 0.5}
UNMASKER_CASES: dict[tuple[str, str], Case] = {
    ("coherent", "width"): case(1, most=9.0),
    ("coherent", "slack"): case(0.01, most=9.0),
    ("early_commit", "first"): case(0.0, **BOUNDS),
    ("early_commit", "second"): case(0.4, early=99.0, middle=99.0, late=0.0),
    ("early_commit", "passes"): case(1, **BOUNDS),
    ("early_commit", "counted"): case(region=range(1, 5), early=9.0, middle=9.0, late=9.0),
}
"""By unmasker and field."""


@pytest.mark.parametrize(
    ("name", "option"),
    [(name, o.name) for name, kind in UNMASKERS.items() for o in unmasker_fields(kind)],
)
def test_a_field_of_an_unmasker_shows(name, option):
    declared = {o.name: o for o in unmasker_fields(UNMASKERS[name])}
    own = UNMASKER_CASES.get((name, option), Case())
    values = own.values or tuple(other_values(declared[option]))[:TRIED]
    how = replace(own, values=values, toys=own.toys or TOYS["diffusion"])
    usual = example_mechanism(UNMASKERS[name])
    first_difference(
        lambda given, toy: observed_unmasker(replace(usual, **given), toy), option, how
    )

"""Texts that a method writes while an observer notes how, for laws that only its passes show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from polydec.api import generate
from polydec.core.trace import Observer
from polydec.lab.bench.forced import TokenFate
from polydec.lab.bench.places import TokenPlace
from polydec.lab.bench.sampled_laws import (
    LawTest,
    MethodSample,
    SampledToken,
    SamplingFindings,
    conclude_law_tests,
    method_sample,
    neighbour_rank_test,
    rank_cells_test,
    shared_randomness_test,
    surprise_test,
)
from polydec.lab.bench.trials import MethodTrial
from polydec.laws.shapers.sampling import build_shapers

W = TypeVar("W", bound=Observer)


@dataclass(frozen=True)
class WatchedAnswer(Generic[W]):
    """One answer, with what was noted of its request.

    Attributes:
        prompt: Number of its prompt, from 0.
        seed: Seed of its request.
        choice: Its number under that seed.
        watch: The observer of the request, which has all its answers.
        shapers: The request's rules, in the stream of this answer.
    """

    prompt: int
    seed: int
    choice: int
    watch: W
    shapers: Sequence[Any]

    @property
    def place_words(self) -> str:
        """Which answer it is, in words."""
        return f"prompt {self.prompt + 1}, seed {self.seed}, answer {self.choice}"

    def sampled_token(
        self, at: int, token: int, place: TokenPlace, fate: TokenFate, before: tuple[int, ...]
    ) -> SampledToken:
        """A token of this answer.

        Args:
            at: Its number in the order of writing, from 0.
            token: Its id.
            place: The pass that wrote it.
            fate: What the law of a fresh pass says of it.
            before: Names the law: draws of one law are compared with each other.

        Returns:
            The token.
        """
        return SampledToken(self.prompt, self.seed, self.choice, at, token, place, fate, before)


@dataclass(frozen=True)
class WatchedSample(Generic[W]):
    """What a method wrote while observers noted how.

    Attributes:
        answers: All answers.
        written: What they cost, and their texts; no token of them was looked at yet.
    """

    answers: Sequence[WatchedAnswer[W]]
    written: MethodSample

    def sample_of(self, drawn: Sequence[SampledToken]) -> MethodSample:
        """The sample with its tokens, once these were looked at."""
        return replace(self.written, drawn=tuple(drawn))


def watch_method(trial: MethodTrial, new_observer: Callable[[int], W]) -> WatchedSample[W]:
    """Let a method write its texts while observers note how.

    Args:
        trial: The method, and the requests for its texts.
        new_observer: Makes what watches a request, of the number of its prompt.

    Returns:
        The answers with their observers.
    """
    answers = list[WatchedAnswer[W]]()
    texts = dict[tuple[int, int, int], tuple[int, ...]]()
    metrics = list[Any]()
    for at, seed, n in trial.sample_requests():
        watch = new_observer(at)
        completion = generate(trial.lm, trial.ask_method(at, seed, n=n), on=watch)
        metrics.append(completion.metrics)
        for choice, answer in enumerate(completion.choices):
            texts[at, seed, choice] = answer.token_ids
            # The same rules as the method's, in the stream of this choice.
            shapers = build_shapers(trial.sampling_rules, order="vllm", seed=seed, choice=choice)
            answers.append(WatchedAnswer(at, seed, choice, watch, shapers))
    return WatchedSample(answers, method_sample((), metrics, texts))


def conclude_watched_law(
    ours: MethodSample, more: Sequence[LawTest], fresh: int
) -> SamplingFindings:
    """Test the tokens of watched answers against their laws, and draw the conclusion.

    Args:
        ours: What the method drew.
        more: Tests of other things that it promises.
        fresh: Fresh passes that gave the laws.

    Returns:
        The tests and what they come to.
    """
    # Tests need finite surprises; what the law excludes is a fault of its own.
    possible = [d for d in ours.drawn if d.fate.chance > 0.0]
    never = [d for d in ours.drawn if d.fate.chance <= 0.0]
    tests = [
        surprise_test(possible),
        rank_cells_test(possible),
        neighbour_rank_test(possible),
        shared_randomness_test(possible),
        *more,
    ]
    if never:
        d = never[0]
        what = f"prompt {d.prompt + 1}, seed {d.seed}, answer {d.choice}, {d.place}"
        tests.append(LawTest("impossible", 0.0, float(len(never)), what))
    cost = {"method": ours.cost, "plain": {"passes": float(fresh)}}
    return conclude_law_tests(tests, (), ours, cost)

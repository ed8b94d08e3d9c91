"""The exact output law of a method: every discrete draw is enumerated."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from torch import Tensor

from polydec.core.effects import Coro
from polydec.core.law import float64_probabilities, normalise_log_weights
from polydec.core.protocols import Shaper, Target
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.testing.noise import SimplexNoise

R = TypeVar("R")
Law = dict[tuple[int, ...], float]


class DrawnTwice(RuntimeError):
    """One name of randomness was drawn from twice in an execution."""


class NoiseSize(ValueError):
    """Noise was asked for over a number of tokens for which it cannot be enumerated."""


class TooManyWays(ValueError):
    """Draws fall in more ways than are followed."""


class ChoiceScript:
    """One execution's choices; `advance` moves to the next execution that differs from it."""

    def __init__(self) -> None:
        self.taken: list[list[Any]] = []  # [choice, probabilities of the live options, options]
        self.at = 0
        self.prob = 1.0

    def draw(self, p: list[float]) -> int:
        options = [i for i, x in enumerate(p) if x > 0.0]
        if len(options) == 1:
            return options[0]
        if self.at == len(self.taken):
            self.taken.append([0, [p[i] for i in options], options])
        choice, weight, options = self.taken[self.at]
        self.at += 1
        self.prob *= weight[choice]
        return options[choice]

    def advance(self) -> bool:
        while self.taken and self.taken[-1][0] + 1 == len(self.taken[-1][2]):
            self.taken.pop()
        if not self.taken:
            return False
        self.taken[-1][0] += 1
        self.at = 0
        self.prob = 1.0
        return True


class EnumeratingRng:
    """Stands in for Rng: a draw takes the script's choice. A name that is drawn twice in one execution raises; noise is
    shared by name, as the real one is."""

    def __init__(
        self,
        script: ChoiceScript,
        name: tuple[Any, ...] = (),
        used: dict[tuple[Any, ...], Any] | None = None,
    ) -> None:
        self._script = script
        self._name = name
        self._used: dict[tuple[Any, ...], Any] = (
            {} if used is None else used
        )  # None: a draw; else the noise

    def at(self, *names: object) -> EnumeratingRng:
        return EnumeratingRng(self._script, (*self._name, *names), self._used)

    def _take(self) -> None:
        if self._name in self._used:
            raise DrawnTwice(f"drawn twice under one name: {self._name}")
        self._used[self._name] = None

    def noise(self, size: int) -> SimplexNoise:
        if size != 3:
            raise NoiseSize(f"size is {size}: noise is enumerated for 3 tokens only")
        noise = self._used.setdefault(self._name, SimplexNoise(self._script))
        if noise is None:
            raise DrawnTwice(f"noise under a name that was drawn from: {self._name}")
        return noise

    def uniform(self) -> float:
        """Not enumerated, but fixed for each name: a law that depends on it comes out wrong. For searches of candidates."""
        self._take()
        return Rng.of(0).at(*self._name).uniform()

    def bernoulli(self, a: float) -> bool:
        self._take()
        return self._script.draw([1.0 - a, a]) == 1

    def categorical(self, p_V: Tensor) -> int:
        self._take()
        return self._draw(p_V.tolist())

    def without_replacement(self, p_V: Tensor, k: int) -> tuple[int, ...]:
        self._take()
        left = p_V.tolist()
        out = list[int]()
        while len(out) < k and sum(left) > 0.0:
            out.append(self._draw(left))
            left[out[-1]] = 0.0
        return tuple(out)

    def _draw(self, p: list[float]) -> int:
        total = sum(p)
        return self._script.draw([x / total for x in p])


def enumerate_executions(make: Callable[[Any], R]) -> Iterator[tuple[R, float]]:
    """(make(rng), its probability) for every way that the draws can fall."""
    script = ChoiceScript()
    while True:
        yield make(EnumeratingRng(script)), script.prob
        if not script.advance():
            return


def counted_law(make: Callable[[Any], Coro], most: int | None = None) -> tuple[Law, int]:
    """The law of `make(rng)`'s token ids over all draws, and in how many ways the draws fell.

    Args:
        make: The coroutine of an answer, by its randomness.
        most: Ways that are followed, at least 1; None: all.

    Returns:
        The chance of each text, and the ways.

    Raises:
        TooManyWays: The draws fall in more ways than `most`.
    """
    law: Law = defaultdict(float)
    ways = 0
    for result, p in enumerate_executions(lambda rng: run_coroutines([make(rng)])[0]):
        ways += 1
        if most is not None and ways > most:
            raise TooManyWays(f"the draws fall in over {most} ways")
        law[result.token_ids] += p
    return dict(law), ways


def law_of(make: Callable[[Any], Coro]) -> Law:
    """The law of `make(rng)`'s token ids over all draws."""
    return counted_law(make)[0]


def target_law(
    target: Target, prompt: Sequence[int], length: int, shapers: Sequence[Shaper[Any]] = ()
) -> Law:
    """The law of plain sampling from `target` bent by `shapers`, written without the decoding loop and without
    polydec.laws.targets.shaped: one fresh session of the bare target for every prefix."""
    law: Law = {}

    async def walk(text: tuple[int, ...], p: float, states: tuple[Any, ...]) -> None:
        session = target.open((*prompt, *text))
        logw_V = (await session.score(Draft.chain((*prompt, *text)[-1]), ScoreRequest())).weights(0)
        for s, state in zip(shapers, states, strict=True):
            logw_V = s.shape(state, logw_V)
        for x, w in enumerate(float64_probabilities(normalise_log_weights(logw_V)).tolist()):
            if not w:
                continue
            if x in target.vocab.eos or len(text) + 1 == length:
                law[(*text, x)] = p * w
            else:
                await walk(
                    (*text, x),
                    p * w,
                    tuple(s.step(state, x) for s, state in zip(shapers, states, strict=True)),
                )

    run_coroutines([walk((), 1.0, tuple(s.start(prompt) for s in shapers))])
    return law


def text_law_distance(a: Law, b: Law) -> float:
    """Total variation of two laws over texts."""
    return sum(abs(a.get(k, 0.0) - b.get(k, 0.0)) for k in a.keys() | b.keys()) / 2


def total_variation(p_V: Tensor, q_V: Tensor) -> float:
    """Half the summed distance; 1 - this is the acceptance probability of one draw from q against p."""
    return float((p_V.double() - q_V.double()).abs().sum()) / 2

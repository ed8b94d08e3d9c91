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
    """One execution's choices; `advance` moves to the next execution that differs from it.

    Attributes:
        taken: Of each draw the choice, the probabilities of the options that can occur, and the
            options.
        at: Index of the next draw.
        prob: Probability of the choices so far.
    """

    def __init__(self) -> None:
        self.taken: list[list[Any]] = []  # [choice, probabilities of the live options, options]
        self.at = 0
        self.prob = 1.0

    def draw_outcome(self, p: list[float]) -> int:
        """Take this execution's choice at the next draw.

        Args:
            p: Probabilities of the options, which sum to 1.

        Returns:
            Index of the option; a draw with one possible option is no choice.
        """
        options = [i for i, x in enumerate(p) if x > 0.0]
        # A certain outcome is no choice: it would only make the search longer.
        if len(options) == 1:
            return options[0]
        # A draw that no execution has reached before begins with its first option.
        if self.at == len(self.taken):
            self.taken.append([0, [p[i] for i in options], options])
        choice, weight, options = self.taken[self.at]
        self.at += 1
        self.prob *= weight[choice]
        return options[choice]

    def next_script(self) -> bool:
        # Depth first: the last draw with an option left takes it, and what followed is forgotten.
        while self.taken and self.taken[-1][0] + 1 == len(self.taken[-1][2]):
            self.taken.pop()
        if not self.taken:
            return False
        self.taken[-1][0] += 1
        self.at = 0
        self.prob = 1.0
        return True


class EnumeratingRng:
    """Stands in for Rng: a draw takes the script's choice.

    A name that is drawn twice in one execution raises; noise is shared by name, as the real one is.

    Args:
        script: The choices of this execution.
        name: Name of this stream.
        used: By name what was drawn in this execution: None for a draw, else the noise. None:
            nothing yet.
    """

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

    def child_stream(self, *names: object) -> EnumeratingRng:
        return EnumeratingRng(self._script, (*self._name, *names), self._used)

    def _take(self) -> None:
        if self._name in self._used:
            raise DrawnTwice(f"drawn twice under one name: {self._name}")
        self._used[self._name] = None

    def gumbel_noise(self, size: int) -> SimplexNoise:
        if size != 3:
            raise NoiseSize(f"size is {size}: noise is enumerated for 3 tokens only")
        # One object for a name: what is asked of it later follows from what was asked before.
        noise = self._used.setdefault(self._name, SimplexNoise(self._script))
        if noise is None:
            raise DrawnTwice(f"noise under a name that was drawn from: {self._name}")
        return noise

    def draw_uniform(self) -> float:
        """Draw a number that is not enumerated, but fixed for each name.

        A law that depends on it comes out wrong. It is for searches of candidates.

        Returns:
            A number of at least 0 and below 1.
        """
        self._take()
        return Rng.of_choice(0).child_stream(*self._name).draw_uniform()

    def draw_bernoulli(self, a: float) -> bool:
        self._take()
        return self._script.draw_outcome([1.0 - a, a]) == 1

    def draw_categorical(self, p_V: Tensor) -> int:
        self._take()
        return self._draw(p_V.tolist())

    def without_replacement(self, p_V: Tensor, k: int) -> tuple[int, ...]:
        """Draw tokens one after the other, each from what the earlier ones left.

        Args:
            p_V: Probabilities, shape ``[V]``.
            k: How many tokens, at least 1; fewer where fewer have weight.

        Returns:
            The tokens in the order drawn.

        Raises:
            DrawnTwice: This name was drawn from before.
        """
        self._take()
        left = p_V.tolist()
        out = list[int]()
        while len(out) < k and sum(left) > 0.0:
            out.append(self._draw(left))
            # What a token had falls to the others: `_draw` normalises.
            left[out[-1]] = 0.0
        return tuple(out)

    def _draw(self, p: list[float]) -> int:
        total = sum(p)
        return self._script.draw_outcome([x / total for x in p])


def enumerate_executions(make: Callable[[Any], R]) -> Iterator[tuple[R, float]]:
    """Run something once for every way that its draws can fall.

    Args:
        make: What runs, by its randomness. It must draw the same way where the draws before fell
            the same.

    Yields:
        What it returned, and the probability of this way.
    """
    script = ChoiceScript()
    while True:
        yield make(EnumeratingRng(script)), script.prob
        if not script.next_script():
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
    """Compute the law of an answer over all ways that its draws can fall.

    Args:
        make: The coroutine of an answer, by its randomness.

    Returns:
        The probability of each text (its token ids).
    """
    return counted_law(make)[0]


def target_law(
    target: Target, prompt: Sequence[int], length: int, shapers: Sequence[Shaper[Any]] = ()
) -> Law:
    """Compute the law of plain sampling from a target bent by shapers.

    It is written without the decoding loop and without polydec.laws.targets.shaped: one fresh
    session of the bare target for every prefix.

    Args:
        target: The bare target.
        prompt: Token ids of the prompt, at least one.
        length: The most tokens of an answer, at least 1; EOS ends it earlier.
        shapers: What bends the target, in order. Default: nothing.

    Returns:
        The probability of each text.
    """
    law: Law = {}

    async def walk_texts(text: tuple[int, ...], p: float, states: tuple[Any, ...]) -> None:
        """Add all texts that begin with this one.

        Args:
            text: Tokens of the answer so far.
            p: Their probability.
            states: State of each shaper behind them.
        """
        # A fresh session has no cache that a fault could hide in.
        session = target.open_session((*prompt, *text))
        logw_V = (
            await session.score_draft(Draft.chain_draft((*prompt, *text)[-1]), ScoreRequest())
        ).log_weights(0)
        for s, state in zip(shapers, states, strict=True):
            logw_V = s.shape_law(state, logw_V)
        for x, w in enumerate(float64_probabilities(normalise_log_weights(logw_V)).tolist()):
            if not w:
                continue
            if x in target.vocab.eos or len(text) + 1 == length:
                law[(*text, x)] = p * w
            else:
                await walk_texts(
                    (*text, x),
                    p * w,
                    tuple(s.next_state(state, x) for s, state in zip(shapers, states, strict=True)),
                )

    run_coroutines([walk_texts((), 1.0, tuple(s.start_state(prompt) for s in shapers))])
    return law


def text_law_distance(a: Law, b: Law) -> float:
    """Compute the total variation of two laws over texts.

    Args:
        a: Probabilities by text; a text that is missing has 0.
        b: The other law.

    Returns:
        Half of the summed differences, 0 to 1.
    """
    return sum(abs(a.get(k, 0.0) - b.get(k, 0.0)) for k in a.keys() | b.keys()) / 2


def total_variation(p_V: Tensor, q_V: Tensor) -> float:
    """Compute the total variation of two laws over tokens.

    1 minus this is the acceptance probability of one draw from q against p.

    Args:
        p_V: Probabilities, shape ``[V]``.
        q_V: Probabilities of the other law, shape ``[V]``.

    Returns:
        Half of the summed differences, 0 to 1.
    """
    return float((p_V.double() - q_V.double()).abs().sum()) / 2

"""A pool of texts that grows and shrinks by rules, and a weighted vote among them (HyPER)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean, median

from polydec.base.errors import RequestError
from polydec.base.options import at_least_one
from polydec.core.effects import gather_coroutines
from polydec.core.request import Result
from polydec.core.rng import Rng
from polydec.core.types import Exactness
from polydec.methods.search.loop.attempt import (
    ChoiceSearch,
    SearchAttempt,
    method_target,
    method_vocab,
    node_entropy,
    search_each_choice,
    side_by_side,
)
from polydec.methods.search.loop.refining import ExpertRefinement
from polydec.methods.search.loop.rollouts import streams_of
from polydec.methods.search.loop.vote import elect_answer, said_of
from polydec.methods.speculative.loop.walk import SpeculativeMethod, WalkRound

GRAM = 4
"""Tokens of the pieces by which the ends of two texts are compared."""


@dataclass(frozen=True)
class PoolWindow:
    """What a text wrote since the last look at the pool.

    Attributes:
        tokens: At least one.
        sure: Their mean log-probability.
        unsure: Mean entropy of their laws, in nats.
        lowest: The least `sure` of all windows of this text so far.
    """

    tokens: tuple[int, ...]
    sure: float
    unsure: float
    lowest: float

    @property
    def grams(self) -> frozenset[tuple[int, ...]]:
        """Pieces of GRAM tokens by which two windows are compared."""
        return frozenset(
            self.tokens[i : i + GRAM] for i in range(max(1, len(self.tokens) - GRAM + 1))
        )


def window_similarity(a: PoolWindow, b: PoolWindow) -> float:
    """Return the share of two windows' pieces that both have (Jaccard), 0 to 1.

    Args:
        a: One window.
        b: The other one.
    """
    return len(a.grams & b.grams) / len(a.grams | b.grams)


@dataclass(frozen=True)
class PoolController:
    """Decides after every `interval` passes what becomes of a pool.

    It grows by one text, loses its weakest, refines what it writes until the next look, or stays.
    With the phase p (the share of the budget that is spent), the uncertainty u (mean entropy of the
    windows, at most 1 nat), the diversity d (one less the mean likeness of two windows) and the
    redundancy r (the share of pairs whose likeness is above `alike`) growing is worth (1 - p) u (1
    - d), shrinking p (1 - u) + r, refining p u, staying `idle`. What is worth most is done; the
    pool stays where nothing is worth more.

    Attributes:
        interval: Passes between two looks, at least 1.
        least: Fewest texts that are being written, at least 1.
        most: Most texts that are being written, `least` to 64.
        alike: Likeness, 0 to 1, above which two texts are redundant.
        idle: What staying is worth, 0 or more.
        refine: Whether the target is a mixture of experts whose tokens can be refined
            (`ExpertRefinement`); else refining is worth nothing.
    """

    interval: int = 64
    least: int = 2
    most: int = 16
    alike: float = 0.8
    idle: float = 0.1
    refine: bool = False

    def __post_init__(self) -> None:
        at_least_one(self, "interval")
        if not 1 <= self.least <= self.most <= 64:
            raise RequestError(
                f"least is {self.least} and most is {self.most}: they must lie in 1 to 64, least first"
            )
        if not 0.0 <= self.alike <= 1.0:
            raise RequestError(f"alike is {self.alike}: it must lie in 0 to 1")
        if not self.idle >= 0.0:
            raise RequestError(f"idle is {self.idle}: it must be at least 0")

    def text_to_fork(self, phase: float, windows: Sequence[PoolWindow]) -> int | None:
        """Return which text is forked: the most unsure one, where growing is worth most.

        Args:
            phase: Share of the budget that is spent, 0 to 1.
            windows: What each text wrote since the last look.

        Returns:
            Index of the text; None where the pool does not grow.
        """
        grow, shrink, refine = self._worth(phase, windows)
        if len(windows) >= self.most or grow <= max(shrink, refine, self.idle):
            return None
        return max(range(len(windows)), key=lambda i: windows[i].unsure)

    def texts_to_drop(self, phase: float, windows: Sequence[PoolWindow]) -> tuple[int, ...]:
        """Return which texts are given up, where shrinking is worth most.

        Of two that are alike the less sure one goes, and those whose lowest window lies below the
        median by more than the median distance from it. `least` of them stay.

        Args:
            phase: Share of the budget that is spent, 0 to 1.
            windows: What each text wrote since the last look.

        Returns:
            Indices of the texts; none where the pool does not shrink.
        """
        grow, shrink, refine = self._worth(phase, windows)
        if shrink <= max(grow, refine, self.idle):
            return ()
        lowest = [w.lowest for w in windows]
        middle = median(lowest)
        # A robust bound: the median less the median absolute deviation.
        floor = middle - median(abs(x - middle) for x in lowest)
        weak = {i for i, x in enumerate(lowest) if x < floor}
        # Redundant pairs lose one of the two, unless one of them goes anyway.
        for i, j in combinations(range(len(windows)), 2):
            if window_similarity(windows[i], windows[j]) > self.alike and not {i, j} & weak:
                weak.add(i if windows[i].sure < windows[j].sure else j)
        weakest = sorted(weak, key=lambda i: (lowest[i], -i))
        return tuple(weakest[: max(0, len(windows) - self.least)])

    def refines_tokens(self, phase: float, windows: Sequence[PoolWindow]) -> bool:
        """Return whether unsure tokens are refined until the next look.

        Args:
            phase: Share of the budget that is spent, 0 to 1.
            windows: What each text wrote since the last look.
        """
        grow, shrink, refine = self._worth(phase, windows)
        return refine > max(grow, shrink, self.idle)

    def _worth(self, phase: float, windows: Sequence[PoolWindow]) -> tuple[float, float, float]:
        """Return what growing, shrinking and refining are worth."""
        like = [window_similarity(a, b) for a, b in combinations(windows, 2)]
        unsure = min(1.0, fmean(w.unsure for w in windows))
        alike = fmean(like) if like else 1.0
        if like:
            redundant = fmean(x > self.alike for x in like)
        else:
            redundant = 0.0
        return (
            (1.0 - phase) * unsure * alike,
            phase * (1.0 - unsure) + redundant,
            phase * unsure * self.refine,
        )


@dataclass(frozen=True)
class VoteWeights:
    """Weight of a text's vote, by how sure its end was and how usual its length is.

    exp(sureness * c) * exp(-((n - m) / (spread * m)) ** 2), where c is the mean log-probability of
    the last quarter of its tokens, n their number and m the median of all these numbers.

    Attributes:
        sureness: How much sureness counts, 0 or more; 0: it does not.
        spread: How far lengths may lie apart, 0 or more; 0: lengths do not count.
    """

    sureness: float = 4.0
    spread: float = 1.0

    def __post_init__(self) -> None:
        for name, value in (("sureness", self.sureness), ("spread", self.spread)):
            if not 0.0 <= value < math.inf:
                raise RequestError(f"{name} is {value}: it must be at least 0 and finite")

    def of_logprobs(self, logps: Sequence[Sequence[float]]) -> list[float]:
        """Return the weight of each text's vote, from the log-probabilities of its tokens.

        Each text has at least one token.
        """
        middle = median(len(x) for x in logps)
        return [self._weight(x, middle) for x in logps]

    def vote_bounds(
        self, logps: Sequence[Sequence[float]], least: Sequence[int], most: int
    ) -> list[tuple[float, float]]:
        """Bound the weights of ended texts while others are still being written.

        Args:
            logps: Log-probabilities of the tokens of each ended text.
            least: Fewest tokens that each living text will have.
            most: Most tokens that any of them will have.

        Returns:
            For each ended text the least and the most that its vote can weigh once some of the
            living texts have ended too.
        """
        lengths = [len(x) for x in logps]
        few = sorted(least)
        # The median moves farthest when only the shortest, or only the longest, of the living texts
        # end.
        low = min(median([*lengths, *few[:j]]) for j in range(len(few) + 1))
        high = max(median([*lengths, *[most] * j]) for j in range(len(few) + 1))
        out = list[tuple[float, float]]()
        # A vote weighs the less the farther the median is from its length, on either side: the
        # largest weight is at the median that comes nearest to it.
        for x in logps:
            ends = self._weight(x, low), self._weight(x, high)
            out.append((min(ends), self._weight(x, min(max(len(x), low), high))))
        return out

    def _weight(self, logps: Sequence[float], middle: float) -> float:
        last = fmean(logps[-math.ceil(len(logps) / 4) :])
        if self.spread:
            off = (len(logps) - middle) / (self.spread * middle)
        else:
            off = 0.0
        return math.exp(self.sureness * last - off * off)


def is_vote_decided(
    answers: Mapping[int, str], bounds: Sequence[tuple[float, float]], living: int
) -> bool:
    """Return whether the leading answer wins, however the living texts vote.

    Args:
        answers: Answer of each ended text that has one, by its number.
        bounds: Least and most weight of each ended text's vote.
        living: Number of texts that are still being written; none of their votes weighs more than
            1.
    """
    least = defaultdict[str, float](float)
    most = defaultdict[str, float](float)
    for i, answer in answers.items():
        least[answer] += bounds[i][0]
        most[answer] += bounds[i][1]
    if not answers:
        return False
    leader = max(least, key=lambda answer: least[answer])
    # The worst case: the leader at its least, one rival at its most with all votes that are to
    # come.
    others = max((most[answer] for answer in most if answer != leader), default=0.0)
    return least[leader] > others + living + 1e-9


@dataclass(frozen=True)
class HypothesisPoolSearch:
    """Draws a pool of texts, which a controller grows and shrinks, and lets them vote.

    `tries` texts are drawn in parallel and share the prompt's cache entries. A controller looks at
    them now and then (`PoolController`): while little is spent and the model is unsure the most
    unsure text is forked where it stands; later the weakest are given up. Those that came to an end
    of their own vote with their weights (`VoteWeights`). The paper's statistics, thresholds and
    formulas are not known to us: these are ours.

    Attributes:
        method: Draws the texts.
        control: Grows and shrinks the pool.
        weights: Weighs the votes.
        mark: Text that stands before an answer; "": the answer is the last line.
        tries: Texts of the pool at first, 1 to 64.
        budget: Tokens of all texts; no pass is begun that would go beyond it. Where no text has
            ended then, the likeliest alone is drawn to its end.
        early: Whether the vote is held as soon as the living texts cannot change the answer that
            wins: another text may speak for it then, and no more are forked.
        refining: How a mixture's tokens are refined where the controller says so
            (`PoolController.refine`). None: they are not, as of a dense model.

    Exact: approximate: a vote among draws.
    Reduces to: self-consistency of `tries` texts where nothing grows or shrinks and all votes weigh
    the same, draw for draw.
    Source: Qiu et al., "HyPER: bridging exploration and exploitation for scalable LLM reasoning
    with hypothesis path expansion and reduction" (2026).
    """

    method: SpeculativeMethod
    control: PoolController = PoolController()
    weights: VoteWeights = VoteWeights()
    mark: str = ""
    tries: int = 4
    budget: int = 1024
    early: bool = False
    refining: ExpertRefinement | None = None
    exactness = Exactness.APPROXIMATE
    target = method_target
    vocab = method_vocab
    write_choices = search_each_choice

    def __post_init__(self) -> None:
        if not 1 <= self.tries <= 64:
            raise RequestError(f"tries is {self.tries}: it must lie in 1 to 64")
        at_least_one(self, "budget")

    async def search_answer(self, choice: ChoiceSearch) -> Result:
        """Run the pool of one answer."""
        return await _HypothesisPoolRun(self, choice).run()


class _PoolPath:
    """A text of the pool.

    Attributes:
        attempt: The text, and how it goes on.
        rng: Random stream of what is drawn after it.
        logps: Log-probability of each token.
        entropies: Entropy of each token's law, in nats.
        since: Tokens at the last look at the pool.
        lowest: Least mean log-probability of its windows.
    """

    def __init__(self, attempt: SearchAttempt, rng: Rng) -> None:
        self.attempt = attempt
        self.rng = rng
        self.logps = list[float]()
        self.entropies = list[float]()
        self.since = 0
        self.lowest = math.inf

    def take_token(self, r: WalkRound) -> None:
        had = len(self.attempt.text.tokens)
        self.attempt.take_steps(r)
        taken = len(self.attempt.text.tokens) - had
        # Only what was taken: the text may have ended within the round.
        for node, x in zip(r.nodes[:taken], r.tokens[:taken], strict=True):
            self.logps.append(r.scores.token_logprobs(node, (x,))[0])
            self.entropies.append(node_entropy(r.scores, node))

    def last_window(self) -> PoolWindow:
        """What it wrote since the last look, which is now."""
        sure = fmean(self.logps[self.since :])
        unsure = fmean(self.entropies[self.since :])
        tokens = tuple(self.attempt.text.tokens[self.since :])
        self.since = len(self.logps)
        self.lowest = min(self.lowest, sure)
        return PoolWindow(tokens, sure, unsure, self.lowest)

    def fork_path(self, attempt: SearchAttempt, rng: Rng) -> _PoolPath:
        """Return a text that continues from here.

        Args:
            attempt: Fork of the attempt.
            rng: Random stream of the new text.
        """
        twin = _PoolPath(attempt, rng)
        twin.logps = list(self.logps)
        twin.entropies = list(self.entropies)
        twin.since = self.since
        twin.lowest = self.lowest
        return twin


class _HypothesisPoolRun:
    """The run of one answer."""

    def __init__(self, plan: HypothesisPoolSearch, choice: ChoiceSearch) -> None:
        self._plan = plan
        self._choice = choice
        self._begun = list[_PoolPath]()
        self._passes = 0
        # Whether unsure tokens are refined, until the next look.
        self._refines = False

    async def run(self) -> Result:
        """Run the pool until its budget is spent or the vote is decided."""
        plan = self._plan
        root = self._choice.root
        # All texts fork from the prompt's end, so its cache entries are shared.
        forks = self._choice.fork_attempts(root, plan.tries)
        streams = streams_of(self._choice.rng, plan.tries)
        self._begun = [_PoolPath(a, s) for a, s in zip(forks, streams, strict=True)]
        root.close()
        pool = list(self._begun)
        while (live := [p for p in pool if not p.attempt.ended]) and self._written + len(
            live
        ) <= plan.budget:
            await self._pass(live)
            self._choice.write_certain_text([p.attempt.text for p in pool])
            live = [p for p in live if not p.attempt.ended]
            if plan.early and self._decided(pool, live):
                break
            # The controller looks at the living texts after every `interval` passes.
            if live and self._passes % plan.control.interval == 0:
                pool = self._changed(pool, live)
        # Only texts that ended by themselves vote.
        ended = [p for p in pool if p.attempt.text.finish_reason == "stop"]
        if ended:
            best = self._elected(ended)
        else:
            best = await self._likeliest(pool)
        spent = side_by_side([p.attempt.spent for p in self._begun])
        return self._choice.finish_search(best.attempt.text, replace(spent, passes=self._passes))

    @property
    def _written(self) -> int:
        return sum(p.attempt.spent.written for p in self._begun)

    async def _pass(self, live: Sequence[_PoolPath]) -> None:
        rounds = await gather_coroutines(*(p.attempt.look_ahead(p.rng) for p in live))
        self._passes += 1
        if self._refines and self._plan.refining is not None:
            rounds = await self._refined(self._plan.refining, live, rounds)
        for p, r in zip(live, rounds, strict=True):
            p.take_token(r)
            if p.attempt.ended:
                # Closed at once: its cache is free for those that go on.
                p.attempt.close()

    async def _refined(
        self, by: ExpertRefinement, live: Sequence[_PoolPath], rounds: Sequence[WalkRound]
    ) -> list[WalkRound]:
        """The rounds, of which the unsure ones are drawn anew: all in one more pass."""
        out = list(rounds)
        # A certain token needs no refinement: only rows above the bound cost further rows.
        unsure = [i for i, r in enumerate(rounds) if node_entropy(r.scores, 0) > by.above]
        new = await gather_coroutines(
            *(by.refined_token(live[i].attempt, out[i], live[i].rng) for i in unsure)
        )
        for i, r in zip(unsure, new, strict=True):
            out[i] = r
        self._passes += bool(unsure)
        return out

    def _changed(self, pool: Sequence[_PoolPath], live: Sequence[_PoolPath]) -> list[_PoolPath]:
        """The pool after a look at it."""
        control = self._plan.control
        phase = self._written / self._plan.budget
        # Each look compares what was written since the last one.
        windows = [p.last_window() for p in live]
        self._refines = control.refines_tokens(phase, windows)
        # Drops and growth are exclusive: the two conditions cannot both hold.
        gone = [live[i] for i in control.texts_to_drop(phase, windows)]
        for p in gone:
            p.attempt.close()
        new = list[_PoolPath]()
        if (at := control.text_to_fork(phase, windows)) is not None:
            (fork,) = self._choice.fork_attempts(live[at].attempt, 1)
            new = [
                live[at].fork_path(fork, self._choice.rng.child_stream("branch", len(self._begun)))
            ]
            self._begun += new
        return [*(p for p in pool if p not in gone), *new]

    def _decided(self, pool: Sequence[_PoolPath], live: Sequence[_PoolPath]) -> bool:
        """Whether those that live cannot change which answer wins."""
        ended = [p for p in pool if p.attempt.text.finish_reason == "stop"]
        if not live or len(ended) <= len(live):
            # The living texts could all vote for another answer, and there are as many.
            return False
        tries = [p.attempt.picker_view(self._plan.vocab.words) for p in ended]
        # A living text writes at least one more token, and at most what its room allows.
        least = [len(p.logps) + 1 for p in live]
        most = max(len(p.logps) + p.attempt.text.room for p in live)
        bounds = self._plan.weights.vote_bounds([p.logps for p in ended], least, most)
        return is_vote_decided(said_of(tries, self._plan.mark), bounds, len(live))

    def _elected(self, ended: Sequence[_PoolPath]) -> _PoolPath:
        tries = [p.attempt.picker_view(self._plan.vocab.words) for p in ended]
        weight = self._plan.weights.of_logprobs([p.logps for p in ended])
        which = elect_answer(tries, said_of(tries, self._plan.mark), dict(enumerate(weight)))
        ended[which].attempt.text.score = weight[which]
        return ended[which]

    async def _likeliest(self, pool: Sequence[_PoolPath]) -> _PoolPath:
        """Where no text has ended, the likeliest, drawn to its end."""
        # Out of budget and nothing ended: one text is drawn to its end beyond the budget.
        best = max(pool, key=lambda p: p.attempt.mean)
        while not best.attempt.ended:
            await self._pass([best])
            self._choice.write_certain_text([best.attempt.text])
        best.attempt.text.score = best.attempt.mean
        return best

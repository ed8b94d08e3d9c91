"""A* search over the steps of a solution, guided by a learned reward."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

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
    search_each_choice,
    side_by_side,
    step_stream,
)
from polydec.methods.search.loop.protocols import ProcessReward
from polydec.methods.search.loop.stats import SearchStats
from polydec.methods.search.loop.types import StepBoundary
from polydec.methods.speculative.loop.walk import SpeculativeMethod


@dataclass(frozen=True, eq=False)
class AStarNode:
    """A beginning of a solution.

    Attributes:
        attempt: The text so far, and how it goes on.
        rng: Random stream of what is drawn after it.
        cost: Cost g of the path to it, at least 0.
        hope: Heuristic h: one less what the reward says, 0 to 1.
        depth: Steps of the path.
        number: Number in the order of finding.
        drawn: Steps that were drawn after it.
        wait: What these draws add to its f.
        found: Texts that these draws led to.
    """

    attempt: SearchAttempt
    rng: Rng
    cost: float = 0.0
    hope: float = 0.0
    depth: int = 0
    number: int = 0
    drawn: int = 0
    wait: float = 0.0
    found: frozenset[tuple[int, ...]] = frozenset()

    @property
    def order(self) -> tuple[float, float, int, int]:
        """Key of the search's queue: the least is expanded first."""
        return (self.cost + self.hope + self.wait, self.hope, -self.depth, self.number)


@dataclass(frozen=True)
class AStarSearch:
    """A* search over steps: expands the most promising beginning until a solution is complete.

    The most promising beginning gets `width` next steps, the reward is asked of each, and so on
    until the most promising one is a complete solution. A step that is drawn twice counts once.

    A beginning s is the more promising the less f(s) = g(s) + h(s) is: h(s) = 1 - reward(s); g
    grows with a step from s to t by max(0, reward(s) - reward(t)) + `toll`, so what the reward has
    fallen on the way is not forgotten (the paper's cost of a step is not known to us: this one is
    ours). The reward of nothing is 1, that of a text that was cut at the limit is 0.

    A beginning is left for good once steps were drawn after it, as in the paper. With `again` it
    waits instead, with so much added to its f every time, and is expanded once more when all that
    was found after it is less promising than that: ours.

    With `sure` the reward is not asked of a step that the law gives at least this probability, all
    of it together: its value is that of the step before it (ours; where the law leaves no choice
    there is nothing to choose).

    Attributes:
        method: Draws the steps.
        reward: Process reward that values a beginning, 0 to 1.
        width: Steps that are drawn after a beginning, 1 to 64.
        delimiter: Text that a step ends with.
        longest: Most tokens of a step.
        budget: Tokens after which nothing new is begun: the best solution found is the answer, or
            else the most promising beginning is drawn to its end.
        toll: Cost of every step, at least 0.
        frontier: Most beginnings that are kept; the least promising ones are dropped first.
        again: What a new turn adds to f, above 0. None: a beginning is expanded once.
        sure: Probability, above 0 to 1, from which the reward is not asked. None: it is always
            asked.

    Exact: approximate: the reward chooses among draws.
    Reduces to: the method itself at width 1, draw for draw.
    Source: Chatziveroglou, "A*-decoding: token-efficient inference scaling" (2025).
    """

    method: SpeculativeMethod
    reward: ProcessReward
    width: int = 4
    delimiter: str = "\n"
    longest: int = 64
    budget: int = 1024
    toll: float = 0.01
    frontier: int = 64
    again: float | None = None
    sure: float | None = None
    exactness = Exactness.APPROXIMATE
    target = method_target
    vocab = method_vocab
    write_choices = search_each_choice

    def __post_init__(self) -> None:
        if not 1 <= self.width <= 64:
            raise RequestError(f"width is {self.width}: it must lie in 1 to 64")
        at_least_one(self, "longest", "budget", "frontier")
        if not self.toll >= 0.0:
            raise RequestError(f"toll is {self.toll}: it must be at least 0")
        if self.again is not None and not self.again > 0.0:
            raise RequestError(f"again is {self.again}: it must be above 0")
        if self.sure is not None and not 0.0 < self.sure <= 1.0:
            raise RequestError(f"sure is {self.sure}: it must be above 0 and at most 1")

    async def search_answer(self, choice: ChoiceSearch) -> Result:
        """Search for one answer."""
        return await _AStarRun(self, choice).run()


class _AStarRun:
    """The run of one answer."""

    def __init__(self, plan: AStarSearch, choice: ChoiceSearch) -> None:
        self._plan = plan
        self._choice = choice
        self._spent = SearchStats()
        self._steps = StepBoundary((plan.delimiter,), plan.longest, plan.vocab.words)
        self._count = 0

    async def run(self) -> Result:
        open_ = [AStarNode(self._choice.root, self._choice.rng)]
        plan = self._plan
        while (
            not (best := min(open_, key=lambda n: n.order)).attempt.ended
            and self._spent.written < plan.budget
        ):
            # Expand the best node, then cut the queue to its size: dropped nodes give their cache
            # back.
            open_.remove(best)
            open_ = sorted([*open_, *await self._expand(best)], key=lambda n: n.order)
            for node in open_[plan.frontier :]:
                node.attempt.close()
            del open_[plan.frontier :]
            self._choice.write_certain_text([n.attempt.text for n in open_])
        # The goal, or out of budget: then a complete solution of the queue goes before any
        # beginning.
        whole = [n for n in open_ if n.attempt.ended]
        best = min(whole or open_, key=lambda n: n.order)
        # A fork is the answer, since a node that waits may be forked once more.
        (last,) = self._forks(best, 1)
        # The budget is spent: what is begun comes to its end.
        if not last.ended:
            await last.go_on(step_stream(best.attempt, best.rng, best.drawn))
        self._spent = self._spent.plus_stats(last.spent)
        last.text.score = last.value
        return self._choice.finish_search(last.text, self._spent)

    async def _expand(self, node: AStarNode) -> list[AStarNode]:
        """Return the new steps after a node, and the node itself where it waits."""
        plan = self._plan
        # Streams are numbered on from the last expansion, so that a second one draws other steps.
        numbers = range(node.drawn, node.drawn + plan.width)
        streams = [step_stream(node.attempt, node.rng, i) for i in numbers]
        drawn = self._forks(node, plan.width)
        await gather_coroutines(
            *(a.go_on(s, self._steps) for a, s in zip(drawn, streams, strict=True))
        )
        # Equal steps count once, and steps that an earlier expansion found do not count again.
        once = dict[tuple[int, ...], tuple[SearchAttempt, Rng]]()
        for attempt, stream in zip(drawn, streams, strict=True):
            if (text := tuple(attempt.text.tokens)) not in node.found:
                once.setdefault(text, (attempt, stream))
        # The reward is asked of all new steps in one pass.
        begun = node.attempt.logp
        # All children are valued at once, so that their passes are shared.
        await gather_coroutines(
            *(self._valued(attempt, attempt.logp - begun, node) for attempt, _ in once.values())
        )
        self._spent = self._spent.plus_stats(side_by_side([a.spent for a in drawn]))
        # Without `again` a node is expanded once, and leaves the queue for good.
        if plan.again is None:
            waiting = []
        else:
            waiting = [
                replace(
                    node,
                    drawn=numbers.stop,
                    wait=node.wait + plan.again,
                    found=node.found | set(once),
                )
            ]
        return [*waiting, *(self._node(node, *pair) for pair in once.values())]

    async def _valued(self, attempt: SearchAttempt, logp: float, parent: AStarNode) -> None:
        """Ask the reward of a step, unless there was hardly another one to take.

        `logp` is the step's log-probability.
        """
        if self._plan.sure is None or math.exp(logp) < self._plan.sure:
            await attempt.ask_reward(self._plan.reward)
        else:
            attempt.value = 1.0 - parent.hope

    def _forks(self, node: AStarNode, count: int) -> list[SearchAttempt]:
        """So many that go on from a node, which is over with that unless it waits."""
        drawn = self._choice.fork_attempts(node.attempt, count)
        if self._plan.again is None:
            node.attempt.close()
        return drawn

    def _node(self, parent: AStarNode, attempt: SearchAttempt, rng: Rng) -> AStarNode:
        self._count += 1
        if attempt.text.finish_reason == "length":
            value = 0.0
        else:
            value = attempt.value or 0.0
        # g: the fall of the reward along the path, never paid back by a later rise, and the toll.
        hope = 1.0 - value
        fall = max(0.0, hope - parent.hope)
        return AStarNode(
            attempt, rng, parent.cost + fall + self._plan.toll, hope, parent.depth + 1, self._count
        )

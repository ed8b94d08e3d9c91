"""Beam search over the steps of a solution, ranked by a learned reward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
class StepBeamPrefix:
    """A beginning of a solution.

    Attributes:
        attempt: The text so far, and how it goes on.
        rng: Random stream of what is drawn after it.
        value: What the reward says of it, 0 to 1; 0 where it was cut.
    """

    attempt: SearchAttempt
    rng: Rng
    value: float = 1.0


@dataclass(frozen=True)
class StepBeamSearch:
    """Beam search over steps, ranked by a process reward.

    It draws `keep` times `width` first steps and keeps the `keep` beginnings that the reward values
    most. After each of them it draws `width` next steps, and keeps as many again, until all that
    are kept are complete solutions. The one of the highest value is the answer.

    A complete solution stays in the beam as long as no more than keep - 1 beginnings are worth
    more. Of a step that is drawn twice after one beginning one stays. Of equal values the one that
    was found first counts. The value of a beginning is what the reward says after its last step;
    that of a text which was cut at the limit is 0. Unlike A* there is no way back: what leaves the
    beam is over, so that no more than keep * width texts are open at a time.

    Attributes:
        method: Draws the steps.
        reward: Process reward that ranks beginnings.
        keep: Beginnings that are kept, 1 to 64.
        width: Steps that are drawn after each, 1 to 64.
        delimiter: Text that a step ends with.
        longest: Most tokens of a step.

    Exact: approximate: the reward chooses among draws.
    Reduces to: the method itself at keep 1 and width 1, draw for draw; best of keep * width where a
    step is a whole text.
    Source: Snell et al., "Scaling LLM test-time compute optimally can be more effective than
    scaling model parameters" (2024), beam search against a process reward model.
    """

    method: SpeculativeMethod
    reward: ProcessReward
    keep: int = 2
    width: int = 2
    delimiter: str = "\n"
    longest: int = 64
    exactness = Exactness.APPROXIMATE
    target = method_target
    vocab = method_vocab
    write_choices = search_each_choice

    def __post_init__(self) -> None:
        for name, value in (("keep", self.keep), ("width", self.width)):
            if not 1 <= value <= 64:
                raise RequestError(f"{name} is {value}: it must lie in 1 to 64")
        at_least_one(self, "longest")

    async def search_answer(self, choice: ChoiceSearch) -> Result:
        """Run the beam of one answer."""
        return await _StepBeamRun(self, choice).run()


class _StepBeamRun:
    """The run of one answer."""

    def __init__(self, plan: StepBeamSearch, choice: ChoiceSearch) -> None:
        self._plan = plan
        self._choice = choice
        self._spent = SearchStats()
        self._steps = StepBoundary((plan.delimiter,), plan.longest, plan.vocab.words)

    async def run(self) -> Result:
        plan = self._plan
        kept = [StepBeamPrefix(self._choice.root, self._choice.rng)]
        # The first level draws as many steps as all later levels do together.
        width = self._plan.keep * self._plan.width
        while any(not b.attempt.ended for b in kept):
            # Solutions that are complete compete as they are; the others grow by a step each.
            beams = [b for b in kept if b.attempt.ended] + await self._grown(
                [b for b in kept if not b.attempt.ended], width
            )
            # The sort is stable: of equal values the one found first comes first.
            beams.sort(key=lambda b: -b.value)
            for b in beams[plan.keep :]:
                b.attempt.close()
            kept = beams[: plan.keep]
            width = plan.width
            self._choice.write_certain_text([b.attempt.text for b in kept])
        best = kept[0].attempt.text
        best.score = kept[0].value
        return self._choice.finish_search(best, self._spent)

    async def _grown(self, begun: Sequence[StepBeamPrefix], width: int) -> list[StepBeamPrefix]:
        """Return the new beginnings: so many steps drawn after each of these, in parallel."""
        # Numbered by beginning, so that equal steps after different beginnings stay apart.
        drawn = [
            (number, attempt, step_stream(b.attempt, b.rng, i))
            for number, b in enumerate(begun)
            for i, attempt in enumerate(self._choice.fork_attempts(b.attempt, width))
        ]
        for b in begun:
            b.attempt.close()
        await gather_coroutines(
            *(attempt.go_on(stream, self._steps) for _, attempt, stream in drawn)
        )
        # Equal steps after one beginning count once; only those that are left are judged, in one
        # pass.
        once = dict[tuple[int, ...], tuple[SearchAttempt, Rng]]()
        for number, attempt, stream in drawn:
            once.setdefault((number, *attempt.text.tokens), (attempt, stream))
        await gather_coroutines(
            *(attempt.ask_reward(self._plan.reward) for attempt, _ in once.values())
        )
        self._spent = self._spent.plus_stats(
            side_by_side([attempt.spent for _, attempt, _ in drawn])
        )
        return [
            StepBeamPrefix(
                attempt,
                stream,
                0.0 if attempt.text.finish_reason == "length" else attempt.value or 0.0,
            )
            for attempt, stream in once.values()
        ]

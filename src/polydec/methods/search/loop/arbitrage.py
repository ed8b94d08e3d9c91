"""A draft model writes each step, and an arbiter decides whether the target rewrites it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from polydec.base.errors import RequestError
from polydec.base.options import at_least_one
from polydec.core.decoder import Streams
from polydec.core.request import Request, Result
from polydec.core.transcript import Transcript
from polydec.core.types import Exactness, TextEdit, TokenVocabulary
from polydec.methods.search.loop.attempt import (
    ChoiceSearch,
    SearchAttempt,
    for_each,
)
from polydec.methods.search.loop.protocols import ProcessReward, StepArbiter
from polydec.methods.search.loop.types import StepBoundary, WrittenStep
from polydec.methods.speculative.loop.walk import SpeculativeMethod, Walk


@dataclass(frozen=True)
class StepReader:
    """A model that reads for a router what was written, and by whom.

    Attributes:
        method: Method over that model's law.
        small: Token that stands before a step of the draft model's.
        big: Token that stands before a step of the target's.
        context: Tokens that it can read.
    """

    method: SpeculativeMethod
    small: int
    big: int
    context: int

    def step_tokens(self, steps: Sequence[WrittenStep]) -> tuple[int, ...]:
        """Return the tokens of steps, each after the mark of who wrote it."""
        return mark_step_writers(steps, self.small, self.big)


def mark_step_writers(steps: Sequence[WrittenStep], small: int, big: int) -> tuple[int, ...]:
    """Return the tokens of steps, each after the mark of who wrote it.

    Args:
        steps: Steps in order.
        small: Token before a step of the draft model's.
        big: Token before a step of the target's.
    """
    return tuple(x for step in steps for x in (big if step.target else small, *step.tokens))


@dataclass(frozen=True)
class ArbitrageSearch:
    """`small` writes a step, and `arbiter` decides whether `big` writes one in its place.

    Both write from the same beginning, step after step. The target reads what the draft model wrote
    only when it is called, all at once.

    Draws of the target are plain decoding's, position by position, until a step of its own is
    dropped; from then on each of its steps has a stream of its own, as each of the draft model's
    has.

    Attributes:
        big: Writes with the law of the target.
        small: Writes with the law of the draft model.
        arbiter: Decides who writes a step.
        delimiter: Text that a step ends with, at the end of a token's text or within it.
        longest: Most tokens of a step, at least 1.
        reader: Reads the text for an arbiter that asks `ArbiterCase.reader_value` (`ReadingArbiter`). None:
            there is none.

    Exact: approximate: a step of the draft model's that stands was checked by nobody token by
    token.
    Reduces to: plain decoding of the target, draw for draw, where the arbiter takes none of the
    draft model's steps; to that of the draft model, in law, where it takes all.
    Source: "Arbitrage: Efficient reasoning via advantage-aware speculation" (2025).
    """

    big: SpeculativeMethod
    small: SpeculativeMethod
    arbiter: StepArbiter
    delimiter: str = "\n"
    longest: int = 64
    reader: StepReader | None = None
    exactness = Exactness.APPROXIMATE

    def __post_init__(self) -> None:
        at_least_one(self, "longest")
        if not self.delimiter:
            raise RequestError("delimiter is '': it must be at least one character")
        self.vocab.require_same(self.small.target.vocab, "the draft")

    @property
    def vocab(self) -> TokenVocabulary:
        return self.big.target.vocab

    async def write_choices(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        """Write each choice step by step.

        Args:
            request: What is asked: prompt token ids, number of answers, limits.
            rng: Random stream of each choice, by the choice's number.
            into: Record of the request, which gets the tokens, the statistics and the trace events.

        Returns:
            One result for each choice of the request, in order.
        """
        return await for_each(self.small, request, rng, into, self.search_answer)

    async def search_answer(self, choice: ChoiceSearch) -> Result:
        """Write one answer."""
        course = _ArbitrageRun(self, choice)
        try:
            return await course.run()
        finally:
            course.close()


class _ArbitrageRun:
    """The run of one answer; for an arbiter it is an `ArbiterCase`.

    Attributes:
        _small: The draft model's attempt, which stands after what is final.
        _big: The target's attempt, the same less the tokens in `_lag`; None before the target is
            called.
    """

    def __init__(self, plan: ArbitrageSearch, choice: ChoiceSearch) -> None:
        self._plan = plan
        self._choice = choice
        self._request = choice.into.request
        self._answer = choice.answer
        self._rng = choice.rng
        self._small = choice.root
        self._tried = choice.root
        self._big: SearchAttempt | None = None
        self._lag = list[int]()
        self._targets = list[SearchAttempt]()
        # The target after the step that is judged; None: it has not read it.
        self._read: SearchAttempt | None = None
        # The target after a step of its own in its place; None: it wrote none.
        self._own: SearchAttempt | None = None
        self._steps = StepBoundary((plan.delimiter,), plan.longest, plan.vocab.words)
        self._stats = ArbitrageStats()
        self._dropped = False
        # Steps that stand so far.
        self._written = list[WrittenStep]()
        # The reader, which has read the first `_seen` of them.
        self._reader: Walk | None = None
        self._seen = 0
        # The reader after the step that is judged, too.
        self._told: Walk | None = None

    async def run(self) -> Result:
        rng = self._rng
        arbiter = self._plan.arbiter
        # The clock of decoding starts.
        self._answer.edit_tokens(TextEdit())
        while self._answer.finish_reason is None:
            at = len(self._answer.tokens)
            # Draft: a fork of the draft model writes one step, so that the step can be dropped.
            self._read = self._own = None
            self._tried = self._fork(self._small)
            await self._tried.go_on(rng.child_stream("draft", at), self._steps)
            drafted = self._tried.text.tokens[at:]
            # Arbitrate: the arbiter asks for what it needs, and each answer is computed once.
            called = await arbiter.prefers_target(self, rng.child_stream("arbiter", at))
            # Commit one of the two steps; the model that did not write it catches up.
            await (self._replace(at) if called else self._keep(drafted))
            # What stands is shown at once; a step that was replaced is never seen.
            self._stands(WrittenStep(called, tuple(self._answer.tokens[at:])))
            self._stats = self._stats.plus_stats(
                ArbitrageStats(
                    # The target's own step counts only where it wrote one beside the draft's.
                    steps=1,
                    called=int(called),
                    drafted=len(drafted),
                    kept=0 if called else len(drafted),
                    own=0 if self._own is None else len(self._own.text.tokens) - at,
                )
            )
        # Passes are counted by each attempt of the target, and added up at the end.
        spent = [a.spent for a in self._targets]
        return self._answer.finished_answer(
            self._stats.plus_stats(
                ArbitrageStats(sum(s.passes for s in spent), scored=sum(s.scored for s in spent))
            )
        )

    async def draft_step_value(self, reward: ProcessReward) -> float:
        return await self._tried.ask_reward(reward)

    async def target_reading_value(self, reward: ProcessReward) -> float:
        if self._read is None:
            self._read = self._fork_big(await self._caught_up())
            await self._read.say_tokens(self._tried.text.tokens[len(self._answer.tokens) :])
        return await self._read.ask_reward(reward)

    async def target_step_value(self, reward: ProcessReward) -> float:
        return await (await self._step()).ask_reward(reward)

    @property
    def steps(self) -> Sequence[WrittenStep]:
        drafted = tuple(self._tried.text.tokens[len(self._answer.tokens) :])
        return (*self._written, WrittenStep(False, drafted))

    async def target_step(self) -> Sequence[int]:
        return (await self._step()).text.tokens[len(self._answer.tokens) :]

    async def reader_value(self, reward: ProcessReward) -> float:
        reader = self._plan.reader
        prompt = self._request.prompt
        if reader is None:
            raise RequestError("this arbiter asks a reader, and there is none")
        # Beyond its context a reader cannot judge: the target is called.
        if len(prompt) + len(reader.step_tokens(self.steps)) > reader.context:
            return 1.0
        if self._reader is None:
            self._reader = await Walk.open_walk(reader.method, prompt, whole=True)
        # The reader catches up with the steps that stand, then a fork of it reads the drafted one.
        if missed := reader.step_tokens(self._written[self._seen :]):
            self._reader.commit_round(await self._reader.score_given_tokens(missed))
            self._seen = len(self._written)
        self._told = self._reader.fork()
        drafted = reader.step_tokens(self.steps[-1:])
        self._told.commit_round(await self._told.score_given_tokens(drafted))
        self._stats = self._stats.plus_stats(ArbitrageStats(routed=len(missed) + len(drafted)))
        return reward.success_chance(await self._told.current_state())

    def _stands(self, step: WrittenStep) -> None:
        """Note a step that stands.

        The reader goes on after it if it has read it, and else reads it later.
        """
        self._written.append(step)
        if self._told is None:
            return
        # The fork has read a step that does not stand: it is dropped, and the target's step is read
        # later.
        if step.target:
            self._told.close()
        else:
            self.close(self._reader)
            self._reader = self._told
            self._seen = len(self._written)
        self._told = None

    def close(self, *walks: Walk | None) -> None:
        """Give back what the reader holds, or these walks of it."""
        for walk in walks or (self._reader, self._told):
            if walk is not None:
                walk.close()

    async def _step(self) -> SearchAttempt:
        """A step of the target's own, in place of the draft model's."""
        if self._own is None:
            self._own = self._fork_big(await self._caught_up())
            at = len(self._answer.tokens)
            await self._own.go_on(
                self._rng.child_stream("own", at) if self._dropped else self._rng, self._steps
            )
        return self._own

    async def _replace(self, at: int) -> None:
        own = await self._step()
        self._answer.follow_text(own.text)
        self._tried.close()
        self._next(own)
        if not own.ended:
            await self._small.say_tokens(own.text.tokens[at:])

    async def _keep(self, step: Sequence[int]) -> None:
        # A step of the target's that was drawn and dropped has used its draws: plain decoding's
        # stream is lost.
        self._dropped = self._dropped or self._own is not None
        self._answer.follow_text(self._tried.text)
        self._small.close()
        self._small = self._tried
        # The target has not read the step: it waits in the lag until the target is called.
        if self._read is None:
            self._lag += step
        else:
            self._next(self._read)

    def _next(self, big: SearchAttempt) -> None:
        """The target goes on from here; what else it has tried is over."""
        for other in (self._big, self._read, self._own):
            if other is not None and other is not big:
                other.close()
        self._big = big

    async def _caught_up(self) -> SearchAttempt:
        """Return the target's attempt, which stands after what is final."""
        if self._big is None:
            self._big = await self._choice.begin_attempt(
                self._plan.big, self._request.prompt, self._request.logprobs
            )
            self._targets.append(self._big)
        if self._lag:
            await self._big.say_tokens(self._lag)
            self._lag = []
        return self._big

    def _fork(self, attempt: SearchAttempt) -> SearchAttempt:
        (twin,) = self._choice.fork_attempts(attempt, 1)
        return twin

    def _fork_big(self, attempt: SearchAttempt) -> SearchAttempt:
        twin = self._fork(attempt)
        self._targets.append(twin)
        return twin


@dataclass(frozen=True)
class ArbitrageStats:
    """Counts of one answer.

    Attributes:
        passes: Passes of the target.
        first: Tokens that were there after its first pass.
        steps: Steps of the answer.
        called: Steps that the target wrote.
        drafted: Tokens that the draft model wrote.
        kept: Drafted tokens that stand.
        own: Tokens that the target wrote, whether they stand or were only judged.
        scored: Tokens that the target was fed.
        routed: Tokens that a reader was fed for a router, without the prompt.
    """

    passes: int = 0
    first: int = 0
    steps: int = 0
    called: int = 0
    drafted: int = 0
    kept: int = 0
    own: int = 0
    scored: int = 0
    routed: int = 0

    def plus_stats(self, other: ArbitrageStats) -> ArbitrageStats:
        """Both together."""
        return ArbitrageStats(
            *(getattr(self, f.name) + getattr(other, f.name) for f in fields(self))
        )

    def metrics(self) -> Mapping[str, Any]:
        """Return the figures by name.

        steps and steps_of_target; tokens_drafted, tokens_kept (of those), tokens_of_target
        (written, not read), and tokens_scored by it; tokens_routed where a router reads.
        """
        return {
            "steps": self.steps,
            "steps_of_target": self.called,
            "tokens_drafted": self.drafted,
            "tokens_kept": self.kept,
            "tokens_of_target": self.own,
            "tokens_scored": self.scored,
            **({"tokens_routed": self.routed} if self.routed else {}),
        }

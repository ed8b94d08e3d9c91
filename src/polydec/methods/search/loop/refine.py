"""Iterative refinement: propose, judge, show the model its best answer, propose again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from polydec.base.errors import RequestError
from polydec.base.options import at_least_one
from polydec.core.effects import gather_coroutines
from polydec.core.request import Result
from polydec.core.rng import Rng
from polydec.core.types import Exactness, TextEdit
from polydec.methods.search.loop.attempt import (
    ChoiceSearch,
    SearchAttempt,
    method_target,
    method_vocab,
    search_each_choice,
    side_by_side,
)
from polydec.methods.search.loop.judging import AttemptJudge, AttemptTextJudge, StateJudge
from polydec.methods.search.loop.model_answers import write_greedy_reply
from polydec.methods.search.loop.protocols import ProcessReward
from polydec.methods.search.loop.rollouts import streams_of
from polydec.methods.search.loop.stats import SearchStats
from polydec.methods.speculative.loop.walk import SpeculativeMethod

SCORE = "{score}"
"""What a feedback's text has where the reward's value is to stand."""


@dataclass(frozen=True)
class IterativeRefinementSearch:
    """Draws answers in rounds; each round shows the model its best answer so far.

    `proposals` answers are drawn in parallel and the reward (or another judge) is asked of each.
    Then, round after round, the model reads its best answer after the prompt, with `feedback`,
    draws as many new ones after that, and the reward is asked of those that it has not seen. The
    best of all is the answer.

    A proposal is judged as an answer to the request's own prompt, after which it is read once more;
    its log-probabilities are those after that prompt. One of a later round that was cut at a limit,
    or holds nothing, is dropped; the value of one that was cut in the first round is 0. Where
    `patience` rounds in a row found nothing better, the next best answer is shown, and so on in
    turns. What is shown takes half of the room after the prompt at most: of a longer answer the
    beginning.

    With `contrast` the worst answer stands before the best one, `contrast` between them, where the
    reward values it less. With `critique` the model is asked about its best answer: that text and a
    line of what it says, greedily, stand before the feedback; they and the worst answer share in
    the same half of the room. Rules that look at the prompt (penalties) see what is shown as a part
    of it. The paper's prompts are not known to us: these are ours, and empty at first.

    Attributes:
        method: Draws the answers.
        reward: Process reward that judges them. None: `text` does.
        rounds: Rounds, 1 to 64.
        proposals: Answers of a round, 1 to 64.
        feedback: Text after the answer that is shown; "{score}" in it becomes the value, two
            digits.
        enough: Value, 0 to 1, at which no further round is begun.
        patience: Rounds without a better answer until another one is shown, at least 1.
        context: Tokens that a prompt and all after it may take. None: there is room for twice an
            answer.
        contrast: Text after the worst answer, with "{score}" like `feedback`; "": it is not shown.
        critique: Question about the best answer; "": none is asked.
        text: Judges answers by their text in place of the reward. None: the reward does.

    Exact: approximate: the reward chooses among draws from several laws.
    Reduces to: best of n at one round, draw for draw.
    Source: Chakraborty et al., "Review, refine, repeat: understanding iterative decoding of AI
    agents with dynamic evaluation and selection" (2025).
    """

    method: SpeculativeMethod
    reward: ProcessReward | None
    rounds: int = 4
    proposals: int = 2
    feedback: str = ""
    enough: float = 1.0
    patience: int = 2
    context: int | None = None
    contrast: str = ""
    critique: str = ""
    text: AttemptTextJudge | None = None
    exactness = Exactness.APPROXIMATE
    target = method_target
    vocab = method_vocab
    write_choices = search_each_choice

    def __post_init__(self) -> None:
        for name, value in (("rounds", self.rounds), ("proposals", self.proposals)):
            if not 1 <= value <= 64:
                raise RequestError(f"{name} is {value}: it must lie in 1 to 64")
        at_least_one(self, "patience")
        if not 0.0 <= self.enough <= 1.0:
            raise RequestError(f"enough is {self.enough}: it must lie in 0 to 1")
        if self.reward is None and self.text is None:
            raise RequestError("reward is None: give a reward, or what judges texts")
        # Spell all texts now: a text that cannot be spelled is an error before anything runs.
        self.feedback_tokens(0.5)
        self.said_of_worst(0.5)
        self.question_tokens()

    @property
    def judging(self) -> AttemptJudge:
        """The judge of answers."""
        if self.text is not None:
            return self.text
        # `__post_init__` refuses a plan without a judge.
        assert self.reward is not None
        return StateJudge(self.reward)

    def feedback_tokens(self, value: float) -> tuple[int, ...]:
        """Return the feedback in tokens.

        Raises:
            RequestError: The vocabulary cannot spell it.
        """
        return self._spelled("feedback", self.feedback.replace(SCORE, f"{value:.2f}"))

    def said_of_worst(self, value: float) -> tuple[int, ...]:
        """Return the text after the worst answer in tokens.

        Raises:
            RequestError: The vocabulary cannot spell it.
        """
        return self._spelled("contrast", self.contrast.replace(SCORE, f"{value:.2f}"))

    def question_tokens(self) -> tuple[int, ...]:
        """Return the question about an answer in tokens.

        Raises:
            RequestError: The vocabulary cannot spell it.
        """
        return self._spelled("critique", self.critique)

    def _spelled(self, name: str, text: str) -> tuple[int, ...]:
        text = "" if self.rounds == 1 else text
        return self.vocab.spell_text(text, f"{name} is {getattr(self, name)!r}")

    async def search_answer(self, choice: ChoiceSearch) -> Result:
        """Run the rounds of one answer."""
        return await _IterativeRefinementRun(self, choice).run()


class _IterativeRefinementRun:
    """The run of one answer."""

    def __init__(self, plan: IterativeRefinementSearch, choice: ChoiceSearch) -> None:
        self._plan = plan
        self._choice = choice
        self._request = choice.into.request
        self._spent = SearchStats()
        self._seen = list[SearchAttempt]()

    async def run(self) -> Result:
        plan = self._plan
        rng = self._choice.rng
        idle = 0
        turn = 0
        await self._first(rng)
        for t in range(1, plan.rounds):
            before = self._best.value or 0.0
            order = self._ranked
            if before >= plan.enough:
                break
            # The best answer is shown, or after idle rounds another one of the ranking.
            shown = await self._shown(order[turn % len(order)], rng.child_stream("critique", t))
            if len(shown) >= self._room:
                # No room is left for an answer after what is shown.
                break
            await self._again(
                shown, [rng.child_stream("round", t, i) for i in range(plan.proposals)]
            )
            # A better answer starts the turns anew; each time patience runs out the next answer's
            # turn comes.
            better = (self._best.value or 0.0) > before
            idle = 0 if better else idle + 1
            if better:
                turn = 0
            else:
                turn = turn + (idle % plan.patience == 0)
        best = self._best.text
        best.score = self._best.value
        return self._choice.finish_search(best, self._spent)

    @property
    def _room(self) -> int:
        """Tokens that may stand after the prompt, what is shown included."""
        whole = self._plan.context
        most = self._request.max_tokens
        if whole is None:
            return 2 * most
        return whole - len(self._request.prompt)

    @property
    def _ranked(self) -> list[SearchAttempt]:
        """All that were seen, the best first, of equal ones the earlier."""
        return sorted(self._seen, key=lambda a: -(a.value or 0.0))

    @property
    def _best(self) -> SearchAttempt:
        return self._ranked[0]

    async def _first(self, rng: Rng) -> None:
        """Draw the proposals of the first round, after the prompt alone."""
        drawn = self._choice.fork_attempts(self._choice.root, self._plan.proposals)
        # The clock of decoding starts; nothing is certain before the last round.
        self._choice.answer.edit_tokens(TextEdit())
        await gather_coroutines(
            *(a.go_on(s) for a, s in zip(drawn, streams_of(rng, len(drawn)), strict=True))
        )
        # All proposals are judged in one pass; one that the limit cut is worth nothing, whatever is
        # said of it.
        await gather_coroutines(*(self._plan.judging.judge_attempt(a) for a in drawn))
        self._spent = self._spent.plus_stats(side_by_side([a.spent for a in drawn]))
        for a in drawn:
            if a.text.finish_reason == "length":
                a.value = 0.0
            a.close()
            self._keep(a)

    async def _again(self, shown: tuple[int, ...], streams: Sequence[Rng]) -> None:
        """Draw proposals after the prompt and what is shown; judge those that are new."""
        prompt = (*self._request.prompt, *shown)
        # A new prompt: what is shown is context, so this text has a cache of its own.
        start = await self._choice.begin_attempt(self._plan.method, prompt)
        drawn = self._choice.fork_attempts(start, self._plan.proposals)
        start.close()
        # The answer must fit after what is shown, and must not be longer than the request allows.
        limit = min(self._request.max_tokens, self._room - len(shown))
        for a in drawn:
            a.text.limit = limit
        await gather_coroutines(*(a.go_on(s) for a, s in zip(drawn, streams, strict=True)))
        spent = side_by_side([a.spent for a in drawn])
        # The longer prompt was fed as well.
        self._spent = self._spent.plus_stats(replace(spent, scored=spent.scored + len(prompt) - 1))
        known = {tuple(a.text.tokens) for a in self._seen}
        # Empty answers are dropped: after an answer that is shown, many texts end at once.
        new = dict.fromkeys(
            tuple(a.text.tokens)
            for a in drawn
            if a.text.finish_reason == "stop" and a.text.tokens[0] not in a.text.ends
        )
        for a in drawn:
            a.close()
        await self._judge([tokens for tokens in new if tokens not in known])

    async def _judge(self, texts: Sequence[tuple[int, ...]]) -> None:
        """Read texts as answers to the prompt, and ask the reward of them."""
        read = self._choice.fork_attempts(self._choice.root, len(texts))
        await gather_coroutines(
            *(a.say_tokens(tokens) for a, tokens in zip(read, texts, strict=True))
        )
        await gather_coroutines(*(self._plan.judging.judge_attempt(a) for a in read))
        spent = side_by_side([a.spent for a in read])
        # Their tokens were counted when they were written.
        self._spent = self._spent.plus_stats(replace(spent, ended=0, written=0))
        for a in read:
            a.close()
            if a.ended:
                self._keep(a)

    def _keep(self, attempt: SearchAttempt) -> None:
        if tuple(attempt.text.tokens) not in {tuple(a.text.tokens) for a in self._seen}:
            self._seen.append(attempt)

    async def _shown(self, attempt: SearchAttempt, rng: Rng) -> tuple[int, ...]:
        """Return what stands after the prompt: an answer and what is said of it."""
        feedback = self._plan.feedback_tokens(attempt.value or 0.0)
        # Half of the room is for what is shown: worst answer, answer, question, reply and feedback.
        half = self._room // 2
        worst = self._worst(attempt, half // 2)
        answer = answer_without_end(attempt)
        critique = self._plan.question_tokens()
        # What is shown of earlier attempts takes the rest, after the worst and the feedback.
        left = half - len(worst) - len(feedback)
        # A critique needs room for the answer, for itself and for the reply to it.
        if critique and (room := left - len(critique)) >= 2:
            most = room // 2
            asked = (*answer[: room - most], *critique)
            reply, spent = await write_greedy_reply(
                self._plan.method, self._choice, asked, most, rng
            )
            self._spent = self._spent.plus_stats(spent)
            return (*worst, *asked, *reply, *feedback)
        return (*worst, *answer[: max(0, left)], *feedback)

    def _worst(self, attempt: SearchAttempt, most: int) -> tuple[int, ...]:
        """Return the worst answer and what is said of it.

        Nothing where no seen answer is worse than this one, or there is no room for it.
        """
        worst = self._ranked[-1]
        remark = self._plan.said_of_worst(worst.value or 0.0)
        if not remark or len(remark) >= most or (worst.value or 0.0) >= (attempt.value or 0.0):
            return ()
        return (*answer_without_end(worst)[: most - len(remark)], *remark)


def answer_without_end(attempt: SearchAttempt) -> tuple[int, ...]:
    """Return the tokens of an answer, without what ended it."""
    tokens = attempt.text.tokens
    return tuple(tokens[:-1] if tokens[-1] in attempt.text.ends else tokens)

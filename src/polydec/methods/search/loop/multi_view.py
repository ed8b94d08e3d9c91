"""Several views of a prompt are written, and what follows each of them votes on an answer (MVP)."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from polydec.base.errors import RequestError
from polydec.core.effects import gather_coroutines
from polydec.core.protocols import DraftScores
from polydec.core.request import Result
from polydec.core.rng import Rng
from polydec.core.types import Exactness, TextEdit
from polydec.laws.targets.search_target import drop_greedy_rule
from polydec.methods.registry.kit import Kit, OtherPrompts, PromptedLaw
from polydec.methods.search.loop.attempt import (
    ChoiceSearch,
    SearchAttempt,
    method_target,
    method_vocab,
    one_token_round,
    search_each_choice,
    side_by_side,
)
from polydec.methods.search.loop.plain_texts import undrafted_method
from polydec.methods.search.loop.stats import SearchStats
from polydec.methods.search.loop.types import StepBoundary
from polydec.methods.speculative.loop.walk import SpeculativeMethod

LINE = "\n"
SEAM = 4
"""Tokens that are kept free where a caption meets a question."""


@dataclass(frozen=True, eq=False)
class ViewPath:
    """What follows a view.

    Attributes:
        attempt: The text, with the view.
        chance: Probability of its first token.
        answer: Which answer it gives. None: none.
        sure: How much likelier the token with which the answer begins was than the second one
            there; 1 where that is the first token of all.
    """

    attempt: SearchAttempt
    chance: float
    answer: int | None = None
    sure: float = 1.0

    @property
    def weight(self) -> float:
        return self.chance * self.sure


@dataclass(frozen=True)
class MultiViewSearch:
    """Votes over paths that follow several views of the prompt.

    Without `apart`: after the prompt each view is written: a line of `views`, and up to `caption` tokens that the
    model draws after it, a line. After each view and `cue` the `width` likeliest first tokens of at
    least the probability `least` begin a path each, which goes on to the end of its line, or for
    `most` tokens. A path gives the first of `answers` that it holds as a word. It weighs the
    probability of its first token, times how much likelier the likeliest token was than the second
    one where the answer begins; where the path begins with the answer, the first factor alone.
    Weights add up over paths and views, each view counting alike, and the answer that weighs most
    wins; of equal ones, that of the likeliest path of the last view.

    With `apart` a line of `views` is what the model is asked in the prompt's place, behind the same
    images, and its caption, up to `caption` tokens, goes to the end of its text. The paths then
    follow a prompt of the caption and the question, a line each, and `cue`.

    The text is all that was written on the winner's heaviest path: its view (not one that was asked
    for apart), cue and path, with an end after it; where the law has no end there it goes on. Its
    score is the winner's weight over the number of views, 0 to 1. Where no path gives an answer the
    text is the likeliest path of the last view, of score 0. All probabilities are those of the law
    that is decoded.

    Attributes:
        method: Draws the texts.
        answers: Words that may be the answer, at least two, without capitals.
        views: Lines that each begin a view; one that leaves no room for a path has none. (): the
            paths follow the prompt.
        cue: Text between a view and its paths.
        caption: Most tokens that the model adds to a view. 0: a line is the view itself.
        width: Paths of a view, 1 to 64.
        least: Probability that a path's first token needs, 0 to 1.
        most: Most tokens of a path, at least 1.
        drawn: Paths are drawn; else each goes on greedily.
        shared: A path without an answer counts for all of them alike; else for none.
        apart: Asks for views by themselves. None: they are written after the prompt.
        context: Tokens that a prompt and its answer may take, with `apart`. None: as many as they do.

    Exact: approximate: weights choose among paths.
    Reduces to: greedy decoding of a line without views and cue at width 1, where paths are not
    drawn.
    Source: Qu et al., "Look, compare, decide: alleviating hallucination in large vision-language
    models via multi-view multi-path reasoning" (2024), whose views are asked for apart. There a
    path without an answer counts for yes.
    """

    method: SpeculativeMethod
    answers: tuple[str, ...] = ("yes", "no")
    views: tuple[str, ...] = ()
    cue: str = ""
    caption: int = 64
    width: int = 3
    least: float = 0.001
    most: int = 50
    drawn: bool = True
    shared: bool = False
    apart: OtherPrompts | None = None
    context: int | None = None
    exactness = Exactness.APPROXIMATE
    target = method_target
    vocab = method_vocab
    write_choices = search_each_choice

    def __post_init__(self) -> None:
        for name, value, least, most in (
            ("width", self.width, 1, 64),
            ("caption", self.caption, 0, 1 << 16),
            ("most", self.most, 1, 1 << 16),
            ("least", self.least, 0, 1),
        ):
            if not least <= value <= most:
                raise RequestError(f"{name} is {value}: it must lie in {least} to {most}")
        # Compared without case, as models write answers either way.
        told = [a.strip().lower() for a in self.answers]
        if len(told) < 2 or len(set(told)) < len(told) or not all(told):
            raise RequestError(f"answers is {list(self.answers)}: at least two different words")
        # Spelled now, so that a text which the tokenizer cannot write is refused before any pass.
        self.spell_text(self.cue, "cue")
        if self.apart is None:
            for view in self.views:
                self.spell_text(view, "views")
            return
        # A view that leaves no room for a caption is refused now, and so is a question.
        for view in self.views:
            self.apart.law_behind(view)
        if self.caption and self.caption_room < 1:
            raise RequestError(
                f"most is {self.most}: a caption, the question and a path take more than the context of {self.context} "
                "tokens; set it lower"
            )

    @cached_property
    def caption_room(self) -> int:
        """Tokens of a caption at most: with `apart` the question and a path must have room behind
        it."""
        # Found once: the question's law is built for it.
        if self.apart is None or self.context is None:
            return self.caption
        question = len(self.apart.law_behind(self.apart.text).prompt)
        taken = question + len(self.spell_text(self.cue, "cue")) + self.most
        # Where a caption meets a question the tokenizer may cut otherwise.
        return min(self.caption, self.context - taken - SEAM)

    def spell_text(self, text: str, name: str) -> tuple[int, ...]:
        """Return the tokens of a text.

        Args:
            text: The text.
            name: Option that it comes from, for the message.

        Raises:
            RequestError: The vocabulary cannot spell it.
        """
        return self.vocab.spell_text(text, f"{name} holds {text!r}")

    async def search_answer(self, choice: ChoiceSearch) -> Result:
        """Vote on one answer."""
        # The clock of decoding starts; nothing is certain before the vote.
        choice.answer.edit_tokens(TextEdit())
        return await _MultiViewRun(self, choice).run()

    def first_answer(self, said: str) -> tuple[int, int] | None:
        """Return which answer a text gives, and where it begins; None where it gives none.

        Of the answers that stand in it as a word the first counts, and of these the longest.
        """
        found = list[tuple[int, int, int]]()
        for i, answer in enumerate(self.answers):
            word = re.escape(answer.strip().lower())
            at = re.search(rf"(?<!\w){word}(?!\w)", said.lower())
            if at is not None:
                found.append((at.start(), -len(answer), i))
        if not found:
            return None
        begin, _, which = min(found)
        return which, begin


class _MultiViewRun:
    """The run of one answer."""

    def __init__(self, plan: MultiViewSearch, choice: ChoiceSearch) -> None:
        self._plan = plan
        self._choice = choice
        self._line = StepBoundary((LINE,), plan.most, plan.vocab.words)
        # Of all views: what describes an image, and what the paths follow.
        self._captions = list[SearchAttempt]()
        self._heads = list[SearchAttempt]()

    async def run(self) -> Result:
        """Write views and paths, and let them vote."""
        rng = self._choice.rng
        views = self._plan.views or ("",)
        streams = [rng]
        if self._plan.views:
            streams = [rng.child_stream("view", i) for i in range(len(views))]
        paths = await gather_coroutines(*map(self._view, views, streams))
        best, weight = self._elected(paths)
        # The winner's text is completed only now: other paths need no end.
        await self._ended(best.attempt, rng.child_stream("end"))
        # Views run in parallel, and so do the prompts that show them, and the paths after each.
        heads = self._heads
        forks = [p.attempt for of in paths for p in of if p.attempt not in heads]
        spent = side_by_side([a.spent for a in self._captions])
        spent = spent.plus_stats(side_by_side([a.spent for a in heads]))
        spent = spent.plus_stats(side_by_side([a.spent for a in forks]))
        best.attempt.text.score = weight / len(views)
        return self._choice.finish_search(best.attempt.text, spent)

    async def _view(self, view: str, rng: Rng) -> list[ViewPath]:
        """Return the paths after a view, the likeliest first; the view itself if none has room."""
        plan = self._plan
        if plan.apart is None:
            attempt = await self._written_view(view, rng)
        else:
            attempt = await self._shown_view(plan.apart, view, rng)
        self._heads.append(attempt)
        if plan.cue and not attempt.ended:
            await attempt.say_tokens(plan.spell_text(plan.cue, "cue"))
        if attempt.ended:
            return [ViewPath(attempt, 0.0)]
        # Branch on the first token: one fork for each that is likely enough, at least for the
        # likeliest.
        r = await attempt.look_ahead(rng.child_stream("first"))
        begin = len(attempt.text.tokens)
        tokens, logp = r.scores.likeliest_tokens(0, plan.width)
        chance = {x: math.exp(p) for x, p in zip(tokens, logp, strict=True)}
        # The likeliest token is kept in any case, though it may lie below `least`.
        kept = [x for x in tokens if chance[x] >= plan.least] or list(tokens[:1])
        # Each path goes on from one of these first tokens, and is greedy from there.
        forks = self._choice.fork_attempts(attempt, len(kept))
        for fork, x in zip(forks, kept, strict=True):
            fork.take_steps(one_token_round(r, x))
        return list(
            await gather_coroutines(
                *(
                    # The first path keeps the random stream, so that one path alone writes as
                    # without forks.
                    self._path(
                        fork, chance[x], begin, rng if not i else rng.child_stream("path", i)
                    )
                    for i, (fork, x) in enumerate(zip(forks, kept, strict=True))
                )
            )
        )

    async def _written_view(self, view: str, rng: Rng) -> SearchAttempt:
        """The prompt, the line of a view, and the model's caption. view: "" for none."""
        plan = self._plan
        if not plan.views:
            return self._choice.root
        (attempt,) = self._choice.fork_attempts(self._choice.root, 1)
        await attempt.say_tokens(plan.spell_text(view, "views"))
        if plan.caption and not attempt.ended:
            caption = StepBoundary((LINE,), plan.caption, plan.vocab.words)
            await attempt.go_on(rng.child_stream("caption"), caption)
        return attempt

    async def _shown_view(self, apart: OtherPrompts, view: str, rng: Rng) -> SearchAttempt:
        """The prompt with what the model says to a view before the question."""
        plan = self._plan
        told = view
        # A line may be the view itself.
        if plan.caption:
            described = await self._begin(apart.law_behind(view), stops=False)
            self._captions.append(described)
            # What a request may have of an answer does not bound a caption.
            described.text.limit = plan.caption_room
            await described.go_on(rng.child_stream("caption"))
            words = plan.vocab.words
            assert words is not None, "a text was encoded"
            # The end of a caption is no word of it.
            told = words.decode([x for x in described.text.tokens if x not in plan.vocab.eos])
        return await self._begin(apart.law_behind(f"{told}{LINE}{apart.text}"))

    async def _begin(self, asked: PromptedLaw, stops: bool = True) -> SearchAttempt:
        """An attempt after another prompt, whose tokens count as scored."""
        # A law of its own: another prompt may have images, a steering and shapers of its own.
        method = undrafted_method(drop_greedy_rule(asked.target))
        logprobs = self._choice.into.request.logprobs
        attempt = await self._choice.begin_attempt(method, asked.prompt, logprobs, stops)
        attempt.spent = SearchStats(scored=len(asked.prompt) - 1)
        return attempt

    async def _path(self, attempt: SearchAttempt, chance: float, begin: int, rng: Rng) -> ViewPath:
        """What follows a first token. begin: where that stands."""
        # margin[i]: likeliest less second token at path token i; the first token was not compared.
        margin = [1.0]
        over = attempt.ended or self._line.closes_step(attempt.text.tokens[begin:])
        while not over:
            r = await attempt.look_ahead(rng)
            margin.append(top_two_margin(r.scores))
            if self._plan.drawn:
                token = r.tokens[0]
            else:
                token = r.scores.likeliest_token(0)
            over = attempt.take_steps(one_token_round(r, token), self._line, begin)
        tokens = attempt.text.tokens[begin:]
        # Without a tokenizer no answer can be found in the text.
        words = self._plan.vocab.words
        if words is None:
            return ViewPath(attempt, chance)
        found = self._plan.first_answer(words.decode(tokens))
        if found is None:
            return ViewPath(attempt, chance)
        which, where = found
        # The token in which the answer begins: the first whose decoded prefix reaches beyond its
        # place.
        at = next(i for i in range(len(tokens)) if len(words.decode(tokens[: i + 1])) > where)
        # Only white space before it: the path begins with the answer, and its first token's chance
        # says all.
        blank = not words.decode(tokens[:at]).strip()
        return ViewPath(attempt, chance, which, 1.0 if blank else margin[at])

    async def _ended(self, attempt: SearchAttempt, rng: Rng) -> None:
        """End the winner's text where its path ends.

        Where the law has no end there, it ends when it ends by itself.
        """
        if attempt.ended:
            return
        r = await attempt.look_ahead(rng)
        ends = sorted(attempt.text.ends)
        logp = dict(zip(ends, r.scores.token_logprobs(0, ends), strict=True))
        best = max(ends, key=lambda x: logp[x], default=None)
        if best is not None and logp[best] > -math.inf:
            attempt.take_steps(one_token_round(r, best))
        else:
            attempt.take_steps(r)
            while not attempt.ended:
                attempt.take_steps(await attempt.look_ahead(rng))

    def _elected(self, paths: Sequence[Sequence[ViewPath]]) -> tuple[ViewPath, float]:
        """The heaviest path of the answer that weighs most, and what all of its paths weigh."""
        # Votes: paths with an answer for that answer, others for all alike or for none.
        weight = defaultdict[int, float](float)
        every = [p for of in paths for p in of]
        for p in every:
            if p.answer is not None:
                weight[p.answer] += p.weight
            elif self._plan.shared:
                for i in range(len(self._plan.answers)):
                    weight[i] += p.chance / len(self._plan.answers)
        regular = max(paths[-1], key=lambda p: p.chance)
        speaking = [p for p in every if p.answer is not None]
        if not speaking:
            return regular, 0.0
        # Only an answer that some path gives can win.
        told = {p.answer for p in speaking if p.answer is not None}
        most = max(weight[i] for i in told)
        equal = [i for i in told if weight[i] == most]
        if regular.answer in equal:
            which = regular.answer
        else:
            which = min(equal)
        return max((p for p in speaking if p.answer == which), key=lambda p: p.weight), most


def top_two_margin(scores: DraftScores) -> float:
    """Return how much likelier the likeliest token of row 0 is than the second one, 0 to 1."""
    _, logp = scores.likeliest_tokens(0, 2)
    chance = [math.exp(x) for x in logp]
    return chance[0] - sum(chance[1:])


def prompts_apart(kit: Kit, viewed: bool) -> OtherPrompts:
    """What asks for views by themselves.

    Args:
        kit: What the recipe is given.
        viewed: Whether there are views.

    Returns:
        What the model would say to other texts than the prompt.

    Raises:
        RequestError: There is none, or views cannot be asked for so.
    """
    if not viewed:
        raise RequestError("apart is true and views is empty: say what is asked for, parted by |")
    # A constraint is part of the law, which views would be drawn from as well.
    if kit.language is not None:
        raise RequestError(
            "apart is true and the answer is constrained: views would be, too; leave one of them out"
        )
    if kit.other is None:
        raise RequestError(
            "apart is true: views are asked for in the place of a prompt that is a text (with or without images), so give one, "
            "or leave apart out"
        )
    return kit.other

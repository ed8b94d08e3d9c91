"""A text that a search tries, drawn by a draft-and-verify method with any drafter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from torch import Tensor

from polydec.core.decoder import Streams
from polydec.core.effects import Coro, gather_coroutines
from polydec.core.law import float64_probabilities
from polydec.core.protocols import DraftScores, Target
from polydec.core.request import Request, Result
from polydec.core.rng import Rng
from polydec.core.transcript import AnswerText, Transcript, common_prefix_tokens, logprobs_at_nodes
from polydec.core.types import RowDetail, TextEdit, TokenCodec, TokenVocabulary
from polydec.methods.search.loop.protocols import ProcessReward
from polydec.methods.search.loop.stats import SearchStats
from polydec.methods.search.loop.types import CandidateText, StepBoundary
from polydec.methods.speculative.loop.types import Verdict
from polydec.methods.speculative.loop.walk import SpeculativeMethod, Walk, WalkRound


class SearchAttempt:
    """A beginning of a text, and the walk that continues it. The attempt owns the walk.

    Attributes:
        logp: Log-probability of the text under the law that it is drawn from.
        value: What a reward last said of it; None before it was asked.
        spent: Its own statistics, which a fork begins anew.
        text: The text so far.
    """

    __slots__ = ("_asked", "_fed", "_walk", "logp", "spent", "text", "value")

    def __init__(self, walk: Walk, text: AnswerText, asked: int | None) -> None:
        """Begin at a walk.

        Args:
            walk: Continues the text; closed with the attempt.
            text: Record of the text.
            asked: How many alternatives the request wants with each token. None: no
                log-probabilities.
        """
        self._walk = walk
        self.text = text
        self._asked = asked
        # Whether the last token was fed: by a look, or for a reward.
        self._fed = False
        self.logp = 0.0
        self.spent = SearchStats()
        self.value: float | None = None

    @property
    def ended(self) -> bool:
        return self.text.finish_reason is not None

    @property
    def mean(self) -> float:
        """Log-probability of a token, on average."""
        return self.logp / max(1, len(self.text.tokens))

    def picker_view(self, words: TokenCodec | None) -> CandidateText:
        """Return the text as an answer picker sees it.

        `words` of the vocabulary decodes it where the request asks for tokens only.
        """
        tokens = tuple(self.text.tokens)
        text = self.text.text or (words.decode(tokens) if words is not None else "")
        return CandidateText(text, tokens, self.mean, self.value)

    async def look_ahead(self, rng: Rng) -> WalkRound:
        """Run one pass, and return what may be taken next."""
        r = await self._walk.next_round(rng, self.text.room, self.text.ends)
        # The root is the last token: it is new to the cache unless a look or a reward has fed it.
        new = len(r.draft) - self._fed
        self.spent = self.spent.plus_stats(SearchStats(int(new > 0), scored=new))
        self._fed = True
        return r

    def take_steps(self, r: WalkRound, steps: StepBoundary | None = None, begin: int = 0) -> bool:
        """Take the tokens of a round.

        Args:
            r: The round.
            steps: Where steps end. None: tokens are taken up to the end of the text.
            begin: Index of the first token of the present step.

        Returns:
            Whether the text has ended, or its step. Tokens after that are not taken.
        """
        count = 0
        over = False
        # Token by token: the text may end, or the step, within what the round accepted.
        for node, x in zip(r.nodes, r.tokens, strict=True):
            self.logp += r.scores.token_logprobs(node, (x,))[0]
            self.text.write_tokens((x,), logprobs_at_nodes(r.scores, (node,), (x,), self._asked))
            count += 1
            over = self.ended or (steps is not None and steps.closes_step(self.text.tokens[begin:]))
            if over:
                break
        self._walk.commit_round(r, count)
        self._fed = False
        self.spent = self.spent.plus_stats(SearchStats(ended=int(self.ended), written=count))
        return over

    async def go_on(self, rng: Rng, steps: StepBoundary | None = None) -> None:
        """Run passes until the text ends, or a step of it that begins here.

        Args:
            rng: Random stream of the draws.
            steps: Where steps end. None: go on to the end of the text.
        """
        begin = len(self.text.tokens)
        while not self.take_steps(await self.look_ahead(rng), steps, begin):
            pass

    async def say_tokens(self, tokens: Sequence[int]) -> None:
        """Continue with tokens that somebody else wrote, at least one.

        What stands after the end of the text is not taken.
        """
        # One pass over all of them: as if they had been drafted and accepted.
        r = await self._walk.score_given_tokens(tokens)
        new = len(r.draft) - self._fed
        self.spent = self.spent.plus_stats(SearchStats(int(new > 0), scored=new))
        self.take_steps(r)

    async def law_after(self, tokens: Sequence[int]) -> DraftScores:
        """Return the law after some tokens, at least one, that are no part of the text.

        Its row is that of node ``len(tokens)``.
        """
        # The last token is doubled: the row of a node is the law after it, and the walk reads all
        # but the last of what it is given.
        r = await self._walk.score_given_tokens((*tokens, tokens[-1]))
        new = len(r.draft) - self._fed
        self.spent = self.spent.plus_stats(SearchStats(int(new > 0), scored=new))
        self._fed = True
        return r.scores

    async def rerouted_logprobs(
        self, routings: Sequence[tuple[tuple[float, ...], ...]]
    ) -> list[Tensor]:
        """Return the next token's log-probabilities under each way to move a mixture's router.

        All of the routings (`ScoreRequest.routing`), at least one, run in one pass.
        """
        self.spent = self.spent.plus_stats(SearchStats(1, scored=len(routings), refined=1))
        return list(await gather_coroutines(*map(self._walk.rerouted_logprobs, routings)))

    async def ask_reward(self, reward: ProcessReward) -> float:
        """Ask a reward of what stands so far."""
        # The state needs the last token fed: it is fed now, and not again with the next round.
        self.value = reward.success_chance(await self._walk.current_state())
        new = int(not self._fed)
        self.spent = self.spent.plus_stats(SearchStats(new, scored=new, judged=1))
        self._fed = True
        self.text.send_rank(self.value)
        return self.value

    def fork(self, choice: int) -> SearchAttempt:
        """Return an attempt that continues from here, at no cost, for a choice of the request."""
        twin = SearchAttempt(self._walk.fork(choice), self.text.fork(choice), self._asked)
        twin.logp = self.logp
        twin.value = self.value
        twin._fed = self._fed
        return twin

    def close(self) -> None:
        """Close the walk; the text stays."""
        self.text.send_prune()
        self._walk.close()


def one_token_round(r: WalkRound, token: int) -> WalkRound:
    """Return a round that takes one token in place of what it accepted.

    Args:
        r: The round, whose first row is the law of that token.
        token: Token id.
    """
    return WalkRound(r.position, r.draft, r.scores, Verdict((), token), (token,))


def node_entropy(scores: DraftScores, node: int) -> float:
    """Return the entropy of the law at a node, in nats.

    Args:
        scores: Laws of a pass.
        node: Node of its draft.
    """
    # A certain token has no entropy; its row need not be read.
    if scores.certain_token(node) is not None:
        return 0.0
    p_V = float64_probabilities(scores.logprob_row(node))
    return float(-(p_V * p_V.clamp_min(1e-300).log()).sum())


def step_stream(attempt: SearchAttempt, rng: Rng, number: int) -> Rng:
    """Return the stream of a step that is drawn after an attempt.

    The first goes on in the attempt's own stream, so that one text draws as plain decoding does.

    Args:
        attempt: The beginning of the text.
        rng: Its random stream.
        number: Number of the step among those that are drawn there.
    """
    if number:
        return rng.child_stream("step", len(attempt.text.tokens), number)
    return rng


class ChoiceSearch:
    """The search for one answer of a request.

    Attributes:
        into: Record of the request.
        answer: Record of the answer.
        root: Attempt that stands at the end of the prompt.
        rng: Random stream of the answer.
        opened: Attempts that are closed when the searches of all answers are over.
    """

    __slots__ = ("_first", "answer", "into", "opened", "rng", "root")

    def __init__(
        self,
        into: Transcript,
        answer: AnswerText,
        root: SearchAttempt,
        rng: Rng,
        opened: list[SearchAttempt],
    ) -> None:
        """Begin at the end of the prompt.

        Args:
            into: Record of the request.
            answer: Record of the answer.
            root: Attempt that stands at the end of the prompt.
            rng: Random stream of the answer.
            opened: Attempts that are closed in the end; what is forked is added.
        """
        self.into = into
        self.answer = answer
        self.root = root
        self.rng = rng
        self.opened = opened
        # Tokens that were certain after the first pass; None before it.
        self._first: int | None = None

    def fork_attempts(self, attempt: SearchAttempt, count: int) -> list[SearchAttempt]:
        """Return attempts that continue from one, which are closed when the search is over.

        Args:
            attempt: The beginning that all of them continue.
            count: How many.
        """
        forks = [attempt.fork(self.answer.choice or 0) for _ in range(count)]
        self.opened += forks
        return forks

    async def begin_attempt(
        self,
        method: SpeculativeMethod,
        prompt: Sequence[int],
        asked: int | None = None,
        stops: bool = True,
    ) -> SearchAttempt:
        """Return an attempt after a prompt of its own, which is closed when the search is over.

        Args:
            method: Draws the text.
            prompt: Token ids, all of which are fed now.
            asked: How many alternatives are noted with each token. None: no log-probabilities.
            stops: Whether the request's stop strings end the text. Default True.
        """
        base = RowDetail.NOTHING
        if asked is not None:
            base = RowDetail.ROW
        walk = await Walk.open_walk(method, prompt, base=base, whole=True)
        attempt = SearchAttempt(walk, self.into.open_hypothesis(stops), asked)
        self.opened.append(attempt)
        return attempt

    def write_certain_text(self, texts: Sequence[AnswerText]) -> None:
        """Write what all texts that may still win begin with: it is certain."""
        sure = len(common_prefix_tokens(texts))
        if self._first is None:
            self._first = sure
            # The clock of decoding starts, whether anything is certain or not.
            self.answer.edit_tokens(TextEdit())
        self.answer.follow_text(texts[0], sure)

    def finish_search(self, best: AnswerText, spent: SearchStats) -> Result:
        """Write the text that won, and return the answer.

        Args:
            best: The text.
            spent: What the search took; `first` is filled in where texts were settled.
        """
        self.answer.follow_text(best)
        if self._first is not None:
            spent = replace(spent, first=self._first)
        return self.answer.finished_answer(spent)


class AttemptSearch(Protocol):
    """A search that writes each answer of a request for itself, by a draft-and-verify method."""

    @property
    def method(self) -> SpeculativeMethod: ...

    def search_answer(self, choice: ChoiceSearch) -> Coro:
        """Search for one answer; what it forks is added to `ChoiceSearch.opened`."""
        ...


@property
def method_target(self: AttemptSearch) -> Target:
    """`target` of a search whose method draws its texts."""
    return self.method.target


@property
def method_vocab(self: AttemptSearch) -> TokenVocabulary:
    """`vocab` of a search whose method draws its texts."""
    return self.method.target.vocab


async def search_each_choice(
    self: AttemptSearch, request: Request, rng: Streams, into: Transcript
) -> list[Result]:
    """Search for each choice of a request: `write_choices` of an `AttemptSearch`.

    Args:
        request: What is asked: prompt token ids, number of answers, limits.
        rng: Random stream of each choice, by the choice's number.
        into: Record of the request, which gets the tokens, the statistics and the trace events.

    Returns:
        One result for each choice of the request, in order.
    """
    return await for_each(self.method, request, rng, into, self.search_answer)


async def for_each(
    method: SpeculativeMethod,
    request: Request,
    rng: Streams,
    into: Transcript,
    search: Callable[[ChoiceSearch], Coro],
    base: RowDetail = RowDetail.NOTHING,
) -> list[Result]:
    """Search for each choice of a request, after feeding the prompt once.

    Args:
        method: Draws the texts.
        request: What is asked: prompt token ids, number of answers, limits.
        rng: Random stream of each choice, by the choice's number.
        into: Record of the request, which gets the tokens, the statistics and the trace events.
        search: Searches for one answer. What it forks is closed in the end, however that comes.
        base: What the search reads of the model's own rows, before shaping, where the request reads
            none.

    Returns:
        One result for each choice of the request, in order.
    """
    answers = [into.open_answer(choice) for choice in request.choices]
    walk = await Walk.open_walk(
        method, request.prompt, base=max(base, request.base_detail), whole=True
    )
    opened = [SearchAttempt(walk, into.open_hypothesis(), request.logprobs)]
    try:
        # Each choice forks from the prompt's end, so the prompt is fed once.
        opened += (roots := [opened[0].fork(choice) for choice in request.choices])
        opened[0].close()
        searches = [
            ChoiceSearch(into, answer, root, rng(answer.choice or 0), opened)
            for answer, root in zip(answers, roots, strict=True)
        ]
        return await gather_coroutines(*map(search, searches))
    finally:
        for attempt in opened:
            attempt.close()


def side_by_side(spent: Sequence[SearchStats]) -> SearchStats:
    """Add up what several attempts took in parallel: their passes are shared."""
    total = SearchStats()
    for stats in spent:
        total = total.plus_stats(stats)
    return replace(total, passes=max((stats.passes for stats in spent), default=0))

"""The likeliest text of all, or of one length, found and proven by depth-first search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from polydec.base.errors import RequestError
from polydec.base.options import at_least_one
from polydec.core.decoder import Streams
from polydec.core.law import NEG_INF
from polydec.core.protocols import DraftScores, Target
from polydec.core.request import Request, Result
from polydec.core.transcript import AnswerText, Transcript, logprobs_at_nodes
from polydec.core.types import Draft, Exactness, RowDetail, ScoreRequest, TokenVocabulary
from polydec.methods.search.loop.best import NBestAnswers
from polydec.methods.search.loop.stats import SearchStats


@dataclass(frozen=True)
class ExactModeSearch:
    """Finds the likeliest text of at most max_tokens tokens, and proves that it is.

    For n answers it gives the n likeliest. A text that the limit cuts is one of them, and stands
    for all texts that it begins. With a length only texts of so many tokens before their end count,
    which gives the likeliest text given that length.

    From every beginning the search first takes the text that ends there, then goes on with the
    likeliest token first. It leaves a token whose path is not likelier than the worst of the n best
    texts so far: log-probabilities only fall, so nothing that is left could win. The first text is
    the greedy one. One pass looks at one beginning.

    Attributes:
        target: Model whose likeliest text is searched.
        length: Tokens of a text before its end. 0: any number.
        width: Most answers that can be asked for.
        most: Most beginnings that are looked at, at least 1.

    Exact: approximate to the target's law: an argmax, which is found exactly; nothing is drawn.
    Reduces to: the best of all texts, scored one by one.
    Source: Stahlberg, Byrne, "On NMT search errors and model errors: cat got your tongue?" (2019);
    by length: Yoshida, "Making the most of your model: methods for finetuning and applying
    pretrained transformers" (2024).
    """

    target: Target
    length: int = 0
    width: int = 16
    most: int = 20_000
    exactness = Exactness.APPROXIMATE

    def __post_init__(self) -> None:
        at_least_one(self, "width", "most")
        if self.length < 0:
            raise RequestError(f"length is {self.length}: it must be at least 0 (any)")

    @property
    def vocab(self) -> TokenVocabulary:
        return self.target.vocab

    async def write_choices(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        """Run one search for all choices.

        Args:
            request: What is asked: prompt token ids, number of answers, limits.
            rng: Random stream of each choice, by the choice's number.
            into: Record of the request, which gets the tokens, the statistics and the trace events.

        Returns:
            One result for each choice of the request, in order.

        Raises:
            RequestError: `length` does not fit into max_tokens, the search is not over after `most`
                beginnings, or fewer texts are possible than answers are asked for.
        """
        best = NBestAnswers(into, self.width)
        if self.length and self.length >= request.max_tokens:
            raise RequestError(
                f"length is {self.length}: max_tokens is {request.max_tokens}, and an end of the text stands behind it, "
                f"so it can be at most {request.max_tokens - 1}"
            )
        walk = _ExactModeRun(self, request, into, ScoreRequest(base=request.base_detail))
        return best.answers_of(*await walk.run())


@dataclass
class _DepthFirstLevel:
    """A beginning that is looked at.

    Attributes:
        text: The beginning.
        scores: Law after it.
        options: Tokens that may follow, the likeliest first, each with the path's log-probability.
        at: How many of them were tried.
    """

    text: AnswerText
    scores: DraftScores
    options: Sequence[tuple[float, int]]
    at: int = 0


class _ExactModeRun:
    """The run of one request."""

    def __init__(
        self, plan: ExactModeSearch, request: Request, into: Transcript, want: ScoreRequest
    ) -> None:
        self._plan = plan
        self._request = request
        self._want = want
        self._into = into
        self._keep = request.choices.stop
        self._found = list[tuple[float, AnswerText]]()
        self._spent = SearchStats()

    async def run(self) -> tuple[list[AnswerText], SearchStats]:
        """The likeliest texts, the best first, and what it took."""
        plan = self._plan
        prompt = self._request.prompt
        session = plan.target.open_session(prompt)
        try:
            # The prompt is fed without a law: the first one is asked for at its last token.
            await session.prefill_prompt(ScoreRequest(law=RowDetail.NOTHING))
            path = [prompt[-1]]
            back = False

            async def score_beginning(text: AnswerText, total: float) -> _DepthFirstLevel:
                """Score one beginning, and take the texts that end there.

                Args:
                    text: The beginning.
                    total: Its log-probability.

                Returns:
                    The level of the search that it opens.

                Raises:
                    RequestError: `most` beginnings were looked at.
                """
                # Checked before the pass, so that the bound is never passed.
                if self._spent.passes == plan.most:
                    raise RequestError(
                        f"most is {plan.most}: the likeliest text is not proven after looking at so many beginnings, so "
                        "take more, a smaller max_tokens, or a beam"
                    )
                scores = await session.score_draft(Draft.chain_draft(path[-1]), self._want)
                self._spent = self._spent.plus_stats(SearchStats(1, scored=1))
                level = _DepthFirstLevel(text, scores, self._options(text, scores, total))
                # Ends first: the sooner good texts are known, the more branches are cut.
                for end in [o for o in level.options if o[1] in self._into.ends]:
                    if end[0] > self._limit:
                        self._take(end[0], self._with(level, end[1]))
                return level

            levels = [await score_beginning(self._into.open_hypothesis(), 0.0)]
            while levels:
                level = levels[-1]
                # Backtrack: nothing left, or the next path is no likelier than the bound, and so
                # are all after it.
                if level.at == len(level.options) or level.options[level.at][0] <= self._limit:
                    levels.pop().text.send_prune()
                    path.pop()
                    if levels:
                        session.rewind_tokens(1)
                        back = True
                    continue
                total, token = level.options[level.at]
                level.at += 1
                if token in self._into.ends:
                    # Ends were taken when the beginning was scored.
                    continue
                text = self._with(level, token)
                if text.finish_reason is not None:
                    self._take(total, text)
                    continue
                # Descend: the root is committed, and the chosen token becomes the new root.
                session.commit_tokens((path[-1],))
                # After a step back the root's keys and values are gone: it is fed anew.
                self._spent = self._spent.plus_stats(SearchStats(scored=int(back)))
                back = False
                path.append(token)
                levels.append(await score_beginning(text, total))
        finally:
            session.close()
        if len(self._found) < self._keep:
            raise RequestError(
                f"n is {self._keep}: of {self._wanted} there are {len(self._found)} that are possible"
            )
        return [text for _, text in self._found], replace(self._spent, ended=len(self._found))

    @property
    def _wanted(self) -> str:
        length = self._plan.length
        if length:
            return f"texts of {length} tokens"
        return "texts"

    @property
    def _limit(self) -> float:
        """What a path must be likelier than: the worst of the kept texts, once there are enough."""
        full = len(self._found) == self._keep
        if full:
            return self._found[-1][0]
        return NEG_INF

    def _options(
        self, text: AnswerText, scores: DraftScores, total: float
    ) -> list[tuple[float, int]]:
        """Return what may follow a beginning, the likeliest first, with the path's log-probability.

        With a given length only an end may follow a text of that length, and no end before.
        """
        length = self._plan.length
        # Every possible token is an option: a proof may leave none out.
        logp = [float(p) for p in scores.logprob_row(0).cpu()]
        options = [(total + p, x) for x, p in enumerate(logp) if p > NEG_INF]
        if length:
            over = len(text.tokens) == length
            options = [(p, x) for p, x in options if (x in self._into.ends) == over]
        return sorted(options, key=lambda option: -option[0])

    def _with(self, level: _DepthFirstLevel, token: int) -> AnswerText:
        # Texts are forked, not rewound: those that were found stay as they are.
        text = level.text.fork()
        text.write_tokens(
            (token,), logprobs_at_nodes(level.scores, (0,), (token,), self._request.logprobs)
        )
        self._spent = self._spent.plus_stats(SearchStats(written=1))
        return text

    def _take(self, total: float, text: AnswerText) -> None:
        """Keep a complete text if it is good enough.

        With a given length a text that a stop string has cut does not count.
        """
        if self._plan.length and text.tokens[-1] not in self._into.ends:
            return
        text.score = total
        self._found = sorted((*self._found, (total, text)), key=lambda f: -f[0])[: self._keep]

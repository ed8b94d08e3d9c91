"""One text for each of several plans of what it is to say, and the best of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from polydec.base.errors import RequestError
from polydec.core.decoder import Streams
from polydec.core.effects import ForwardQuery, gather_coroutines
from polydec.core.protocols import Target
from polydec.core.request import Request, Result
from polydec.core.transcript import AnswerText, Transcript
from polydec.core.types import Draft, Exactness, ScoreRequest, TokenVocabulary
from polydec.laws.targets.marked_source import law_behind_form
from polydec.methods.search.loop.attempt import side_by_side
from polydec.methods.search.loop.best import NBestAnswers, prune_lost_texts
from polydec.methods.search.loop.diverse_beam import DiverseBeamSearch
from polydec.methods.search.loop.ranking import LIKELIEST, LengthRanking
from polydec.methods.search.loop.stats import SearchStats
from polydec.models.learned.kinds.plan_extractor import ClausePlan, PlanExtractor
from polydec.models.text.clauses import mark_clauses

NO_PLAN = ClausePlan((), 0.0)
"""Nothing is marked: the model writes from the text as it is."""


@dataclass(frozen=True)
class PlanBounds:
    """Which plans are tried.

    Attributes:
        count: Plans, and beams of the search for them, 0 to 64. 0: the text is written without one.
        shortest: Clauses of a plan at least, 1 to 254; all of a text that has fewer.
        longest: Clauses at most, `shortest` to 254.
        penalty: Power of a plan's length that divides its log-probability, -10 to 10.
    """

    count: int = 16
    shortest: int = 3
    longest: int = 20
    penalty: float = 1.0

    def __post_init__(self) -> None:
        for name, value, least, most in (
            ("plans", self.count, 0, 64),
            ("shortest", self.shortest, 1, 254),
            ("longest", self.longest, self.shortest, 254),
            ("plan_penalty", self.penalty, -10, 10),
        ):
            if not least <= value <= most:
                raise RequestError(f"{name} is {value}: it must lie in {least} to {most}")


@dataclass(frozen=True)
class PlanGuidedSearch:
    """Writes one text for each of several plans of clauses, and answers with the best.

    A plan is a list of clauses of the source (of a model without an encoder: of the prompt), found
    by beam search in what `extractor` points at. Plans differ in their clauses. For each the source
    is read with marks around its clauses, in the order of the source, and beam search writes the
    likeliest text. A text's score is `weight` times what the judge says of it, and 1 - `weight`
    times the score of its plan. The judge is a reward of texts; without one the model itself, by
    the log-probability of the text from the source without marks over a power of its length.

    Attributes:
        target: Model that writes.
        extractor: Makes plans.
        source: What the model's encoder reads; (): the prompt is what plans are of.
        bounds: Which plans are tried.
        width: Beams of each text, 1 to 64.
        ranking: How a text's beams compare, and when its search is done.
        judge_penalty: Power of a text's length that divides its log-probability where no reward
            judges, -10 to 10.
        weight: Of the judge, 0 to 1.
        reward: What a text is worth. None: the model judges.

    Exact: approximate. A search; nothing is drawn, so all seeds give one text.
    Reduces to: beam search at 0 plans; the text of the likeliest plan at 1 plan, or at weight 0.
    Source: Adams et al., "Generating EDU extracts for plan-guided summary re-ranking" (2023). There
    a calibrated model (BRIO) judges.
    """

    target: Target
    extractor: PlanExtractor
    source: tuple[int, ...] = ()
    bounds: PlanBounds = PlanBounds()
    width: int = 4
    ranking: LengthRanking = LIKELIEST
    judge_penalty: float = 1.0
    weight: float = 1.0
    reward: Callable[[str], float] | None = None
    exactness = Exactness.APPROXIMATE

    def __post_init__(self) -> None:
        for name, value, least, most in (
            ("judge_penalty", self.judge_penalty, -10, 10),
            ("weight", self.weight, 0, 1),
        ):
            if not least <= value <= most:
                raise RequestError(f"{name} is {value}: it must lie in {least} to {most}")

    @property
    def vocab(self) -> TokenVocabulary:
        return self.target.vocab

    async def write_choices(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        """Run one search for all choices; choice i is the i-th best text.

        Args:
            request: What is asked: prompt token ids, number of answers, limits.
            rng: Not read: nothing is drawn.
            into: Record of the request, which gets the tokens, the statistics and the trace events.

        Returns:
            One result for each choice of the request, in order.

        Raises:
            RequestError: More answers are asked for than there are plans; nothing was fed yet.
        """
        best = NBestAnswers(into, max(1, self.bounds.count))
        # The clock of decoding starts; nothing is certain before all texts are written.
        best.write_certain_text([into.open_hypothesis()])
        # A model without an encoder has its source in the prompt.
        source = self.source or request.prompt
        spans = self.extractor.clauses_of(source, self.vocab)
        plans = await self._plans(source, spans)
        laws = [
            law_behind_form(
                self.target,
                request.prompt,
                mark_clauses(source, spans, plan.clauses, self.extractor.marks),
                request.max_tokens,
            )
            for plan in plans
        ]
        # Side by side: the passes of all searches are merged, so many plans take few passes more.
        found = await gather_coroutines(*(self._text(law, request, into) for law in laws))
        texts = [text for text, _ in found]
        judged = await gather_coroutines(*(self._judged(text, request) for text in texts))
        # Judges begin when all texts are there, so their passes come on top.
        stats = side_by_side([spent for _, spent in found])
        stats = stats.plus_stats(side_by_side([spent for _, spent in judged]))
        for plan, text, (value, _) in zip(plans, texts, judged, strict=True):
            # Both are nats over a power of a length where the model judges; a reward has a scale of
            # its own.
            text.score = (1 - self.weight) * plan.score + self.weight * value
        # Plans stand best first, so of equal texts that of the better plan is taken.
        ranked = sorted(texts, key=lambda text: -(text.score or 0.0))
        return best.answers_of(ranked, stats)

    async def _plans(
        self, source: tuple[int, ...], spans: tuple[tuple[int, int], ...]
    ) -> tuple[ClausePlan, ...]:
        """The plans that are tried, the best first."""
        if not self.bounds.count or not spans:
            return (NO_PLAN,)
        # The scheduler runs what reads the text; the small network that points runs here.
        query = ForwardQuery(self.extractor.clause_reader, (source, spans), len(source))
        b = self.bounds
        return self.extractor.likeliest_plans(
            await query, b.count, b.shortest, b.longest, b.penalty
        )

    async def _text(
        self, law: Target, request: Request, into: Transcript
    ) -> tuple[AnswerText, SearchStats]:
        """The likeliest text of a law, and what it took."""
        live: Sequence[AnswerText] = ()

        def follow_texts(texts: Sequence[AnswerText]) -> None:
            """Show which texts a pass has left behind."""
            nonlocal live
            live = prune_lost_texts(live, texts)

        # One group and no charge: plans alone make the texts differ.
        beam = DiverseBeamSearch(law, self.width, 1, 0.0, self.ranking)
        ended, stats = await beam.search_texts(request, into, follow_texts)
        return ended[0].text, replace(stats, ended=len(ended))

    async def _judged(self, text: AnswerText, request: Request) -> tuple[float, SearchStats]:
        """What the judge says of a text, and what that took."""
        # The judge has no say: its pass is saved.
        if not self.weight:
            return 0.0, SearchStats()
        if self.reward is not None:
            words = self.vocab.words
            said = text.text or ("" if words is None else words.decode(text.tokens))
            return self.reward(said), SearchStats(judged=1)
        # The law of the source without marks: a text must be good by the source, not by its plan.
        session = self.target.open_session(request.prompt)
        try:
            # The row behind a token judges the next one, so nothing needs the row of the last.
            draft = Draft.chain_draft(request.prompt[-1], text.tokens[:-1])
            scores = await session.score_draft(draft, ScoreRequest())
            each = [scores.token_logprobs(i, (x,))[0] for i, x in enumerate(text.tokens)]
        finally:
            session.close()
        # Not divided, a sum would favour short texts: every token costs something.
        value = sum(each) / len(each) ** self.judge_penalty
        return value, SearchStats(1, scored=len(each), judged=1)

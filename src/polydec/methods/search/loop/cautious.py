"""Where the model is unsure, several short ways on are drawn and the one of the least perplexity is taken."""

from __future__ import annotations

from dataclasses import dataclass, replace

from polydec.base.errors import RequestError
from polydec.core.decoder import Streams
from polydec.core.effects import gather_coroutines
from polydec.core.law import float64_probabilities
from polydec.core.protocols import Target
from polydec.core.request import Request, Result
from polydec.core.rng import Rng
from polydec.core.transcript import AnswerText, Transcript
from polydec.core.types import Exactness, TokenVocabulary
from polydec.methods.search.loop.attempt import SearchAttempt, for_each, side_by_side
from polydec.methods.search.loop.stats import SearchStats
from polydec.methods.search.loop.types import StepBoundary
from polydec.methods.speculative.loop.walk import SpeculativeMethod

PUNCTUATION = (".", ",", "\n", "?", "!", ":", ";", ")", "]", "}")


@dataclass(frozen=True)
class CautiousSearch:
    """Before every token the entropy H of the law is looked at (nats, of the law as it is shaped). The number of trials is the
    whole part of least + (most - least) (H - low) / (high - low), where that quotient is held in 0 to 1. One trial: the token
    is drawn. More: each draws on until a token that holds punctuation, the text's end or `longest` tokens, and the one of
    the highest mean log-probability stays, all of it; the earliest wins a tie.

    method: who draws, plainly; least, most: trials, 1 to 64; low, high: of the entropy, nats.

    Exact: approximate: likely ways on are favoured.
    Reduces to: the method itself where `most` is 1, or H never comes above `low`, draw for draw.
    Source: Wang et al., "Cautious next token prediction" (2025). The authors' code has no limit on a trial's length.
    """

    method: SpeculativeMethod
    least: int = 1
    most: int = 10
    low: float = 0.01
    high: float = 1.5
    longest: int = 64
    exactness = Exactness.APPROXIMATE

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most <= 64:
            raise RequestError(
                f"least is {self.least} and most is {self.most}: they must lie in 1 to 64, least first"
            )
        if not 0.0 <= self.low < self.high:
            raise RequestError(
                f"low is {self.low} and high is {self.high}: they must be at least 0, low below high"
            )
        if self.longest < 1:
            raise RequestError(f"longest is {self.longest}: it must be at least 1")

    @property
    def target(self) -> Target:
        return self.method.target

    @property
    def vocab(self) -> TokenVocabulary:
        return self.target.vocab

    def trials(self, entropy: float) -> int:
        """How many for this entropy, in nats."""
        share = min(max((entropy - self.low) / (self.high - self.low), 0.0), 1.0)
        return int(self.least + (self.most - self.least) * share)

    async def run(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        """Each choice goes its own way; the prompt is fed once."""

        async def write(
            answer: AnswerText, root: SearchAttempt, opened: list[SearchAttempt]
        ) -> Result:
            return await self._write(answer, root, opened, rng(answer.choice or 0))

        return await for_each(self.method, request, into, write)

    async def _write(
        self, answer: AnswerText, text: SearchAttempt, opened: list[SearchAttempt], rng: Rng
    ) -> Result:
        steps = StepBoundary(PUNCTUATION, self.longest, self.vocab.words)
        spent = SearchStats()
        first = 0
        while not text.ended:
            r = await text.look(rng)
            count = 1
            if r.scores.certain(0) is None:
                p_V = float64_probabilities(r.scores.row(0))
                count = self.trials(float(-(p_V * p_V.clamp_min(1e-300).log()).sum()))
            if count == 1:
                text.take(r)
                answer.follow(text.text)
                first = first or int(text.spent.passes == 1 and not spent.passes)
                continue
            opened += (tried := [text.fork(answer.choice or 0) for _ in range(count)])
            spent = spent.plus(text.spent)
            text.close()
            at = text.text.position
            await gather_coroutines(
                *(t.go_on(rng.at("trial", at, i), steps) for i, t in enumerate(tried))
            )
            spent = spent.plus(side_by_side([t.spent for t in tried]))
            begun = text.logp
            had = len(text.text.tokens)
            text = max(tried, key=lambda t: (t.logp - begun) / (len(t.text.tokens) - had))
            for t in tried:
                if t is not text:
                    t.close()
            text.spent = SearchStats()
            answer.follow(text.text)
        return answer.result(replace(spent.plus(text.spent), first=first))

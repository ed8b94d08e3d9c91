"""Cautious decoding: where the model is unsure, several short continuations are tried.

The one of the least perplexity is taken (CNTP).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from polydec.base.errors import RequestError
from polydec.core.effects import gather_coroutines
from polydec.core.request import Result
from polydec.core.types import Exactness
from polydec.methods.search.loop.attempt import (
    ChoiceSearch,
    method_target,
    method_vocab,
    node_entropy,
    search_each_choice,
    side_by_side,
)
from polydec.methods.search.loop.stats import SearchStats
from polydec.methods.search.loop.types import StepBoundary
from polydec.methods.speculative.loop.walk import SpeculativeMethod

PUNCTUATION = (".", ",", "\n", "?", "!", ":", ";", ")", "]", "}")


@dataclass(frozen=True)
class CautiousSearch:
    """Tries several continuations where the entropy of the next token is high.

    Before every token the entropy H of the law is looked at (nats, of the law as it is shaped). The
    number of trials is the integer part of least + (most - least) (H - low) / (high - low), where
    that quotient is held in 0 to 1. One trial: the token is drawn. More: each draws on until a
    token that holds punctuation, the text's end or `longest` tokens, and the one of the highest
    mean log-probability stays, all of it; the earliest wins a tie.

    Attributes:
        method: Draws the tokens, without drafts.
        least: Trials at low entropy, 1 to 64.
        most: Trials at high entropy, `least` to 64.
        low: Entropy in nats up to which there are `least` trials, at least 0.
        high: Entropy in nats from which there are `most` trials, above `low`.
        longest: Most tokens of a trial, at least 1.

    Exact: approximate: likely ways on are favoured.
    Reduces to: the method itself where `most` is 1, or H never comes above `low`, draw for draw.
    Source: Wang et al., "Cautious next token prediction" (2025). The authors' code has no limit on
    a trial's length.
    """

    method: SpeculativeMethod
    least: int = 1
    most: int = 10
    low: float = 0.01
    high: float = 1.5
    longest: int = 64
    exactness = Exactness.APPROXIMATE
    target = method_target
    vocab = method_vocab
    write_choices = search_each_choice

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

    def trial_count(self, entropy: float) -> int:
        """Return the number of trials for an entropy in nats."""
        share = min(max((entropy - self.low) / (self.high - self.low), 0.0), 1.0)
        return int(self.least + (self.most - self.least) * share)

    async def search_answer(self, choice: ChoiceSearch) -> Result:
        """Write one answer."""
        text = choice.root
        # A trial ends where a sentence or clause does.
        steps = StepBoundary(PUNCTUATION, self.longest, self.vocab.words)
        spent = SearchStats()
        first = 0
        while not text.ended:
            r = await text.look_ahead(choice.rng)
            count = 1
            if r.scores.certain_token(0) is None:
                count = self.trial_count(node_entropy(r.scores, 0))
            if count == 1:
                text.take_steps(r)
                choice.answer.follow_text(text.text)
                first = first or int(text.spent.passes == 1 and not spent.passes)
                continue
            # Unsure: the trials fork here, and run in the same passes.
            tried = choice.fork_attempts(text, count)
            spent = spent.plus_stats(text.spent)
            text.close()
            at = text.text.position
            await gather_coroutines(
                *(
                    t.go_on(choice.rng.child_stream("trial", at, i), steps)
                    for i, t in enumerate(tried)
                )
            )
            spent = spent.plus_stats(side_by_side([t.spent for t in tried]))
            begun = text.logp
            had = len(text.text.tokens)
            # The least perplexity of the new tokens alone; what stood before is the same for all.
            text = max(tried, key=lambda t: (t.logp - begun) / (len(t.text.tokens) - had))
            for t in tried:
                if t is not text:
                    t.close()
            text.spent = SearchStats()
            choice.answer.follow_text(text.text)
        return choice.answer.finished_answer(replace(spent.plus_stats(text.spent), first=first))

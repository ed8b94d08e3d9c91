"""A text that a search tries, drawn by a draft-and-verify method with any drafter."""
from __future__ import annotations

from polydec.core.rng import Rng
from polydec.core.transcript import Text, logprobs
from polydec.core.types import Words
from polydec.families.ar.walk import Walk
from polydec.families.search.protocols import Reward
from polydec.families.search.stats import SearchStats
from polydec.families.search.types import Steps, Tried


class Attempt:
    """A beginning of a text, and the walk that goes on from it. The attempt owns the walk.

    asked: how many alternatives the request wants beside each token, None: no log-probabilities. logp: of the text, under the
    law that it is drawn from; value: what a reward last said of it, None before it was asked; spent: its own ledger, which
    a fork begins anew.
    """
    __slots__ = ("_asked", "_step", "_walk", "logp", "spent", "text", "value")

    def __init__(self, walk: Walk, text: Text, asked: int | None) -> None:
        self._walk, self.text, self._asked, self._step = walk, text, asked, 0
        self.logp, self.spent = 0.0, SearchStats()
        self.value: float | None = None

    @property
    def ended(self) -> bool:
        return self.text.finish_reason is not None

    @property
    def mean(self) -> float:
        """Log-probability of a token, on average."""
        return self.logp / max(1, len(self.text.tokens))

    def tried(self, words: Words | None) -> Tried:
        """As whoever picks sees it. words: of the vocabulary, for a request that asks for tokens only."""
        tokens = tuple(self.text.tokens)
        said = self.text.text or (words.decode(tokens) if words is not None else "")
        return Tried(said, tokens, self.mean, self.value)

    async def round(self, rng: Rng, steps: Steps | None = None) -> bool:
        """One pass; whether the text has ended, or a step of it. What the pass gave behind that is not taken."""
        r = await self._walk.round(rng, self.text.room, self.text.ends)
        count, over = 0, False
        for node, x in zip(r.nodes, r.tokens, strict=True):
            self.logp += r.scores.logp(node, (x,))[0]
            self.text.write((x,), () if self._asked is None else logprobs(r.scores, (node,), (x,), self._asked))
            count += 1
            over = self.ended or (steps is not None and steps.closes(self.text.tokens[self._step:]))
            if over:
                self._step = len(self.text.tokens)
                break
        self._walk.take(r, count)
        self.spent = self.spent.plus(SearchStats(1, 0, len(r.draft), int(self.ended), count))
        return over

    async def judge(self, reward: Reward) -> float:
        """Ask a reward of what stands so far."""
        self.value = reward.chance(await self._walk.state())
        self.spent = self.spent.plus(SearchStats(1, scored=1, judged=1))
        return self.value

    def fork(self, choice: int) -> Attempt:
        """Another one that goes on from here, at no cost. choice: the answer that it may become."""
        twin = Attempt(self._walk.fork(choice), self.text.fork(), self._asked)
        twin.logp, twin.value, twin._step = self.logp, self.value, self._step
        return twin

    def close(self) -> None:
        """Give back what the walk holds; the text stays."""
        self._walk.close()

"""Several texts are drawn side by side, and one of them is the answer."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from polydec.core.decoder import Streams
from polydec.core.effects import gather
from polydec.core.protocols import Target
from polydec.core.request import Request, Result
from polydec.core.rng import Rng
from polydec.core.transcript import Text, Transcript, common
from polydec.core.types import Edit, Exactness, Reads, Vocab
from polydec.families.ar.walk import Method, Walk
from polydec.families.search.attempt import Attempt
from polydec.families.search.best_of import score
from polydec.families.search.protocols import Pick, Reward
from polydec.families.search.stats import SearchStats


@dataclass(frozen=True)
class Rollouts:
    """Draws `tries` texts from the method's law, side by side: one pass is a round of all of them, and they share the prompt's
    cache entries. As soon as `enough` of them have come to an end of their own (EOS, a stop) the others are dropped; of the
    texts that ended so `pick` takes the answer. Where none did, because all were cut at the request's limit, it takes one of
    those.

    method: who draws, with any drafter; tries: 1 to 256; enough: 1 to tries; reward: asked once of each text that ended, None:
    nobody is asked. Every answer of a request has texts of its own.

    Exact: approximate: each text is drawn from the law, the one that is picked is not.
    Reduces to: the method itself at one try, draw for draw.
    """
    method: Method
    pick: Pick
    tries: int = 8
    enough: int = 8
    reward: Reward | None = None
    exactness = Exactness.APPROXIMATE

    def __post_init__(self) -> None:
        if not 1 <= self.tries <= 256:
            raise ValueError(f"tries is {self.tries}: it must lie in 1 to 256")
        if not 1 <= self.enough <= self.tries:
            raise ValueError(f"enough is {self.enough}: it must lie in 1 to tries, which is {self.tries}")

    @property
    def target(self) -> Target:
        return self.method.target

    @property
    def vocab(self) -> Vocab:
        return self.target.vocab

    async def run(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        """All choices at once; the prompt is fed once."""
        answers = [into.open(choice) for choice in request.choices]
        base = Reads.NOTHING if request.logprobs is None else Reads.ROW
        walk = await Walk.open(self.method, request.prompt, base=base, whole=True)
        first = Attempt(walk, into.hypothesis(), request.logprobs)
        held = [first]
        try:
            groups = [[first.fork(choice) for _ in range(self.tries)] for choice in request.choices]
            held += [attempt for group in groups for attempt in group]
            return await gather(*(self._answer(answer, group, rng(choice))
                                  for answer, group, choice in zip(answers, groups, request.choices, strict=True)))
        finally:
            for attempt in held:
                attempt.close()

    async def _answer(self, answer: Text, tries: Sequence[Attempt], rng: Rng) -> Result:
        streams, passes, first, finished = streams_of(rng, self.tries), 0, 0, list[Attempt]()
        while len(finished) < self.enough and (live := [i for i, t in enumerate(tries) if not t.ended]):
            await gather(*(tries[i].round(streams[i]) for i in live))
            passes += 1
            sure = common(t.text for t in tries)
            if passes == 1:
                first = len(sure)
                answer.edit(Edit())               # the clock of decoding starts, whether anything is certain or not
            answer.follow(tries[0].text, len(sure))
            finished = [t for t in tries if t.text.finish_reason == "stop"]
            for t in tries:
                if self.reward is None and t.ended:
                    t.close()                     # at once: what it holds is free for those that go on
        pool = finished or list(tries)
        for t in tries:
            if t not in pool:
                t.close()
        if self.reward is not None:
            await gather(*(t.judge(self.reward) for t in pool))
            passes += 1
        seen = [t.tried(self.vocab.words) for t in pool]
        which = self.pick.pick(seen)
        pool[which].text.score = score(seen[which])
        answer.follow(pool[which].text)
        spent = SearchStats()
        for t in tries:
            spent = spent.plus(t.spent)
        return answer.result(replace(spent, passes=passes, first=first))


def streams_of(rng: Rng, count: int) -> list[Rng]:
    """One for each try; the first is the answer's own, so that one try draws what plain decoding would."""
    return [rng, *(rng.at("try", i) for i in range(1, count))]

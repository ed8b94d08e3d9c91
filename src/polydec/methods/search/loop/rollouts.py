"""Draw several texts in parallel, and pick one of them as the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from polydec.base.errors import RequestError
from polydec.core.decoder import Streams
from polydec.core.effects import gather_coroutines
from polydec.core.protocols import Target
from polydec.core.request import Request, Result
from polydec.core.rng import Rng
from polydec.core.transcript import AnswerText, Transcript, common_prefix_tokens
from polydec.core.types import Exactness, TextEdit, TokenVocabulary
from polydec.methods.search.loop.attempt import SearchAttempt, for_each, side_by_side
from polydec.methods.search.loop.best_of import candidate_score
from polydec.methods.search.loop.protocols import AnswerPicker, ProcessReward
from polydec.methods.speculative.loop.walk import SpeculativeMethod


@dataclass(frozen=True)
class RolloutSearch:
    """Draws `tries` texts from the method's law, and picks one.

    The texts are drawn in parallel: one pass is a round of all of them, and they share the prompt's
    cache entries. As soon as `enough` of them have come to an end of their own (EOS, a stop) the
    others are dropped; of the texts that ended so `pick` takes the answer. Where none did, because
    all were cut at the request's limit, it takes one of those. Every answer of a request has texts
    of its own.

    Attributes:
        method: Draws the texts, with any drafter.
        pick: Picks the answer.
        tries: Texts that are drawn, 1 to 256.
        enough: Texts that must end by themselves, 1 to `tries`.
        reward: Process reward that is asked once of each text that ended. None: nobody is asked.

    Exact: approximate: each text is drawn from the law, the one that is picked is not.
    Reduces to: the method itself at one try, draw for draw.
    """

    method: SpeculativeMethod
    pick: AnswerPicker
    tries: int = 8
    enough: int = 8
    reward: ProcessReward | None = None
    exactness = Exactness.APPROXIMATE

    def __post_init__(self) -> None:
        if not 1 <= self.tries <= 256:
            raise RequestError(f"tries is {self.tries}: it must lie in 1 to 256")
        if not 1 <= self.enough <= self.tries:
            raise RequestError(
                f"enough is {self.enough}: it must lie in 1 to tries, which is {self.tries}"
            )

    @property
    def target(self) -> Target:
        return self.method.target

    @property
    def vocab(self) -> TokenVocabulary:
        return self.target.vocab

    async def run(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        """Draw texts for each choice.

        Args:
            request: What is asked: prompt token ids, number of answers, limits.
            rng: Random stream of each choice, by the choice's number.
            into: Record of the request, which gets the tokens, the statistics and the trace events.

        Returns:
            One result for each choice of the request, in order.
        """

        async def write(
            answer: AnswerText, root: SearchAttempt, opened: list[SearchAttempt]
        ) -> Result:
            """Draw the texts of one choice.

            Args:
                answer: Record of the answer.
                root: Attempt that stands at the end of the prompt.
                opened: Attempts that are closed when the search is over; forks are added here.

            Returns:
                The finished answer.
            """
            choice = answer.choice or 0
            opened += (tries := [root.fork(choice) for _ in range(self.tries)])
            root.close()
            return await self._answer(answer, tries, rng(choice))

        return await for_each(self.method, request, into, write)

    async def _answer(self, answer: AnswerText, tries: Sequence[SearchAttempt], rng: Rng) -> Result:
        streams = streams_of(rng, self.tries)
        first = -1
        finished = list[SearchAttempt]()
        while len(finished) < self.enough and (
            live := [i for i, t in enumerate(tries) if not t.ended]
        ):
            for i, r in zip(
                live,
                await gather_coroutines(*(tries[i].look(streams[i]) for i in live)),
                strict=True,
            ):
                tries[i].take(r)
            # What all texts begin with is certain, whichever is picked.
            sure = common_prefix_tokens(t.text for t in tries)
            if first < 0:
                first = len(sure)
                # The clock of decoding starts, whether anything is certain or not.
                answer.edit(TextEdit())
            answer.follow(tries[0].text, len(sure))
            finished = [t for t in tries if t.text.finish_reason == "stop"]
            for t in tries:
                if self.reward is None and t.ended:
                    # Closed at once: its cache is free for those that go on.
                    t.close()
        # Texts that were cut compete only where none has ended.
        pool = finished or list(tries)
        for t in tries:
            if t not in pool:
                t.close()
        if self.reward is not None:
            await gather_coroutines(*(t.judge(self.reward) for t in pool))
        seen = [t.tried(self.vocab.words) for t in pool]
        which = self.pick.pick(seen)
        pool[which].text.score = candidate_score(seen[which])
        answer.follow(pool[which].text)
        return answer.result(replace(side_by_side([t.spent for t in tries]), first=first))


def streams_of(rng: Rng, count: int) -> list[Rng]:
    """Return a random stream for each try.

    The first is the answer's own, so that one try draws what plain decoding would.

    Args:
        rng: Random stream of the answer.
        count: Number of tries, at least 1.
    """
    return [rng, *(rng.at("try", i) for i in range(1, count))]

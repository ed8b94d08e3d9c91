"""Draw several texts in parallel, and pick one of them as the answer."""

from __future__ import annotations

from dataclasses import dataclass

from polydec.base.errors import RequestError
from polydec.core.effects import gather_coroutines
from polydec.core.request import Result
from polydec.core.rng import Rng
from polydec.core.types import Exactness
from polydec.methods.search.loop.attempt import (
    ChoiceSearch,
    SearchAttempt,
    method_target,
    method_vocab,
    search_each_choice,
    side_by_side,
)
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
    target = method_target
    vocab = method_vocab
    write_choices = search_each_choice

    def __post_init__(self) -> None:
        if not 1 <= self.tries <= 256:
            raise RequestError(f"tries is {self.tries}: it must lie in 1 to 256")
        if not 1 <= self.enough <= self.tries:
            raise RequestError(
                f"enough is {self.enough}: it must lie in 1 to tries, which is {self.tries}"
            )

    async def search_answer(self, choice: ChoiceSearch) -> Result:
        """Draw the texts of one answer, and pick."""
        tries = choice.fork_attempts(choice.root, self.tries)
        choice.root.close()
        streams = streams_of(choice.rng, self.tries)
        finished = list[SearchAttempt]()
        while len(finished) < self.enough and (
            live := [i for i, t in enumerate(tries) if not t.ended]
        ):
            for i, r in zip(
                live,
                await gather_coroutines(*(tries[i].look_ahead(streams[i]) for i in live)),
                strict=True,
            ):
                tries[i].take_steps(r)
            # Any of them may be picked.
            choice.write_certain_text([t.text for t in tries])
            finished = [t for t in tries if t.text.finish_reason == "stop"]
            for t in tries:
                if self.reward is None and t.ended:
                    # Closed at once: its cache is free for those that go on.
                    t.close()
        # Texts that were cut compete only where none has ended.
        pool = finished or tries
        for t in tries:
            if t not in pool:
                t.close()
        if self.reward is not None:
            await gather_coroutines(*(t.ask_reward(self.reward) for t in pool))
        seen = [t.picker_view(self.vocab.words) for t in pool]
        which = self.pick.pick_text(seen)
        pool[which].text.score = candidate_score(seen[which])
        return choice.finish_search(pool[which].text, side_by_side([t.spent for t in tries]))


def streams_of(rng: Rng, count: int) -> list[Rng]:
    """Return a random stream for each try.

    The first is the answer's own, so that one try draws what plain decoding would.

    Args:
        rng: Random stream of the answer.
        count: Number of tries, at least 1.
    """
    return [rng, *(rng.child_stream("try", i) for i in range(1, count))]

"""A hidden chain of thought: one vector that another model makes of the prompt, in the place of
steps that it would write."""

from __future__ import annotations

from dataclasses import dataclass

from polydec.core.protocols import Session, Target
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.laws.targets.continuous_thoughts import STATE
from polydec.laws.targets.thinking import state_behind
from polydec.models.learned.kinds.thought import ThoughtProjection
from polydec.models.sessions.soft import make_soft_tokens


@dataclass(frozen=True, eq=False)
class HiddenThoughtMaker:
    """Commit one vector that another model makes of the prompt (hidden chain of thought, 2024).
    Nothing of the chain is written.

    Attributes:
        thinker: The model that reads the prompt, and a mark behind it.
        thought: Projects its state there, after the final norm, to the vector.
        size: Size of the decoding model's vocabulary; ids from there on stand for vectors.
        count: 1, or 0 where no vector is made.
    """

    thinker: Target
    thought: ThoughtProjection
    size: int
    count: int = 1

    async def commit_thought(self, session: Session, prompt: tuple[int, ...]) -> None:
        """Commit the root of the prompt, and the thought behind it.

        Args:
            session: A session of the decoding model on the prompt, with nothing committed.
            prompt: Token ids of the prompt; the last one is the root.
        """
        if self.count:
            vectors = await self._vectors(prompt)
        else:
            vectors = ()
        session.commit_tokens((prompt[-1], *vectors))

    async def marked_thought(self, text: tuple[int, ...]) -> int:
        """Make the id that is read in the place of a mark within an answer.

        Args:
            text: Token ids of prompt and answer so far, the mark last.

        Returns:
            The id that carries the vector.
        """
        return (await self._vectors(text[:-1]))[0]

    async def _vectors(self, prompt: tuple[int, ...]) -> tuple[int, ...]:
        # The state is read at a mark behind the prompt, on which the projection was trained.
        mark = self.thought.mark
        session = self.thinker.open_session((*prompt, mark))
        try:
            await session.prefill_prompt(ScoreRequest(law=RowDetail.NOTHING))
            state_H = state_behind(
                await session.score_draft(Draft.chain_draft(mark), STATE), session
            )
        finally:
            session.close()
        made_H = self.thought.thought_vector(state_H)
        return make_soft_tokens(made_H[None], self.size, len(made_H), "a thought")

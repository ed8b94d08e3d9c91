"""Continuous thoughts: the model's own last state is fed back in the place of a word, some
times."""

from __future__ import annotations

from dataclasses import dataclass

from polydec.core.protocols import Session
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.laws.targets.thinking import state_behind
from polydec.models.sessions.soft import make_soft_tokens

STATE = ScoreRequest(law=RowDetail.NOTHING, hidden=True)


@dataclass(frozen=True)
class ContinuousThoughtMaker:
    """Commit `count` continuous thoughts (Coconut; "Reasoning by superposition", 2025).

    Each is the state after the final norm of the token or the thought before it, fed as it is. A
    thought takes a pass of the model, and the last one is fed with what comes next.

    Attributes:
        count: How many thoughts, at least 0.
        size: Size of the vocabulary; ids from there on stand for vectors.
    """

    count: int
    size: int

    async def commit_thought(self, session: Session, prompt: tuple[int, ...]) -> None:
        """Commit the root of the prompt, and the thoughts behind it.

        Args:
            session: A session on the prompt, with nothing committed.
            prompt: Token ids of the prompt; the last one is the root.
        """
        root = prompt[-1]
        done = 0
        try:
            # The prompt is read without rows: only its last state is needed.
            await session.prefill_prompt(ScoreRequest(law=RowDetail.NOTHING))
            for _ in range(self.count):
                # The state of the root becomes the next root: one pass for each thought.
                state_H = state_behind(
                    await session.score_draft(Draft.chain_draft(root), STATE), session
                )
                session.commit_tokens((root,))
                done += 1
                (root,) = make_soft_tokens(state_H[None], self.size, len(state_H), "a thought")
            session.commit_tokens((root,))
        except BaseException:
            session.rewind_tokens(done)  # whoever tries again begins anew
            raise

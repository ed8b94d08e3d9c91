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
    """`count` continuous thoughts (Coconut; "Reasoning by superposition", 2025). Each is the state
    behind the final norm of the token or the thought before it, fed as it is; it takes a pass of
    the model, and the last one rides with what comes next. size: of the vocabulary."""

    count: int
    size: int

    async def think(self, session: Session, prompt: tuple[int, ...]) -> None:
        root = prompt[-1]
        done = 0
        try:
            await session.prefill(ScoreRequest(law=RowDetail.NOTHING))
            for _ in range(self.count):
                state_H = state_behind(await session.score(Draft.chain(root), STATE), session)
                session.commit((root,))
                done += 1
                (root,) = make_soft_tokens(state_H[None], self.size, len(state_H), "a thought")
            session.commit((root,))
        except BaseException:
            session.rewind(done)  # whoever tries again begins anew
            raise

"""A cache that is augmented: a coprocessor reads it, and what it makes is read behind the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from polydec.core.protocols import Session
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.models.sessions.soft import make_soft_tokens

NOTHING = ScoreRequest(law=RowDetail.NOTHING)


class PrefixCoprocessor(Protocol):
    """A coprocessor (models/learned/kinds/coprocessor.py)."""

    def made(self, memory: Sequence[tuple[Tensor, Tensor]], count: int) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class CacheAugmentationMaker:
    """The prompt is fed, `maker` reads what every layer holds of it, and its vectors enter the first
    layer behind it, so that every layer holds entries of them, too. layers: of the model; size: of its
    vocabulary; count: of the vectors, 0: none are made."""

    maker: PrefixCoprocessor
    layers: int
    size: int
    count: int

    async def think(self, session: Session, prompt: tuple[int, ...]) -> None:
        if not self.count:
            session.commit((prompt[-1],))
            return
        await session.prefill(NOTHING)
        while not (memory := await self._memory(session, prompt)):
            session.rewind(1)
        made_LH = self.maker.made(memory, self.count)
        session.commit(make_soft_tokens(made_LH, self.size, made_LH.shape[1], "a coprocessor"))

    async def _memory(
        self, session: Session, prompt: tuple[int, ...]
    ) -> list[tuple[Tensor, Tensor]]:
        """Of every layer what it holds of the prompt, whose last token is committed; nothing where the
        session was evicted behind the pass that wrote it."""
        await session.score(Draft.chain(prompt[-1]), NOTHING)
        session.commit((prompt[-1],))
        memory = [session.memory(at) for at in range(self.layers)]
        if memory[0][0].shape[1] == len(prompt):
            return memory
        return []

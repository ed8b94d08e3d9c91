"""A cache that is augmented: a coprocessor reads it, and what it makes is read behind the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from polydec.core.effects import ForwardQuery
from polydec.core.protocols import BatchedModel, Session
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.models.sessions.soft import make_soft_tokens

NOTHING = ScoreRequest(law=RowDetail.NOTHING)


LayerMemory = Sequence[tuple[Tensor, Tensor]]
"""Keys and values of every layer, each of shape ``[kv heads, T, head size]``."""


class PrefixCoprocessor(BatchedModel, Protocol):
    """Make vectors from what a model has cached of a text (models/learned/kinds/coprocessor.py).

    A query is a `LayerMemory` and how many vectors are made of it, at least 1; its answer are the
    vectors in the place of embeddings, shape ``[count, H]``.
    """


@dataclass(frozen=True, eq=False)
class CacheAugmentationMaker:
    """Feed the prompt, let a coprocessor read what every layer holds of it, and feed its vectors
    behind it, so that every layer holds entries of them, too.

    Attributes:
        maker: The coprocessor.
        layers: Number of layers of the model.
        size: Size of the model's vocabulary; ids from there on stand for vectors.
        count: How many vectors; 0: none are made.
        tokens_late: How many of the last tokens before the vectors the coprocessor does not read: they were
            written while it ran. Default 0.
    """

    maker: PrefixCoprocessor
    layers: int
    size: int
    count: int
    tokens_late: int = 0

    async def commit_thought(self, session: Session, prompt: tuple[int, ...]) -> None:
        """Commit the root of the prompt, and the vectors behind it.

        Args:
            session: A session on the prompt, with nothing committed.
            prompt: Token ids of the prompt; the last one is the root.
        """
        # Nothing is made: the root is committed as it would be anyway.
        if not self.count:
            session.commit_tokens((prompt[-1],))
            return
        await session.prefill_prompt(NOTHING)
        # The root was committed to be read; where the entries were lost, it is taken back and
        # scored again.
        while not (memory := await self._memory(session, prompt)):
            session.rewind_tokens(1)
        session.commit_tokens(await self._make_tokens(memory, len(prompt) - self.tokens_late))

    async def make_ahead(self, session: Session, length: int) -> tuple[int, ...]:
        """Make the vectors of the beginning of a text, while the text may go on.

        Args:
            session: A session on the text.
            length: Entries of its beginning.

        Returns:
            Ids of the vectors; none where the session does not hold so many entries, as behind an
            eviction.
        """
        # Read before anything runs that writes to the cache.
        memory = self._layer_entries(session)
        if memory[0][0].shape[1] < length:
            return ()
        return await self._make_tokens(memory, length)

    async def _make_tokens(self, memory: LayerMemory, length: int) -> tuple[int, ...]:
        """Ids of the vectors that are made of the first entries of a memory, by a pass of the
        coprocessor."""
        begun = [(keys[:, :length], values[:, :length]) for keys, values in memory]
        made_LH = await ForwardQuery(self.maker, (begun, self.count), self.count, behind=length)
        return make_soft_tokens(made_LH, self.size, made_LH.shape[1], "a coprocessor")

    async def _memory(
        self, session: Session, prompt: tuple[int, ...]
    ) -> list[tuple[Tensor, Tensor]]:
        """Of every layer what it holds of the prompt, whose last token is committed; nothing where
        the session was evicted behind the pass that wrote it.
        """
        await session.score_draft(Draft.chain_draft(prompt[-1]), NOTHING)
        session.commit_tokens((prompt[-1],))
        memory = self._layer_entries(session)
        # Fewer entries than tokens: the session was evicted behind the pass that wrote them.
        if memory[0][0].shape[1] == len(prompt):
            return memory
        return []

    def _layer_entries(self, session: Session) -> list[tuple[Tensor, Tensor]]:
        """Of every layer what it holds of a session's text."""
        return [session.layer_memory(at) for at in range(self.layers)]

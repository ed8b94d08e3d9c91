"""Some layers of a whole session: its first ones (early exit), or any of them (layer skip)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from torch import Tensor

from polydec.core.protocols import Scores
from polydec.core.types import Draft, Want
from polydec.nets.query import Run
from polydec.nets.scores import LogitScores


@dataclass(frozen=True)
class _Within:
    """Whatever is rewound here is so in the whole session, and closing is left to it; but a fork has a whole of its own."""

    whole: Any  # an LMSession: its module imports this one
    alone: bool = field(default=False, kw_only=True)

    @property
    def peers(self) -> int:
        return self.whole.peers

    async def prefill(self, want: Want) -> LogitScores:
        return await self.whole.prefill(want)

    def rewind(self, n: int) -> None:
        self.whole.rewind(n)

    def evict(self) -> None:
        self.whole.evict()

    def states(self, hidden_NH: Tensor) -> LogitScores:
        return self.whole.states(hidden_NH)

    def normed(self, hidden_NH: Tensor) -> Tensor:
        return self.whole.normed(hidden_NH)

    def embed(self, tokens: Sequence[int]) -> Tensor:
        return self.whole.embed(tokens)

    def memory(self) -> tuple[Tensor, Tensor]:
        return self.whole.memory()

    def bend(self, draft: Draft, scores: Scores) -> Scores:
        return self.whole.bend(draft, scores)

    def fork(self, choice: int | None = None) -> Self:
        return replace(self, whole=self.whole.fork(choice), alone=True)

    def part(
        self,
        layers: Sequence[int],
        without: frozenset[int] = frozenset(),
        together: int = 1,
    ) -> PartSession | SkipSession:
        return self.whole.part(layers, without, together)

    def close(self) -> None:
        if self.alone:
            self.whole.close()


@dataclass(frozen=True)
class PartSession(_Within):
    """The first layers of a whole session (early exit): what they have computed of a draft stands, and the whole goes on
    from there when it scores a draft that extends it. Committed entries that only these layers have seen pass the others
    when a deeper score needs them."""

    depth: int

    async def score(self, draft: Draft, want: Want) -> LogitScores:
        return await self.whole.score_to(self.depth, draft, want)

    def commit(self, tokens: Sequence[int]) -> None:
        self.whole.commit(tokens)

    def keep(self, nodes: Sequence[int], root: int = 0) -> Draft:
        return self.whole.keep(nodes, root)


@dataclass(frozen=True)
class SkipSession(_Within):
    """Some layers of a whole session, or halves of them (layer skip): committed entries are the whole's, staged ones hold
    what these layers made of them (nothing where their attention does not run), and the whole feeds them anew. What is
    committed here, not in the whole, stays as these layers had it; if the whole scores after that, it feeds it again."""

    run: Run

    async def score(self, draft: Draft, want: Want) -> LogitScores:
        return await self.whole.score_under(self.run, draft, want)

    def commit(self, tokens: Sequence[int]) -> None:
        self.whole.commit_under(tokens)

    def keep(self, nodes: Sequence[int], root: int = 0) -> Draft:
        return self.whole.keep_under(nodes, root)

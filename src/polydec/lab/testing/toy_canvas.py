"""A tiny law over canvases whose conditionals all agree: every gap's law, given any set of known
positions, is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import ClassVar

import torch
from torch import Tensor

from polydec.core.canvas_law import Canvas
from polydec.core.effects import ForwardQuery
from polydec.core.types import TokenVocabulary
from polydec.lab.testing.enumerate import Law
from polydec.models.learned.kinds.joint import TOY


class MarkovChainNetwork:
    """A Markov chain with another matrix at every position; the network of a `ToyDenoiser`.
    Float64.

    A token's law depends on the one before it and on where it stands. Conditionals are products of
    matrices between the nearest known neighbours. `fed` counts positions, `calls` passes, of which
    each may answer several canvases.

    Args:
        seed: Seed of the matrices.
        size: Tokens of the chain, at least 2. Default 3.
        sharp: How far logits are spread. Default 1.2.
        free: Whether positions are independent of each other instead. Default False.
        context: Positions of the longest canvas. Default 64.
    """

    def __init__(
        self, seed: int, size: int = 3, sharp: float = 1.2, *, free: bool = False, context: int = 64
    ) -> None:
        g = torch.Generator().manual_seed(seed)
        logw = torch.randn(context, size, size, generator=g, dtype=torch.float64) * sharp
        if free:
            logw = logw[:, :1].expand(-1, size, -1)
        self.step_LVV = torch.softmax(logw, -1)  # [position, token before, token there]
        self.size = size
        self.context = context
        self.cost = 1.0
        self.fed = 0
        self.calls = 0
        self._between = lru_cache(None)(self._product)

    def forward(self, queries: Sequence[tuple[Canvas, tuple[int, ...], int, int]]) -> list[Tensor]:
        """Answer canvases in one pass.

        Args:
            queries: Of each the canvas, the rows that are asked for, the positions that are fed,
                and the positions of a block (0: every position sees all).

        Returns:
            For each query the log-weights of its rows, shape ``[R, size + 1]``: the last token is
            the mask, which never follows.
        """
        self.calls += 1
        self.fed += sum(n for _, _, n, _ in queries)
        return [
            torch.stack(
                # Under blocks a row sees the canvas up to the end of its own block only.
                [
                    self.position_law(canvas[: r // own * own + own] if own else canvas, r)
                    for r in rows
                ]
            )
            for canvas, rows, _, own in queries
        ]

    def position_law(self, canvas: Canvas, at: int) -> Tensor:
        """Compute the exact law of one position, given all other known tokens.

        Args:
            canvas: The canvas, its first position known.
            at: The position, at least 1.

        Returns:
            Log-weights, shape ``[size + 1]``, -inf at the mask token.
        """
        left = max(i for i in range(at) if canvas[i] is not None)  # the prompt has a token
        # A chain: given the nearest known neighbours, what lies beyond them says nothing more.
        p_V = self._between(left, at)[canvas[left]]
        right = next((i for i in range(at + 1, len(canvas)) if canvas[i] is not None), None)
        if right is not None:
            p_V = p_V * self._between(at, right)[:, canvas[right]]
        return torch.cat([p_V.log(), torch.full((1,), float("-inf"), dtype=torch.float64)])

    def _product(self, first: int, last: int) -> Tensor:
        """The law of position `last` given the token at `first`, [size, size]."""
        out = self.step_LVV[first + 1]
        for i in range(first + 2, last + 1):
            out = out @ self.step_LVV[i]
        return out

    def joint_law(
        self, prompt: Sequence[int], length: int, ends: frozenset[int] = frozenset()
    ) -> Law:
        """Compute the law of the answers, by the chain rule.

        Args:
            prompt: Token ids of the prompt, at least one.
            length: Positions of the answer.
            ends: Tokens that end an answer: each is cut after its first end. Default: none.

        Returns:
            The probability of each text.
        """
        law: Law = {}
        for text in product(range(self.size), repeat=length):
            p = 1.0
            before = prompt[-1]
            kept = text
            for i, x in enumerate(text):
                # Token by token given the one before; the answer begins behind the prompt's last
                # token.
                p *= float(self.step_LVV[len(prompt) + i, before, x])
                before = x
            cut = next((i for i, x in enumerate(text) if x in ends), None)
            if cut is None:
                kept = text
            else:
                kept = text[: cut + 1]
            law[kept] = law.get(kept, 0.0) + p
        return law


@dataclass(frozen=True)
class ToyDenoiser:
    """A Denoiser over a `MarkovChainNetwork`.

    Attributes:
        network: The chain.
        eos: Its EOS id, -1 for none.
        block: Positions of a block: a position sees no further than to the end of its own block (0:
            it sees everything).
        masked: Whether the mask, the id behind the chain's tokens, belongs to the vocabulary; False
            where the model is to have that of a toy target.
    """

    network: MarkovChainNetwork
    eos: int = -1
    block: int = 0
    masked: bool = True
    family: ClassVar[str] = "diffusion"
    layers: ClassVar[int] = 0

    @property
    def boundary(self) -> int | None:
        return None

    @property
    def gap_token(self) -> int:
        return self.network.size

    @property
    def allowed_canvases(self) -> None:
        return None

    @property
    def vocab(self) -> TokenVocabulary:
        return TokenVocabulary(
            self.network.size + self.masked, frozenset({self.eos} if self.eos >= 0 else ())
        )

    @property
    def context(self) -> int:
        return self.network.context

    def embed_canvas(self, canvas: Sequence[int | None]) -> Tensor:
        """A one at the token's place, gaps the mask's."""
        index = torch.tensor(
            [self.network.size if x is None else x for x in canvas], dtype=torch.long
        )
        return torch.nn.functional.one_hot(index, TOY).float()

    def laws_of_states(self, state_RH: Tensor, rows: Sequence[int]) -> Tensor:
        """Read laws from states, which are log-weights with zeros behind them.

        Args:
            state_RH: States of the positions, shape ``[R, H]``.
            rows: Not used.

        Returns:
            Log-weights, shape ``[R, size + 1]``, float64, -inf at the mask token.
        """
        out_RV = state_RH[:, : self.network.size + 1].double()
        out_RV[:, self.network.size] = float("-inf")
        return out_RV

    def open_canvas(self, length: int, prompt: int = 0) -> ToyBoard:
        """Open a board for one canvas.

        Args:
            length: Positions of the longest canvas.
            prompt: Not used.

        Returns:
            The board. It must be closed (`left_open`).

        Raises:
            ValueError: The canvas is longer than the context.
        """
        if length > self.network.context:
            raise ValueError(
                f"the canvas has {length} positions: the model's context holds {self.network.context}"
            )
        return ToyBoard(self.network, length, self.block)


_OPEN: set[int] = set()


def left_open() -> int:
    """Boards that were opened and not closed, since this was last asked."""
    count = len(_OPEN)
    _OPEN.clear()
    return count


class ToyBoard:
    """A canvas session that keeps nothing of earlier passes: what is not fed is read from the
    canvas all the same.

    It checks what is asked of it: a pass may see only positions that were fed.

    Args:
        network: The chain.
        length: Positions of the canvas so far.
        block: Positions of a block, 0 for none.
        fed: Positions that were fed before. Default: none.
    """

    def __init__(
        self,
        network: MarkovChainNetwork,
        length: int,
        block: int,
        fed: frozenset[int] = frozenset(),
    ) -> None:
        self._network = network
        self._length = length
        self._block = block
        self._fed = set(fed)
        _OPEN.add(id(self))

    async def score_canvas(
        self, canvas: Canvas, rows: Sequence[int], feed: Sequence[int]
    ) -> Tensor:
        """Score positions of the canvas, after a check of what is asked.

        Args:
            canvas: The canvas as it stands now; None is a gap.
            rows: Positions whose laws are returned, ascending, all of them in `feed`.
            feed: Positions that the pass computes, ascending.

        Returns:
            Log-weights, shape ``[R, size + 1]``, float64.

        Raises:
            AssertionError: Rows or feeds break the protocol of a canvas session.
        """
        block = self._block
        assert len(canvas) > feed[-1], "the canvas is shorter than what is fed"
        assert set(range(self._length, len(canvas))) <= {*feed}, (
            "the canvas grew by positions that are not fed"
        )
        assert all(r in feed for r in rows) and list(rows) == sorted(set(rows)) and rows
        assert list(feed) == sorted(set(feed)), "feeds ascend"
        self._length = len(canvas)
        self._fed |= {*feed}
        # A pass sees up to the end of the block of its last fed position, or all of the canvas.
        seen = range(
            min(len(canvas), -(-(feed[-1] + 1) // block) * block) if block else len(canvas)
        )
        assert set(seen) <= self._fed, "a pass sees positions that were never fed"
        return await ForwardQuery(self._network, (canvas, tuple(rows), len(feed), block), len(feed))

    async def read_canvas(self, canvas: Canvas, feed: Sequence[int]) -> Tensor:
        """Run the pass of `score_canvas` and give states in place of laws.

        Args:
            canvas: The canvas as it stands now; None is a gap.
            feed: Positions that the pass computes, ascending.

        Returns:
            States, shape ``[len(feed), H]``: log-weights at gaps, zeros at known tokens.
        """
        # Only gaps have a law that anybody reads.
        rows = [p for p in feed if canvas[p] is None]
        out_FH = torch.zeros(len(feed), TOY)
        logw_RV = await self.score_canvas(canvas, rows, feed)
        for r, logw_V in zip(rows, logw_RV, strict=True):
            out_FH[list(feed).index(r), : len(logw_V) - 1] = logw_V[:-1].float()
        return out_FH

    def fork(self) -> ToyBoard:
        return ToyBoard(self._network, self._length, self._block, frozenset(self._fed))

    def close(self) -> None:
        _OPEN.discard(id(self))

"""A layer drafts that keeps a window of tokens, and reads the target's last-layer keys and values where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from polydec.core.effects import ForwardQuery
from polydec.core.protocols import DraftScores, Session
from polydec.core.rng import Rng
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.methods.speculative.drafters._states import StateLaws
from polydec.methods.speculative.loop.protocols import TreeGrower
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.models.learned.kinds.longspec import LongSpec, LongSpecAnswer, LongSpecQuery

MOST = 64
"""Most levels of a draft: nothing that the layer reads is its own guess."""


@dataclass(frozen=True)
class LongSpecDrafter:
    """Grows a tree from what `weights` make of tokens and of the target's cache. Every drafted token sees the target's keys and
    values of all tokens before the root, and the tokens of its own path in a sliding window: what is kept between rounds is
    that window, of a length that the text's does not move. Where the target's entries were given back, a draft sees fewer.

    Exact: law, under any exact verifier.
    Reduces to: `nothing` at depth 0.
    Source: LongSpec (Yang et al., 2025).
    """

    weights: LongSpec
    tree: TreeGrower

    @property
    def want(self) -> ScoreRequest:
        # So that the prompt's keys are there in the first round.
        return ScoreRequest(law=RowDetail.NOTHING, last=True)

    def open(self, prompt: Sequence[int], session: Session) -> LongSpecGuess:
        read = tuple(prompt[-self.weights.window :])
        sizes = self.weights.sizes
        return LongSpecGuess(
            self,
            session,
            torch.empty(2, sizes.kv_heads, 0, sizes.head),
            len(prompt) - len(read),
            read,
        )


@dataclass
class LongSpecGuess:
    """session: the target's own, which is read and never moved; kv: keys and values of the last tokens, [2, kv heads, window at
    most, head]; stop: how many tokens of the text the layer has read; pending: those behind them, up to the root; state_W: what
    it guesses behind the root."""

    drafter: LongSpecDrafter
    session: Session
    kv: Tensor
    stop: int
    pending: tuple[int, ...]
    state_W: Tensor | None = None
    # Its passes are priced by whoever weighs them: see Priced.
    price = 0.0

    @property
    def want(self) -> ScoreRequest:
        return self.drafter.want

    async def propose(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        if budget.depth < 1:
            return Draft.chain(root)
        memory = self.session.memory()
        await self._catch_up(memory)
        assert self.state_W is not None, "the root is always read"
        laws = WindowLaws(self, self.state_W, memory)
        return await self.drafter.tree.grow(
            laws,
            root,
            position,
            replace(budget, depth=min(budget.depth, MOST)),
            rng,
        )

    async def _catch_up(self, memory: tuple[Tensor, Tensor]) -> None:
        """The layer reads the tokens that it has not read yet, of which the root alone asks the memory: keys and values of its
        own are of tokens."""
        tokens = self.pending[-self.drafter.weights.window :]
        if not tokens:
            return
        stop = self.stop + len(self.pending)
        place_S = torch.tensor(
            [*range(self.stop - self.kv.shape[2], self.stop), *range(stop - len(tokens), stop)]
        )
        made = await self.feed(tokens, self.kv, place_S, None, (len(tokens) - 1,), memory)
        self.kv = made.kv[:, :, -self.drafter.weights.window :].clone()
        self.state_W = made.state_RW[0]
        self.stop = stop
        self.pending = ()

    async def feed(
        self,
        tokens: Sequence[int],
        kv: Tensor,
        place_S: Tensor,
        path_NS: Tensor | None,
        rows: Sequence[int],
        memory: tuple[Tensor, Tensor],
    ) -> LongSpecAnswer:
        """What the layer makes of tokens behind the entries of `kv`. place_S: where those and these stand; path_NS: which of
        them stand on the way to each, None: all up to itself."""
        weights = self.drafter.weights
        place_N = place_S[len(place_S) - len(tokens) :]
        sees = place_S[None] > place_N[:, None] - weights.window
        sees &= place_S[None] <= place_N[:, None] if path_NS is None else path_NS
        asked = LongSpecQuery(self.session.embed(tokens), place_N, kv, sees, rows, memory)
        return await ForwardQuery(weights.network, asked, len(tokens))

    def learn(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        # The prompt is known from the beginning.
        if not verdict.prompt:
            self.pending = (*self.pending, *verdict.tokens(draft))

    def fork(self, session: Session, choice: int | None = None) -> LongSpecGuess:
        # Tensors are never written to.
        return replace(self, session=session)

    def close(self) -> None:
        self.kv = self.kv[:, :, :0].clone()


class WindowLaws:
    """The laws at the nodes of a draft: the root is the window's last entry, and drafted nodes stand behind it."""

    def __init__(
        self, guess: LongSpecGuess, state_W: Tensor, memory: tuple[Tensor, Tensor]
    ) -> None:
        self._guess = guess
        self._memory = memory
        self._laws = StateLaws(guess.session)
        self._kv = guess.kv
        self._laws.add((0,), state_W[None])

    async def score(self, draft: Draft, want: ScoreRequest) -> DraftScores:
        if new := self._laws.new(draft):
            guess = self._guess
            past = self._guess.kv.shape[2]
            place_S = torch.tensor(
                [
                    *range(guess.stop - past, guess.stop),
                    *[guess.stop - 1 + d for d in draft.depth[1:]],
                ]
            )
            path_NS = torch.zeros(len(new), len(place_S), dtype=torch.bool)
            path_NS[:, :past] = True
            for row, i in enumerate(new):
                path_NS[row, [past - 1 + j for j in draft.path_to(i)]] = True
            tokens = [draft.token[i] for i in new]
            made = await guess.feed(
                tokens, self._kv, place_S, path_NS, range(len(new)), self._memory
            )
            self._kv = made.kv
            self._laws.add(new, made.state_RW)
        return self._laws.scores(draft)

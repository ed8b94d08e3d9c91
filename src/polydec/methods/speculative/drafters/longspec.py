"""A layer drafts that stores a window of tokens, and reads the target's last keys and values."""

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
    """Grow a tree from what a trained layer makes of tokens and of the target's cache.

    Every drafted token sees the target's keys and values of all tokens before the root, and the
    tokens of its own path in a sliding window. What is stored between rounds is that window, whose
    size does not depend on the length of the text. Where the target's entries were given back, a
    draft sees fewer.

    Attributes:
        weights: The trained layer.
        tree: Which nodes are drawn of its laws.

    Exact: law, under any exact verifier.
    Reduces to: `nothing` at depth 0.
    Source: LongSpec (Yang et al., 2025).
    """

    weights: LongSpec
    tree: TreeGrower

    @property
    def want(self) -> ScoreRequest:
        # With the last row the prompt is fed in full, so that its keys are there in the first
        # round.
        return ScoreRequest(law=RowDetail.NOTHING, last=True)

    def open_guess(self, prompt: Sequence[int], session: Session) -> LongSpecGuess:
        """Begin a sequence.

        Args:
            prompt: Token ids of the prompt. The last one is the first root.
            session: The target's session on this prompt.

        Returns:
            The guess. The window's tokens of the prompt are read with the first proposal.
        """
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
    """The drafter at work on one sequence.

    Attributes:
        drafter: The configuration.
        session: The target's own session, which is read and never moved.
        kv: The layer's keys and values of the last tokens, shape ``[2, kv heads, T, D]`` with T at
            most the window.
        stop: How many tokens of the text the layer has read.
        pending: Tokens after these, up to the root.
        state_W: What the layer guesses after the root, shape ``[W]``. None: it has read nothing
            yet.
    """

    drafter: LongSpecDrafter
    session: Session
    kv: Tensor
    stop: int
    pending: tuple[int, ...]
    state_W: Tensor | None = None
    # The layer's passes have no price here: a wrapper that knows them adds it (`PricedDrafter`).
    price = 0.0

    @property
    def want(self) -> ScoreRequest:
        return self.drafter.want

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        """Grow a tree after the root.

        Args:
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Random stream of the text.

        Returns:
            The tree.
        """
        if budget.depth < 1:
            return Draft.chain_draft(root)
        # Keys and values of the target's last layer, of all tokens before the root.
        memory = self.session.layer_memory()
        await self._catch_up(memory)
        assert self.state_W is not None, "the root is always read"
        # The layer reads no guess of its own, so a deep draft is no less sound than a flat one;
        # MOST only bounds it.
        laws = WindowLaws(self, self.state_W, memory)
        return await self.drafter.tree.grow_tree(
            laws,
            root,
            position,
            replace(budget, depth=min(budget.depth, MOST)),
            rng,
        )

    async def _catch_up(self, memory: tuple[Tensor, Tensor]) -> None:
        """Let the layer read the tokens that it has not read yet.

        Its own keys and values depend on tokens alone, so only the root's row reads the target's
        memory.
        """
        tokens = self.pending[-self.drafter.weights.window :]
        if not tokens:
            return
        stop = self.stop + len(self.pending)
        # Positions of the entries in the window and of the new tokens; a long prompt leaves a gap
        # between them.
        place_S = torch.tensor(
            [*range(self.stop - self.kv.shape[2], self.stop), *range(stop - len(tokens), stop)]
        )
        made = await self.feed_entries(tokens, self.kv, place_S, None, (len(tokens) - 1,), memory)
        # Cloned, so that the window does not hold on to the memory of the longer tensor.
        self.kv = made.kv[:, :, -self.drafter.weights.window :].clone()
        self.state_W = made.state_RW[0]
        self.stop = stop
        self.pending = ()

    async def feed_entries(
        self,
        tokens: Sequence[int],
        kv: Tensor,
        place_S: Tensor,
        path_NS: Tensor | None,
        rows: Sequence[int],
        memory: tuple[Tensor, Tensor],
    ) -> LongSpecAnswer:
        """Run the layer over tokens that follow the entries of `kv`.

        Args:
            tokens: Token ids, N of them.
            kv: Keys and values of the entries before them, shape ``[2, kv heads, T, D]``.
            place_S: Positions of those entries and of these tokens, shape ``[T + N]``.
            path_NS: Which of them each token may see, shape ``[N, T + N]``. None: all up to itself.
            rows: Indices of the tokens to answer.
            memory: Keys and values of the target's last layer.

        Returns:
            The layer's states at these rows, and keys and values of all entries.
        """
        weights = self.drafter.weights
        place_N = place_S[len(place_S) - len(tokens) :]
        # Sliding window: a token sees entries less than `window` positions back, [N, T + N].
        sees = place_S[None] > place_N[:, None] - weights.window
        sees &= place_S[None] <= place_N[:, None] if path_NS is None else path_NS
        asked = LongSpecQuery(self.session.embed_tokens(tokens), place_N, kv, sees, rows, memory)
        return await ForwardQuery(weights.network, asked, len(tokens))

    def learn_round(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        """Note the tokens that were written, for the layer to read.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            verdict: The accepted nodes and the token that follows them.
        """
        # The prompt's tokens were taken when the sequence began.
        if not verdict.prompt:
            self.pending = (*self.pending, *verdict.written_tokens(draft))

    def fork_guess(self, session: Session, choice: int | None = None) -> LongSpecGuess:
        """A guess that reads another session.

        Args:
            session: Fork of the target's session, for the copy to read.
            choice: Index of the choice that the copy drafts for. None: the same choice as before.

        Returns:
            The copy.
        """
        # Both may hold the same tensors: none is ever written to.
        return replace(self, session=session)

    def close(self) -> None:
        self.kv = self.kv[:, :, :0].clone()


class WindowLaws:
    """The laws at the nodes of a draft.

    The root is the window's last entry; drafted nodes follow it.
    """

    def __init__(
        self, guess: LongSpecGuess, state_W: Tensor, memory: tuple[Tensor, Tensor]
    ) -> None:
        self._guess = guess
        self._memory = memory
        self._laws = StateLaws(guess.session)
        self._kv = guess.kv
        self._laws.add_states((0,), state_W[None])

    async def score_draft(self, draft: Draft, want: ScoreRequest) -> DraftScores:
        """Run the layer over the nodes that have no law yet.

        Args:
            draft: Token tree whose nodes get a row, the root first.
            want: What the caller reads of the result.

        Returns:
            The laws at all nodes.
        """
        if new := self._laws.new_nodes(draft):
            guess = self._guess
            past = self._guess.kv.shape[2]
            # A node's position follows from its depth; the root's is `stop` - 1.
            place_S = torch.tensor(
                [
                    *range(guess.stop - past, guess.stop),
                    *[guess.stop - 1 + d for d in draft.depth[1:]],
                ]
            )
            # Each new node sees all of the window, and of the draft its own path; node j stands
            # `past` - 1 + j entries from the start.
            path_NS = torch.zeros(len(new), len(place_S), dtype=torch.bool)
            path_NS[:, :past] = True
            for row, i in enumerate(new):
                path_NS[row, [past - 1 + j for j in draft.path_to(i)]] = True
            tokens = [draft.token[i] for i in new]
            made = await guess.feed_entries(
                tokens, self._kv, place_S, path_NS, range(len(new)), self._memory
            )
            self._kv = made.kv
            self._laws.add_states(new, made.state_RW)
        return self._laws.score_draft_tree(draft)

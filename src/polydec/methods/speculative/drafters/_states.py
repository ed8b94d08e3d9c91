"""Drafters on the target's states.

Here is which states are known, a layer's cache over them, and the laws of states that a drafter
made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.effects import ForwardQuery
from polydec.core.protocols import DraftScorer, DraftScores, Session
from polydec.core.rng import Rng
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.methods.economics.tree_builder import TreeBuilder
from polydec.methods.speculative.loop.protocols import TreeGrower
from polydec.methods.speculative.loop.types import DraftBudget, Verdict, can_always_continue
from polydec.models.native.growth import (
    DEEP,
    MOST,
    READ,
    WIDE,
    NativeTreeGrower,
    TipState,
    TreeGrowthQuery,
)
from polydec.models.nets.query import NetworkAnswer, NetworkQuery
from polydec.models.nets.scores import LogitScores

LAYER = ScoreRequest(law=RowDetail.ROW, hidden=True)
"""What is read of a layer: its states, and its laws where it has a head."""


@dataclass
class StateLaws:
    """The laws at the nodes of a draft, from states that a drafter made.

    Attributes:
        session: The target's own session, which gives laws and is never moved.
        bent: Whether laws are shaped as the target's are.
        logits: Logits of the nodes that have them by now.
    """

    session: Session
    bent: bool = True
    logits: dict[int, NetworkAnswer] = field(default_factory=dict[int, NetworkAnswer])

    def new_nodes(self, draft: Draft) -> list[int]:
        """The nodes that have no law yet."""
        return [i for i in range(len(draft)) if i not in self.logits]

    def set_laws(
        self, nodes: Sequence[int], logits_NV: Tensor, best_N: Sequence[int] | None = None
    ) -> None:
        """Set the laws of some nodes.

        Args:
            nodes: Indices of the nodes.
            logits_NV: Their logits, shape ``[N, V]``, or one row that all of them share.
            best_N: The likeliest token of each row. None: not known.
        """
        if best_N is None:
            rows = [NetworkAnswer(row_V[None]) for row_V in logits_NV]
        else:
            rows = [
                NetworkAnswer(row_V[None], argmax=[best])
                for row_V, best in zip(logits_NV, best_N, strict=True)
            ]
        self.logits |= dict(
            zip(nodes, rows if len(rows) == len(nodes) else rows * len(nodes), strict=True)
        )

    def add_states(self, nodes: Sequence[int], state_NH: Tensor) -> None:
        """Set the laws of some nodes from states that lie before the target's final norm.

        Args:
            nodes: Indices of the nodes.
            state_NH: Their states, shape ``[N, H]``, or one that all of them share.
        """
        scores = self.session.score_states(state_NH)
        self.set_laws(nodes, torch.stack([scores.log_weights(i) for i in range(len(state_NH))]))

    def add_mean(self, nodes: Sequence[int], state_EH: Tensor) -> None:
        """Give some nodes one law, of the mean of several states' logits.

        Args:
            nodes: Indices of the nodes.
            state_EH: The states, which lie before the target's final norm, shape ``[E, H]``.
        """
        scores = self.session.score_states(state_EH)
        weights = [scores.log_weights(i) for i in range(len(state_EH))]
        self.set_laws(
            nodes,
            torch.stack(weights).mean(0, keepdim=True) if len(weights) > 1 else weights[0][None],
        )

    def add_normed(self, nodes: Sequence[int], state_NH: Tensor) -> None:
        """Set the laws of some nodes from states that lie after the target's final norm.

        They are the head's logits of these states alone. The session offers norm and head together,
        so each state is divided by the norm's weights, and the scale that the norm then gives it is
        undone. That takes a norm by the root mean square: weights are refused for a target that has
        another one (`require_laws`).

        Args:
            nodes: Indices of the nodes.
            state_NH: Their states, shape ``[N, H]``, or one that all of them share.
        """
        # A root-mean-square norm leaves a vector of ones as it is, so what comes back are the
        # norm's weights.
        weight_H = self.session.normed_states(torch.ones_like(state_NH[:1]))[0]
        before_NH = torch.where(weight_H == 0, 0.0, state_NH / weight_H)
        # norm(before) is the state up to a scale; logits are linear in what the head reads, so they
        # are scaled back.
        length_N = state_NH.float().norm(dim=-1) / self.session.normed_states(
            before_NH
        ).float().norm(dim=-1)
        scores = self.session.score_states(before_NH)
        self.set_laws(
            nodes,
            torch.stack([scores.log_weights(i) * length for i, length in enumerate(length_N)]),
        )

    def score_draft_tree(self, draft: Draft) -> DraftScores:
        """The laws at all nodes of a draft, each of which has logits by now."""
        scores = LogitScores([self.logits[i] for i in range(len(draft))])
        if self.bent:
            return self.session.bend_scores(draft, scores)
        return scores


def states_after(scores: DraftScores, nodes: Sequence[int], depths: Sequence[int] = ()) -> Tensor:
    """The target's states after some nodes.

    Args:
        scores: Scores of the target, with the states that are read here.
        nodes: Indices of the nodes.
        depths: Numbers of layers after which states are read, joined along the last axis. None
            given: the last layer's states alone.

    Returns:
        The states, shape ``[N, H]``, or ``[N, H times depths]``.

    Raises:
        RequestError: The target gives no states.
    """
    if depths:
        return torch.cat(
            [states_after(scores.exit_laws(depth, nodes), range(len(nodes))) for depth in depths],
            -1,
        )
    if scores.hidden_NH is None:
        raise RequestError(
            "the target shows no hidden states: what was trained on them cannot draft for it"
        )
    return scores.hidden_NH[list(nodes)]


class StateDraftWeights(Protocol):
    """Trained weights that draft from true states.

    Attributes:
        network: A layer with a cache of its own, which reads the states first. None: there is none.
        window: How many of the last tokens the layer reads with a state.
        normed: Whether states enter as the target's final norm leaves them.
        depth: Most levels of a draft.
    """

    window: ClassVar[int]

    @property
    def normed(self) -> bool: ...
    @property
    def depth(self) -> int: ...
    @property
    def network(self) -> Any: ...
    def layer_inputs(self, embed_NWH: Tensor, state_NH: Tensor, /) -> Tensor:
        """What enters the layer for true states.

        Args:
            embed_NWH: Embeddings of the tokens up to the one after each state, shape
                ``[N, window, H]``.
            state_NH: The true states, shape ``[N, H]``.

        Returns:
            Rows for the layer, one a state or several.
        """
        ...


class StateDrafter(Protocol):
    """Grows a tree from true states: its weights, its tree and what it reads of the target."""

    @property
    def weights(self) -> StateDraftWeights: ...
    @property
    def tree(self) -> TreeGrower: ...
    @property
    def bent(self) -> bool:
        """Whether laws of drafts are shaped as the target's are."""
        ...

    @property
    def want(self) -> ScoreRequest: ...
    def draft_laws(self, known: StateGuess) -> DraftScorer:
        """What the tree asks for laws: it scores a draft that grows from call to call."""
        ...


@dataclass
class StateGuess:
    """A drafter on the target's states, at work on one sequence.

    All that it holds between rounds was computed from true states alone.

    Attributes:
        drafter: The configuration.
        session: The target's own session.
        cache: The layer's cache. None: there is no layer.
        text: The last tokens, up to the root.
        ready_NS: Rows for the layer that it has not read yet, shape ``[N, S]``. None: there are
            none.
        pending: Windows of tokens that the layer has not read yet, and the true state before the
            last token of each; they stand behind `ready_NS`.
        true_H: The last true state, shape ``[H]``. None: the target has read nothing yet.
        tip: What the layer makes of that state.
        grower: Compiled code that grows a full tree in one call. None: there is none.
        end: The tip as the grower has it.
        bent: Whether laws are shaped as the target's are.
    """

    drafter: StateDrafter
    session: Session
    cache: Any
    text: tuple[int, ...] = ()
    pending: list[tuple[tuple[int, ...], Tensor]] = field(
        default_factory=list[tuple[tuple[int, ...], Tensor]]
    )
    true_H: Tensor | None = None
    tip: NetworkAnswer | None = None
    grower: NativeTreeGrower | None = None
    end: TipState | None = None
    bent: bool = True
    ready_NS: Tensor | None = None
    # The layer's passes have no price here: a wrapper that knows them adds it (`PricedDrafter`).
    price = 0.0

    @property
    def want(self) -> ScoreRequest:
        return self.drafter.want

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        """Grow a tree from the last true state.

        Args:
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Random stream of the text.

        Returns:
            The tree. The root alone before the first true state.
        """
        depth = min(budget.depth, self.drafter.weights.depth)
        if self.true_H is None or depth < 1:
            return Draft.chain_draft(root)
        if self.grower is not None and self._grows(root, budget):
            return await self._grown(self.grower, root, depth, budget)
        await self._catch_up()
        draft = await self.drafter.tree.grow_tree(
            self.drafter.draft_laws(self), root, position, replace(budget, depth=depth), rng
        )
        if self.cache is not None:
            # Drafted entries leave the layer's cache: only those of true states stay.
            self.cache.truncate_entries(self.cache.length)
        return draft

    def _grows(self, root: int, budget: DraftBudget) -> bool:
        """Whether one compiled call grows the very tree that the drafter's tree would be.

        That takes a best-first tree of few tokens a level, no reason to stop early, and shaping
        that reads nothing of a law but its likeliest token.
        """
        wide = getattr(self.drafter.tree, "expands", (0,))
        return (
            min(wide) >= 1
            and max(wide) <= WIDE
            and 1 <= budget.nodes <= MOST
            and budget.go_on is can_always_continue
            and (not self.bent or reads_argmax(self.session, root))
        )

    async def _grown(
        self, grower: NativeTreeGrower, root: int, depth: int, budget: DraftBudget
    ) -> Draft:
        """The drafter's tree, from one call of the compiled grower."""
        # The call reads only so many states itself; a prompt is read in ordinary passes first.
        if len(self.pending) > READ:
            await self._catch_up()
        if self.tip is not None:
            self.end = grower.answer_tip(self.tip)
            self.tip = None
        some = self.pending
        self.pending = []
        width, tips = self.drafter.tree.expands  # pyright: ignore[reportAttributeAccessIssue]
        grown = await ForwardQuery(
            grower,
            TreeGrowthQuery(
                self.cache,
                self.session.embed_tokens([window[-1] for window, _ in some]),
                torch.stack([state_S for _, state_S in some]) if some else torch.empty(0),
                None if some else self.end,
                min(depth, DEEP),
                width,
                tips,
                budget.nodes,
                budget.floor,
            ),
            len(some) + depth - 1,
        )
        # Nodes of the answer count from 0 without the root.
        self.end, tree = grown.tip, TreeBuilder(root)
        for parent, token, chance in grown.nodes:
            tree.add_node(parent + 1, token, chance)
        return tree.built_draft()

    async def _catch_up(self) -> None:
        """Let the layer read the true states that it has not read yet."""
        if self.cache is None:
            return
        if not self.pending and self.ready_NS is None:
            # The last round was grown by the compiled code: its tip is brought back for the
            # ordinary passes.
            if self.tip is None and self.end is not None and self.grower is not None:
                self.tip = self.grower.answer_of_tip(self.end)
            return
        parts = [] if self.ready_NS is None else [self.ready_NS]
        if self.pending:
            parts.append(self._pending_rows())
        self.pending = []
        self.ready_NS = None
        rows = torch.cat(parts)
        # The rows form a chain behind what is committed; they are true, so they are committed at
        # once.
        first = self.cache.stage_slots(range(-1, len(rows) - 1))
        self.cache.commit_path(range(len(rows)))
        self.tip = await self.feed_entries(first, rows, (len(rows) - 1,))
        self.end = None

    def _pending_rows(self) -> Tensor:
        """Rows of the states and windows that the layer has not read yet."""
        windows, states = zip(*self.pending, strict=True)
        state_NS = torch.stack(states)
        if self.drafter.weights.normed:
            state_NS = self.session.normed_states(state_NS)
        return self.drafter.weights.layer_inputs(self.embed_windows(windows), state_NS)

    def embed_windows(self, windows: Sequence[Sequence[int]]) -> Tensor:
        """Embeddings of windows of tokens of equal length, shape ``[N, window, H]``."""
        rows = self.session.embed_tokens([x for window in windows for x in window])
        return rows.reshape(len(windows), -1, rows.shape[-1])

    async def feed_entries(self, first: int, row_NS: Tensor, rows: Sequence[int]) -> NetworkAnswer:
        """Run the layer over staged entries.

        Args:
            first: Index of the first staged slot of its cache.
            row_NS: What enters the layer, one row a slot.
            rows: Rows to answer, counted from the first.

        Returns:
            The layer's states at these rows, and its logits where it has a head.
        """
        return await ForwardQuery(
            self.drafter.weights.network,
            NetworkQuery(self.cache, first, (), rows, LAYER, row_NS),
            len(row_NS),
        )

    def learn_round(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        """Take the true states of the accepted path.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            verdict: The accepted nodes and the token that follows them.
        """
        path = (0, *verdict.path)
        window = self.drafter.weights.window
        self.text = self.text or (draft.token[0],)
        state_NH = states_after(scores, path, self.want.exits)
        # The state at a node belongs together with the token after it.
        for state_H, token in zip(state_NH, verdict.written_tokens(draft), strict=True):
            self.text = (*self.text, token)[-max(2, window) :]
            if self.cache is not None:
                self.pending.append((pad_last_tokens(self.text, window), state_H))
        self.true_H = state_NH[-1].clone()

    def fork_guess(self, session: Session, choice: int | None = None) -> StateGuess:
        """A guess with its own view of the layer's cache.

        Args:
            session: Fork of the target's session, for the copy to read.
            choice: Index of the choice that the copy drafts for. None: the same choice as before.

        Returns:
            The copy.
        """
        if self.cache is None:
            cache = None
        else:
            cache = self.cache.fork()
        return replace(self, session=session, cache=cache, pending=list(self.pending))

    def close(self) -> None:
        if self.cache is not None:
            # A fork of no entries takes the place of the cache, so that entries which no other fork
            # reads are released.
            self.cache = self.cache.fork(0)


class _LookedAt(RequestError):
    """Somebody looked at more of a law than its likeliest token."""


class _OnlyArgmax:
    """Scores of which only the likeliest token can be read; it finds out what a shaper looks at."""

    def certain_token(self, i: int) -> None:
        return None

    def likeliest_token(self, i: int) -> int:
        return SEEN

    def __getattr__(self, name: str) -> Any:
        raise _LookedAt(f"{name} of a law was looked at")


SEEN = -2
"""A token that nobody has."""
ONLY_ARGMAX: Any = _OnlyArgmax()


def reads_argmax(session: Session, root: int) -> bool:
    """Whether a session reads nothing of a law but its likeliest token.

    That holds where it leaves laws as they are, or shapes them to their likeliest token with
    certainty.

    Args:
        session: The session, which shapes laws by `bend_scores`.
        root: Last token of its text.

    Returns:
        False as soon as a shaper looks at more.
    """
    try:
        # A law that fails on any other access is shaped: a greedy rule passes its likeliest token
        # through.
        bent = session.bend_scores(Draft.chain_draft(root), ONLY_ARGMAX)
        return bent is ONLY_ARGMAX or bent.certain_token(0) == SEEN
    except _LookedAt:
        return False


def at_work(drafter: StateDrafter, session: Session) -> StateGuess:
    """A guess on a sequence that is about to begin.

    Args:
        drafter: The configuration.
        session: The target's own session.

    Returns:
        The guess, with a new cache where the weights have a layer.
    """
    network = drafter.weights.network
    if network is None:
        cache = None
    else:
        cache = network.new_cache()
    grower = getattr(drafter.weights, "grower", None)
    return StateGuess(drafter, session, cache, grower=grower, bent=drafter.bent)


def pad_last_tokens(tokens: Sequence[int], window: int) -> tuple[int, ...]:
    """The last tokens of a text, always as many.

    Args:
        tokens: Token ids, at least one.
        window: How many.

    Returns:
        The last ones; where there are fewer, the first is repeated in front.
    """
    return (*[tokens[0]] * (window - len(tokens)), *tokens[-window:])

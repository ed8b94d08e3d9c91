"""Drafters on the target's states: which states are known, a layer's cache over them, and the laws of states made up."""

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
    """session: the target's own, which is asked for laws and never moved; bent: whether laws are shaped as the target's are;
    logits: of the nodes that have them by now."""

    session: Session
    bent: bool = True
    logits: dict[int, NetworkAnswer] = field(default_factory=dict[int, NetworkAnswer])

    def new(self, draft: Draft) -> list[int]:
        """The nodes that have no law yet."""
        return [i for i in range(len(draft)) if i not in self.logits]

    def put(
        self, nodes: Sequence[int], logits_NV: Tensor, best_N: Sequence[int] | None = None
    ) -> None:
        """These nodes have these laws, or all of them the only one; best_N: the likeliest token of each, where it is known."""
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

    def add(self, nodes: Sequence[int], state_NH: Tensor) -> None:
        """These nodes have these states, which lie before the target's final norm; or all of them the only one."""
        scores = self.session.states(state_NH)
        self.put(nodes, torch.stack([scores.weights(i) for i in range(len(state_NH))]))

    def add_mean(self, nodes: Sequence[int], state_EH: Tensor) -> None:
        """All these nodes have one law, of the mean of these states' logits."""
        scores = self.session.states(state_EH)
        weights = [scores.weights(i) for i in range(len(state_EH))]
        self.put(
            nodes,
            torch.stack(weights).mean(0, keepdim=True) if len(weights) > 1 else weights[0][None],
        )

    def add_normed(self, nodes: Sequence[int], state_NH: Tensor) -> None:
        """The same of states that lie behind the final norm: the head's logits of them alone. The session shows norm and head
        together, so each state is divided by the norm's weights, and what the norm then does to its length is undone."""
        weight_H = self.session.normed(torch.ones_like(state_NH[:1]))[0]
        before_NH = torch.where(weight_H == 0, 0.0, state_NH / weight_H)
        length_N = state_NH.float().norm(dim=-1) / self.session.normed(before_NH).float().norm(
            dim=-1
        )
        scores = self.session.states(before_NH)
        self.put(
            nodes, torch.stack([scores.weights(i) * length for i, length in enumerate(length_N)])
        )

    def scores(self, draft: Draft) -> DraftScores:
        """The laws at all nodes."""
        scores = LogitScores([self.logits[i] for i in range(len(draft))])
        if self.bent:
            return self.session.bend(draft, scores)
        return scores


def states_after(scores: DraftScores, nodes: Sequence[int], depths: Sequence[int] = ()) -> Tensor:
    """The target's states after nodes, or those at these depths, one behind another. Raises RequestError where the target shows
    none."""
    if depths:
        return torch.cat(
            [states_after(scores.exit(depth, nodes), range(len(nodes))) for depth in depths], -1
        )
    if scores.hidden_NH is None:
        raise RequestError(
            "the target shows no hidden states: what was trained on them cannot draft for it"
        )
    return scores.hidden_NH[list(nodes)]


class StateDraftWeights(Protocol):
    """Weights that draft from true states. network: a layer with a cache of its own, which reads them first, or None; window:
    how many of the last tokens it reads with a state; normed: states enter as the target's final norm leaves them; depth: most
    levels of a draft."""

    window: ClassVar[int]

    @property
    def normed(self) -> bool: ...
    @property
    def depth(self) -> int: ...
    @property
    def network(self) -> Any: ...
    def enter(self, embed_NWH: Tensor, state_NH: Tensor, /) -> Tensor:
        """What enters the layer for true states and the tokens up to the one behind each; one row a state, or several."""
        ...


class StateDrafter(Protocol):
    """Grows a tree from true states."""

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
    def laws(self, known: StateGuess) -> DraftScorer:
        """What the tree asks: it scores the nodes of a draft, of which each one extends the last."""
        ...


@dataclass
class StateGuess:
    """session: the target's own; cache: the layer's, None without one. What it holds between rounds was computed from true
    states alone. text: the last tokens, up to the root; pending: windows of tokens that the layer has not read yet, and the
    true states before the last of each; true_H: the last true state; tip: what the layer makes of it. grower: what grows whole
    trees in one call, None where nothing does; end: the tip as it knows it; bent: whether laws are shaped as the target's."""

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
    # Its passes are priced by whoever weighs them: see Priced.
    price = 0.0

    @property
    def want(self) -> ScoreRequest:
        return self.drafter.want

    async def propose(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        depth = min(budget.depth, self.drafter.weights.depth)
        if self.true_H is None or depth < 1:
            return Draft.chain(root)
        if self.grower is not None and self._grows(root, budget):
            return await self._grown(self.grower, root, depth, budget)
        await self._catch_up()
        draft = await self.drafter.tree.grow(
            self.drafter.laws(self), root, position, replace(budget, depth=depth), rng
        )
        if self.cache is not None:
            # What was drafted is forgotten.
            self.cache.truncate(self.cache.length)
        return draft

    def _grows(self, root: int, budget: DraftBudget) -> bool:
        """Whether one call grows the tree that the drafter's would be: likeliest tokens first, of a law of which nothing counts
        but its likeliest token, with no reason to stop early."""
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
        """What the drafter's tree would be, from one call."""
        if len(self.pending) > READ:
            await self._catch_up()
        if self.tip is not None:
            self.end = grower.tip(self.tip)
            self.tip = None
        some = self.pending
        self.pending = []
        width, tips = self.drafter.tree.expands  # pyright: ignore[reportAttributeAccessIssue]
        grown = await ForwardQuery(
            grower,
            TreeGrowthQuery(
                self.cache,
                self.session.embed([window[-1] for window, _ in some]),
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
        self.end, tree = grown.tip, TreeBuilder(root)
        for parent, token, chance in grown.nodes:
            tree.add(parent + 1, token, chance)
        return tree.draft()

    async def _catch_up(self) -> None:
        """The layer reads what it has not read yet."""
        if self.cache is None:
            return
        if not self.pending:
            if self.tip is None and self.end is not None and self.grower is not None:
                self.tip = self.grower.answer(self.end)
            return
        windows, states = zip(*self.pending, strict=True)
        self.pending = []
        state_NS = torch.stack(states)
        if self.drafter.weights.normed:
            state_NS = self.session.normed(state_NS)
        rows = self.drafter.weights.enter(self.embed(windows), state_NS)
        first = self.cache.stage(range(-1, len(rows) - 1))
        self.cache.commit(range(len(rows)))
        self.tip = await self.feed(first, rows, (len(rows) - 1,))
        self.end = None

    def embed(self, windows: Sequence[Sequence[int]]) -> Tensor:
        """Of windows of tokens, [N, window, H]."""
        rows = self.session.embed([x for window in windows for x in window])
        return rows.reshape(len(windows), -1, rows.shape[-1])

    async def feed(self, first: int, row_NS: Tensor, rows: Sequence[int]) -> NetworkAnswer:
        """What the layer answers at these rows of what enters slots from `first` on."""
        return await ForwardQuery(
            self.drafter.weights.network,
            NetworkQuery(self.cache, first, (), rows, LAYER, row_NS),
            len(row_NS),
        )

    def learn(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        path = (0, *verdict.path)
        window = self.drafter.weights.window
        self.text = self.text or (draft.token[0],)
        state_NH = states_after(scores, path, self.want.exits)
        for state_H, token in zip(state_NH, verdict.tokens(draft), strict=True):
            self.text = (*self.text, token)[-max(2, window) :]
            if self.cache is not None:
                self.pending.append((pad_last_tokens(self.text, window), state_H))
        self.true_H = state_NH[-1].clone()

    def fork(self, session: Session, choice: int | None = None) -> StateGuess:
        if self.cache is None:
            cache = None
        else:
            cache = self.cache.fork()
        return replace(self, session=session, cache=cache, pending=list(self.pending))

    def close(self) -> None:
        if self.cache is not None:
            # What nobody else reads is given back.
            self.cache = self.cache.fork(0)


class _LookedAt(RequestError):
    """Somebody looked at more of a law than its likeliest token."""


class _OnlyArgmax:
    """Scores of which nothing can be read but the likeliest token."""

    def certain(self, i: int) -> None:
        return None

    def argmax(self, i: int) -> int:
        return SEEN

    def __getattr__(self, name: str) -> Any:
        raise _LookedAt(f"{name} of a law was looked at")


SEEN = -2
"""A token that nobody has."""
ONLY_ARGMAX: Any = _OnlyArgmax()


def reads_argmax(session: Session, root: int) -> bool:
    """Whether a session leaves laws as they are, or sees nothing of them but the likeliest token, which it is sure of."""
    try:
        bent = session.bend(Draft.chain(root), ONLY_ARGMAX)
        return bent is ONLY_ARGMAX or bent.certain(0) == SEEN
    except _LookedAt:
        return False


def at_work(drafter: StateDrafter, session: Session) -> StateGuess:
    """On a sequence that is about to begin."""
    network = drafter.weights.network
    if network is None:
        cache = None
    else:
        cache = network.new_cache()
    grower = getattr(drafter.weights, "grower", None)
    return StateGuess(drafter, session, cache, grower=grower, bent=drafter.bent)


def pad_last_tokens(tokens: Sequence[int], window: int) -> tuple[int, ...]:
    """The last ones; where there are fewer, the first is repeated."""
    return (*[tokens[0]] * (window - len(tokens)), *tokens[-window:])

"""The seams that all families share: models, laws and what bends them. Nothing in the package asks which class it got."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from polydec.core.types import Draft, RowDetail, ScoreRequest, TokenVocabulary

if TYPE_CHECKING:
    from torch import Tensor

S = TypeVar("S")


class BatchedModel(Protocol):
    """What the scheduler merges, by identity: one call answers many queries, in order, and no answer depends on the
    other queries. `cost` orders models by the price of a pass (any unit): cheap ones run first."""

    @property
    def cost(self) -> float: ...
    def forward(self, queries: Sequence[Any]) -> Sequence[Any]: ...
    def __hash__(self) -> int: ...


class DraftScores(Protocol):
    """A law at every node of a draft, lazily: a greedy step never writes V numbers a row."""

    def row(self, i: int) -> Tensor:
        """Normalised log-probabilities logp_V after the path to node i."""
        ...

    def weights(self, i: int) -> Tensor:
        """Log-weights of the same law, not normalised: of a model its logits, which some penalties are defined on."""
        ...

    def certain(self, i: int) -> int | None:
        """The only possible token of row i where that is known without looking at the row; else None."""
        ...

    def argmax(self, i: int) -> int:
        """The likeliest token of row i, the lowest id on a tie."""
        ...

    def topk(self, i: int, k: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """The k likeliest tokens of row i (all, where there are fewer) and their log-probabilities, best first."""
        ...

    def topk_rows(self, rows: Sequence[int], k: int) -> Sequence[Sequence[int]]:
        """Of several rows the k likeliest tokens, best first: the vectorised twin of `topk`."""
        ...

    def logp(self, i: int, tokens: Sequence[int]) -> tuple[float, ...]:
        """Log-probabilities of some tokens of row i."""
        ...

    def exit(self, depth: int, nodes: Sequence[int]) -> DraftScores:
        """The law that the first `depth` layers give at these nodes, in this order, through norm and head; `depth` must
        stand in Want.exits."""
        ...

    @property
    def hidden_NH(self) -> Tensor | None:
        """Of every node what left the last layer that ran, before the final norm; None where that was not wanted of each
        of them, or the target has no such state."""
        ...

    @property
    def base(self) -> DraftScores:
        """The same nodes under the model before any shaping (itself, for a model)."""
        ...


class DraftScorer(Protocol):
    """Whoever has a law at every node of a draft: a session, or what a drafter makes of the target's states. It is all
    that a tree needs in order to grow."""

    async def score(self, draft: Draft, want: ScoreRequest) -> DraftScores:
        """The law at every node. A draft that extends the last one feeds its new nodes only; any other drops what
        was staged."""
        ...


class Session(DraftScorer, Protocol):
    """One sequence under one law. Invariant: n committed tokens = cached + not yet fed + one pending root."""

    @property
    def peers(self) -> int:
        """How many sequences share the model's passes just now, this one counted: what a further row costs depends on it."""
        ...

    async def prefill(self, want: ScoreRequest) -> DraftScores:
        """Feed the prompt in chunks. With want.prompt, node i of the answer is prompt token i (the pending root left
        out), and a cached prefix is computed again; with want.last, its only node is the last of these (a prompt of one token
        has none), and a cached prefix stays. Without both, its rows may not be asked for, and a last chunk may be left to
        ride with the first score."""
        ...

    def commit(self, tokens: Sequence[int]) -> None:
        """These tokens, the root first, are past now: what the scored tree holds of them stays cached, the rest is
        fed with the next score."""
        ...

    def keep(self, nodes: Sequence[int], root: int = 0) -> Draft:
        """Of the draft that was scored last only `nodes` stay (ascending, each node's parent among them). The path from the old
        root down to the node above `root` is committed; `root` is the new root, and what does not lie below it goes as
        well. Returns the draft as it now stands: a score of a draft that extends it feeds the new nodes only. Raises
        PolydecError where nothing was scored, or for nodes that are no tree."""
        ...

    def rewind(self, n: int) -> None:
        """Forget the last n committed tokens, and whatever is staged."""
        ...

    def evict(self) -> None:
        """Give all cache entries back, while nothing of this session waits for a pass. Text, staged draft and laws stay as
        they are: later scores feed anew what they need."""
        ...

    def states(self, hidden_NH: Tensor) -> DraftScores:
        """The target's own final norm and head over states as `DraftScores.hidden_NH` gives them:
        they lie before that norm. Of a shaped target the model's own law. Raises PolydecError where
        the target has no such states."""
        ...

    def normed(self, hidden_NH: Tensor) -> Tensor:
        """States as `DraftScores.hidden_NH` gives them, behind the target's own final norm: what
        its head reads. Raises PolydecError where the target has no such states."""
        ...

    def embed(self, tokens: Sequence[int]) -> Tensor:
        """What enters the first layer for these tokens, NH. Raises PolydecError where the target has no table of its own."""
        ...

    def memory(self, layer: int | None = None) -> tuple[Tensor, Tensor]:
        """Keys and values, each [kv heads, N, head], that a layer (None: the last one) of the target holds of the first N
        committed tokens: of all of them behind a score or a whole prefill, of fewer where some wait for a pass. Keys are turned
        to their positions, a pair's halves head / 2 apart; to be read before this session's next verb. Raises PolydecError
        where the target shows none."""
        ...

    def bend(self, draft: Draft, scores: DraftScores) -> DraftScores:
        """Somebody else's rows at the nodes of a draft below the committed text, shaped as this session shapes its own. Of a
        model, which shapes nothing, `scores` themselves."""
        ...

    def fork(self, choice: int | None = None) -> Session:
        """A session of its own that has seen the same tokens. choice: it writes this choice of the request; laws that draw
        (XTC's coin) then draw in that choice's stream."""
        ...

    def part(
        self, layers: Sequence[int], without: frozenset[int] = frozenset(), together: int = 1
    ) -> Session:
        """The same cache under these layers only: the first ones (early exit: what they computed is not computed again),
        or any (layer skip), without some halves (2 i: the attention of layer i; 2 i + 1: its MLP), or with the
        attentions of `together` consecutive layers, the first and the last apart, reading the same input. Else raises
        PolydecError."""
        ...

    def close(self) -> None: ...


class Target(Protocol):
    """A causal law. The last token of the prompt is the pending root; a cached prefix is reused."""

    @property
    def vocab(self) -> TokenVocabulary: ...
    @property
    def layers(self) -> int:
        """How many layers a part of a session can choose from; 0 where they cannot run alone."""
        ...

    def open(self, prompt: Sequence[int]) -> Session: ...


class Shaper(Protocol[S]):
    """Bends a law. Pure, total and persistent; applied only at nodes that somebody looks at.

    `shape` receives log-weights (finite but for -inf, at least one finite) and returns such; it must not write to its
    argument. Weights are the model's logits for the first shaper: only rules that are defined on logits (CTRL's
    repetition penalty) may look at more than differences. `reads`: ARGMAX says that the likeliest token is all it
    leaves; `keeps_argmax`: the likeliest token stays the likeliest.
    """

    reads: ClassVar[RowDetail]
    keeps_argmax: ClassVar[bool]

    def start(self, prompt: Sequence[int]) -> S: ...
    def step(self, state: S, token: int) -> S: ...
    def shape(self, state: S, logw_V: Tensor) -> Tensor: ...


def of_choice(shaper: Shaper[S], choice: int) -> Shaper[S]:
    """The shaper for another choice of the same request: what its own `for_choice` gives, else itself. A rule that draws
    has one; states of one choice serve the other."""
    another: Callable[[int], Shaper[S]] | None = getattr(shaper, "for_choice", None)
    if another is None:
        return shaper
    return another(choice)

"""The seams. A method implements one of these; nothing in the package asks which class it got."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol, TypeVar

from torch import Tensor

from polydec.core.rng import Rng
from polydec.core.types import Budget, Draft, Exactness, Reads, Verdict, Vocab, Want

S = TypeVar("S")
P = TypeVar("P")


class Model(Protocol):
    """What the scheduler merges, by identity: one call answers many queries, in order, and no answer depends on the
    other queries. `cost` orders models by the price of a pass (any unit): cheap ones run first."""
    @property
    def cost(self) -> float: ...
    def forward(self, queries: Sequence[Any]) -> Sequence[Any]: ...
    def __hash__(self) -> int: ...


class Scores(Protocol):
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

    def exit(self, depth: int, nodes: Sequence[int]) -> Scores:
        """The law that the first `depth` layers give at these nodes, in this order, through norm and head; `depth` must
        stand in Want.exits."""
        ...

    @property
    def hidden_NH(self) -> Tensor | None: ...

    @property
    def base(self) -> Scores:
        """The same nodes under the model before any shaping (itself, for a model)."""
        ...


class Session(Protocol):
    """One sequence under one law. Invariant: n committed tokens = cached + not yet fed + one pending root."""
    @property
    def peers(self) -> int:
        """How many sequences share the model's passes just now, this one counted: what a further row costs depends on it."""
        ...

    async def prefill(self, want: Want) -> Scores:
        """Feed the prompt in chunks. With want.prompt, node i of the answer is prompt token i (the pending root left
        out); without, its rows may not be asked for, and a last chunk may be left to ride with the first score."""
        ...

    async def score(self, draft: Draft, want: Want) -> Scores:
        """The law at every node. A draft that extends the last one feeds its new nodes only; any other drops what
        was staged."""
        ...

    def commit(self, tokens: Sequence[int]) -> None:
        """These tokens, the root first, are past now: what the scored tree holds of them stays cached, the rest is
        fed with the next score."""
        ...

    def rewind(self, n: int) -> None:
        """Forget the last n committed tokens, and whatever is staged."""
        ...

    def fork(self) -> Session: ...
    def part(self, layers: Sequence[int], without: frozenset[int] = frozenset()) -> Session:
        """The same cache under these layers only: the first ones (early exit: what they computed is not computed again),
        or any (layer skip), without some halves (2 i: the attention of layer i; 2 i + 1: its MLP). Else raises ValueError."""
        ...

    def close(self) -> None: ...


class Target(Protocol):
    """A causal law. The last token of the prompt is the pending root; a cached prefix is reused."""
    @property
    def vocab(self) -> Vocab: ...
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
    reads: ClassVar[Reads]
    keeps_argmax: ClassVar[bool]
    def start(self, prompt: Sequence[int]) -> S: ...
    def step(self, state: S, token: int) -> S: ...
    def shape(self, state: S, logw_V: Tensor) -> Tensor: ...


class Guess(Protocol):
    """A drafter at work on one sequence."""
    @property
    def want(self) -> Want:
        """What it needs to see of each score; `law` is ignored. With want.prompt, `learn` is called once before the
        first proposal with the prompt as an accepted chain."""
        ...

    @property
    def price(self) -> float:
        """Milliseconds that one proposal takes, whatever comes of it; 0.0 where that is not worth counting. Who holds drafters
        adds theirs up. What a draft model takes for each token is `Costs.draft_ms`, which is counted by the token."""
        ...

    async def propose(self, root: int, position: int, budget: Budget, rng: Rng) -> Draft:
        """A draft below `root`; `position` is that of the first drafted token. Own draws are made at
        rng.at("draft", position, ...)."""
        ...

    def learn(self, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        """The one place where a drafter sees the truth."""
        ...

    def fork(self) -> Guess: ...
    def close(self) -> None: ...


class Drafter(Protocol):
    """Who guesses. `session` is the target's own, for drafters that read its hidden states or run its first layers."""
    def open(self, prompt: Sequence[int], session: Session) -> Guess: ...


class Tree(Protocol):
    """Which nodes are drawn, for drafters that have a law at any node."""
    async def grow(self, session: Session, root: int, position: int, budget: Budget, rng: Rng) -> Draft: ...


class Verifier(Protocol):
    """Accepts a path. A pure function of laws; a position's draws are made at rng.at("token", position, ...)."""
    exactness: ClassVar[Exactness]
    def verify(self, draft: Draft, scores: Scores, rng: Rng, position: int) -> Verdict: ...


class Policy(Protocol[P]):
    """How much to guess next, from what was accepted; never from the clock."""
    def start(self) -> P: ...
    def budget(self, state: P) -> Budget: ...
    def observe(self, state: P, draft: Draft, verdict: Verdict) -> P: ...

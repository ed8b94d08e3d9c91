"""The seams that all families share: models, laws and what bends them. Nothing in the package asks which class it got."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from polydec.core.types import Draft, RowDetail, ScoreRequest, TokenVocabulary

if TYPE_CHECKING:
    from torch import Tensor

S = TypeVar("S")


class BatchedModel(Protocol):
    """What the scheduler merges, by identity: one call answers many queries, in order, and no
    answer depends on the other queries. `cost` orders models by the price of a pass (any unit):
    cheap ones run first.
    """

    @property
    def cost(self) -> float: ...
    def forward(self, queries: Sequence[Any]) -> Sequence[Any]: ...
    def __hash__(self) -> int: ...


class DraftScores(Protocol):
    """A law at every node of a draft, lazily: a greedy step never writes V numbers a row."""

    def logprob_row(self, i: int) -> Tensor:
        """Normalised log-probabilities logp_V after the path to node i."""
        ...

    def log_weights(self, i: int) -> Tensor:
        """Log-weights of the same law, not normalised: of a model its logits, which some penalties
        are defined on.
        """
        ...

    def certain_token(self, i: int) -> int | None:
        """The only possible token of row i where that is known without looking at the row; else
        None.
        """
        ...

    def likeliest_token(self, i: int) -> int:
        """The likeliest token of row i, the lowest id on a tie."""
        ...

    def likeliest_tokens(self, i: int, k: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Find the likeliest tokens of one row.

        Args:
            i: Node of the draft.
            k: How many tokens; all of them where the vocabulary has fewer.

        Returns:
            Token ids and their log-probabilities, best first.
        """
        ...

    def topk_rows(self, rows: Sequence[int], k: int) -> Sequence[Sequence[int]]:
        """Find the likeliest tokens of several rows: the vectorised form of `likeliest_tokens`.

        Args:
            rows: Nodes of the draft.
            k: How many tokens of each row.

        Returns:
            For each node its token ids, best first.
        """
        ...

    def token_logprobs(self, i: int, tokens: Sequence[int]) -> tuple[float, ...]:
        """Look up log-probabilities of some tokens of one row.

        Args:
            i: Node of the draft.
            tokens: Token ids.

        Returns:
            A log-probability for each token, in the same order.
        """
        ...

    def exit_laws(self, depth: int, nodes: Sequence[int]) -> DraftScores:
        """Read the law that the first layers alone give (early exit), through the model's norm and
        head.

        Args:
            depth: How many layers; it must stand in `ScoreRequest.exits` of the score.
            nodes: Nodes of the draft, in the order of the rows.

        Returns:
            Scores whose row j belongs to ``nodes[j]``.
        """
        ...

    @property
    def hidden_NH(self) -> Tensor | None:
        """Of every node what left the last layer that ran, before the final norm; None where that
        was not wanted of each of them, or the target has no such state.
        """
        ...

    @property
    def base(self) -> DraftScores:
        """The same nodes under the model before any shaping (itself, for a model)."""
        ...


class DraftScorer(Protocol):
    """Whoever has a law at every node of a draft: a session, or what a drafter makes of the
    target's states. It is all that a tree needs in order to grow.
    """

    async def score_draft(self, draft: Draft, want: ScoreRequest) -> DraftScores:
        """Compute the law at every node of a draft.

        A draft that extends the last one feeds its new nodes only. Any other draft drops what was
        staged.

        Args:
            draft: The token tree; its root is the last token of the text.
            want: What the caller is going to read, so that nothing else is computed.

        Returns:
            The law at every node.
        """
        ...


class Session(DraftScorer, Protocol):
    """One sequence under one law. Invariant: n committed tokens = cached + not yet fed + one
    pending root.
    """

    @property
    def peers(self) -> int:
        """How many sequences share the model's passes just now, this one counted: what a further
        row costs depends on it.
        """
        ...

    async def prefill_prompt(self, want: ScoreRequest) -> DraftScores:
        """Feed the prompt in chunks. With want.prompt, node i of the answer is prompt token i (the
        pending root left out), and a cached prefix is computed again; with want.last, its only node
        is the last of these (a prompt of one token has none), and a cached prefix stays. Without
        both, its rows may not be asked for, and a last chunk may be left to ride with the first
        score.
        """
        ...

    def commit_tokens(self, tokens: Sequence[int]) -> None:
        """These tokens, the root first, are past now: what the scored tree holds of them stays
        cached, the rest is fed with the next score.
        """
        ...

    def keep_nodes(self, nodes: Sequence[int], root: int = 0) -> Draft:
        """Keep some nodes of the draft that was scored last, under a new root.

        The path from the old root down to the node above `root` is committed. `root` becomes the
        new root, and nodes that do not lie below it go as well. A score of a draft that extends the
        returned one feeds the new nodes only.

        Args:
            nodes: Nodes that stay, ascending, each node's parent among them.
            root: The new root, one of `nodes`. Default 0: the root stays, and nothing is committed.

        Returns:
            The draft as it now stands.

        Raises:
            PolydecError: Nothing was scored, or the nodes form no tree.
        """
        ...

    def rewind_tokens(self, n: int) -> None:
        """Forget the last n committed tokens, and whatever is staged."""
        ...

    def evict_cache(self) -> None:
        """Give all cache entries back, while nothing of this session waits for a pass. Text,
        staged draft and laws stay as they are: later scores feed anew what they need.
        """
        ...

    def score_states(self, hidden_NH: Tensor) -> DraftScores:
        """The target's own final norm and head over states as `DraftScores.hidden_NH` gives them:
        they lie before that norm. Of a shaped target the model's own law. Raises PolydecError where
        the target has no such states."""
        ...

    def normed_states(self, hidden_NH: Tensor) -> Tensor:
        """States as `DraftScores.hidden_NH` gives them, behind the target's own final norm: what
        its head reads. Raises PolydecError where the target has no such states."""
        ...

    def embed_tokens(self, tokens: Sequence[int]) -> Tensor:
        """What enters the first layer for these tokens, NH. Raises PolydecError where the target
        has no table of its own.
        """
        ...

    def text_vectors(self) -> Mapping[int, Tensor]:
        """The vectors that enter the first layer in the place of committed tokens, ``[H]`` each, by
        the place in the text (0 is its first token); none where all are tokens, or where another
        text is read. Raises PolydecError where nothing can be read but laws.
        """
        ...

    def text_grids(self) -> Sequence[Any]:
        """The images among these vectors whose rows and columns the target tells, in order, each with
        the place of its first vector (an `ImageGrid` of the models). Raises PolydecError where
        nothing can be read but laws.
        """
        ...

    def read_slots(
        self, vectors_NH: Tensor, grid: tuple[int, int] | None = None, causal: bool = False
    ) -> Coroutine[Any, Any, Tensor]:
        """Read slots behind the committed text in one pass: vectors that see the text and one another.
        Nothing of them stays.

        Args:
            vectors_NH: What enters the first layer for the slots, ``[N, H]``; none: it is only checked
                that slots can be read.
            grid: Rows and columns of the image whose cells the slots are: where the model tells rows
                and columns, they stand as such an image would. None: they follow as words do.
            causal: Whether a slot sees none behind it. Default False.

        Returns:
            What gives the states behind the last layer, before the final norm, ``[N, H]``, once it is
            awaited.

        Raises:
            PolydecError: The target cannot read them; at the call, before anything is awaited.
        """
        ...

    def layer_memory(self, layer: int | None = None) -> tuple[Tensor, Tensor]:
        """Read the keys and values that one layer holds of the first N committed tokens.

        These are all committed tokens after a score or a complete prefill, and fewer where some
        wait for a pass. Keys are rotated to their positions, with the halves of a pair head / 2
        columns apart. Read them before the session's next call.

        Args:
            layer: Index of the layer; None is the last one.

        Returns:
            Keys and values, each of shape ``[kv heads, N, head size]``.

        Raises:
            PolydecError: The target gives no access to them.
        """
        ...

    def bend_scores(self, draft: Draft, scores: DraftScores) -> DraftScores:
        """Shape the rows of somebody else's law as this session shapes its own.

        Args:
            draft: The draft below the committed text whose nodes the rows belong to.
            scores: The rows to shape, such as those of a drafter.

        Returns:
            The shaped rows. Of a model, which shapes nothing, `scores` themselves.
        """
        ...

    def fork(self, choice: int | None = None) -> Session:
        """Open a session of its own that has seen the same tokens.

        Args:
            choice: The choice of the request that the new session writes; laws that draw (the coin
                of XTC) then draw in the stream of that choice. None: the choice of this session.

        Returns:
            The new session; what one of them commits does not reach the other.
        """
        ...

    def open_part(
        self, layers: Sequence[int], without: frozenset[int] = frozenset(), together: int = 1
    ) -> Session:
        """Open a session over the same cache that runs some layers only.

        The first layers give an early exit: what they computed is not computed again. Any other
        choice of layers is a layer skip.

        Args:
            layers: Indices of the layers that run.
            without: Halves of layers that are left out: 2 i is the attention of layer i, 2 i + 1
                its MLP.
            together: How many consecutive attentions, the first and the last layer not among them,
                read the same input. Default 1.

        Returns:
            The session.

        Raises:
            PolydecError: The target cannot run such a part.
        """
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

    def open_session(self, prompt: Sequence[int]) -> Session: ...


class Shaper(Protocol[S]):
    """Bends a law. Pure, total and persistent; applied only at nodes that somebody looks at.

    `shape_law` receives log-weights (finite but for -inf, at least one finite) and returns such; it
    must not write to its argument. Weights are the model's logits for the first shaper: only rules
    that are defined on logits (CTRL's repetition penalty) may look at more than differences.
    `reads`: ARGMAX says that the likeliest token is all it leaves; `keeps_argmax`: the likeliest
    token stays the likeliest.
    """

    reads: ClassVar[RowDetail]
    keeps_argmax: ClassVar[bool]

    def start_state(self, prompt: Sequence[int]) -> S: ...
    def next_state(self, state: S, token: int) -> S:
        """Advance the state by one token of the text. The old state stays valid.

        Args:
            state: The state behind the text so far.
            token: Token id that follows.

        Returns:
            The state behind the longer text.
        """
        ...

    def shape_law(self, state: S, logw_V: Tensor) -> Tensor:
        """Bend one row of a law.

        Args:
            state: The state behind the text whose next token the row is about.
            logw_V: Log-weights, shape ``[V]``, finite or -inf, at least one finite. It must not be
                written to.

        Returns:
            Log-weights of the shaped law, under the same conditions.
        """
        ...


def of_choice(shaper: Shaper[S], choice: int) -> Shaper[S]:
    """Find the shaper for another choice of the same request.

    A rule that draws has a `for_choice` of its own. States of one choice serve the other.

    Args:
        shaper: The rule, made for any choice.
        choice: Number of the choice.

    Returns:
        What `for_choice` gives, or the shaper itself where it has none.
    """
    another: Callable[[int], Shaper[S]] | None = getattr(shaper, "for_choice", None)
    if another is None:
        return shaper
    return another(choice)

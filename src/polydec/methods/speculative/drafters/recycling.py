"""Note what the target finds likely after each token, and draft from these notes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heappop, heappush

from polydec.base.errors import RequestError
from polydec.core.protocols import DraftScores, Session
from polydec.core.rng import Rng
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.methods.economics.tree_builder import TreeBuilder
from polydec.methods.speculative.drafters._tree_shapes import Template, of_counts, tree_template
from polydec.methods.speculative.loop.protocols import DraftGuess
from polydec.methods.speculative.loop.types import DraftBudget, Verdict

RATES = (0.44, 0.10, 0.05, 0.04, 0.025, 0.02, 0.015, 0.01)
"""How often the candidate of each rank is the next token, where a row is known: measured on greedy
answers of SmolLM2-135M-Instruct to Spec-Bench prompts. They decide which nodes a small tree has."""

NODES = 7
"""Of a tree where nothing says how many."""


@dataclass(frozen=True)
class RecyclingTable:
    """What the target finds likely after each token.

    Given to a drafter it outlives a request (a hot start); drafts made from it can reveal to one
    request what another one wrote.

    Attributes:
        after: For each token what the target found likeliest after it when it last saw it, best
            first.
    """

    after: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])

    @property
    def nbytes(self) -> int:
        """What the table holds: 4 bytes for a token and for each of its followers."""
        return sum(4 * (1 + len(row)) for row in self.after.values())


@dataclass(frozen=True)
class RecyclingDrafter:
    """Unfold a table of each token's k likeliest followers into a tree of fixed shape.

    The tree has the `nodes` index paths (rank of the child at each level) that are accepted most
    often if rank r is accepted at rate rates[r], which is a node's `chance`; a token that has no
    row has no children. Every scored node, accepted or not, then writes its row; the accepted ones
    write last.

    Attributes:
        k: Followers of a token, 1 to 64. Default 8.
        nodes: Nodes of the tree, 1 to 256. None: 7.
        recycle_prefill: Whether the prompt's rows are written too, which its pass then computes.
            Default: they are not.
        rates: How often the candidate of each rank is the next token: numbers between 0 and 1 that
            never rise.
        memory: A table that outlives the request. None: an empty one each time.
        shape: Where given, the tree's child counts, breadth first (such as calibration finds: the
            positions that were accepted most often), and `nodes` must be None. Default: empty.

    Exact: law, under any exact verifier: candidates are certain.
    Reduces to: `nothing` while the table is empty.
    Source: Luo et al., "Turning trash into treasure: accelerating inference of large language
    models with Token Recycling" (2024).
    """

    k: int = 8
    nodes: int | None = None
    recycle_prefill: bool = False
    rates: tuple[float, ...] = RATES
    memory: RecyclingTable | None = None
    shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.k <= 64:
            raise RequestError(f"k is {self.k}: it must lie in 1 to 64")
        # A shape fixes the number of tokens, so a second number could only contradict it.
        if self.shape and self.nodes is not None:
            raise RequestError(
                f"shape is {','.join(map(str, self.shape))}: it says how many tokens a tree has, so nodes "
                f"({self.nodes}) must be left out"
            )
        if self.nodes is not None and not 1 <= self.nodes <= 256:
            raise RequestError(f"nodes is {self.nodes}: it must lie in 1 to 256")
        # Of ranks, the likeliest first: a later one cannot be right more often.
        if (
            not self.rates
            or not all(0.0 < r < 1.0 for r in self.rates)
            or list(self.rates) != sorted(self.rates)[::-1]
        ):
            raise RequestError(
                f"rates is {self.rates}: it must hold numbers between 0 and 1 that never rise"
            )
        if self.shape:
            of_counts(self.shape)

    @cached_property
    def template(self) -> Template:
        """Of each node below the root (its parent's index, its rank), breadth first."""
        if self.shape:
            return of_counts(self.shape)
        # Best first over index paths, by the product of their rates.
        ranks = self.rates[: self.k]
        best: list[tuple[int, ...]] = []
        heap: list[tuple[float, tuple[int, ...]]] = [(-r, (i,)) for i, r in enumerate(ranks)]
        while len(best) < (NODES if self.nodes is None else self.nodes):
            value, path = heappop(heap)
            best.append(path)
            for i, r in enumerate(ranks):
                # A heap of negative products: every child is less likely than its parent, so a
                # parent comes first.
                heappush(heap, (value * r, (*path, i)))
        return tree_template(best)

    def open_guess(self, prompt: Sequence[int], session: Session) -> RecyclingGuess:
        """Begin a sequence.

        Args:
            prompt: Not used: its rows come with `learn` where they are wanted.
            session: Not used.

        Returns:
            The guess.
        """
        return RecyclingGuess(self, RecyclingTable() if self.memory is None else self.memory)


@dataclass(frozen=True)
class RecyclingGuess(DraftGuess):
    """The drafter at work on one sequence. All that stays between rounds is in the table.

    Attributes:
        config: The configuration.
        memory: The table.
    """

    config: RecyclingDrafter
    memory: RecyclingTable

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(
            law=RowDetail.NOTHING, base=RowDetail.TOPK, prompt=self.config.recycle_prefill
        )

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        """Unfold the table below the root.

        Args:
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Not used: candidates are certain.

        Returns:
            The tree.
        """
        tree = TreeBuilder(root)
        rates = self.config.rates
        # For each node of the template its node in the draft, None where it is left out.
        place: list[int | None] = [0]
        for above, rank in self.config.template:
            p = place[above]
            if p is None:
                row = ()
            else:
                row = self.memory.after.get(tree.token[p], ())
            # A child is left out with its parent, beyond the row, or beyond the budget.
            if (
                p is None
                or rank >= len(row)
                or tree.depth[p] == budget.depth
                or len(tree) > budget.nodes
            ):
                place.append(None)
            else:
                place.append(tree.add_node(p, row[rank], rates[min(rank, len(rates) - 1)]))
        return tree.built_draft()

    def learn_round(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        """Write the rows of all scored nodes.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            verdict: The accepted nodes and the token that follows them.
        """
        # Rejected nodes have rows too, which say just as well what follows their tokens.
        rows = scores.base.topk_rows(range(len(draft)), self.config.k)
        accepted = (0, *verdict.path)
        # The same token may stand at several nodes: an accepted one, whose context is the text's
        # own, has the last word.
        for i in (*[i for i in range(len(draft)) if i not in accepted], *accepted):
            self.memory.after[draft.token[i]] = tuple(rows[i])

    def fork_guess(self, session: Session, choice: int | None = None) -> RecyclingGuess:
        """A guess with its own copy of the table, unless the table outlives the request.

        Args:
            session: Fork of the target's session, for the copy to read.
            choice: Index of the choice that the copy drafts for. None: the same choice as before.

        Returns:
            The copy, or the same guess where the table is shared.
        """
        if self.config.memory is not None:
            return self
        return RecyclingGuess(self.config, RecyclingTable(dict(self.memory.after)))

    def close(self) -> None:
        pass

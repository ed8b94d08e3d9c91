"""Average the target's rows after each n-gram, and draw a tree from these averages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.law import NEG_INF
from polydec.core.protocols import DraftScores, Session
from polydec.core.rng import Rng
from polydec.core.types import Draft, DrawKind, RowDetail, ScoreRequest
from polydec.methods.economics.tree_builder import TreeBuilder
from polydec.methods.speculative.drafters._tree_shapes import Template, of_counts
from polydec.methods.speculative.loop.protocols import DraftGuess
from polydec.methods.speculative.loop.types import DraftBudget, Verdict

Row = tuple[int, tuple[int, ...], tuple[float, ...]]
"""How many rows were averaged, and of the likeliest tokens id and probability, best first."""


@dataclass(frozen=True)
class NgramRowStore:
    """Averages of the target's rows after n-grams.

    Given to a drafter it outlives a request: drafts made from it reveal what other requests wrote,
    and move the draws of later ones.

    Attributes:
        after: For each n-gram the average row after it, the least recently written first.
    """

    after: dict[tuple[int, ...], Row] = field(default_factory=dict[tuple[int, ...], Row])

    @property
    def nbytes(self) -> int:
        """What the rows hold: 4 bytes a token of a key, 8 a stored pair, 4 a count."""
        return sum(4 * len(key) + 8 * len(row[1]) + 4 for key, row in self.after.items())


@dataclass(frozen=True)
class NgramRowsDrafter:
    """Average the target's rows after each n-gram, and draw a tree of fixed shape from them.

    It backs off from the last `longest` tokens to the last `shortest`: the first n-gram that was
    seen gives the law of the next token, the average of the target's rows after it, cut to the
    `keep` likeliest tokens. Siblings are drawn without replacement in the order drawn; where the
    target is greedy, or with `draws` off, the likeliest tokens are taken with certainty.

    Attributes:
        shape: Child counts of the nodes, breadth first.
        longest: Longest n-gram, 1 to 16. Default 4.
        shortest: Shortest n-gram, 1 to longest. Default 2.
        keep: Tokens of a row that are stored, 1 to 64. Default 10.
        draws: Whether siblings are drawn under a target that samples. Default: they are.
        most: Most rows, at least 1; the least recently written go first. Default 65536.
        store: Rows that outlive the request. None: none at first.
        shared: Whether the choices of a request write into the same rows, from which each drafts
            what the others found. Default: they do not.

    Exact: law, under the `exact` verifier: every drawn node carries the law that it was drawn from,
    as it was then. With a store that outlives requests the text of a seed depends on what was asked
    before, its law does not; with shared rows on how far the other choices were, which other
    requests may move. Choices stay independent: whatever the others wrote, each token has the
    target's law.
    Reduces to: `nothing` while no n-gram comes back.
    Source: STAND, "Accelerated test-time scaling with model-free speculative sampling" (2025).
    """

    shape: tuple[int, ...] = (3, 2, 1, 1, 1, 1, 0, 1)
    longest: int = 4
    shortest: int = 2
    keep: int = 10
    draws: bool = True
    most: int = 65536
    store: NgramRowStore | None = None
    shared: bool = False

    def __post_init__(self) -> None:
        of_counts(self.shape)
        if not 1 <= self.longest <= 16:
            raise RequestError(f"longest is {self.longest}: it must lie in 1 to 16")
        if not 1 <= self.shortest <= self.longest:
            raise RequestError(
                f"shortest is {self.shortest}: it must lie in 1 to longest, which is {self.longest}"
            )
        if not 1 <= self.keep <= 64:
            raise RequestError(f"keep is {self.keep}: it must lie in 1 to 64")
        if self.most < 1:
            raise RequestError(f"most is {self.most}: it must be at least 1")

    @cached_property
    def template(self) -> Template:
        return of_counts(self.shape)

    @cached_property
    def child_counts(self) -> tuple[int, ...]:
        """Children of the root and of each node of the template, breadth first."""
        count = Counter(above for above, _ in self.template)
        return tuple(count[i] for i in range(len(self.template) + 1))

    def open_guess(self, prompt: Sequence[int], session: Session) -> NgramRowsGuess:
        """Begin a sequence.

        Args:
            prompt: Token ids of the prompt. The last one is the first root.
            session: Not used.

        Returns:
            The guess. Rows are written from the first answered token on.
        """
        return NgramRowsGuess(
            self, NgramRowStore() if self.store is None else self.store, list(prompt), []
        )


@dataclass(frozen=True)
class NgramRowsGuess(DraftGuess):
    """The drafter at work on one sequence.

    Attributes:
        config: The configuration.
        store: The rows.
        text: Token ids so far, the pending root included.
        like: A row of the target, for its size and type; empty where the target is greedy.
    """

    config: NgramRowsDrafter
    store: NgramRowStore
    text: list[int]
    like: list[Tensor]

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(law=RowDetail.NOTHING, base=RowDetail.TOPK)

    def find_row(self, context: Sequence[int]) -> Row | None:
        """The row of the longest known n-gram at the end of a context. None: none is known."""
        for n in range(min(self.config.longest, len(context)), self.config.shortest - 1, -1):
            row = self.store.after.get(tuple(context[-n:]))
            if row is not None:
                return row
        return None

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        """Grow the tree of fixed shape.

        Args:
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Random stream of the text. Children of template node i are drawn at
                ``rng.child_stream("draft", position, i)``.

        Returns:
            The tree, smaller where n-grams or the budget are missing.
        """
        # For each node of the template its node in the draft, None where it is missing.
        tree = TreeBuilder(root)
        place = list[int | None]([0])
        context = [tuple(self.text[-self.config.longest :])]
        # A parent that is missing leaves its whole branch out.
        for at, count in enumerate(self.config.child_counts):
            node = place[at]
            if node is None or tree.depth[node] >= budget.depth:
                row = None
            else:
                row = self.find_row(context[node])
            # The root does not count against the budget.
            most = min(count, budget.nodes + 1 - len(tree))
            if row and most > 0:
                tokens, law_V = self._children(row, most, rng.child_stream("draft", position, at))
            else:
                tokens = ()
                law_V = None
            # Children that the row or the budget does not give are missing in the draft, and so is
            # what is below them.
            place += [len(tree) + i if i < len(tokens) else None for i in range(count)]
            for x in tokens:
                assert node is not None and row is not None
                context.append((*context[node], x)[-self.config.longest :])
                tree.add_node(
                    node,
                    x,
                    row[2][row[1].index(x)],
                    DrawKind.CERTAIN if law_V is None else DrawKind.WITHOUT,
                    law_V,
                )
        return tree.built_draft()

    def _children(self, row: Row, count: int, rng: Rng) -> tuple[tuple[int, ...], Tensor | None]:
        """The children that a row gives, and the law that they were drawn from (None: certain)."""
        _, tokens, p = row
        if not self.like or not self.config.draws:
            return tokens[:count], None
        p_K = torch.tensor(p, dtype=torch.float64)
        # The stored probabilities, renormalised over the stored tokens.
        law_V = torch.full_like(self.like[0], NEG_INF)
        law_V[list(tokens)] = (p_K / p_K.sum()).log().to(law_V.dtype)
        return tuple(
            tokens[i] for i in rng.without_replacement(law_V[list(tokens)].double().exp(), count)
        ), law_V

    def learn_round(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        """Average the target's rows along the accepted path into the store.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            verdict: The accepted nodes and the token that follows them.
        """
        self.like.clear()
        for node in (0, *verdict.path):
            if node:
                self.text.append(draft.token[node])
            # A greedy target's law is a point mass: the model's own row before shaping is averaged
            # instead.
            if scores.certain_token(node) is None:
                self.like[:] = [scores.logprob_row(node)]
                tokens, logp = scores.likeliest_tokens(node, self.config.keep)
            else:
                tokens, logp = scores.base.likeliest_tokens(node, self.config.keep)
            p = torch.tensor(logp, dtype=torch.float64).exp().tolist()
            new = {x: y for x, y in zip(tokens, p, strict=True) if y > 0.0}
            for n in range(self.config.shortest, min(self.config.longest, len(self.text)) + 1):
                self.write_row(tuple(self.text[-n:]), new)
        self.text.append(verdict.bonus)

    def write_row(self, key: tuple[int, ...], new: dict[int, float]) -> None:
        """Average one more row into that of an n-gram.

        Args:
            key: The n-gram, as token ids.
            new: Probabilities of the row's likeliest tokens.
        """
        count, tokens, p = self.store.after.pop(key, (0, (), ()))
        # A running mean; a token that is missing in one of both has probability 0 there.
        mean = {x: y * count / (count + 1) for x, y in zip(tokens, p, strict=True)}
        for x, y in new.items():
            mean[x] = mean.get(x, 0.0) + y / (count + 1)
        best = sorted(mean.items(), key=lambda item: (-item[1], item[0]))[: self.config.keep]
        self.store.after[key] = (count + 1, tuple(x for x, _ in best), tuple(y for _, y in best))
        # Written rows are moved to the end, so that the first one is the least recently written.
        while len(self.store.after) > self.config.most:
            del self.store.after[next(iter(self.store.after))]

    def fork_guess(self, session: Session, choice: int | None = None) -> NgramRowsGuess:
        """A guess with its own copy of the text, and of the rows unless they are shared.

        Args:
            session: Fork of the target's session, for the copy to read.
            choice: Index of the choice that the copy drafts for. None: the same choice as before.

        Returns:
            The copy.
        """
        common = self.config.shared or self.config.store is not None
        # A store that is shared by choices or requests is written to by all of them.
        if common:
            store = self.store
        else:
            store = NgramRowStore(dict(self.store.after))
        return NgramRowsGuess(self.config, store, list(self.text), list(self.like))

    def close(self) -> None:
        pass

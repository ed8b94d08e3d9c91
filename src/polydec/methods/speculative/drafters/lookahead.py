"""The target guesses along many futures at once.

What it said there is tried when its first token comes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from polydec.base.errors import RequestError
from polydec.core.protocols import DraftScores, Session
from polydec.core.rng import Rng
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.methods.economics.tree_builder import TreeBuilder
from polydec.methods.speculative.drafters.jacobi import spread_prompt_tokens
from polydec.methods.speculative.loop.protocols import DraftGuess
from polydec.methods.speculative.loop.types import DraftBudget, Verdict


@dataclass(frozen=True)
class LookaheadDrafter:
    """A window of guesses that a Jacobi iteration moves along, and a pool of n-grams from it.

    The window has `window` columns and ngram - 1 levels. Level 0 is a chain that begins with the
    root; below its column j the levels above it stand as a chain of their own, so that a cell sees
    the text, level 0 up to its column and the cells below it, at the position that its depth says:
    a token tree. Cells are probes, fed and never accepted. A pass gives each column a further
    token; a column's first token and the ngram - 1 after it enter the pool. Of the n-grams that
    begin with the root the newest `guesses` are candidates. Cells and candidates of one path are
    one node. Until all levels are filled (ngram - 2 passes) the window is a longer and flatter one
    over tokens of the prompt.

    A pass whose budget cannot hold all of the window goes without it. Guesses follow the shaped
    law, penalties included.

    Attributes:
        window: Columns, 1 to 32. Default 4.
        ngram: Tokens of an n-gram, 2 to 16. Default 3.
        guesses: Most n-grams of one first token, 0 to 64. Default 4.
        pool: Most n-grams in all, at least guesses; those whose first token was seen longest ago
            leave first. Default 4096.

    Exact: law, under any exact verifier: candidates are certain.
    Reduces to: `nothing` with guesses 0 (but for the cells, which are fed all the same).
    Source: Fu et al., "Break the sequential dependency of LLM inference using Lookahead decoding"
    (2024).
    """

    window: int = 4
    ngram: int = 3
    guesses: int = 4
    pool: int = 4096

    def __post_init__(self) -> None:
        for name, low, high in (
            ("window", 1, 32),
            ("ngram", 2, 16),
            ("guesses", 0, 64),
            ("pool", 1, 1 << 20),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise RequestError(f"{name} is {value}: it must lie in {low} to {high}")
        if self.pool < self.guesses:
            raise RequestError(
                f"pool is {self.pool}: it must be at least guesses, which is {self.guesses}"
            )

    @property
    def nodes(self) -> int:
        """The most nodes of a draft, root left out."""
        # While the window fills, it has more columns and fewer levels: the largest of these shapes
        # counts.
        columns = range(self.window, self.window + self.ngram - 1)
        # With c columns: the chain without the root, and above each column as many cells as levels
        # are filled.
        cells = max(c - 1 + c * (self.window + self.ngram - 2 - c) for c in columns)
        return cells + self.guesses * (self.ngram - 1)

    def open_guess(self, prompt: Sequence[int], session: Session) -> LookaheadGuess:
        """Begin a sequence.

        Args:
            prompt: Token ids of the prompt. The last one is the first root.
            session: Not used.

        Returns:
            The guess, whose window begins with tokens of the prompt.
        """
        return LookaheadGuess(
            self, [list(spread_prompt_tokens(prompt, self.window + self.ngram - 3))], {}
        )


@dataclass(frozen=True)
class LookaheadGuess(DraftGuess):
    """The drafter at work on one sequence.

    Attributes:
        config: The configuration.
        levels: ``levels[0]`` is the window's chain, the root left out; ``levels[k]`` has one token
            a column, the root's first.
        pool: For each first token what followed it, newest last; keys stand in the order of their
            last use.
    """

    config: LookaheadDrafter
    levels: list[list[int]]
    pool: dict[int, list[tuple[int, ...]]]

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(law=RowDetail.NOTHING)

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        """Lay out the window's cells and the candidates as one tree.

        Args:
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Not used: candidates are certain.

        Returns:
            The tree. Cells that are no candidates are probes.
        """
        guessed = [path[: budget.depth] for path in reversed(self.pool.get(root, ()))]
        candidates = {path[:n] for path in guessed for n in range(1, len(path) + 1)}
        # By path of tokens from the root, the node in the tree.
        tree = TreeBuilder(root)
        place = dict[tuple[int, ...], int]({(): 0})

        def lay_path(path: tuple[int, ...]) -> None:
            for n in range(1, len(path) + 1):
                here = path[:n]
                if here not in place:
                    if len(tree) > budget.nodes:
                        return
                    place[here] = tree.add_node(
                        place[path[: n - 1]], path[n - 1], probe=here not in candidates
                    )

        columns = list(self.cell_paths())
        cells = {path[:n] for path in columns for n in range(1, len(path) + 1)}
        # The window is fed in full or not at all: a part of it could not move on.
        if max(map(len, columns)) <= budget.depth and len(cells) <= budget.nodes:
            for path in columns:
                lay_path(path)
        for path in guessed:
            lay_path(path)
        return tree.built_draft()

    def cell_paths(self) -> Iterator[tuple[int, ...]]:
        """For each column the path of tokens from the root to its uppermost cell."""
        chain = self.levels[0]
        above = self.levels[1:]
        for j in range(len(chain) + 1):
            yield (*chain[:j], *[level[j] for level in above])

    def learn_round(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        """Move the window on by the target's likeliest tokens, and collect its n-grams.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            verdict: The accepted nodes and the token that follows them.
        """
        # Nodes by parent and token, probes included, to find the cells again.
        at = {(p, x): i for i, (p, x) in enumerate(zip(draft.parent, draft.token, strict=True))}
        new: list[int] = []
        for path in self.cell_paths():
            node = 0
            for x in path:
                below = at.get((node, x))
                # The window was not fed in this pass, so it stays.
                if below is None:
                    return
                node = below
            new.append(scores.likeliest_token(node))
        levels = self.levels
        # While levels are missing: one more, and every column moves to the left.
        if len(levels) < self.config.ngram - 1:
            self.levels[:] = [level[1:] for level in (*levels, new)]
            return
        # Each column gives an n-gram: its first token, its cells and the new token.
        if self.config.guesses:
            for j, head in enumerate((draft.token[0], *levels[0])):
                self._keep(head, (*[level[j] for level in levels[1:]], new[j]))
        # The lowest level leaves, and the second becomes the chain; its first token stood below the
        # root and falls away.
        levels = [*levels[1:], new]
        self.levels[:] = [levels[0][1:], *levels[1:]]

    def _keep(self, head: int, ngram: tuple[int, ...]) -> None:
        """Put an n-gram into the pool as the newest of its first token."""
        row = self.pool.pop(head, [])
        if ngram in row:
            row.remove(ngram)
        self.pool[head] = [*row, ngram][-self.config.guesses :]
        # The first key is the one used longest ago.
        if len(self.pool) > self.config.pool // self.config.guesses:
            del self.pool[next(iter(self.pool))]

    def fork_guess(self, session: Session, choice: int | None = None) -> LookaheadGuess:
        """A guess with its own window and pool.

        Args:
            session: Fork of the target's session, for the copy to read.
            choice: Index of the choice that the copy drafts for. None: the same choice as before.

        Returns:
            The copy.
        """
        return LookaheadGuess(
            self.config,
            [list(level) for level in self.levels],
            {head: list(row) for head, row in self.pool.items()},
        )

    def close(self) -> None:
        pass

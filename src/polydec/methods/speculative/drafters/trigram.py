"""A table of what follows two tokens, adapted to the output and searched for likely sequences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import log, sqrt
from typing import Protocol

from polydec.base.errors import RequestError
from polydec.core.protocols import DraftScores, Session
from polydec.core.rng import Rng
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.methods.economics.tree_builder import TreeBuilder
from polydec.methods.speculative.loop.protocols import DraftGuess
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.models.learned.kinds.ngrams import NGrams

Pair = tuple[int, int]
Sentence = tuple[float, tuple[int, ...]]
"""Visits, and the tokens."""
C1 = 32.0
C2 = 8.0
"""How much the search trusts the table's weights against the visits, and how slowly that grows."""


class TrigramFollowers(Protocol):
    """What follows two tokens in a corpus."""

    def follower_weights(self, pair: Pair) -> dict[int, float]:
        """The weight of each token after these two; empty where they are not known.

        It must not be written to.
        """
        ...


@dataclass(frozen=True)
class NgramTableFollowers:
    """An n-gram table of contexts of two tokens or more.

    `polydec train ngrams` makes it of any text.
    """

    table: NGrams

    def follower_weights(self, pair: Pair) -> dict[int, float]:
        return {token: chance for chance, token in self.table.exactly_after(pair) if chance > 0.0}


@dataclass(frozen=True)
class TrigramWeights:
    """Weights of trigrams.

    Attributes:
        after: ``after[a, b][c]`` is the weight of c after a, b.
    """

    after: dict[Pair, dict[int, float]] = field(default_factory=dict[Pair, dict[int, float]])

    @staticmethod
    def of_corpus(corpus: Iterable[Sequence[int]], top: int = 12) -> TrigramWeights:
        """Relative frequencies in some token sequences.

        Args:
            corpus: The sequences.
            top: How many followers of each pair stay, the most frequent ones. Default 12.

        Returns:
            The table.
        """
        counts: dict[Pair, dict[int, float]] = {}
        for text in corpus:
            for a, b, c in zip(text, text[1:], text[2:]):
                row = counts.setdefault((a, b), {})
                row[c] = row.get(c, 0.0) + 1.0
        return TrigramWeights(
            {
                key: {c: n / sum(row.values()) for c, n in sorted(row.items(), key=_best)[:top]}
                for key, row in counts.items()
            }
        )

    def follower_weights(self, pair: Pair) -> dict[int, float]:
        return self.after.get(pair, {})


def _best(item: tuple[int, float]) -> tuple[float, int]:
    return -item[1], item[0]


def _last_two(tokens: Sequence[int]) -> Pair:
    return tokens[-2], tokens[-1]


@dataclass(frozen=True)
class TrigramDrafter:
    """Search continuations of the last two tokens by PUCT over trigram weights.

    The most visited ones, each with its likeliest next token, are the tree. A search goes down to
    the child with the largest S / N + (c1 + ln((N' + c2 + 1) / c2)) P sqrt(N') / (1 + N), unvisited
    ones first (the likelier one, then the lower id on a tie), adds the children of a new node, goes
    on by drawing tokens by their weights to the full length, and adds 1 + the sum of the weights on
    its way to S of all nodes that it passed (visits N, parent's visits N', c1 = 32, c2 = 8). With 0
    iterations the likeliest nodes are taken instead, best first.

    Weights move with the output: each trigram of the last `window` tokens (0: each that is new)
    gains `rate`, up to `cap`, after the others of its pair were multiplied by `decay`. rate 0 turns
    that off.

    Attributes:
        iterations: Searches a pass, 0 to 1,024 (published: 150). Default 32.
        length: Tokens that are searched, 1 to 16. Default 3.
        sentences: Most sequences that become the tree, 1 to 256. Default 24.
        top: Followers of a pair that are looked at, 1 to 64. Default 12.
        rate: What a trigram of the output gains, 0 to 1. Default 0.04.
        cap: Largest weight, above 0. Default 3.
        window: How far back trigrams gain at each pass, in tokens, 0 (ours) or 3 to 1,024
            (published: 16). Default 0.
        decay: Factor of the other weights of a pair, above 0 to 1. Default 1.
        longest_first: Whether the longest sentences are left out where the budget is short (as
            published), in place of the least visited. Default: not.
        prompt: Whether the prompt's own frequencies stand in for what the table lacks. Default:
            they do.
        table: What follows two tokens in a corpus; not written to.

    Exact: law, under any exact verifier: candidates are certain, whatever the search drew.
    Reduces to: `nothing` where no pair comes back.
    Source: ADED, "Adaptive draft-verification for efficient large language model decoding" (2024).
    Its published code looks a path's weights up one token off and takes the last child; here they
    are as described.
    """

    iterations: int = 32
    length: int = 3
    sentences: int = 24
    top: int = 12
    rate: float = 0.04
    cap: float = 3.0
    window: int = 0
    decay: float = 1.0
    longest_first: bool = False
    prompt: bool = True
    table: TrigramFollowers = field(default_factory=TrigramWeights)

    def __post_init__(self) -> None:
        for name, low, high in (
            ("iterations", 0, 1024),
            ("length", 1, 16),
            ("sentences", 1, 256),
            ("top", 1, 64),
            ("rate", 0, 1),
            ("window", 0, 1024),
        ):
            if not low <= getattr(self, name) <= high:
                raise RequestError(
                    f"{name} is {getattr(self, name)}: it must lie in {low} to {high}"
                )
        # A shorter window holds no trigram: nothing would ever gain.
        if self.window in (1, 2):
            raise RequestError(f"window is {self.window}: it must be 0 or lie in 3 to 1024")
        # Fields of something that is switched off are refused, not ignored.
        if self.rate == 0.0 and (self.window, self.decay) != (0, 1.0):
            raise RequestError(
                "rate is 0: nothing adapts then, so window and decay must be left out"
            )
        if not self.cap > 0.0:
            raise RequestError(f"cap is {self.cap}: it must be above 0")
        if not 0.0 < self.decay <= 1.0:
            raise RequestError(f"decay is {self.decay}: it must be above 0 and at most 1")

    def open_guess(self, prompt: Sequence[int], session: Session) -> TrigramGuess:
        """Begin a sequence.

        Args:
            prompt: Token ids of the prompt. The last one is the first root.
            session: Not used.

        Returns:
            The guess, with the prompt's own frequencies where the table has none.
        """
        if self.prompt:
            own = TrigramWeights.of_corpus([prompt], self.top).after
        else:
            own = {}
        return TrigramGuess(
            self,
            {k: row for k, row in own.items() if not self.table.follower_weights(k)},
            list(prompt),
        )


class TrigramSearchNode:
    """A token of the search.

    Attributes:
        pair: The last two tokens at this node.
        token: The second of them.
        weight: Its weight after the pair before.
        visits: How many searches passed it.
        score: Sum of their scores.
        kids: Its children. None: not yet made.
    """

    __slots__ = ("kids", "pair", "score", "token", "visits", "weight")

    def __init__(self, pair: Pair, weight: float) -> None:
        self.pair = pair
        self.token = pair[1]
        self.weight = weight
        self.visits = 0
        self.score = 0.0
        self.kids: list[TrigramSearchNode] | None = None

    def choose_child(self) -> TrigramSearchNode:
        """The child to visit next: an unvisited one, else the best by PUCT."""
        # Each visit but the first opened a child, the likeliest first: with more visits than
        # children none is unvisited.
        if self.visits <= len(self.kids or ()):
            fresh = next((k for k in self.kids or () if not k.visits), None)
            if fresh is not None:
                return fresh
        # PUCT: mean score plus a bonus for weight, which shrinks with the child's visits.
        wide = (C1 + log((self.visits + C2 + 1.0) / C2)) * sqrt(self.visits)
        return max(
            self.kids or (),
            key=lambda k: (k.score / k.visits + wide * k.weight / (1 + k.visits), -k.token),
        )

    def visited_below(self, tokens: tuple[int, ...] = ()) -> Iterator[Sentence]:
        """(visits, tokens) of all visited nodes below this one."""
        for kid in self.kids or ():
            if kid.visits:
                yield kid.visits, (*tokens, kid.token)
                yield from kid.visited_below((*tokens, kid.token))


@dataclass(frozen=True)
class TrigramGuess(DraftGuess):
    """The drafter at work on one sequence.

    Attributes:
        config: The configuration.
        own: Rows that differ from the given table's.
        text: Token ids so far, the pending root included.
    """

    config: TrigramDrafter
    own: dict[Pair, dict[int, float]]
    text: list[int]

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(law=RowDetail.NOTHING)

    def follower_weights(self, pair: Pair) -> dict[int, float]:
        """The weights after a pair: the adapted ones where there are any, else the table's."""
        row = self.own.get(pair)
        if row is None:
            return self.config.table.follower_weights(pair)
        return row

    def likeliest_followers(self, pair: Pair) -> list[tuple[int, float]]:
        """(token, weight), best first."""
        return sorted(self.follower_weights(pair).items(), key=_best)[: self.config.top]

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        """Search, and make a tree of the most visited sequences.

        Args:
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Random stream of the text. Search i draws at ``rng.child_stream("draft", position).child_stream(i)``.

        Returns:
            The tree. The root alone where the last two tokens are not known.
        """
        if len(self.text) < 2 or min(budget.depth, budget.nodes) < 1:
            return Draft.chain_draft(root)
        start = _last_two(self.text)
        if not self.follower_weights(start):
            return Draft.chain_draft(root)
        if not self.config.iterations:
            return self._best_first(start, budget)
        kept = self._search(start, rng.child_stream("draft", position))
        # Shorter sequences fill the tree first, as published, whatever their visits.
        if self.config.longest_first:
            kept = sorted(kept, key=lambda s: (len(s[1]), -s[0], s[1]))
        return self._tree(start, [tokens[: budget.depth] for _, tokens in kept], budget.nodes)

    def _search(self, start: Pair, rng: Rng) -> list[Sentence]:
        """The most visited sentences, each with its likeliest next token."""
        top = TrigramSearchNode(start, 0.0)
        for i in range(self.config.iterations):
            way = [top]
            node = top
            # Selection: down to a node that was not expanded, or to the full length.
            while node.kids and len(way) <= self.config.length:
                node = node.choose_child()
                way.append(node)
            # Expansion: the new node gets its children, and the likeliest of them is visited.
            if node.kids is None and len(way) <= self.config.length:
                node.kids = [
                    TrigramSearchNode((node.token, c), w)
                    for c, w in self.likeliest_followers(node.pair)
                ]
                if node.kids:
                    node = node.kids[0]
                    way.append(node)
            # Simulation to the full length, then the score goes to all nodes on the way.
            score = (
                1.0
                + sum(n.weight for n in way[1:])
                + self._roll(node.pair, self.config.length + 1 - len(way), rng.child_stream(i))
            )
            for n in way:
                n.visits += 1
                n.score += score
        # Every visited node is a sequence; the shorter one comes first on a tie.
        best = sorted(top.visited_below(), key=lambda s: (-s[0], len(s[1]), s[1]))[
            : self.config.sentences
        ]
        return [
            (
                n,
                (
                    *tokens,
                    *[c for c, _ in self.likeliest_followers(_last_two((*start, *tokens)))[:1]],
                ),
            )
            for n, tokens in best
        ]

    def _roll(self, pair: Pair, steps: int, rng: Rng) -> float:
        """The sum of the weights on a random path of so many steps.

        One uniform serves all steps: what a draw leaves of it is uniform again.
        """
        out = 0.0
        u = rng.draw_uniform() if steps else 0.0
        for _ in range(steps):
            row = self.likeliest_followers(pair)
            total = sum(w for _, w in row)
            if not total > 0.0:
                break
            # Inverse of the cumulated weights: `left` is the rest of the uniform inside the token
            # that was hit.
            left = u * total
            at = 0
            while at + 1 < len(row) and left >= row[at][1]:
                left -= row[at][1]
                at += 1
            token, weight = row[at]
            out = out + weight
            # Below 1 whatever rounding made of it.
            u = min(left / weight, 1.0 - 2.0**-53)
            pair = (pair[1], token)
        return out

    def _tree(self, start: Pair, sentences: Sequence[tuple[int, ...]], most: int) -> Draft:
        """A trie of the sequences, as many as fit, with the relative weights as chances."""
        tree = TreeBuilder(start[1])
        for tokens in sentences:
            node = 0
            context = start
            for x in tokens:
                if x not in tree.children[node] and len(tree) > most:
                    break
                row = self.follower_weights(context)
                node = tree.find_or_add(node, x, min(row[x] / sum(row.values()), 1.0))
                context = (context[1], x)
        return tree.built_draft()

    def _best_first(self, start: Pair, budget: DraftBudget) -> Draft:
        """The tree of the nodes with the largest products of relative weights."""
        heap: list[tuple[float, tuple[int, ...]]] = [(-1.0, ())]
        paths: list[tuple[int, ...]] = []
        while heap and len(paths) <= budget.nodes:
            value, tokens = heappop(heap)
            paths.append(tokens)
            # As deep as the sequences of a search, which have one token more than are searched.
            if len(tokens) <= self.config.length and len(tokens) < budget.depth:
                pair = _last_two((*start, *tokens))
                total = sum(self.follower_weights(pair).values())
                for c, w in self.likeliest_followers(pair):
                    heappush(heap, (value * w / total, (*tokens, c)))
        return self._tree(start, paths[1:], budget.nodes)

    def learn_round(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        """Append what was written, and raise the weights of its trigrams.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            verdict: The accepted nodes and the token that follows them.
        """
        new = verdict.written_tokens(draft)
        self.text.extend(new)
        if self.config.rate:
            # New trigrams alone, which begin two tokens before the new ones, or all of the window.
            first = max(len(self.text) - (self.config.window or len(new) + 2), 0)
            for a, b, c in zip(self.text[first:], self.text[first + 1 :], self.text[first + 2 :]):
                self._gain((a, b), c)

    def _gain(self, pair: Pair, token: int) -> None:
        """Raise the weight of one trigram after its rivals have faded."""
        row = self.own.get(pair)
        if row is None:
            # Copied on the first write: the table is shared by requests.
            row = self.own[pair] = dict(self.config.table.follower_weights(pair))
        if self.config.decay < 1.0:
            for c in row:
                row[c] *= self.config.decay
        row[token] = min(row.get(token, 0.0) + self.config.rate, self.config.cap)

    def fork_guess(self, session: Session, choice: int | None = None) -> TrigramGuess:
        """A guess with its own copy of the adapted weights.

        Args:
            session: Fork of the target's session, for the copy to read.
            choice: Index of the choice that the copy drafts for. None: the same choice as before.

        Returns:
            The copy.
        """
        return TrigramGuess(
            self.config, {k: dict(row) for k, row in self.own.items()}, list(self.text)
        )

    def close(self) -> None:
        pass

"""Early exit whose depth and length are chosen each round.

They follow from what every exit would have predicted rightly so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import exp

from polydec.base.errors import RequestError
from polydec.core.protocols import DraftScores, Session
from polydec.core.rng import Rng
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.methods.speculative.loop.protocols import DraftGuess, TreeGrower
from polydec.methods.speculative.loop.types import DraftBudget, Verdict


@dataclass(frozen=True)
class DynamicExitDrafter:
    """Draw a chain from the early exit that promises most tokens for each layer that runs.

    The length of the chain is chosen likewise. For every position whose text was right, the
    likeliest token at each exit (the depths every, 2 every, … below `layers`) is compared with the
    target's; hits and misses are discounted by omega each round. Exit l with hit rate a is expected
    to give e(g) = 1 + a e(g - 1) tokens for g drafts, at the cost of layers + g l + (g + 1) head.
    Ties go to the shallower exit, then to the shorter draft. A chain also stops below a token that
    its exit gave less than half the sum of the mean probabilities of its hits and of its misses.

    Attributes:
        tree: How the chain is drawn.
        layers: Layers of the target.
        every: Distance of the exits in layers, 1 to layers - 1, unless the target has one.
        depth: Longest draft, 0 to 64. Default 18.
        omega: Discount of earlier rounds, 0 to 1. Default 0.95.
        prompt: Last positions of the prompt that are counted before the first round, 0 (its states
            are not read) to 4096. Default 32.
        head: What the head costs, in layers, 0 or more. Default 1.
        by_length: Whether the length is the best one; else it is `depth`. Default: it is.
        by_confidence: Whether a chain stops below an unsure token as said. Default: it does.

    Exact: law, under any exact verifier: exit and length follow from earlier rounds, the stop from
    what was drawn.
    Reduces to: `nothing` while no exit promises more than a plain pass; `part` of one exit with
    every = layers - 1.
    Source: Entezari Zarch et al., "DEL: context-aware dynamic exit layer for efficient
    self-speculative decoding" (2025); the head's cost is our addition, their rule has head = 0.
    """

    tree: TreeGrower
    layers: int = 3
    every: int = 1
    depth: int = 18
    omega: float = 0.95
    prompt: int = 32
    head: float = 1.0
    by_length: bool = True
    by_confidence: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.every <= max(1, self.layers - 1):
            raise RequestError(
                f"every is {self.every}: it must lie in 1 to {max(1, self.layers - 1)}, the layers below the last"
            )
        if not 0 <= self.depth <= 64:
            raise RequestError(f"depth is {self.depth}: it must lie in 0 to 64")
        if not 0.0 <= self.omega <= 1.0:
            raise RequestError(f"omega is {self.omega}: it must lie in 0 to 1")
        if not 0 <= self.prompt <= 4096:
            raise RequestError(f"prompt is {self.prompt}: it must lie in 0 to 4096")
        if not self.head >= 0.0:
            raise RequestError(f"head is {self.head}: it must be at least 0")

    @property
    def exits(self) -> tuple[int, ...]:
        return tuple(range(self.every, self.layers, self.every))

    def open_guess(self, prompt: Sequence[int], session: Session) -> DynamicGuess:
        """Begin a sequence.

        Args:
            prompt: Token ids of the prompt. The last one is the first root.
            session: The target's session, some layers of which draft.

        Returns:
            The guess.
        """
        return DynamicGuess(self, session, {e: ExitHitCount() for e in self.exits})

    def best_exit(self, counts: dict[int, ExitHitCount]) -> tuple[int, int]:
        """(exit, length) that promise most tokens a layer; length 0: a plain pass."""
        # Tokens per layer of a plain pass, which an exit must exceed.
        best = 1.0 / (self.layers + self.head)
        choice = (self.exits[0], 0)
        for exit, count in counts.items():
            tokens = 1.0
            # An exit of which nothing was counted promises nothing.
            for length in range(1, self.depth + 1) if count.hits + count.misses else ():
                # e(g) = 1 + a e(g - 1): one token more with each drafted one that is right.
                tokens = 1.0 + count.rate * tokens
                value = tokens / (self.layers + length * exit + (length + 1) * self.head)
                if value > best:
                    best = value
                    choice = (exit, length)
        return choice


@dataclass(frozen=True)
class ExitHitCount:
    """Predictions of one exit, discounted.

    Attributes:
        hits: Right predictions.
        misses: Wrong predictions.
        hit_p: Sum of the probabilities of the right ones.
        miss_p: Sum of the probabilities of the wrong ones.
    """

    hits: float = 0.0
    misses: float = 0.0
    hit_p: float = 0.0
    miss_p: float = 0.0

    @property
    def rate(self) -> float:
        return self.hits / (self.hits + self.misses)

    @property
    def bar(self) -> float:
        """Below this probability a token is rather a miss; 0 while that cannot be said."""
        if self.hits and self.misses:
            return (self.hit_p / self.hits + self.miss_p / self.misses) / 2
        return 0.0

    def counts_after(self, omega: float, outcomes: Sequence[tuple[bool, float]]) -> ExitHitCount:
        """The counts after one more round.

        Args:
            omega: Discount of what was counted before, 0 to 1.
            outcomes: Of each position whether the prediction was right, and its probability.

        Returns:
            Another record.
        """
        right = [p for ok, p in outcomes if ok]
        wrong = [p for ok, p in outcomes if not ok]
        return ExitHitCount(
            omega * self.hits + len(right),
            omega * self.misses + len(wrong),
            omega * self.hit_p + sum(right),
            omega * self.miss_p + sum(wrong),
        )


@dataclass
class DynamicGuess(DraftGuess):
    """The drafter at work on one sequence.

    Attributes:
        config: The configuration.
        session: The decoder's own session, which the decoder commits.
        counts: Hits and misses of each exit.
        begun: Whether the prompt has been read.
    """

    config: DynamicExitDrafter
    session: Session
    counts: dict[int, ExitHitCount]
    begun: bool = False

    @property
    def want(self) -> ScoreRequest:
        config = self.config
        # The prompt has no verdict, so its truth is read from an exit after the last layer.
        if self.begun:
            exits = config.exits
        else:
            exits = (*config.exits, config.layers)
        return ScoreRequest(law=RowDetail.NOTHING, prompt=config.prompt > 0, exits=exits)

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        """Draw a chain from the best exit.

        Args:
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Random stream of the text.

        Returns:
            The chain. The root alone where a plain pass promises more.
        """
        config = self.config
        exits = self.config.exits
        known = any(c.hits + c.misses for c in self.counts.values())
        self.begun = True
        # Before anything is known the first exit drafts one token.
        if known and exits:
            exit, length = config.best_exit(self.counts)
        else:
            exit = 1
            length = min(1, config.depth, len(exits))
        if exits and not known:
            exit = exits[0]
        if known and length and not config.by_length:
            length = config.depth
        length = min(length, budget.depth, budget.nodes)
        if length < 1:
            return Draft.chain_draft(root)
        # Below the bar a token is rather a miss of this exit than a hit.
        if config.by_confidence:
            bar = self.counts[exit].bar
        else:
            bar = 0.0
        # The states of all shallower exits are read on the way, for the counts: verification goes
        # on from these layers and would not compute them again.
        part = ExitTapSession(
            self.session.open_part(range(exit)), tuple(e for e in exits if e <= exit)
        )
        return await config.tree.grow_tree(
            part,
            root,
            position,
            replace(
                budget,
                depth=length,
                nodes=length,
                graded=True,
                go_on=lambda depth, q: q >= bar and budget.go_on(depth, q),
            ),
            rng,
        )

    def learn_round(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        """Count what each exit would have predicted along the accepted path.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            verdict: The accepted nodes and the token that follows them.
        """
        nodes = (0, *verdict.path)
        if not self.begun:
            # Of the prompt the last positions alone are counted.
            nodes = nodes[-self.config.prompt :]
        # All exits are requested before one is looked at, so that their heads run together.
        shadows = {exit: scores.exit_laws(exit, nodes) for exit in self.counts}
        # Of the prompt no verdict is known: the last layer's likeliest token stands for the
        # target's.
        if not self.begun:
            truth = scores.exit_laws(self.config.layers, nodes)
            right = [truth.likeliest_token(k) for k in range(len(nodes))]
        else:
            right = [scores.likeliest_token(i) for i in nodes]
        for exit, count in self.counts.items():
            shadow = shadows[exit]
            tokens = [shadow.likeliest_token(k) for k in range(len(nodes))]
            outcomes = [
                (x == y, exp(shadow.base.token_logprobs(k, (x,))[0]))
                for k, (x, y) in enumerate(zip(tokens, right, strict=True))
            ]
            self.counts[exit] = count.counts_after(self.config.omega, outcomes)

    def fork_guess(self, session: Session, choice: int | None = None) -> DynamicGuess:
        """A guess with its own copy of the counts.

        Args:
            session: Fork of the target's session, for the copy to read.
            choice: Index of the choice that the copy drafts for. None: the same choice as before.

        Returns:
            The copy.
        """
        return DynamicGuess(self.config, session, dict(self.counts), self.begun)

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class ExitTapSession:
    """A session whose scores also have the states at some depths.

    Attributes:
        inner: The session.
        exits: Numbers of layers after which states are read.
    """

    inner: Session
    exits: tuple[int, ...] = field(default=())

    async def score_draft(self, draft: Draft, want: ScoreRequest) -> DraftScores:
        """Score a draft, with these states.

        Args:
            draft: Token tree whose nodes get a row, the root first.
            want: What the caller reads of the result.

        Returns:
            The session's scores.
        """
        return await self.inner.score_draft(draft, replace(want, exits=self.exits))

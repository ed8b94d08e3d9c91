"""Copy a block from where the last few tokens stood before in the conversation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polydec.base.errors import RequestError
from polydec.core.protocols import DraftScores, Session
from polydec.core.rng import Rng
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.methods.speculative.drafters._windows import TokenWindowIndex
from polydec.methods.speculative.loop.protocols import DraftGuess
from polydec.methods.speculative.loop.types import DraftBudget, Verdict

LENGTHS = (2, 3, 4, 5)
"""Match lengths that are tried where the length is chosen on the way."""
MATCH = 3
COST = 0.1
"""What counts where it is not said: tokens that must match, and the price of a drafted token."""
START = 0.5
"""The rate of a match length of which nothing is known."""
PACE = 0.1
"""The weight of the newest outcome in a rate."""


@dataclass(frozen=True)
class CopySpecDrafter:
    """If the last `gamma` tokens stood in the text before, propose the `block` tokens after them.

    The text is all of the conversation, prompt and output. With `adapt`, matches of 2, 3, 4 and 5
    tokens are tried: each has a rate, the running share of its matches that the next token
    confirmed, and the length of match and copy is taken that promises most tokens for its cost, (1
    + Σ rate^i) / (1 + cost · tokens); where that is below 1, nothing.

    Attributes:
        gamma: Tokens that must match, 1 to 16. None: 3, and with `adapt` it must be None.
        block: Most tokens of a copy, 0 to 64. Default 10.
        first: Whether to copy from the earliest occurrence, as published; else from the latest.
            Default: the earliest.
        adapt: Whether the lengths of match and copy are chosen on the way. Default: they are not.
        cost: Price of a drafted token, where a pass costs 1; 0 to 1. None: 0.1, and without `adapt`
            it must be None.

    Exact: law, under any exact verifier: candidates are certain.
    Reduces to: `lookup` with one length and no loop; `nothing` with block 0.
    Source: Dumitru et al., "CopySpec: accelerating LLMs with speculative copy-and-paste without
    compromising quality" (2025); the choice of the length on the way is ours.
    """

    gamma: int | None = None
    block: int = 10
    first: bool = True
    adapt: bool = False
    cost: float | None = None

    def __post_init__(self) -> None:
        if self.gamma is not None and self.adapt:
            raise RequestError(
                f"adapt is true: it chooses how many tokens must match, so gamma ({self.gamma}) must be left out"
            )
        if self.cost is not None and not self.adapt:
            raise RequestError(
                f"adapt is false: cost ({self.cost}) belongs to it and must be left out"
            )
        if self.gamma is not None and not 1 <= self.gamma <= 16:
            raise RequestError(f"gamma is {self.gamma}: it must lie in 1 to 16")
        if not 0 <= self.block <= 64:
            raise RequestError(f"block is {self.block}: it must lie in 0 to 64")
        if self.cost is not None and not 0.0 <= self.cost <= 1.0:
            raise RequestError(f"cost is {self.cost}: it must lie in 0 to 1")

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of matches that are looked for, in tokens."""
        if self.adapt:
            return LENGTHS
        return (MATCH if self.gamma is None else self.gamma,)

    def open_guess(self, prompt: Sequence[int], session: Session) -> CopyingGuess:
        """Begin a sequence.

        Args:
            prompt: Token ids of the prompt. The last one is the first root.
            session: Not used.

        Returns:
            The guess, which has read the prompt.
        """
        windows = TokenWindowIndex(self.lengths, self.first)
        windows.extend_by_tokens(prompt)
        return CopyingGuess(self, windows, dict.fromkeys(self.lengths, START))


@dataclass(frozen=True)
class CopyingGuess(DraftGuess):
    """The drafter at work on one sequence.

    Attributes:
        config: The configuration.
        windows: The text so far, the pending root included, and where its windows stood.
        rate: By match length, how often the token that followed came again.
    """

    config: CopySpecDrafter
    windows: TokenWindowIndex
    rate: dict[int, float]

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(law=RowDetail.NOTHING)

    def _choose(self, matches: dict[int, int], most: int) -> tuple[int, int]:
        """(match length, tokens of the copy) that promise most for their cost; (0, 0) for none."""
        best = 1.0
        choice = (0, 0)
        if self.config.cost is None:
            price = COST
        else:
            price = self.config.cost
        # expected = 1 + rate + rate² + …: the copy is accepted up to its first wrong token, and the
        # pass gives one token anyway.
        for n, start in matches.items():
            expected = power = 1.0
            for tokens in range(1, min(most, len(self.windows.text) - start) + 1):
                power *= self.rate[n]
                expected += power
                worth = expected / (1.0 + price * tokens)
                if worth > best:
                    best = worth
                    choice = (n, tokens)
        return choice

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        """Copy what followed the match.

        Args:
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Not used: candidates are certain.

        Returns:
            The chain. The root alone where nothing matches.
        """
        matches = dict(self.windows.window_matches())
        most = min(self.config.block, budget.depth, budget.nodes)
        if not matches:
            return Draft.chain_draft(root)
        # By the choice of the length, or as published: one match length and a fixed block.
        if self.config.adapt:
            n, tokens = self._choose(matches, most)
        else:
            n = self.config.lengths[0]
            tokens = most
        if not tokens:
            return Draft.chain_draft(root)
        copied = self.windows.text[matches[n] : matches[n] + tokens]
        # Each copied token is as sure as matches of this length have been.
        return Draft.certain_tree(
            (root, *copied), range(-1, len(copied)), (1.0, *[self.rate[n]] * len(copied))
        )

    def learn_round(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        """Append what was written, and update the rates of the matches on the way.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            verdict: The accepted nodes and the token that follows them.
        """
        for x in verdict.written_tokens(draft):
            # Every match is judged at every token, whether it was copied or not.
            for n, start in self.windows.window_matches():
                self.rate[n] += PACE * ((self.windows.text[start] == x) - self.rate[n])
            self.windows.extend_by_tokens((x,))

    def fork_guess(self, session: Session, choice: int | None = None) -> CopyingGuess:
        """A guess with its own copy of the text.

        Args:
            session: Fork of the target's session, for the copy to read.
            choice: Index of the choice that the copy drafts for. None: the same choice as before.

        Returns:
            The copy.
        """
        return CopyingGuess(self.config, self.windows.fork(), dict(self.rate))

    def close(self) -> None:
        pass

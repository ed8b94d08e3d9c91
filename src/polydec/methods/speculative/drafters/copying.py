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
    """If the last `gamma` tokens stood in the text before, propose the `block` tokens that followed them.

    The text is the whole conversation, prompt and output. With `adapt`, matches of 2, 3, 4 and 5 tokens are tried: each
    has a rate, the running share of its matches that the next token confirmed, and the length of match and copy is taken
    that promises most tokens for its cost, (1 + Σ rate^i) / (1 + cost · tokens); where that is below 1, nothing.

    gamma: 1 to 16, None: 3, and with `adapt` it must be None; block: 0 to 64; first: copy from the earliest occurrence, as
    published, else from the latest; cost: 0 to 1, the price of a drafted token beside that of a pass, None: 0.1, and without
    `adapt` it must be None.

    Exact: law, under any exact verifier: candidates are certain.
    Reduces to: `lookup` with one length and no loop; `nothing` with block 0.
    Source: Dumitru et al., "CopySpec: accelerating LLMs with speculative copy-and-paste without compromising quality"
    (2025); the choice of the length on the way is ours.
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
        """Of matches that are looked for."""
        if self.adapt:
            return LENGTHS
        return (MATCH if self.gamma is None else self.gamma,)

    def open(self, prompt: Sequence[int], session: Session) -> CopyingGuess:
        windows = TokenWindowIndex(self.lengths, self.first)
        windows.extend(prompt)
        return CopyingGuess(self, windows, dict.fromkeys(self.lengths, START))


@dataclass(frozen=True)
class CopyingGuess(DraftGuess):
    """windows: everything so far, the pending root included; rate: by match length, how often the token there came."""

    config: CopySpecDrafter
    windows: TokenWindowIndex
    rate: dict[int, float]

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(law=RowDetail.NOTHING)

    def _choose(self, matches: dict[int, int], most: int) -> tuple[int, int]:
        """(match length, tokens) that promise most for their cost."""
        best = 1.0
        choice = (0, 0)
        if self.config.cost is None:
            price = COST
        else:
            price = self.config.cost
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

    async def propose(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        matches = dict(self.windows.matches())
        most = min(self.config.block, budget.depth, budget.nodes)
        if not matches:
            return Draft.chain(root)
        if self.config.adapt:
            n, tokens = self._choose(matches, most)
        else:
            n, tokens = (self.config.lengths[0], most)
        if not tokens:
            return Draft.chain(root)
        copied = self.windows.text[matches[n] : matches[n] + tokens]
        return Draft.certain(
            (root, *copied), range(-1, len(copied)), (1.0, *[self.rate[n]] * len(copied))
        )

    def learn(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        for x in verdict.tokens(draft):
            for n, start in self.windows.matches():
                self.rate[n] += PACE * ((self.windows.text[start] == x) - self.rate[n])
            self.windows.extend((x,))

    def fork(self, session: Session, choice: int | None = None) -> CopyingGuess:
        return CopyingGuess(self.config, self.windows.fork(), dict(self.rate))

    def close(self) -> None:
        pass

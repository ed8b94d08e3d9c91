"""A masked-diffusion model drafts.

One pass fills all gaps after the text, and a path through the laws of the gaps is the draft.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import log

from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.canvas_law import Denoiser
from polydec.core.law import normalise_log_weights
from polydec.core.protocols import DraftScores, Session
from polydec.core.rng import Rng
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.methods.speculative.loop.protocols import DraftGuess
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.models.learned.kinds.ngrams import NGrams

BACK_OFF = 0.4
"""What a shorter context's share counts where the longer one has not seen the token."""

Level = Sequence[tuple[int, float]]
"""The candidates of one gap, likeliest first: token and log-probability."""


@dataclass(frozen=True)
class DiffusionDrafter:
    """Fill gaps after the text in one pass, and search a coherent path through their laws.

    It puts as many gaps after the text as the budget allows and lets the model look at them once.
    Of each gap's law the likeliest tokens stay; a beam goes through them from the left, and the
    path of the highest mean score is the draft. A token's score is weight * log p(token | gap) + (1
    - weight) * log q(token | the two tokens before it), where q counts what followed these in the
    text so far, and backs off where it saw nothing. A path ends after an EOS.

    Where the text is longer than the denoiser's context its end is read. A block-causal denoiser
    drafts to the end of a block.

    Attributes:
        denoiser: A masked-diffusion model of the target's vocabulary.
        weight: Weight of the gap's own law, 0 to 1. Default 0.5.
        mass: Of a law's likeliest tokens as few stay as have this probability together, 0 to 1.
            Default 0.8.
        top: Most tokens of a law that stay, at least 1 (an EOS stays in any case). Default 15.
        beam: Paths of the beam, at least 1. Default 3.
        corpus: A table of what follows tokens in some text. None: q is counted in the text so far
            alone.
        known: What the corpus counts in q, 0 to 1; the text so far counts the rest. Default 0.
        ends: Whether a draft says how many of the gaps' likeliest tokens stand before the first end
            (`Draft.natural`), whatever path is taken.

    Exact: law, under any exact verifier: the path is certain, whatever it was chosen for.
    Reduces to: the likeliest token of each gap for weight = 1 and top = 1; `nothing` for a budget
    of 0.
    Source: DiffuSpec (2025), causal-consistency path search. There q is a 3-gram model of a corpus
    alone, and scores are added up.
    """

    denoiser: Denoiser
    weight: float = 0.5
    mass: float = 0.8
    top: int = 15
    beam: int = 3
    corpus: NGrams | None = None
    known: float = 0.0
    ends: bool = False

    def __post_init__(self) -> None:
        for name in ("weight", "mass", "known"):
            if not 0 <= getattr(self, name) <= 1:
                raise RequestError(f"{name} is {getattr(self, name)}: it must lie in 0 to 1")
        for name in ("top", "beam"):
            if getattr(self, name) < 1:
                raise RequestError(f"{name} is {getattr(self, name)}: it must be at least 1")

    def open_guess(self, prompt: Sequence[int], session: Session) -> DiffusionGuess:
        """Begin a sequence.

        Args:
            prompt: Token ids of the prompt. The last one is the first root.
            session: Not used.

        Returns:
            The guess, which has counted the prompt's n-grams.
        """
        guess = DiffusionGuess(self)
        guess.read_tokens(prompt)
        return guess

    def gap_candidates(self, logp_RV: Tensor) -> list[Level]:
        """The candidates of each gap, from log-probabilities of shape ``[gaps, V]``."""
        ends = self.denoiser.vocab.eos
        out = list[Level]()
        for row_V in logp_RV:
            logp_V, token_V = row_V.sort(descending=True, stable=True)
            # As many tokens as have less than `mass` together, and one more.
            count = min(self.top, int((logp_V.exp().cumsum(0) < self.mass).sum()) + 1)
            kept = dict(zip(token_V[:count].tolist(), logp_V[:count].tolist(), strict=True))
            # Ends of the text are candidates in any case: else no path could end.
            last = [
                (x, logp)
                for x in sorted(ends - kept.keys())
                if (logp := float(row_V[x])) > float("-inf")
            ]
            out.append([*kept.items(), *sorted(last, key=lambda candidate: -candidate[1])])
        return out

    def best_path(
        self, levels: Sequence[Level], before: Sequence[int], seen: Counter[tuple[int, ...]]
    ) -> tuple[int, ...]:
        """Search the best path through the candidates by a beam from the left.

        Args:
            levels: Candidates of each gap, likeliest first: token and log-probability.
            before: The text's last tokens, of which two count.
            seen: How often each sequence of up to three tokens stood in the text.

        Returns:
            Token ids of the path with the highest mean score.
        """
        ends = self.denoiser.vocab.eos
        paths = [(0.0, tuple[int, ...]())]
        for level in levels:
            longer = list[tuple[float, tuple[int, ...]]]()
            for total, path in paths:
                # A path that has ended competes with the longer ones by its mean score.
                if path and path[-1] in ends:
                    longer.append((total, path))
                    continue
                context = (*before, *path)[-2:]
                longer += [
                    (total + self._score(x, logp, context, seen), (*path, x)) for x, logp in level
                ]
            paths = sorted(
                longer,
                key=lambda longer_path: (-longer_path[0] / len(longer_path[1]), longer_path[1]),
            )[: self.beam]
        return paths[0][1]

    def _score(
        self, token: int, logp: float, context: tuple[int, ...], seen: Counter[tuple[int, ...]]
    ) -> float:
        """The weighted score of a token: the gap's law, and what followed its context before."""
        share = self._share(token, context, seen)
        if self.corpus is not None:
            share += self.known * (self._follows(self.corpus, token, context) - share)
        return self.weight * logp + (1 - self.weight) * log(share)

    def _follows(self, corpus: NGrams, token: int, context: tuple[int, ...]) -> float:
        """The token's share after the context in the corpus, as `_share` has it of the text."""
        levels = corpus.followers_by_level(context)
        scale = BACK_OFF ** len(context)
        # The longest context of the corpus that knows the token counts; each token that it is
        # shorter costs a factor.
        for n, row in reversed(list(enumerate(levels, 1))):
            for chance, follower in row:
                if follower == token and chance:
                    return chance * BACK_OFF ** (len(context) - n)
        return scale / self.denoiser.vocab.size

    def before_end(self, logp_RV: Tensor) -> int:
        """How many of the gaps' likeliest tokens stand before the first end."""
        likeliest = [int(x) for x in logp_RV.argmax(-1)]
        ends = self.denoiser.vocab.eos
        return next((i for i, x in enumerate(likeliest) if x in ends), len(likeliest))

    def _share(self, token: int, context: tuple[int, ...], seen: Counter[tuple[int, ...]]) -> float:
        """How often the token followed the context, of all that did.

        Where it never did, its share after a shorter context counts, times BACK_OFF.
        """
        scale = 1.0
        while context:
            if count := seen[(*context, token)]:
                return scale * count / seen[context]
            context = context[1:]
            scale = scale * BACK_OFF
        # Without any context: counts with one added, so that no token has share 0.
        return scale * (seen[(token,)] + 1) / (seen[()] + self.denoiser.vocab.size)


@dataclass(frozen=True)
class DiffusionGuess(DraftGuess):
    """The drafter at work on one sequence.

    Attributes:
        config: The configuration.
        text: Token ids so far, the pending root included.
        seen: How often each sequence of up to three tokens stood in the text.
    """

    config: DiffusionDrafter
    text: list[int] = field(default_factory=list[int])
    seen: Counter[tuple[int, ...]] = field(default_factory=Counter[tuple[int, ...]])

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(law=RowDetail.NOTHING)

    def read_tokens(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text, and count the sequences that end with them."""
        for token in tokens:
            self.text.append(token)
            # The empty sequence counts the tokens in all.
            for n in range(4):
                if n <= len(self.text):
                    self.seen[tuple(self.text[len(self.text) - n :])] += 1

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        """Fill the gaps once and search the path.

        Args:
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Not used: the path is certain.

        Returns:
            The chain.
        """
        denoiser = self.config.denoiser
        most = min(budget.depth, budget.nodes, denoiser.context - 1)
        if most < 1:
            return Draft.chain_draft(root)
        # The end of the text that fits the denoiser's context together with the gaps.
        known = self.text[-(denoiser.context - most) :]
        if not denoiser.block:
            room = most
        else:
            # A block-causal denoiser sees gaps to the end of the current block, or those of the
            # next one.
            room = min(most, -len(known) % denoiser.block or denoiser.block)
        canvas = (*known, *(None,) * room)
        # One pass over text and gaps, with nothing left for the next round: the text sees other
        # gaps then.
        board = denoiser.open_canvas(len(canvas), len(known))
        try:
            logw_RV = await board.score_canvas(
                canvas, range(len(known), len(canvas)), range(len(canvas))
            )
        finally:
            board.close()
        config = self.config
        logp_RV = normalise_log_weights(logw_RV)
        path = config.best_path(config.gap_candidates(logp_RV), self.text[-2:], self.seen)
        # For a policy that adapts the length; the path itself may be shorter or longer.
        if config.ends:
            natural = config.before_end(logp_RV)
        else:
            natural = None
        return replace(Draft.chain_draft(root, path), natural=natural)

    def learn_round(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        """Append what was written.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            verdict: The accepted nodes and the token that follows them.
        """
        self.read_tokens(verdict.written_tokens(draft))

    def fork_guess(self, session: Session, choice: int | None = None) -> DiffusionGuess:
        """A guess with its own copy of the text and its counts.

        Args:
            session: Fork of the target's session, for the copy to read.
            choice: Index of the choice that the copy drafts for. None: the same choice as before.

        Returns:
            The copy.
        """
        return DiffusionGuess(self.config, list(self.text), Counter(self.seen))

    def close(self) -> None:
        pass

"""Sequential Monte Carlo over texts of a language."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from polydec.base.errors import RequestError
from polydec.core.decoder import Streams
from polydec.core.effects import gather_coroutines
from polydec.core.law import NEG_INF, float64_probabilities
from polydec.core.protocols import DraftScores, Target
from polydec.core.request import Request, Result
from polydec.core.rng import Rng
from polydec.core.transcript import AnswerText, Transcript, common_prefix_tokens, logprobs_at_nodes
from polydec.core.types import Exactness, TextEdit, TokenVocabulary
from polydec.laws.constraints.everything import UnrestrictedLanguage
from polydec.laws.constraints.protocols import TokenLanguage
from polydec.methods.search.loop.branches import BranchTree
from polydec.methods.search.loop.rejection import (
    RejectionDraw,
    draw_by_geometric_rejection,
    draw_by_recursive_rejection,
)


@dataclass(frozen=True)
class TextParticle:
    """A text that stands for a share of the law.

    Attributes:
        text: The text so far.
        logw: Logarithm of its weight.
        state: State of the language after it.
        node: Branch that it continues.
    """

    text: AnswerText
    logw: float
    state: Any
    node: int

    @property
    def live(self) -> bool:
        return self.logw > NEG_INF and self.text.finish_reason is None


@dataclass(frozen=True)
class ParticleSearch:
    """Draws from the target's law of texts, given that they belong to `language`.

    Each particle draws its next token by adaptive weighted rejection sampling (`rejection.py`) and
    multiplies its weight by the weight of that draw. Where the effective sample size falls below
    `threshold` × `particles`, particles are drawn anew by their weights, which are equal then. The
    answer is one particle, drawn by its weight. A text that has no room left is cut, and stands for
    all texts that it begins.

    Attributes:
        target: Model that is sampled from.
        language: Texts that are allowed. None: all.
        particles: Number of particles, at least 1.
        threshold: Share of the particles, 0 to 1, below which the effective sample size calls for
            resampling; 0: never.
        accepts: Accepted draws of the geometric estimator, at least 2.
        certain: Probability, 0 to 1. The recursive estimator is used where no token is likelier
            than this, and `accepts` is 2.
        looks: Tokens that are looked at one by one, at least 1. Where they are rejected, all tokens
            are looked at by one mask, which changes no expectation.

    Exact: approximate. Weights and the estimate of the normaliser (the share of the law that is
    allowed) are unbiased; the law of the answer tends to the exact one as particles grow.
    Reduces to: plain sampling where everything is allowed; importance sampling at threshold 0; the
    mask, with one particle.
    Source: Lipkin et al., "Fast controlled generation from language models with adaptive weighted
    rejection sampling" (2025).
    """

    target: Target
    language: TokenLanguage[Any] | None = None
    particles: int = 8
    threshold: float = 0.5
    accepts: int = 2
    certain: float = 2 / 3
    looks: int = 32
    exactness = Exactness.APPROXIMATE

    @property
    def vocab(self) -> TokenVocabulary:
        return self.target.vocab

    async def write_choices(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        """Run particles of its own for every choice.

        Args:
            request: What is asked: prompt token ids, number of answers, limits.
            rng: Random stream of each choice, by the choice's number.
            into: Record of the request, which gets the tokens, the statistics and the trace events.

        Returns:
            One result for each choice of the request, in order.

        Raises:
            RequestError: The constraint leaves no token that the law gives weight.
        """
        answers = [into.open_answer(choice) for choice in request.choices]
        trees = list[BranchTree]()
        try:
            # Opened before any is written, so that all particles' first passes are shared.
            for _ in answers:
                trees.append(
                    await BranchTree.open_tree(
                        self.target, request.prompt, base=request.base_detail
                    )
                )
            return await gather_coroutines(
                *(
                    self._write(tree, answer, rng(answer.choice or 0), into)
                    for tree, answer in zip(trees, answers, strict=True)
                )
            )
        finally:
            for tree in trees:
                tree.close()

    async def _write(
        self, tree: BranchTree, answer: AnswerText, rng: Rng, into: Transcript
    ) -> Result:
        if self.language is None:
            language = UnrestrictedLanguage(self.vocab.size)
        else:
            language = self.language
        particles = [
            TextParticle(into.open_hypothesis(), 0.0, language.start_state(), 0)
            for _ in range(self.particles)
        ]
        passes = first = checks = masks = 0
        while any(p.live for p in particles):
            scores = await tree.score_texts()
            step = rng.child_stream("step", passes)
            # Propose and weigh: every live particle draws one token.
            moved = [
                self._move(p, language, scores, step.child_stream("particle", i), into.request)
                for i, p in enumerate(particles)
            ]
            checks += sum(drawn.checks for _, drawn in moved)
            masks += sum(drawn.masked for _, drawn in moved)
            # Resample where few particles carry the weight; then the branches that are left are
            # kept.
            particles = self._again([p for p, _ in moved], step.child_stream("again"))
            nodes = iter(
                tree.extend_by_one([(p.node, p.text.tokens[-1]) for p in particles if p.live])
            )
            particles = [replace(p, node=next(nodes)) if p.live else p for p in particles]
            passes += 1
            # What all particles with weight begin with is certain.
            sure = len(common_prefix_tokens(p.text for p in particles if p.logw > NEG_INF))
            first = sure if passes == 1 else first
            self._settle(answer, particles, sure, passes == 1)
        # The answer is one particle, drawn by its weight.
        weights = _shares(particles)
        answer.follow_text(
            particles[
                rng.child_stream("pick").draw_categorical(
                    torch.tensor(weights, dtype=torch.float64)
                )
            ].text
        )
        system = ParticleSystem(tuple(weights), _log_mean(particles), checks, masks)
        return answer.finished_answer(ParticleStats(passes, first, (system,)))

    def _move(
        self,
        p: TextParticle,
        language: TokenLanguage[Any],
        scores: DraftScores,
        rng: Rng,
        request: Request,
    ) -> tuple[TextParticle, RejectionDraw]:
        """The particle with one token more, and how that was drawn."""
        if not p.live:
            return p, RejectionDraw(None, 0.0, 0)
        drawn = self._draw(float64_probabilities(scores.logprob_row(p.node)), p, language, rng)
        # No allowed token: the particle is dead, which counts as weight 0 in the estimate.
        if drawn.token is None or not drawn.weight:
            return replace(p, logw=NEG_INF), drawn
        text = p.text.fork()
        token = (drawn.token,)
        text.write_tokens(token, logprobs_at_nodes(scores, (p.node,), token, request.logprobs))
        return TextParticle(
            text, p.logw + math.log(drawn.weight), language.next_state(p.state, drawn.token), p.node
        ), drawn

    def _draw(
        self, p_V: torch.Tensor, p: TextParticle, language: TokenLanguage[Any], rng: Rng
    ) -> RejectionDraw:
        def allows_token(token: int) -> bool:
            """Return whether the language allows a token here."""
            return language.allows_token(p.state, token)

        def token_mask() -> torch.Tensor:
            """Return which tokens the language allows here, shape ``[V]``."""
            return language.token_mask(p.state).to(p_V.device)

        # The recursive estimator saves looks where no token dominates.
        if self.accepts == 2 and float(p_V.max()) <= self.certain:
            return draw_by_recursive_rejection(p_V, allows_token, token_mask, rng, self.looks)
        return draw_by_geometric_rejection(
            p_V, allows_token, token_mask, rng, self.accepts, self.looks
        )

    def _again(self, particles: Sequence[TextParticle], rng: Rng) -> list[TextParticle]:
        """Return the particles, drawn anew where too few of them carry the weight.

        Raises:
            RequestError: None carries any.
        """
        shares = _shares(particles)
        # Effective sample size 1 / sum of squared shares; the small factor keeps rounding from
        # resampling.
        if 1.0 / sum(x * x for x in shares) >= self.threshold * len(particles) * (1.0 - 1e-12):
            return list(particles)
        mean = _log_mean(particles)
        p = torch.tensor(shares, dtype=torch.float64)
        chosen = [particles[rng.child_stream(i).draw_categorical(p)] for i in range(len(particles))]
        # All weights become their mean, so the estimate of the normaliser stays unbiased.
        return [replace(x, logw=mean) for x in chosen]

    def _settle(
        self, answer: AnswerText, particles: Sequence[TextParticle], sure: int, first: bool
    ) -> None:
        """What all particles begin with is certain."""
        if sure > len(answer.tokens):
            answer.follow_text(next(p.text for p in particles if p.logw > NEG_INF), sure)
        elif first:
            # Nothing is certain yet: the clock of decoding starts all the same.
            answer.edit_tokens(TextEdit())


def _log_mean(particles: Sequence[TextParticle]) -> float:
    """Return the logarithm of the mean weight.

    The mean is an unbiased estimate of the share of the law that is allowed.
    """
    # Weights are scaled by the largest one: exp of a log-weight may underflow.
    top = max(p.logw for p in particles)
    if top > NEG_INF:
        return top + math.log(sum(math.exp(p.logw - top) for p in particles) / len(particles))
    return NEG_INF


def _shares(particles: Sequence[TextParticle]) -> list[float]:
    """The weights, adding up to 1. Raises RequestError where all are 0."""
    top = max(p.logw for p in particles)
    if top == NEG_INF:
        raise RequestError(
            f"constraint leaves no token that the law gives weight, at the end of all {len(particles)} particles: "
            "loosen it or what cuts unlikely tokens off, or take more particles"
        )
    weights = [math.exp(p.logw - top) for p in particles]
    return [w / sum(weights) for w in weights]


@dataclass(frozen=True)
class ParticleSystem:
    """The particles of one answer.

    Attributes:
        shares: Their weights, adding up to 1.
        log_normaliser: Logarithm of the estimated share of the law that is allowed.
        checks: Tokens that the constraint was asked about one by one.
        masks: How often it was asked about all tokens at once.
    """

    shares: tuple[float, ...]
    log_normaliser: float
    checks: int
    masks: int

    @property
    def effective(self) -> float:
        """Effective sample size, from 1 to the number of particles."""
        return 1.0 / sum(x * x for x in self.shares)


@dataclass(frozen=True)
class ParticleStats:
    """Counts of one or more answers.

    Attributes:
        passes: Passes of the target.
        first: Tokens that were certain after the first of them.
        systems: Particles of each answer.
    """

    passes: int = 0
    first: int = 0
    systems: tuple[ParticleSystem, ...] = ()
    accepted = 0

    def plus_stats(self, other: ParticleStats) -> ParticleStats:
        """Return the sum of the counts of two answers."""
        return ParticleStats(
            self.passes + other.passes, self.first + other.first, (*self.systems, *other.systems)
        )

    def metrics(self) -> Mapping[str, Any]:
        """Return the figures by name.

        For each answer weights (of its particles, adding up to 1), effective_sample_size,
        log_normaliser; and constraint_checks and constraint_masks, of all of them: tokens looked at
        one by one, and masks of all tokens.
        """
        return {
            "weights": [list(s.shares) for s in self.systems],
            "effective_sample_size": [s.effective for s in self.systems],
            "log_normaliser": [s.log_normaliser for s in self.systems],
            "constraint_checks": sum(s.checks for s in self.systems),
            "constraint_masks": sum(s.masks for s in self.systems),
        }

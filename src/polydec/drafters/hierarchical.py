"""A draft model that itself decodes with drafts: what it writes is one chain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from polydec.base.errors import RequestError
from polydec.core.protocols import Scores, Session, Target
from polydec.core.rng import Rng
from polydec.core.types import Draft, Draw, Reads, Want
from polydec.families.ar.draws import sure
from polydec.families.ar.protocols import Drafter, Guess, Verifier
from polydec.families.ar.types import Budget, Verdict


@dataclass(frozen=True)
class Hierarchical:
    """`small`, a target of the same vocabulary, writes a chain with `inner`'s drafts, which `verifier` checks in one pass
    over a tree each; what it wrote is proposed. So the target verifies no more than a chain, and the small model makes
    fewer passes than tokens.

    depth, inner_nodes: of an inner draft, 0 to 64 and 0 to 256. The budget's depth is the chain's length; after a token where
    its go_on says stop the chain ends. The inner drafter works on a copy; what is accepted of the chain it then learns
    from the small model's rows, and after a chain that was accepted whole from the target's.

    Exact: law, under any exact verifier, if the inner one is: each token is a draw from the small model's row before it.
    An inner verifier that keeps only the greedy text needs a greedy small model.
    Reduces to: `model` with a chain where depth is 0.
    Source: SpecMQuant (Zhang et al., 2025), greedy there; rows of the small model make it exact for sampling.
    """

    small: Target
    inner: Drafter
    verifier: Verifier
    depth: int = 4
    inner_nodes: int = 8

    def __post_init__(self) -> None:
        if not 0 <= self.depth <= 64:
            raise RequestError(f"depth is {self.depth}: it must lie in 0 to 64")
        if not 0 <= self.inner_nodes <= 256:
            raise RequestError(f"inner_nodes is {self.inner_nodes}: it must lie in 0 to 256")

    def open(self, prompt: Sequence[int], session: Session) -> HierarchicalGuess:
        small = self.small.open(prompt)
        return HierarchicalGuess(self, small, self.inner.open(prompt, small))


@dataclass(frozen=True)
class Step:
    """One pass of the small model: what it was shown, what it found, and the tokens that it added."""

    draft: Draft
    scores: Scores
    verdict: Verdict
    tokens: tuple[int, ...]


class HierarchicalGuess:
    """steps: of the round under way, None before the first. held: what of the round the small session has committed."""

    def __init__(self, config: Hierarchical, small: Session, inner: Guess) -> None:
        self._config, self._small, self._inner = config, small, inner
        self._steps: list[Step] | None = None
        self._held: list[int] = []

    @property
    def price(self) -> float:
        return self._inner.price

    @property
    def want(self) -> Want:
        return self._inner.want

    async def propose(self, root: int, position: int, budget: Budget, rng: Rng) -> Draft:
        self._steps, self._held = [], []
        chain, length, here = (
            Draft.chain(root),
            min(budget.depth, budget.nodes),
            rng.at("draft", position),
        )
        if not length:
            return chain
        want = replace(self._inner.want, law=Reads.ROW, prompt=False)
        want = replace(want, base=Reads.ROW) if budget.graded else want
        await self._small.prefill(Want(law=Reads.NOTHING))
        inner, tip, on = self._inner.fork(self._small), root, True
        while on and (left := length + 1 - len(chain)):
            at, pass_ = position + len(chain) - 1, here.at(len(self._steps))
            draft = await inner.propose(
                tip, at, Budget(min(self._config.depth, left - 1), self._config.inner_nodes), pass_
            )
            scores = await self._small.score(draft, want)
            verdict = self._config.verifier.verify(draft, scores, pass_, at)
            step = Step(draft, scores, verdict, verdict.tokens(draft))
            self._steps.append(step)
            self._small.commit(verdict.committed(draft))
            self._held += verdict.committed(draft)
            for node, token in zip((0, *verdict.path), step.tokens, strict=True):
                if on:
                    chain, q = _grown(chain, scores, node, token, budget.graded)
                    on = budget.go_on(len(chain) - 1, q)
            inner.learn(draft, scores, verdict)
            tip = verdict.bonus
        inner.close()
        return chain

    def learn(self, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        if self._steps is None:  # the prompt
            self._inner.learn(draft, scores, verdict)
            return
        text = verdict.committed(draft)
        if len(self._held) > len(text):
            self._small.rewind(len(self._held) - len(text))
        else:
            self._small.commit(text[len(self._held) :])
        left = len(verdict.path)
        if left == sum(
            len(step.tokens) for step in self._steps
        ):  # accepted whole: nobody's row but the target's
            self._inner.learn(draft, scores, verdict)
            return
        for step in self._steps:
            if left < len(step.tokens):
                self._inner.learn(
                    step.draft, step.scores, Verdict(step.verdict.path[:left], verdict.bonus)
                )
                return
            self._inner.learn(step.draft, step.scores, step.verdict)
            left -= len(step.tokens)

    def fork(self, session: Session, choice: int | None = None) -> HierarchicalGuess:
        small = self._small.fork(choice)
        twin = HierarchicalGuess(self._config, small, self._inner.fork(small, choice))
        twin._steps, twin._held = (
            None if self._steps is None else list(self._steps),
            list(self._held),
        )
        return twin

    def close(self) -> None:
        self._inner.close()
        self._small.close()


def _grown(
    chain: Draft, scores: Scores, node: int, token: int, graded: bool
) -> tuple[Draft, float]:
    """The chain with a token that the small model wrote after this node, and its probability."""
    tip = len(chain) - 1
    if scores.certain(node) is not None:
        q = sure(scores, node, token, graded)
        return chain.grown(token, tip, Draw.CERTAIN, None, q), q
    law_V = scores.row(node)
    q = float(law_V[token].exp())
    return chain.grown(token, tip, Draw.INDEPENDENT, law_V, q), q

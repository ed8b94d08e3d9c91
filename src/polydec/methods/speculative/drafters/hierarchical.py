"""A draft model that itself decodes with drafts: what it writes is one chain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from polydec.base.errors import RequestError
from polydec.core.protocols import DraftScores, Session, Target
from polydec.core.rng import Rng
from polydec.core.types import Draft, DrawKind, RowDetail, ScoreRequest
from polydec.methods.speculative.loop.draws import certain_draw_chance
from polydec.methods.speculative.loop.protocols import Drafter, DraftGuess, Verifier
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.methods.speculative.loop.walk import prefill_for_guess


@dataclass(frozen=True)
class HierarchicalDrafter:
    """`small`, a target of the same vocabulary, writes a chain with `inner`'s drafts, which `verifier` checks in one pass
    over a tree each; what it wrote is proposed. So the target verifies no more than a chain, and the small model makes
    fewer passes than tokens.

    depth, inner_nodes: of an inner draft, 0 to 64 and 0 to 256. The budget's depth is the longest chain; after a token where
    its go_on says stop the chain ends, and after a pass of the small model that makes it `least` long (1 to 64; None: it
    grows to the budget). The inner drafter works on a copy; what is accepted of the chain it then learns from the small
    model's rows, and after a chain that was accepted whole from the target's.

    An inner drafter that reads hidden states, such as an EAGLE layer, reads the small model's alone. The last token of a chain
    that was accepted whole has none yet: the next round begins with a pass of the small model over it and the new root, whose
    own next token begins the chain.

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
    least: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.depth <= 64:
            raise RequestError(f"depth is {self.depth}: it must lie in 0 to 64")
        if not 0 <= self.inner_nodes <= 256:
            raise RequestError(f"inner_nodes is {self.inner_nodes}: it must lie in 0 to 256")
        if self.least is not None and not 1 <= self.least <= 64:
            raise RequestError(f"least is {self.least}: it must lie in 1 to 64")

    def open(self, prompt: Sequence[int], session: Session) -> HierarchicalGuess:
        small = self.small.open(prompt)
        return HierarchicalGuess(self, small, self.inner.open(prompt, small), tuple(prompt))


@dataclass(frozen=True)
class SmallModelStep:
    """One pass of the small model: what it was shown, what it found, and the tokens that it added."""

    draft: Draft
    scores: DraftScores
    verdict: Verdict
    tokens: tuple[int, ...]


class HierarchicalGuess:
    """steps: of the round under way, none where nothing was proposed. held: what of the round the small session has committed.

    Where the inner drafter reads states: prompt: what it has not read the states of yet, None behind the first proposal;
    behind: tokens of the text that the small model has not been fed, the first of them its root."""

    def __init__(
        self,
        config: HierarchicalDrafter,
        small: Session,
        inner: DraftGuess,
        prompt: tuple[int, ...] | None,
    ) -> None:
        self._config = config
        self._small = small
        self._inner = inner
        self._prompt = prompt
        self._steps: list[SmallModelStep] = []
        self._fed: list[int] = []
        self._behind: tuple[int, ...] = ()
        self._of_states = inner.want.hidden or bool(inner.want.exits)

    @property
    def price(self) -> float:
        return self._inner.price

    @property
    def want(self) -> ScoreRequest:
        if self._of_states:
            return ScoreRequest(law=RowDetail.NOTHING)
        return self._inner.want

    async def propose(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        self._steps = []
        self._fed = []
        config = self._config
        chain = Draft.chain(root)
        length = min(budget.depth, budget.nodes)
        here = rng.at("draft", position)
        if not length:
            return chain
        if config.least is None:
            least = length
        else:
            least = min(config.least, length)
        want = replace(self._inner.want, law=RowDetail.ROW, prompt=False, last=False)
        if budget.graded:
            want = replace(want, base=RowDetail.ROW)
        known = await self._read(root, want)
        inner = self._inner.fork(self._small)
        tip = root
        on = True
        while on and len(chain) <= least:
            left = length + 1 - len(chain)
            at = position + len(chain) - 1
            pass_ = here.at(len(self._steps))
            size = DraftBudget(min(config.depth, left - 1), config.inner_nodes)
            draft = known or await inner.propose(tip, at, size, pass_)
            known = None
            scores = await self._small.score(draft, want)
            verdict = config.verifier.verify(draft, scores, pass_, at)
            step = SmallModelStep(draft, scores, verdict, verdict.tokens(draft))
            self._steps.append(step)
            self._small.commit(verdict.committed(draft))
            self._fed += verdict.committed(draft)
            for node, token in zip((0, *verdict.path), step.tokens, strict=True):
                if on:
                    chain, q = _grown(chain, scores, node, token, budget.graded)
                    on = budget.go_on(len(chain) - 1, q)
            inner.learn(draft, scores, verdict)
            tip = verdict.bonus
        inner.close()
        return chain

    async def _read(self, root: int, want: ScoreRequest) -> Draft | None:
        """The small model reads what it has not read yet. Where the inner drafter needs the states of that, it learns them; the
        draft that was scored with them, which is the root alone, then needs no further pass."""
        if not self._of_states:
            await self._small.prefill(ScoreRequest(law=RowDetail.NOTHING))
            return None
        if self._prompt is not None:
            await prefill_for_guess(self._small, self._inner, self._prompt)
            self._prompt = None
        if not self._behind:
            return None
        fed = Draft.chain(self._behind[0], (*self._behind[1:], root))
        last = len(self._behind)
        scores = await self._small.score(fed, want)
        self._inner.learn(fed, scores, Verdict(tuple(range(1, last)), root))
        self._behind = ()
        return self._small.keep(range(last + 1), last)

    def learn(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        if verdict.prompt:
            self._inner.learn(draft, scores, verdict)
            return
        text = verdict.committed(draft)
        steps = self._steps
        self._steps = []
        unfed = text[len(self._fed) :]
        if len(self._fed) > len(text):
            self._small.rewind(len(self._fed) - len(text))
        elif self._of_states:
            self._behind += unfed
        else:
            self._small.commit(unfed)
        left = len(verdict.path)
        whole = left == sum(len(step.tokens) for step in steps)
        # Nobody's row but the target's follows the last token.
        if whole and not self._of_states:
            self._inner.learn(draft, scores, verdict)
            return
        for step in steps:
            if left < len(step.tokens):
                self._inner.learn(
                    step.draft, step.scores, Verdict(step.verdict.path[:left], verdict.bonus)
                )
                return
            self._inner.learn(step.draft, step.scores, step.verdict)
            left -= len(step.tokens)

    def fork(self, session: Session, choice: int | None = None) -> HierarchicalGuess:
        small = self._small.fork(choice)
        inner = self._inner.fork(small, choice)
        twin = HierarchicalGuess(self._config, small, inner, self._prompt)
        twin._steps = list(self._steps)
        twin._fed = list(self._fed)
        twin._behind = self._behind
        return twin

    def close(self) -> None:
        self._inner.close()
        self._small.close()


def _grown(
    chain: Draft, scores: DraftScores, node: int, token: int, graded: bool
) -> tuple[Draft, float]:
    """The chain with a token that the small model wrote after this node, and its probability."""
    tip = len(chain) - 1
    if scores.certain(node) is not None:
        q = certain_draw_chance(scores, node, token, graded)
        return chain.grown(token, tip, DrawKind.CERTAIN, None, q), q
    law_V = scores.row(node)
    q = float(law_V[token].exp())
    return chain.grown(token, tip, DrawKind.INDEPENDENT, law_V, q), q

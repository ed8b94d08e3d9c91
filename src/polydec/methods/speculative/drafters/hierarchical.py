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
    """A draft model that itself decodes with drafts; the chain that it writes is proposed.

    `small` writes a chain with `inner`'s drafts, which `verifier` checks in one pass over a tree
    each. So the target verifies no more than a chain, and the small model makes fewer passes than
    tokens. The budget's depth is the longest chain; after a token where its go_on says stop the
    chain ends. The inner drafter works on a copy; what is accepted of the chain it then learns from
    the small model's rows, and after a chain that was accepted in full from the target's.

    An inner drafter that reads hidden states, such as an EAGLE layer, reads the small model's
    alone. The last token of a chain that was accepted in full has none yet: the next round begins
    with a pass of the small model over it and the new root, whose own next token begins the chain.

    Attributes:
        small: The draft model, a target of the same vocabulary.
        inner: Who drafts for it.
        verifier: Which of the inner drafts the small model accepts.
        depth: Levels of an inner draft, 0 to 64. Default 4.
        inner_nodes: Nodes of an inner draft, 0 to 256. Default 8.
        least: Tokens after which no further pass of the small model begins, 1 to 64. None: the
            chain grows to the budget.

    Exact: law, under any exact verifier, if the inner one is: each token is a draw from the small
    model's row before it. An inner verifier that keeps only the greedy text needs a greedy small
    model.
    Reduces to: `model` with a chain where depth is 0.
    Source: SpecMQuant (Zhang et al., 2025), greedy there; rows of the small model make it exact for
    sampling.
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

    def open_guess(self, prompt: Sequence[int], session: Session) -> HierarchicalGuess:
        """Begin a sequence of the small model and of the inner drafter.

        Args:
            prompt: Token ids of the prompt. The last one is the first root.
            session: Not used: the small model has a session of its own.

        Returns:
            The guess.
        """
        small = self.small.open_session(prompt)
        return HierarchicalGuess(self, small, self.inner.open_guess(prompt, small), tuple(prompt))


@dataclass(frozen=True)
class SmallModelStep:
    """One pass of the small model.

    Attributes:
        draft: The inner draft that it scored.
        scores: Its laws at the nodes of the inner draft.
        verdict: What it accepted.
        tokens: The tokens that the pass added to the chain.
    """

    draft: Draft
    scores: DraftScores
    verdict: Verdict
    tokens: tuple[int, ...]


class HierarchicalGuess:
    """The drafter at work on one sequence.

    `_steps` are the small model's passes of the round under way, none where nothing was proposed;
    `_fed` is what of the round its session has committed. Where the inner drafter reads states,
    `_prompt` is the prompt until its states have been read, and `_behind` are tokens of the text
    that the small model has not been fed, the first of them its root.
    """

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
        # An inner drafter of states reads the small model's: nothing is wanted of the target.
        if self._of_states:
            return ScoreRequest(law=RowDetail.NOTHING)
        return self._inner.want

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        """Let the small model write a chain.

        Args:
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Random stream of the text. Pass i of the small model draws below
                ``rng.child_stream("draft", position).child_stream(i)``.

        Returns:
            The chain. Each token carries the small model's row that it was drawn from.
        """
        self._steps = []
        self._fed = []
        config = self._config
        chain = Draft.chain_draft(root)
        length = min(budget.depth, budget.nodes)
        here = rng.child_stream("draft", position)
        if not length:
            return chain
        # Without a threshold the chain is as long as the budget.
        if config.least is None:
            least = length
        else:
            least = min(config.least, length)
        want = replace(self._inner.want, law=RowDetail.ROW, prompt=False, last=False)
        # A graded draft needs the law before shaping beside the shaped one.
        if budget.graded:
            want = replace(want, base=RowDetail.ROW)
        known = await self._read(root, want)
        # The inner drafter learns from a chain that the target may reject, so a copy does.
        inner = self._inner.fork_guess(self._small)
        tip = root
        on = True
        # One turn is a pass of the small model: an inner draft, its verdict, and the tokens that
        # this adds.
        while on and len(chain) <= least:
            left = length + 1 - len(chain)
            at = position + len(chain) - 1
            pass_ = here.child_stream(len(self._steps))
            # The pass adds one token of the small model's own, so the inner draft may be one
            # shorter than what is left.
            size = DraftBudget(min(config.depth, left - 1), config.inner_nodes)
            draft = known or await inner.propose_draft(tip, at, size, pass_)
            known = None
            scores = await self._small.score_draft(draft, want)
            verdict = config.verifier.verify_draft(draft, scores, pass_, at)
            step = SmallModelStep(draft, scores, verdict, verdict.written_tokens(draft))
            self._steps.append(step)
            self._small.commit_tokens(verdict.committed_tokens(draft))
            self._fed += verdict.committed_tokens(draft)
            for node, token in zip((0, *verdict.path), step.tokens, strict=True):
                # After a stop the small model's further tokens do not enter the chain, but its
                # session has them: `learn_round` rewinds.
                if on:
                    chain, q = _grown(chain, scores, node, token, budget.graded)
                    on = budget.go_on(len(chain) - 1, q)
            inner.learn_round(draft, scores, verdict)
            tip = verdict.bonus
        inner.close()
        return chain

    async def _read(self, root: int, want: ScoreRequest) -> Draft | None:
        """Let the small model read what it has not read yet.

        Where the inner drafter needs the states of that, it learns them. The draft that was scored
        with them, which is the root alone, then needs no further pass and is returned.
        """
        if not self._of_states:
            await self._small.prefill_prompt(ScoreRequest(law=RowDetail.NOTHING))
            return None
        if self._prompt is not None:
            await prefill_for_guess(self._small, self._inner, self._prompt)
            self._prompt = None
        if not self._behind:
            return None
        fed = Draft.chain_draft(self._behind[0], (*self._behind[1:], root))
        last = len(self._behind)
        scores = await self._small.score_draft(fed, want)
        self._inner.learn_round(fed, scores, Verdict(tuple(range(1, last)), root))
        self._behind = ()
        # What is fed now becomes past but for the new root, whose row is there already.
        return self._small.keep_nodes(range(last + 1), last)

    def learn_round(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        """Bring the small model's session in line with the text, and let the inner drafter learn.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            verdict: The accepted nodes and the token that follows them.
        """
        # The inner drafter had asked for the target's rows of the prompt.
        if verdict.prompt:
            self._inner.learn_round(draft, scores, verdict)
            return
        text = verdict.committed_tokens(draft)
        steps = self._steps
        self._steps = []
        unfed = text[len(self._fed) :]
        # Rejected tokens leave the small model's cache; a token that the target added is fed to it.
        if len(self._fed) > len(text):
            self._small.rewind_tokens(len(self._fed) - len(text))
        elif self._of_states:
            self._behind += unfed
        else:
            self._small.commit_tokens(unfed)
        left = len(verdict.path)
        whole = left == sum(len(step.tokens) for step in steps)
        # After a full acceptance the last token follows a row of the target alone, so the inner
        # drafter learns from the target's scores.
        if whole and not self._of_states:
            self._inner.learn_round(draft, scores, verdict)
            return
        # Else it learns each pass of the small model as far as the target accepted its tokens; in
        # the last one the target's token stands for the bonus.
        for step in steps:
            if left < len(step.tokens):
                self._inner.learn_round(
                    step.draft, step.scores, Verdict(step.verdict.path[:left], verdict.bonus)
                )
                return
            self._inner.learn_round(step.draft, step.scores, step.verdict)
            left -= len(step.tokens)

    def fork_guess(self, session: Session, choice: int | None = None) -> HierarchicalGuess:
        """A guess with forks of the small model and the inner drafter.

        Args:
            session: Fork of the target's session, for the copy to read.
            choice: Index of the choice that the copy drafts for. None: the same choice as before.

        Returns:
            The copy.
        """
        small = self._small.fork(choice)
        inner = self._inner.fork_guess(small, choice)
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
    """The chain with a token that the small model wrote after a node, and its probability."""
    tip = len(chain) - 1
    if scores.certain_token(node) is not None:
        q = certain_draw_chance(scores, node, token, graded)
        return chain.with_node(token, tip, DrawKind.CERTAIN, None, q), q
    law_V = scores.logprob_row(node)
    q = float(law_V[token].exp())
    return chain.with_node(token, tip, DrawKind.INDEPENDENT, law_V, q), q

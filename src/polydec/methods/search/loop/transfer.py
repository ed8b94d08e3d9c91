"""Choose tokens by the worth of the texts that an aligned model writes after them (TQ*)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from polydec.base.errors import RequestError
from polydec.core.decoder import Streams
from polydec.core.effects import gather_coroutines
from polydec.core.law import float64_probabilities
from polydec.core.protocols import Target
from polydec.core.request import Request, Result
from polydec.core.rng import Rng
from polydec.core.transcript import AnswerText, Transcript, logprobs_at_nodes
from polydec.core.types import Exactness, TokenVocabulary
from polydec.methods.search.loop.branches import BranchTree
from polydec.methods.search.loop.contrastive_search import likeliest_tokens
from polydec.methods.search.loop.stats import SearchStats


@dataclass(frozen=True)
class TransferQSearch:
    """Chooses tokens by log-probability and an estimate of their value.

    Of the `width` likeliest tokens v the one with the largest log p(v) + weight Q(v) is taken. Q(v)
    is the mean reward of `tries` texts: what stands so far, v, and up to `length` tokens that the
    baseline draws after it. With heat above 0 a token is drawn, with chances that grow as exp of
    that sum over heat.

    Beginnings of texts are fed once: what all continuations share is one path of a tree, which all
    of them extend in one pass, and what stood after the token that is taken stays for the next. A
    text that has ended (an end of the text, a stop, the request's limit) is not continued.

    Attributes:
        target: Model in whose law candidates are looked for.
        reward: Worth of an answer's text without its prompt, any number; with `prompted`, of the
            prompt's text and the answer's behind it.
        baseline: Model that continues, with the target's vocabulary. None: the target itself.
        own: Whether the baseline's passes are the target's, so that they are counted with them.
        width: Candidates, 1 to 64.
        length: Tokens of a continuation, 0 or more.
        tries: Continuations of a candidate, 1 to 64.
        weight: Weight of the value, at least 0: one over the strength of the pull to the model.
        heat: Temperature of the choice, at least 0; 0 takes the best.
        prompted: Whether the reward reads the prompt, too.
        indirect: Strength of the pull to the model with which the baseline was aligned to another
            reward, at least 0 (see `transferred_value`); 0: it was aligned to this one (direct
            transfer).
        baseline_reward: What the baseline was aligned to, where `indirect` is above 0.

    Exact: approximate. It tends to the law p(v) exp(weight Q(v)), with Q by draws, among the
    likeliest tokens.
    Reduces to: greedy decoding at width 1 and at weight 0; ARGS at length 0. Raises RequestError
    for values out of range.
    Source: Chakraborty et al., "Transfer Q*: principled decoding for LLM alignment" (2024).
    """

    target: Target
    reward: Callable[[str], float]
    baseline: Target | None = None
    own: bool = True
    width: int = 10
    length: int = 20
    tries: int = 1
    weight: float = 1.0
    heat: float = 0.0
    prompted: bool = False
    indirect: float = 0.0
    baseline_reward: Callable[[str], float] | None = None
    exactness = Exactness.APPROXIMATE

    def __post_init__(self) -> None:
        if self.baseline is not None:
            self.target.vocab.require_same(self.baseline.vocab, "the draft")
        for name, value, least, most in (
            ("candidates", self.width, 1, 64),
            ("length", self.length, 0, 1 << 20),
            ("tries", self.tries, 1, 64),
        ):
            if not least <= value <= most:
                raise RequestError(f"{name} is {value}: it must lie in {least} to {most}")
        for name, value in (
            ("weight", self.weight),
            ("heat", self.heat),
            ("indirect", self.indirect),
        ):
            if not 0 <= value < math.inf:
                raise RequestError(f"{name} is {value}: it must be a finite number of at least 0")
        # Each of the two means nothing without the other.
        if bool(self.indirect) != (self.baseline_reward is not None):
            raise RequestError(
                f"indirect is {self.indirect}, and a second reward is "
                f"{'not ' if self.baseline_reward is None else ''}given: it goes with a baseline that was aligned to one"
            )

    @property
    def vocab(self) -> TokenVocabulary:
        return self.target.vocab

    @property
    def looks(self) -> bool:
        """Whether texts after a token are drawn at all."""
        # One candidate needs no value, and weight 0 forgets it: no pass is spent on either.
        return bool(self.length and self.weight and self.width > 1)

    async def write_choices(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        """Write all choices, each with draws of its own.

        Args:
            request: What is asked: prompt token ids, number of answers, limits.
            rng: Random stream of each choice, by the choice's number.
            into: Record of the request, which gets the tokens, the statistics and the trace events.

        Returns:
            One result for each choice of the request, in order.
        """
        answers = [into.open_answer(choice) for choice in request.choices]
        law = await BranchTree.open_tree(
            self.target, request.prompt, base=request.base_detail, whole=True
        )
        trees = [law]
        try:
            # Without another baseline the target itself looks ahead, on its own tree.
            ahead = law
            baseline = self.baseline or self.target
            if self.looks and baseline is not self.target:
                ahead = await BranchTree.open_tree(baseline, request.prompt, whole=True)
                trees.append(ahead)
            writers = list[_TransferQRun]()
            before = self._prompt_text(request.prompt)
            for answer in answers:
                choice = answer.choice or 0
                # Each answer branches from one read prompt.
                mine = law.fork(choice)
                trees.append(mine)
                if self.looks:
                    theirs = ahead.fork(choice)
                else:
                    theirs = None
                trees += [] if theirs is None else [theirs]
                writers.append(_TransferQRun(self, answer, mine, theirs, rng(choice), before))
            # All answers run at once and share passes.
            return await gather_coroutines(*(writer.write_answer(request) for writer in writers))
        finally:
            for tree in trees:
                tree.close()

    def _prompt_text(self, prompt: Sequence[int]) -> str:
        """What the reward reads before an answer."""
        words = self.target.vocab.words
        if not self.prompted or words is None:
            return ""
        return words.decode(prompt)


@dataclass(frozen=True)
class CandidateContinuation:
    """A text after a candidate.

    Attributes:
        of: Number of the candidate.
        text: The text.
        rng: Random stream of its draws.
        node: Its place in the tree; -1 before it has one.
    """

    of: int
    text: AnswerText
    rng: Rng
    node: int = -1


def transferred_value(worth: Sequence[tuple[float, float]], indirect: float) -> float:
    """What continuations of a candidate say of its value.

    Args:
        worth: Of each continuation its reward, and by how much that is above the reward which the
            baseline was aligned to.
        indirect: Strength of the pull to the model with which it was aligned to that; 0: there is
            no other reward.

    Returns:
        The mean reward; with `indirect` a mean in which a continuation weighs exp(difference /
        indirect): it is drawn from a policy of another reward, and stands for one of this one. One
        continuation alone has nothing to be weighed against, and its reward is multiplied by that
        weight, as the paper's research code does.

    Source: Chakraborty et al., "Transfer Q*: principled decoding for LLM alignment" (2024),
    indirect transfer; that weights are normalised over several continuations is ours.
    """
    if not indirect:
        return sum(reward for reward, _ in worth) / len(worth)
    if len(worth) == 1:
        reward, above = worth[0]
        # A huge difference would overflow; beyond e^700 any reward rules.
        return math.exp(min(above / indirect, 700.0)) * reward
    # The largest weight is set to 1: only ratios count, and nothing can overflow.
    top = max(above for _, above in worth)
    weights = [math.exp((above - top) / indirect) for _, above in worth]
    return sum(w * reward for w, (reward, _) in zip(weights, worth, strict=True)) / sum(weights)


class _TransferQRun:
    """The run of one answer.

    Attributes:
        _law: The tree that is the answer's own path.
        _ahead: The tree of what is drawn after candidates; None where nothing is drawn.
        _before: What the reward reads before the answer.
    """

    def __init__(
        self,
        plan: TransferQSearch,
        answer: AnswerText,
        law: BranchTree,
        ahead: BranchTree | None,
        rng: Rng,
        before: str,
    ) -> None:
        self._plan = plan
        self._before = before
        self._answer = answer
        self._law = law
        self._ahead = ahead
        self._rng = rng
        self._node = 0
        self._root = 0
        self._spent = SearchStats()
        # The candidates' own nodes in the tree of continuations.
        self._roots: Sequence[int] = ()

    async def write_answer(self, request: Request) -> Result:
        """Write the answer, token after token."""
        answer = self._answer
        first = True
        # Only a text that was scored can be extended, so the prompt itself is scored first.
        if self._ahead is not None:
            await self._ahead.score_texts()
            self._count(1, self._plan.own)
        while answer.finish_reason is None:
            # Candidates come from the target's law after the text.
            scores = await self._law.score_texts()
            self._count(1, True)
            tokens, logp = likeliest_tokens(scores, self._node, self._plan.width)
            rng = self._rng.child_stream("token", len(answer.tokens))
            value = await self._values(tokens, rng)
            # Score log p(v) + weight Q(v), then take the best or draw.
            i = self._choose([p + self._plan.weight * q for p, q in zip(logp, value)], rng)
            taken = (tokens[i],)
            answer.write_tokens(
                taken, logprobs_at_nodes(scores, (self._node,), taken, request.logprobs)
            )
            if answer.finish_reason is None:
                # A token that ended the answer is not fed: nobody asks what follows it.
                (self._node,) = self._law.extend_by_one([(self._node, tokens[i])])
                # In the continuations' tree the taken token's node is the next root: its branch
                # stays fed.
                if self._roots:
                    self._root = self._roots[i]
                else:
                    self._root = 0
            self._spent = self._spent.plus_stats(SearchStats(first=int(first), written=1))
            first = False
        return answer.finished_answer(replace(self._spent, ended=1))

    def _choose(self, score: Sequence[float], rng: Rng) -> int:
        """The best, the likelier one on a tie; or one that is drawn."""
        if not self._plan.heat:
            # Candidates stand likeliest first, so the first of equal scores is the likelier one.
            return score.index(max(score))
        score_K = torch.tensor(score, dtype=torch.float64) / self._plan.heat
        return rng.child_stream("taken").draw_categorical(score_K.softmax(-1))

    async def _values(self, tokens: Sequence[int], rng: Rng) -> list[float]:
        """Return the mean reward after each candidate; 0 where nothing is to be compared."""
        plan = self._plan
        if not plan.weight or len(tokens) == 1:
            # The tree must hold the token that is taken, as the next candidates stand below it.
            await self._only(tokens)
            return [0.0] * len(tokens)
        texts = list[CandidateContinuation]()
        # Streams are named by candidate and try, below the token's own: no two continuations share
        # draws.
        for i, token in enumerate(tokens):
            text = self._answer.fork()
            text.write_tokens((token,))
            texts += [
                CandidateContinuation(i, text.fork(), rng.child_stream(i, j))
                for j in range(plan.tries)
            ]
        # Without looks ahead the reward reads the candidates as they stand.
        if self._ahead is not None:
            texts = await self._continued(self._ahead, tokens, texts)
        worth = [list[tuple[float, float]]() for _ in tokens]
        for t in texts:
            whole = self._before + t.text.text
            reward = plan.reward(whole)
            other = reward if plan.baseline_reward is None else plan.baseline_reward(whole)
            worth[t.of].append((reward, reward - other))
            # Tries are thrown away: only what they are worth is wanted.
            t.text.send_prune()
        # Each call of a reward counts, since it may be a model that costs more than a pass.
        judges = 1 if plan.baseline_reward is None else 2
        self._spent = self._spent.plus_stats(SearchStats(judged=judges * len(texts)))
        return [transferred_value(pairs, plan.indirect) for pairs in worth]

    async def _only(self, tokens: Sequence[int]) -> None:
        """Grow the continuations' tree although nothing is compared."""
        if self._ahead is not None and tokens:
            self._roots = self._ahead.extend_by_one([(self._root, x) for x in tokens])
            await self._ahead.score_texts()
            self._count(len(tokens), self._plan.own)

    async def _continued(
        self, tree: BranchTree, tokens: Sequence[int], texts: Sequence[CandidateContinuation]
    ) -> list[CandidateContinuation]:
        """The texts with up to `length` tokens more; all of them take one in a pass."""
        plan = self._plan
        # The candidates become nodes, and their continuations start from these.
        roots = tree.extend_by_one([(self._root, x) for x in tokens])
        texts = [replace(t, node=roots[t.of]) for t in texts]
        fed = len(tokens)
        # One pass a token, for the continuations of all candidates together.
        for at in range(plan.length):
            live = [t for t in texts if t.text.finish_reason is None]
            # All tries have ended, so the rest of `length` costs nothing.
            if not live:
                break
            scores = await tree.score_texts()
            self._count(fed, self._plan.own)
            for t in live:
                token = t.rng.child_stream(at).draw_categorical(
                    float64_probabilities(scores.logprob_row(t.node))
                )
                t.text.write_tokens((token,))
            self._spent = self._spent.plus_stats(SearchStats(written=len(live)))
            # The candidates' own nodes wait in the tree, so that the one that is taken can be
            # continued.
            nodes = tree.extend_by_one([(t.node, t.text.tokens[-1]) for t in live], roots)
            # Tries that drew the same token share a node, which is fed once.
            fed = len(set(nodes[: len(live)]))
            roots = nodes[len(live) :]
            # By identity: two tries may hold equal texts and still draw apart later.
            places = {id(t): node for t, node in zip(live, nodes)}
            texts = [replace(t, node=places.get(id(t), t.node)) for t in texts]
        self._roots = roots
        return list(texts)

    def _count(self, fed: int, of_target: bool) -> None:
        """What a pass took, where it was one of the target."""
        if of_target:
            self._spent = self._spent.plus_stats(SearchStats(1, scored=fed))

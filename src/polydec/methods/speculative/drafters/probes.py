"""Probes that are fed in the target's own pass draft what follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp

from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.protocols import DraftScores, Session
from polydec.core.rng import Rng
from polydec.core.types import Draft, DrawKind, RowDetail, ScoreRequest
from polydec.methods.economics.state_trees import StateTree
from polydec.methods.speculative.drafters._states import StateLaws
from polydec.methods.speculative.loop.protocols import TreeGrower
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.models.learned.kinds.probes import SoftProbes


@dataclass(frozen=True)
class ProbesDrafter:
    """Draft from probes that follow the root and every drafted token.

    Those after the token that was accepted last give the laws of the next draft, one a level; no
    pass but the target's runs. Tokens never see a probe, and no probe is ever accepted.

    Attributes:
        probes: The trained embeddings. A probe of several copies takes as many rows: each copy
            follows the same copy of the probe before it, and the logits of all are averaged.
        tree: Which nodes are drawn of their laws.
        rows: Tokens and probes that are fed besides the root, 1 to 1024, as far as the budget has
            nodes. Where they do not suffice, the probes go that are least likely to be read.
            Default 24.
        by_state: What is fed where the last accepted token had no probe, one, and so on
            (methods/economics/state_trees.py), and what grows it, in place of `tree`. Empty: always
            the same tree. Where the budget cuts such a tree, its probes are chosen as without.
        sure: What the target itself, before any shaping, must have given to the root for anything
            to be drafted after it (lexical units), at least 0. Default 0.

    Exact: law, under any exact verifier.
    Reduces to: `nothing` at rows 1, and in the first round.
    Source: parallel prompt decoding (Chen et al., 2024); Hidden Transfer (Wu et al., 2024).
    """

    probes: SoftProbes
    tree: TreeGrower
    rows: int = 24
    by_state: tuple[tuple[StateTree, TreeGrower], ...] = ()
    sure: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.rows <= 1024:
            raise RequestError(f"rows is {self.rows}: it must lie in 1 to 1024")
        if not self.sure >= 0:
            raise RequestError(f"sure is {self.sure}: it must be at least 0")

    def open_guess(self, prompt: Sequence[int], session: Session) -> ProbesGuess:
        """Begin a sequence.

        Args:
            prompt: Token ids of the prompt. The last one is the first root.
            session: The target's session on this prompt.

        Returns:
            The guess.
        """
        return ProbesGuess(self, session)


@dataclass
class ProbesGuess:
    """The drafter at work on one sequence.

    Attributes:
        config: The configuration.
        session: The target's own session.
        state_LEH: Output states of the probes after the last accepted token: levels, copies, width.
            None: there were none.
        price: 0: no pass but the target's runs.
    """

    config: ProbesDrafter
    session: Session
    state_LEH: Tensor | None = None
    price = 0.0

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(
            law=RowDetail.NOTHING,
            base=RowDetail.ROW if self.config.sure else RowDetail.NOTHING,
            hidden=True,
        )

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        """Grow a tree from the probes' states, and put probes after its nodes.

        Args:
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Random stream of the text.

        Returns:
            The tree, with its probes.
        """
        if budget.depth < 1:
            return Draft.chain_draft(root)
        draft = Draft.chain_draft(root)
        known = self.state_LEH
        config = self.config
        plan = None
        tree = config.tree
        if config.by_state:
            # The state of a round is how many probes the last accepted token had.
            plan, tree = config.by_state[0 if known is None else len(known)]
        if known is not None:
            room = replace(
                budget,
                depth=min(budget.depth, len(known)),
                nodes=min(budget.nodes, config.rows),
            )
            laws = LevelLaws(known, self.session)
            draft = await tree.grow_tree(laws, root, position, room, rng)
        return await self._with_probes(draft, budget, plan)

    async def _with_probes(
        self, draft: Draft, budget: DraftBudget, plan: StateTree | None
    ) -> Draft:
        """The draft, and after its nodes as many probes as there is room for."""
        probes = self.config.probes
        n = len(draft)
        room = min(budget.nodes, self.config.rows) + 1 - n
        room //= probes.copies
        # The plan holds only for the very tree that it was made for, with room for all of its
        # probes.
        whole = plan is not None and len(plan.paths) == n - 1 and sum(plan.probes) <= room
        if plan is not None and whole:
            counts = [min(x, budget.depth - d) for x, d in zip(plan.probes, draft.depth)]
        else:
            counts = allot_probes(draft, probes.rates, room, budget.depth)
        # What is fed for each probe, which may depend on the state of its token at the layer that
        # it enters.
        entering = probes.probe_inputs({d: await self._at(d, draft) for d in probes.depths}, n)
        chains = [
            (probes.enter[j], node, copy, j)
            for node, count in enumerate(counts)
            for copy in range(probes.copies)
            for j in range(count)
        ]
        # Nodes that enter at a higher layer stand after those of lower ones: a draft's nodes have
        # that order.
        chains.sort(key=lambda probe: probe[0])
        more = len(chains)
        place = {probe[1:]: n + i for i, probe in enumerate(chains)}
        if not more:
            return draft
        # Probes are added as nodes behind the draft's own, which nobody may accept.
        parent = list(draft.parent)
        states = list[Tensor | None]([None] * n)
        for _, node, copy, j in chains:
            parent.append(place[node, copy, j - 1] if j else node)
            states.append(entering[node, copy * len(probes) + j])
        # Fields of `Draft` in order: tokens, parents, draws, laws, probes, chances, states, layers
        # entered.
        return Draft(
            (*draft.token, *[draft.token[0]] * more),
            tuple(parent),
            (*draft.draw, *[DrawKind.CERTAIN] * more),
            (*draft.law, *[None] * more),
            (*[False] * n, *[True] * more),
            (*(draft.chance or [1.0] * n), *[0.0] * more),
            tuple(states),
            (*[0] * n, *[probe[0] for probe in chains]),
        )

    async def _at(self, depth: int, draft: Draft) -> Tensor | None:
        """The states of a draft's tokens that enter the layer of this index, shape ``[N, H]``."""
        if not depth:
            return self.session.embed_tokens(draft.token)
        layers = self.session.open_part(range(depth))
        return (
            await layers.score_draft(draft, ScoreRequest(law=RowDetail.NOTHING, hidden=True))
        ).hidden_NH

    def learn_round(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        """Take the states of the probes after the last accepted token.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            verdict: The accepted nodes and the token that follows them.
        """
        state_NH = states_behind(draft, scores, verdict)
        copies = self.config.probes.copies
        if state_NH is not None and self.config.sure:
            if verdict.path:
                last = verdict.path[-1]
            else:
                last = 0
            # The token after the last accepted one is the new root: where the model was not sure of
            # it, nothing is drafted.
            chance = exp(scores.base.token_logprobs(last, (verdict.bonus,))[0])
            if chance < self.config.sure:
                state_NH = None
        if state_NH is None:
            self.state_LEH = None
        else:
            self.state_LEH = state_NH.unflatten(0, (copies, -1)).transpose(0, 1)

    def fork_guess(self, session: Session, choice: int | None = None) -> ProbesGuess:
        """A guess with the same states.

        Args:
            session: Fork of the target's session, for the copy to read.
            choice: Index of the choice that the copy drafts for. None: the same choice as before.

        Returns:
            The copy.
        """
        return ProbesGuess(self.config, session, self.state_LEH)

    def close(self) -> None:
        pass


class LevelLaws:
    """The laws at the nodes of a draft: nodes of a level share one.

    It is the law of the mean of the copies' logits.
    """

    def __init__(self, state_LEH: Tensor, session: Session) -> None:
        self._state_LEH = state_LEH
        self._laws = StateLaws(session)

    async def score_draft(self, draft: Draft, want: ScoreRequest) -> DraftScores:
        """Give laws to the nodes that have none yet.

        Args:
            draft: Token tree whose nodes get a row, the root first.
            want: What the caller reads of the result.

        Returns:
            The laws at all nodes.
        """
        for k in sorted({draft.depth[i] for i in self._laws.new_nodes(draft)}):
            nodes = [i for i in self._laws.new_nodes(draft) if draft.depth[i] == k]
            state_EH = self._state_LEH[k]
            self._laws.add_mean(nodes, state_EH)
        return self._laws.score_draft_tree(draft)


def states_behind(draft: Draft, scores: DraftScores, verdict: Verdict) -> Tensor | None:
    """The output states of the probes after the last accepted token.

    Args:
        draft: The draft that the target has scored.
        scores: The target's scores, with hidden states.
        verdict: The accepted nodes and the token that follows them.

    Returns:
        The states, copy by copy, shape ``[copies x probes, H]``. None: no probe followed it.

    Raises:
        RequestError: The target gives no states.
    """
    probe = draft.probe or (False,) * len(draft)
    if verdict.path:
        node = verdict.path[-1]
    else:
        node = 0
    nodes = list[int]()
    # Probes stand after all tokens: a copy's first probe has the token as its parent, each further
    # one the probe before it.
    for i in range(node + 1, len(draft)):
        if probe[i] and draft.parent[i] in (node, nodes[-1] if nodes else node):
            nodes.append(i)
    if scores.hidden_NH is None:
        raise RequestError(
            "the target shows no hidden states: what was trained on them cannot draft for it"
        )
    if nodes:
        return scores.hidden_NH[nodes]
    return None


def allot_probes(
    draft: Draft, rates: Sequence[Sequence[float]], room: int, depth: int
) -> list[int]:
    """Choose how many probes follow each node.

    Every node would have one for each level of rates. The least useful go first, by how likely its
    node is the last that is accepted and by what a further level of the next draft is worth.

    Args:
        draft: The draft, with chances.
        rates: ``rates[d][r]`` is how often the token of rank r is right d + 1 levels below the
            root.
        room: Most probes in all.
        depth: Most levels of tokens and probes together.

    Returns:
        The number of probes of each node.
    """
    # The chance that all nodes down to this one are accepted.
    reach = [1.0] * len(draft)
    for i in range(1, len(draft)):
        reach[i] = reach[draft.parent[i]] * (draft.chance[i] if draft.chance else 1.0)
    # The chance that this node is the last accepted one: it is reached, and none of its children.
    stop = [
        max(0.0, reach[i] - sum(reach[c] for c in draft.children[i])) for i in range(len(draft))
    ]
    # The chance that the next draft is right down to this level: one of the tokens on each level
    # is.
    worth = list[float]()
    product = 1.0
    for level in rates:
        product *= min(1.0, sum(level))
        worth.append(product)
    useful = [
        (-stop[i] * value, j, i)
        for i in range(len(draft))
        for j, value in enumerate(worth)
        if draft.depth[i] + j < depth
    ]
    counts = [0] * len(draft)
    # Best first. A node's probes come in their order, since worth falls with the level.
    for _, j, i in sorted(useful):
        if sum(counts) < room and counts[i] == j:
            counts[i] += 1
    return counts

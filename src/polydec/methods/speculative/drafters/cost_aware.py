"""Feed only what pays: of cheap candidates the best choice by measured costs, a draft model where asking pays, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import cast

from polydec.core.protocols import DraftScores, Session
from polydec.core.rng import Rng
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.methods.economics.calibration import ChanceCalibration, bin_of
from polydec.methods.economics.costs import PassCosts
from polydec.methods.economics.goodput import while_it_pays
from polydec.methods.economics.mixing import (
    is_certain_draft,
    merge_certain_drafts,
    weigh_draft_chances,
)
from polydec.methods.economics.tree_builder import TreeBuilder
from polydec.methods.speculative.drafters._several import (
    combined_price_ms,
    combined_want,
    reads_prompt,
)
from polydec.methods.speculative.drafters.priced import PricedDrafter
from polydec.methods.speculative.drafters.priced_tree import PricedTree, TreeYield, class_of
from polydec.methods.speculative.loop.protocols import Drafter, DraftGuess
from polydec.methods.speculative.loop.types import DraftBudget, Verdict

BINS = 12
"""Chances are told apart to 1 / BINS."""
TRUST = 24.0
"""How many trials a chance is worth that was said and not yet seen."""
LOOKS = (0.0, 0.25, 0.5, 0.75)
"""Lower ends of the classes of steps, by the best chance that a free candidate has, for which asking is judged apart."""
EXPLORE = 16
"""A class of steps in which asking did not pay is asked again every so many steps."""
RATE = 0.1
"""How fast the gain of asking follows what was seen."""
MARGIN = 1.4
"""How much more than its row a node must be worth: chances err, and all time that is not a pass is uncounted."""
DOUBT = 1.4
"""Paths are named and judged down to this part of the chance that is worth a row: what is stated of so unlikely ones has turned
out to be worth about half (see Belief), and each candidate that is looked for takes time."""
MEMORY = 0.97
"""How much of what was learned about speed and about asking is kept from step to step."""


def worth_its_cost(drafter: Drafter, passes: float, costs: PassCosts) -> CostAwareDrafter:
    """The drafter, of which a proposal costs so many passes of the target, where it and its rows are worth that."""
    return CostAwareDrafter(PricedDrafter(drafter, passes * costs.share(1)), None, costs)


@dataclass(frozen=True)
class CostAwareDrafter:
    """Keeps those nodes of a draft that are worth their rows, by goodput: tokens per millisecond.

    With λ the tokens per millisecond that this text has been written at, a node whose path is accepted with probability v
    saves v / λ ms and costs what a further row costs; of the nodes in order of v the best beginning is fed, which may be
    none. The paid drafter (a model, say) is asked where that has been worth its own time, judged by classes of steps; it
    goes on below a draw while the next one is expected to pay, and its certain candidates join the tree (drawn ones take its
    place). Chances are calibrated on what came true. Costs are a table, the drafters' prices and the number of sequences
    that share the passes, never the clock.

    free: says its chances; where its proposals have a price, it is asked like the paid one, while that has been worth it.
    paid: None, or a chain drafter that asks the budget's go_on with its own probabilities and takes costs.draft_ms a token
    beside its price; costs: of passes and of one token of the paid drafter; lasting: whether something of the free drafter
    outlives the request, which must then have seen all of the text when it ends; tree: None, or a trained drafter whose tree is
    mixed with the free candidates in those steps in which that is expected to bring more than its levels and rows cost.

    Exact: law, under any exact verifier: what is certain may be chosen freely, what was drawn is left as it was drawn.
    Reduces to: `free` where further rows and time cost nothing; `nothing` where they cost too much.
    Source: goodput as in Liu et al., "TurboSpec: closed-loop speculation control" (2024); choice by path as in Sequoia
    (Chen et al., 2024).
    """

    free: Drafter
    paid: Drafter | None
    costs: PassCosts
    lasting: bool = True
    tree: PricedTree | None = None

    def open(self, prompt: Sequence[int], session: Session) -> CostAwareGuess:
        if self.paid is None:
            paid = None
        else:
            paid = self.paid.open(prompt, session)
        free = self.free.open(prompt, session)
        if self.tree is None:
            tree = None
        else:
            tree = self.tree.drafter.open(prompt, session)
        blind = free.want == ScoreRequest(law=RowDetail.NOTHING)
        return CostAwareGuess(
            self, session, free, paid, tree, CostAwareLedger(), CostAwareRound(), blind
        )


class ChanceBelief:
    """What a stated chance is worth, by what became of those like it."""

    __slots__ = ("rates",)

    def __init__(self) -> None:
        self.rates = ChanceCalibration(BINS, TRUST)

    def __call__(self, stated: float) -> float:
        return self.rates.chance(bin_of(stated, BINS), stated)

    def see(self, stated: float, true: bool) -> None:
        self.rates.observe(bin_of(stated, BINS), true)


@dataclass
class WritingSpeed:
    """How fast the text is written: so many tokens in so much time, both fading from step to step.

    The time is counted in passes of one row as these cost then, since what a pass costs changes with how many sequences
    share it. The beginning is a guess that is soon forgotten: a bit more than a token a pass.
    """

    tokens: float = 12.0
    passes: float = 11.0

    def ms_per_token(self, one_row_ms: float) -> float:
        """What a token takes at present, which is what an accepted one saves."""
        return one_row_ms * self.passes / self.tokens

    def observe(self, tokens: int, passes: float) -> None:
        self.tokens = MEMORY * (self.tokens + tokens)
        self.passes = MEMORY * (self.passes + passes)


@dataclass
class AskingGain:
    """Whether it pays to ask a drafter that takes time, told apart by classes of steps. gain_ms: what asking has brought
    beyond its cost, a running mean; waited: steps since the last time."""

    gain_ms: list[float]
    waited: list[int]

    @staticmethod
    def of(classes: int) -> AskingGain:
        return AskingGain([0.0] * classes, [0] * classes)

    def due(self, step: int) -> bool:
        """Whether to ask in a step of this class: it has paid, or it is time to see again."""
        self.waited[step] += 1
        return self.gain_ms[step] >= 0.0 or self.waited[step] >= EXPLORE

    def observe(self, step: int, gain_ms: float) -> None:
        self.gain_ms[step] += RATE * (gain_ms - self.gain_ms[step])


@dataclass
class CostAwareLedger:
    """What a text has taught so far: how fast it is written; what chances are worth that were stated of whole paths, and of
    the paid drafter's tokens; whether it pays to ask the free drafter (where it has a price) and the paid one; what asking for
    the trained drafter's tree has brought."""

    speed: WritingSpeed = field(default_factory=WritingSpeed)
    paths: ChanceBelief = field(default_factory=ChanceBelief)
    tokens: ChanceBelief = field(default_factory=ChanceBelief)
    free: AskingGain = field(default_factory=lambda: AskingGain.of(1))
    paid: AskingGain = field(default_factory=lambda: AskingGain.of(len(LOOKS)))
    tree: TreeYield = field(default_factory=TreeYield)


@dataclass
class CounterfactualStep:
    """What a step would have been without a drafter that was asked: the draft that would have been fed, what that would have
    cost in milliseconds, and the class of the step."""

    draft: Draft
    ms: float
    step: int = 0


@dataclass
class CostAwareRound:
    """The step under way, kept until its verdict is known.

    one_row_ms: a pass of one row; saved_ms: what an accepted token saves; spent_ms: what the step costs. candidates: all that
    were proposed, fed or not, and said: the stated chance of each one's path. chain: the paid drafter's (token, own
    probability). without_free, without_paid, without_tree: for the gain of asking, where it is to be judged. silent: the free
    drafter was not asked; missed: what it has to be told yet, for that reason.
    """

    one_row_ms: float = 1.0
    saved_ms: float = 0.0
    spent_ms: float = 0.0
    candidates: Draft | None = None
    said: list[float] = field(default_factory=list[float])
    chain: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])
    without_free: CounterfactualStep | None = None
    without_paid: CounterfactualStep | None = None
    without_tree: CounterfactualStep | None = None
    silent: bool = False
    missed: list[tuple[Draft, Verdict]] = field(default_factory=list[tuple[Draft, Verdict]])


@dataclass(frozen=True)
class CostAwareGuess:
    """The drafters at work, what was learned of them, the step under way, and whether the free one reads no scores."""

    config: CostAwareDrafter
    session: Session
    free: DraftGuess
    paid: DraftGuess | None
    tree: DraftGuess | None
    ledger: CostAwareLedger
    round: CostAwareRound
    blind: bool

    @property
    def guesses(self) -> tuple[DraftGuess, ...]:
        return (self.free, *(g for g in (self.paid, self.tree) if g is not None))

    @property
    def price(self) -> float:
        return combined_price_ms(self.guesses)

    @property
    def want(self) -> ScoreRequest:
        return combined_want(self.guesses)

    async def propose(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        now = self.round
        peers = self.session.peers
        costs = self.config.costs
        now.chain.clear()
        now.without_free = now.without_paid = now.without_tree = now.candidates = None
        one_row = costs.share(1, peers, position)
        two_rows = costs.share(2, peers, position)
        now.one_row_ms, now.saved_ms = one_row, self.ledger.speed.ms_per_token(one_row)
        row = MARGIN * (two_rows - one_row)
        # Even what is certain would not pay (in a large batch, say).
        if now.saved_ms < row:
            now.silent = True
            now.spent_ms = one_row
            return Draft.chain(root)
        # Of a path that may be worth a row, whatever it is believed.
        least = min(DOUBT * row / now.saved_ms, 1.0)
        likely = DraftBudget(
            budget.depth, budget.nodes, budget.width, budget.go_on, budget.graded, least
        )
        draft, keep, ms = await self._from_free(root, position, likely, rng)
        # Were it sure.
        pays = (
            self.paid is not None
            and self.paid.price + costs.draft_ms + two_rows - one_row < now.saved_ms
        )
        if (
            self.paid is not None
            and pays
            and budget.depth > 0
            and self.ledger.paid.due(step := _class(draft))
        ):
            plain = CounterfactualStep(
                draft.only(keep), costs.share(len(keep), peers, position) + ms, step
            )
            draft, keep = await self._with_paid(
                self.paid, plain, draft, root, position, budget, rng
            )
            ms += self.paid.price + len(now.chain) * costs.draft_ms
        if self.tree is not None and self._tree_pays(draft, two_rows - one_row, budget):
            draft, keep, more = await self._with_tree(
                self.tree, draft, keep, ms, root, position, likely, rng
            )
            ms += more
        draft = self._told(draft, keep)
        n = len(draft.token)
        now.spent_ms = ms + (one_row if n == 1 else costs.share(n, peers, position))
        return draft

    async def _from_free(
        self, root: int, position: int, budget: DraftBudget, rng: Rng
    ) -> tuple[Draft, list[int], float]:
        """The free drafter's candidates, which of them to feed, and the milliseconds that it took."""
        now = self.round
        ms = self.free.price
        # Were all of it accepted.
        hopeless = ms > 0.0 and min(budget.depth, budget.nodes) * now.saved_ms <= ms
        now.silent = hopeless or (ms > 0.0 and not self.ledger.free.due(0))
        if now.silent:
            return Draft.chain(root), [0], 0.0
        if now.missed:
            self._catch_up()
        draft = weigh_draft_chances(await self.free.propose(root, position, budget, rng))
        keep = self._best(draft, position, budget.nodes)
        if ms > 0.0:
            self.ledger.free.waited[0] = 0
            now.without_free = CounterfactualStep(
                draft.only(keep),
                self.config.costs.share(len(keep), self.session.peers, position) + ms,
            )
        return draft, keep, ms

    def _catch_up(self) -> None:
        """The free drafter learns what it missed."""
        for draft, verdict in self.round.missed:
            # It said that it reads none.
            self.free.learn(draft, cast(DraftScores, None), verdict)
        self.round.missed.clear()

    def _told(self, draft: Draft, keep: list[int]) -> Draft:
        """These nodes, with chances whose products are what the paths are believed to be worth."""
        if len(keep) == 1 or self.round.candidates is not draft:
            if len(keep) == len(draft.token):
                return draft
            return draft.only(keep)
        worth = [1.0, *[self.ledger.paths(v) for v in self.round.said[1:]]]
        chance = (
            1.0,
            *[min(1.0, worth[i] / max(worth[p], 1e-9)) for i, p in enumerate(draft.parent[1:], 1)],
        )
        return draft.only(keep, chance)

    def _best(self, draft: Draft, position: int, nodes: int) -> list[int]:
        """The nodes to feed. What was drawn stays, with all above it; probes stay where what they stand on does."""
        # Nothing was proposed.
        if len(draft.token) == 1:
            return [0]
        now = self.round
        believed = self.ledger.paths
        share = self.config.costs.share
        peers = self.session.peers
        value = [1.0]
        chance = draft.chance or (1.0,) * len(draft)
        for p, c in zip(draft.parent[1:], chance[1:]):
            value.append(value[p] * c)
        now.candidates = draft
        now.said = value
        bearer = _bearers(draft)
        fixed = _fixed(draft)
        rows = [0] * len(value)
        for i in bearer:
            # Fed with node i: itself and its probes.
            rows[i] += 1
        size = sum(rows[i] for i in fixed)
        candidates = [i for i in range(1, len(value)) if rows[i] and i not in fixed]
        # Stable: parents stay before their children.
        candidates.sort(key=value.__getitem__, reverse=True)
        best = 0
        most = 0.0
        saved = 0.0
        more = 0
        base = share(size, peers, position)
        for k, i in enumerate(candidates, 1):
            more += rows[i]
            if size + more > nodes + 1:
                break
            saved += believed(value[i]) * now.saved_ms
            gain = saved - MARGIN * (share(size + more, peers, position) - base)
            if gain > most:
                best = k
                most = gain
            elif value[i] * now.saved_ms < 1e-3 * base:
                break
        kept = {*fixed, *candidates[:best]}
        return [i for i in range(len(value)) if bearer[i] in kept]

    async def _with_paid(
        self,
        paid: DraftGuess,
        plain: CounterfactualStep,
        free: Draft,
        root: int,
        position: int,
        budget: DraftBudget,
        rng: Rng,
    ) -> tuple[Draft, list[int]]:
        """The paid drafter's chain joined to what is there, and which of it to feed."""
        now = self.round
        costs = self.config.costs
        peers = self.session.peers
        believed = self.ledger.tokens
        size = len(plain.draft)

        def token_ms(n: int) -> float:
            row = costs.share(size + n + 1, peers, position) - costs.share(
                size + n, peers, position
            )
            return row + costs.draft_ms

        go_on = while_it_pays(believed, 0.5, now.saved_ms, token_ms)
        chain = await paid.propose(
            root, position, replace(budget, go_on=go_on, graded=True), rng.at("paid")
        )
        now.chain += zip(chain.token[1:], (chain.chance or ())[1:])
        # Drawn: it goes in as it is, and alone.
        if any(law is not None for law in chain.law):
            now.candidates = None
            return chain, list(range(len(chain)))
        now.without_paid, self.ledger.paid.waited[plain.step] = plain, 0
        both = _joined(free, chain, [believed(q) for _, q in now.chain])
        return both, self._best(both, position, budget.nodes)

    def _tree_pays(self, free: Draft, row_ms: float, budget: DraftBudget) -> bool:
        """Whether the trained drafter is expected to bring more than it costs in this step."""
        tree = self.config.tree
        step = class_of(free)
        if tree is None or budget.depth < 1 or not is_certain_draft(free):
            return False
        brought = self.ledger.tree.expected(step, tree.brings(step))
        if brought * self.round.saved_ms > tree.least_ms(row_ms):
            return True
        self.ledger.tree.pass_over(step)
        return False

    async def _with_tree(
        self,
        guess: DraftGuess,
        free: Draft,
        keep: list[int],
        ms: float,
        root: int,
        position: int,
        budget: DraftBudget,
        rng: Rng,
    ) -> tuple[Draft, list[int], float]:
        """The trained drafter's tree mixed with what is there, which of it to feed, and the milliseconds that it took."""
        tree = self.config.tree
        now = self.round
        assert tree is not None
        asked = tree.budget(budget, now.saved_ms)
        grown = await guess.propose(root, position, asked, rng.at("tree"))
        now.without_tree = CounterfactualStep(free.only(keep), ms, class_of(free))
        both = merge_certain_drafts(free, grown)
        return both, self._best(both, position, budget.nodes), tree.took_ms(grown, asked.depth)

    def learn(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        now = self.round
        ledger = self.ledger
        if now.silent and self.blind:
            now.missed.append((draft, verdict))
        elif not verdict.prompt or reads_prompt(self.free):
            self.free.learn(draft, scores, verdict)
        if self.paid is not None and (not verdict.prompt or reads_prompt(self.paid)):
            self.paid.learn(draft, scores, verdict)
        if self.tree is not None and (not verdict.prompt or reads_prompt(self.tree)):
            self.tree.learn(draft, scores, verdict)
        if verdict.prompt:
            return
        truth = verdict.tokens(draft)
        for (token, q), true in zip(now.chain, truth):
            ledger.tokens.see(q, token == true)
            if token != true:
                break
        self._see_paths(truth)
        text = (draft.token[0], *truth)
        # Beside a pass of one row, which asking nobody would have been.
        if now.without_free is not None:
            plain = now.without_free
            ledger.free.observe(
                0, (len(plain.draft.nodes_of(text)) - 1) * now.saved_ms + now.one_row_ms - plain.ms
            )
        if now.without_paid is not None:
            plain = now.without_paid
            more = len(verdict.path) - (len(plain.draft.nodes_of(text)) - 1)
            ledger.paid.observe(plain.step, more * now.saved_ms + plain.ms - now.spent_ms)
        if now.without_tree is not None:
            plain = now.without_tree
            came = len(plain.draft.nodes_of(text)) - 1
            ledger.tree.observe(plain.step, len(verdict.path) - came)
        ledger.speed.observe(len(truth), now.spent_ms / now.one_row_ms)
        now.spent_ms = 0.0

    def _see_paths(self, truth: Sequence[int]) -> None:
        """Of every candidate, fed or not, whether its path came true; nothing is known behind the last true token."""
        tree, self.round.candidates = self.round.candidates, None
        if tree is None:
            return
        true = [True]
        bearer = _bearers(tree)
        for i in range(1, len(tree)):
            known = tree.depth[i] <= len(truth)
            true.append(
                true[tree.parent[i]] and (not known or tree.token[i] == truth[tree.depth[i] - 1])
            )
            if bearer[i] == i and (known or not true[i]):
                self.ledger.paths.see(self.round.said[i], true[i])

    def fork(self, session: Session, choice: int | None = None) -> CostAwareGuess:
        if self.paid is None:
            paid = None
        else:
            paid = self.paid.fork(session, choice)
        return replace(
            self,
            session=session,
            free=self.free.fork(session, choice),
            paid=paid,
            tree=None if self.tree is None else self.tree.fork(session, choice),
            ledger=deepcopy(self.ledger),
            round=deepcopy(self.round),
        )

    def close(self) -> None:
        if self.config.lasting:
            self._catch_up()
        for guess in self.guesses:
            guess.close()


def _class(draft: Draft) -> int:
    """The class of a step: how good the best first token is."""
    if draft.chance:
        best = max((draft.chance[c] for c in draft.children[0]), default=0.0)
    else:
        best = 0.0
    return sum(best > low for low in LOOKS[1:])


def _bearers(draft: Draft) -> Sequence[int]:
    """Of each node the one that it is fed with: itself, but for probes, and what stands on them, the last one above them that
    may be accepted."""
    if draft.probe is None:
        return range(len(draft))
    out = [0]
    for i in range(1, len(draft)):
        above = draft.parent[i]
        out.append(out[above] if draft.probe[i] or out[above] != above else i)
    return out


def _fixed(draft: Draft) -> set[int]:
    """The root and all drawn nodes, with what is above them."""
    out = {0}
    for i, law_V in enumerate(draft.law):
        if law_V is not None:
            out.update(draft.path_to(i))
    return out


def _joined(tree: Draft, chain: Draft, chance: Sequence[float]) -> Draft:
    """The tree with the chain in it; a node that stands in both has the better of its chances."""
    out = TreeBuilder.of(tree)
    node = 0
    for token, p in zip(chain.token[1:], chance):
        node = out.put(node, token, p)
    return out.draft()

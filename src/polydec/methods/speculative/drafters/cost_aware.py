"""Feed only what pays, by measured costs.

Of cheap candidates that is the best choice; a draft model is asked where asking pays; else nothing
is drafted.
"""

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
from polydec.methods.speculative.drafters._drafter_group import (
    combined_price_ms,
    combined_want,
    reads_prompt,
)
from polydec.methods.speculative.drafters.priced_tree import PricedTree, TreeYield, class_of
from polydec.methods.speculative.loop.protocols import Drafter, DraftGuess
from polydec.methods.speculative.loop.types import DraftBudget, Verdict

BINS = 12
"""Chances are distinguished to 1 / BINS."""
TRUST = 24.0
"""How many trials a chance is worth that was said and not yet seen."""
LOOKS = (0.0, 0.25, 0.5, 0.75)
"""Lower ends of the classes of steps, by the best chance that a free candidate has, for which
asking is judged separately."""
EXPLORE = 16
"""A class of steps in which asking did not pay is asked again every so many steps."""
RATE = 0.1
"""How fast the gain of asking follows what was seen."""
MARGIN = 1.4
"""How much more than its row a node must be worth: chances err, and all time that is not a pass is
uncounted."""
DOUBT = 1.4
"""Paths are named and judged down to this part of the chance that is worth a row: what is stated of
so unlikely ones has turned out to be worth about half (see `ChanceBelief`), and each candidate that
is looked for takes time."""
RIGHT = 1 / 3
"""How often the paid drafter's next token is supposed to be right, as long as nothing is known of
this text: zoo:smollm2-draft's is in a third of all steps."""
MEMORY = 0.97
"""How much of what was learned about speed and about asking is kept from step to step."""


@dataclass(frozen=True)
class CostAwareDrafter:
    """Feed those nodes of a draft that are worth their rows, by goodput: tokens per millisecond.

    With λ the tokens per millisecond that this text has been written at, a node whose path is
    accepted with probability v saves v / λ ms and costs what a further row costs; of the nodes in
    order of v the best beginning is fed, which may be none. The paid drafter (a model, say) is
    asked where that has been worth its own time, judged by classes of steps; it goes on below a
    draw while the next one is expected to pay, and its certain candidates join the tree (drawn ones
    take its place). Chances are calibrated on what came true. Costs are a table, the drafters'
    prices and the number of sequences that share the passes, never the clock.

    Attributes:
        free: A drafter that says its chances. Where its proposals have a price, it is asked like
            the paid one, while that has been worth it.
        paid: A chain drafter that asks the budget's go_on with its own probabilities, and takes
            costs.draft_ms a token in addition to its price. None: there is none.
        costs: Costs of passes and of one token of the paid drafter.
        lasting: Whether something of the free drafter outlives the request, which must then have
            seen all of the text when it ends. Default: it does.
        tree: A trained drafter whose tree is mixed with the free candidates in those steps in which
            that is expected to bring more than its levels and rows cost. None: there is none.

    Exact: law, under any exact verifier: what is certain may be chosen freely, what was drawn is
    left as it was drawn.
    Reduces to: `free` where further rows and time cost nothing; `nothing` where they cost too much.
    Source: goodput as in Liu et al., "TurboSpec: closed-loop speculation control" (2024); choice by
    path as in Sequoia (Chen et al., 2024).
    """

    free: Drafter
    paid: Drafter | None
    costs: PassCosts
    lasting: bool = True
    tree: PricedTree | None = None

    def open_guess(self, prompt: Sequence[int], session: Session) -> CostAwareGuess:
        """Begin a sequence of all drafters.

        Args:
            prompt: Token ids of the prompt. The last one is the first root.
            session: The target's session on this prompt.

        Returns:
            The guess.
        """
        if self.paid is None:
            paid = None
        else:
            paid = self.paid.open_guess(prompt, session)
        free = self.free.open_guess(prompt, session)
        if self.tree is None:
            tree = None
        else:
            tree = self.tree.drafter.open_guess(prompt, session)
        # A free drafter that reads no scores can learn later from verdicts alone, so it need not be
        # called in rounds that do not ask it.
        blind = free.want == ScoreRequest(law=RowDetail.NOTHING)
        return CostAwareGuess(
            self, session, free, paid, tree, CostAwareLedger(), CostAwareRound(), blind
        )


class ChanceBelief:
    """What a stated chance is worth, by what became of chances like it."""

    __slots__ = ("rates",)

    def __init__(self) -> None:
        self.rates = ChanceCalibration(BINS, TRUST)

    def __call__(self, stated: float) -> float:
        return self.rates.cell_chance(bin_of(stated, BINS), stated)

    def count_outcome(self, stated: float, true: bool) -> None:
        """Count one outcome.

        Args:
            stated: The chance that was stated, 0 to 1.
            true: Whether it came true.
        """
        self.rates.add_cases(bin_of(stated, BINS), true)


@dataclass
class WritingSpeed:
    """How fast the text is written: so many tokens in so much time, both fading from step to step.

    The time is counted in passes of one row as these cost then, since what a pass costs changes
    with how many sequences share it. The beginning is a guess that is soon forgotten: a bit more
    than a token a pass.

    Attributes:
        tokens: Tokens written, fading.
        passes: What they cost, in passes of one row, fading.
    """

    tokens: float = 12.0
    passes: float = 11.0

    def ms_per_token(self, one_row_ms: float) -> float:
        """What a token takes at present, which is what an accepted one saves."""
        return one_row_ms * self.passes / self.tokens

    def count_step(self, tokens: int, passes: float) -> None:
        """Count one step.

        Args:
            tokens: Tokens that it wrote.
            passes: What it cost, in passes of one row.
        """
        self.tokens = MEMORY * (self.tokens + tokens)
        self.passes = MEMORY * (self.passes + passes)


@dataclass
class AskingGain:
    """Whether it pays to ask a drafter that takes time, by classes of steps.

    Attributes:
        gain_ms: For each class, a running mean of what asking has brought beyond its cost, in
            milliseconds.
        waited: For each class, steps since the last time that it was asked.
    """

    gain_ms: list[float]
    waited: list[int]

    @staticmethod
    def of_classes(classes: int) -> AskingGain:
        """A record of so many classes, in which nothing is known yet."""
        return AskingGain([0.0] * classes, [0] * classes)

    def is_due(self, step: int) -> bool:
        """Whether to ask in a step of this class: it has paid, or it is time to see again."""
        self.waited[step] += 1
        return self.gain_ms[step] >= 0.0 or self.waited[step] >= EXPLORE

    def count_gain(self, step: int, gain_ms: float) -> None:
        """Count one step in which the drafter was asked.

        Args:
            step: Class of the step.
            gain_ms: What asking brought beyond its cost, in milliseconds.
        """
        self.gain_ms[step] += RATE * (gain_ms - self.gain_ms[step])


@dataclass
class CostAwareLedger:
    """What a text has taught so far.

    Attributes:
        speed: How fast it is written.
        paths: What chances are worth that were stated of full paths.
        tokens: What chances are worth that the paid drafter stated of its tokens.
        free: Whether it pays to ask the free drafter, where it has a price.
        paid: Whether it pays to ask the paid drafter.
        tree: What asking for the trained drafter's tree has brought.
    """

    speed: WritingSpeed = field(default_factory=WritingSpeed)
    paths: ChanceBelief = field(default_factory=ChanceBelief)
    tokens: ChanceBelief = field(default_factory=ChanceBelief)
    free: AskingGain = field(default_factory=lambda: AskingGain.of_classes(1))
    paid: AskingGain = field(default_factory=lambda: AskingGain.of_classes(len(LOOKS)))
    tree: TreeYield = field(default_factory=TreeYield)


@dataclass
class CounterfactualStep:
    """What a step would have been, had fewer drafters been asked.

    Attributes:
        draft: The draft that would have been fed.
        ms: What that would have cost, in milliseconds.
        step: Class of the step.
    """

    draft: Draft
    ms: float
    step: int = 0


@dataclass
class CostAwareRound:
    """The step under way, until its verdict is known.

    Attributes:
        one_row_ms: What a pass of one row costs, in milliseconds.
        saved_ms: What an accepted token saves.
        spent_ms: What the step costs.
        candidates: All that was proposed, fed or not. None: nothing to judge.
        said: The stated chance of each candidate's path.
        chain: The paid drafter's tokens with its own probabilities.
        without_free: The step with the free candidates alone, to be compared with a pass of one
            row. None: nothing to judge.
        without_paid: The step without the paid drafter. None: nothing to judge.
        without_tree: The step without the trained drafter. None: nothing to judge.
        silent: Whether the free drafter was not asked.
        missed: Rounds that it must learn yet, for that reason.
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
    """The drafters at work on one sequence.

    Attributes:
        config: The configuration.
        session: The target's own session, which says how many sequences share a pass.
        free: The free drafter's guess.
        paid: The paid drafter's guess. None: there is none.
        tree: The trained drafter's guess. None: there is none.
        ledger: What was learned so far.
        round: The step under way.
        blind: Whether the free drafter reads no scores.
    """

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

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        """Ask the drafters that are worth it, and choose which nodes to feed.

        Args:
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Random stream of the text.

        Returns:
            The chosen draft; the root alone where no row pays.
        """
        now = self.round
        peers = self.session.peers
        costs = self.config.costs
        now.chain.clear()
        now.without_free = now.without_paid = now.without_tree = now.candidates = None
        one_row = costs.request_share(1, peers, position)
        two_rows = costs.request_share(2, peers, position)
        now.one_row_ms, now.saved_ms = one_row, self.ledger.speed.ms_per_token(one_row)
        row = MARGIN * (two_rows - one_row)
        # Where a row costs more than a token saves (in a large batch, say), not even a certain
        # token would pay: nobody is asked.
        if now.saved_ms < row:
            now.silent = True
            now.spent_ms = one_row
            return Draft.chain_draft(root)
        # The least chance of a path that may be worth a row, whatever is believed of it: drafters
        # need not name others.
        least = min(DOUBT * row / now.saved_ms, 1.0)
        likely = DraftBudget(
            budget.depth, budget.nodes, budget.width, budget.go_on, budget.graded, least
        )
        draft, keep, ms = await self._from_free(root, position, likely, rng)
        # Asking takes its time in every step, and saves a token's beyond its row in those alone in
        # which the paid drafter is right. In company a row costs nearly what a token saves.
        pays = self.paid is not None and self.paid.price + costs.draft_ms < RIGHT * (
            now.saved_ms - two_rows + one_row
        )
        if (
            self.paid is not None
            and pays
            and budget.depth > 0
            and self.ledger.paid.is_due(step := _class(draft))
        ):
            # What the step would cost without the paid drafter, to judge it by when the verdict is
            # known.
            plain = CounterfactualStep(
                draft.only_nodes(keep), costs.request_share(len(keep), peers, position) + ms, step
            )
            draft, keep = await self._with_paid(
                self.paid, plain, draft, root, position, budget, rng
            )
            # The drafter's own passes, and one for each token of its chain.
            ms += self.paid.price + len(now.chain) * costs.draft_ms
        # Only where a further row costs little: a tree is worth what it adds to this pass.
        if self.tree is not None and self._tree_pays(draft, two_rows - one_row, budget):
            draft, keep, more = await self._with_tree(
                self.tree, draft, keep, ms, root, position, likely, rng
            )
            ms += more
        draft = self._told(draft, keep)
        n = len(draft.token)
        # A pass of one token has a price of its own; rows of several texts share the price of
        # others.
        now.spent_ms = ms + (one_row if n == 1 else costs.request_share(n, peers, position))
        return draft

    async def _from_free(
        self, root: int, position: int, budget: DraftBudget, rng: Rng
    ) -> tuple[Draft, list[int], float]:
        """The free drafter's candidates, which of them to feed, and the milliseconds it took."""
        now = self.round
        ms = self.free.price
        # Hopeless: its price would exceed what it saves even if all of its draft were accepted.
        hopeless = ms > 0.0 and min(budget.depth, budget.nodes) * now.saved_ms <= ms
        now.silent = hopeless or (ms > 0.0 and not self.ledger.free.is_due(0))
        if now.silent:
            return Draft.chain_draft(root), [0], 0.0
        # Rounds in which the drafter was silent are read now, before it guesses.
        if now.missed:
            self._catch_up()
        draft = weigh_draft_chances(await self.free.propose_draft(root, position, budget, rng))
        keep = self._best(draft, position, budget.nodes)
        # A drafter that costs nothing is never left out, so it needs no comparison.
        if ms > 0.0:
            self.ledger.free.waited[0] = 0
            now.without_free = CounterfactualStep(
                draft.only_nodes(keep),
                self.config.costs.request_share(len(keep), self.session.peers, position) + ms,
            )
        return draft, keep, ms

    def _catch_up(self) -> None:
        """The free drafter learns what it missed."""
        for draft, verdict in self.round.missed:
            # No scores are passed: it said that it reads none.
            self.free.learn_round(draft, cast(DraftScores, None), verdict)
        self.round.missed.clear()

    def _told(self, draft: Draft, keep: list[int]) -> Draft:
        """These nodes, with chances whose products are the beliefs of their paths."""
        if len(keep) == 1 or self.round.candidates is not draft:
            if len(keep) == len(draft.token):
                return draft
            return draft.only_nodes(keep)
        # Beliefs are of full paths, while a draft states one chance a node: the ratio to the
        # parent's belief.
        worth = [1.0, *[self.ledger.paths(v) for v in self.round.said[1:]]]
        chance = (
            1.0,
            *[min(1.0, worth[i] / max(worth[p], 1e-9)) for i, p in enumerate(draft.parent[1:], 1)],
        )
        return draft.only_nodes(keep, chance)

    def _best(self, draft: Draft, position: int, nodes: int) -> list[int]:
        """The nodes to feed.

        What was drawn stays, with all above it; probes stay where the token that they follow does.
        """
        if len(draft.token) == 1:
            return [0]
        now = self.round
        believed = self.ledger.paths
        share = self.config.costs.request_share
        peers = self.session.peers
        # The stated chance of each node's path: the product along it.
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
            # Rows that node i brings: itself and its probes.
            rows[i] += 1
        size = sum(rows[i] for i in fixed)
        candidates = [i for i in range(1, len(value)) if rows[i] and i not in fixed]
        # The sort is stable, so parents stay before their children on a tie.
        candidates.sort(key=value.__getitem__, reverse=True)
        best = 0
        most = 0.0
        saved = 0.0
        more = 0
        base = share(size, peers, position)
        # The cost of a pass is no straight line in its rows, so every beginning of the order is
        # compared, and the best one is fed.
        for k, i in enumerate(candidates, 1):
            more += rows[i]
            if size + more > nodes + 1:
                break
            saved += believed(value[i]) * now.saved_ms
            gain = saved - MARGIN * (share(size + more, peers, position) - base)
            if gain > most:
                best = k
                most = gain
            # So unlikely a path, and all after it, cannot turn the balance any more.
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
        """The paid drafter's chain joined to the candidates, and which nodes of both to feed."""
        now = self.round
        costs = self.config.costs
        peers = self.session.peers
        believed = self.ledger.tokens
        size = len(plain.draft)

        # What one more drafted token costs: its row in the target's pass, and the draft's own pass.
        def token_ms(n: int) -> float:
            row = costs.request_share(size + n + 1, peers, position) - costs.request_share(
                size + n, peers, position
            )
            return row + costs.draft_ms

        # Drafting stops at the first token that is not likely enough to pay for itself.
        go_on = while_it_pays(believed, 0.5, now.saved_ms, token_ms)
        chain = await paid.propose_draft(
            root, position, replace(budget, go_on=go_on, graded=True), rng.child_stream("paid")
        )
        now.chain += zip(chain.token[1:], (chain.chance or ())[1:])
        # A drawn chain goes in as it is, and alone: cutting it by its draws would bias the law.
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
        brought = self.ledger.tree.expected_tokens(step, tree.expected_gain(step))
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
        """The trained drafter's tree mixed in: candidates, which to feed, its milliseconds."""
        tree = self.config.tree
        now = self.round
        assert tree is not None
        asked = tree.tree_budget(budget, now.saved_ms)
        grown = await guess.propose_draft(root, position, asked, rng.child_stream("tree"))
        now.without_tree = CounterfactualStep(free.only_nodes(keep), ms, class_of(free))
        both = merge_certain_drafts(free, grown)
        return both, self._best(both, position, budget.nodes), tree.took_ms(grown, asked.depth)

    def learn_round(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        """Let the drafters learn, and judge by the true text what asking them has brought.

        Chances that they stated are judged as well.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            verdict: The accepted nodes and the token that follows them.
        """
        now = self.round
        ledger = self.ledger
        if now.silent and self.blind:
            now.missed.append((draft, verdict))
        elif not verdict.prompt or reads_prompt(self.free):
            self.free.learn_round(draft, scores, verdict)
        if self.paid is not None and (not verdict.prompt or reads_prompt(self.paid)):
            self.paid.learn_round(draft, scores, verdict)
        if self.tree is not None and (not verdict.prompt or reads_prompt(self.tree)):
            self.tree.learn_round(draft, scores, verdict)
        if verdict.prompt:
            return
        # From here on it is judged: first each token of the paid drafter up to its first wrong one,
        # then the paths.
        truth = verdict.written_tokens(draft)
        for (token, q), true in zip(now.chain, truth):
            ledger.tokens.count_outcome(q, token == true)
            if token != true:
                break
        self._see_paths(truth)
        text = (draft.token[0], *truth)
        # Had nobody been asked, the step were a pass of one row: the gain is what the free
        # candidates save, less what they cost beyond such a pass.
        if now.without_free is not None:
            plain = now.without_free
            ledger.free.count_gain(
                0, (len(plain.draft.nodes_of(text)) - 1) * now.saved_ms + now.one_row_ms - plain.ms
            )
        if now.without_paid is not None:
            plain = now.without_paid
            # Tokens more than the step without the paid drafter would have given, and the
            # difference of the costs.
            more = len(verdict.path) - (len(plain.draft.nodes_of(text)) - 1)
            ledger.paid.count_gain(plain.step, more * now.saved_ms + plain.ms - now.spent_ms)
        if now.without_tree is not None:
            plain = now.without_tree
            came = len(plain.draft.nodes_of(text)) - 1
            ledger.tree.count_tokens(plain.step, len(verdict.path) - came)
        ledger.speed.count_step(len(truth), now.spent_ms / now.one_row_ms)
        now.spent_ms = 0.0

    def _see_paths(self, truth: Sequence[int]) -> None:
        """Whether each candidate's path came true, fed or not.

        Nothing is known after the last true token.
        """
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
            # A node deeper than the text is known to be wrong only where something above it is.
            if bearer[i] == i and (known or not true[i]):
                self.ledger.paths.count_outcome(self.round.said[i], true[i])

    def fork_guess(self, session: Session, choice: int | None = None) -> CostAwareGuess:
        """A guess with forks of all drafters and its own copy of what was learned.

        Args:
            session: Fork of the target's session, for the copy to read.
            choice: Index of the choice that the copy drafts for. None: the same choice as before.

        Returns:
            The copy.
        """
        if self.paid is None:
            paid = None
        else:
            paid = self.paid.fork_guess(session, choice)
        return replace(
            self,
            session=session,
            free=self.free.fork_guess(session, choice),
            paid=paid,
            tree=None if self.tree is None else self.tree.fork_guess(session, choice),
            ledger=deepcopy(self.ledger),
            round=deepcopy(self.round),
        )

    def close(self) -> None:
        # A store that outlives the request must have seen all of the text, also the rounds in which
        # it was not asked.
        if self.config.lasting:
            self._catch_up()
        for guess in self.guesses:
            guess.close()


def _class(draft: Draft) -> int:
    """The class of a step: how good the best first token of the candidates is."""
    if draft.chance:
        best = max((draft.chance[c] for c in draft.children[0]), default=0.0)
    else:
        best = 0.0
    return sum(best > low for low in LOOKS[1:])


def _bearers(draft: Draft) -> Sequence[int]:
    """For each node the one that it is fed with.

    That is the node itself, but for probes and what follows them the last node above that may be
    accepted.
    """
    if draft.probe is None:
        return range(len(draft))
    out = [0]
    for i in range(1, len(draft)):
        above = draft.parent[i]
        out.append(out[above] if draft.probe[i] or out[above] != above else i)
    return out


def _fixed(draft: Draft) -> set[int]:
    """The root and all drawn nodes, with what is above them: these are fed in any case."""
    out = {0}
    for i, law_V in enumerate(draft.law):
        if law_V is not None:
            out.update(draft.path_to(i))
    return out


def _joined(tree: Draft, chain: Draft, chance: Sequence[float]) -> Draft:
    """The tree with the chain in it; a node of both gets the better of its chances."""
    out = TreeBuilder.of_draft(tree)
    node = 0
    for token, p in zip(chain.token[1:], chance):
        node = out.find_or_add(node, token, p)
    return out.built_draft()

"""Feed only what pays: of cheap candidates the best choice by measured costs, a draft model where asking pays, or nothing."""
from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import cast

from polydec.core.costs import Costs
from polydec.core.protocols import Drafter, Guess, Scores, Session
from polydec.core.rng import Rng
from polydec.core.types import Budget, Draft, Reads, Verdict, Want
from polydec.models.calibration import Calibration, bin_of
from polydec.models.goodput import while_it_pays
from polydec.models.tree_builder import TreeBuilder

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
DOUBT = 0.7
"""Paths are named and judged down to this part of the chance that is worth a row."""
MEMORY = 0.97
"""How much of what was learned about speed and about asking is kept from step to step."""


@dataclass(frozen=True)
class Thrift:
    """Keeps those nodes of a draft that are worth their rows, by goodput: tokens per millisecond.

    With λ the tokens per millisecond that this text has been written at, a node whose path is accepted with probability v
    saves v / λ ms and costs what a further row costs; of the nodes in order of v the best beginning is fed, which may be
    none. The paid drafter (a model, say) is asked where that has been worth its own time, judged by classes of steps; it
    goes on below a draw while the next one is expected to pay, and its certain candidates join the tree (drawn ones take its
    place). Chances are calibrated on what came true. Costs are a table and the number of sequences that share the passes,
    never the clock.

    source: costs nothing worth counting and says its chances; paid: None, or a chain drafter that asks the budget's go_on
    with its own probabilities; costs: of passes and of one token of the paid drafter.

    Exact: law, under any exact verifier: what is certain may be chosen freely, what was drawn is left as it was drawn.
    Reduces to: `source` where further rows and time cost nothing; `nothing` where they cost too much.
    Source: goodput as in Liu et al., "TurboSpec: closed-loop speculation control" (2024); choice by path as in Sequoia
    (Chen et al., 2024).
    """
    source: Drafter
    paid: Drafter | None
    costs: Costs

    def open(self, prompt: Sequence[int], session: Session) -> ThriftGuess:
        paid = None if self.paid is None else self.paid.open(prompt, session)
        free = self.source.open(prompt, session)
        return ThriftGuess(self, session, free, paid, Ledger(12.0, 11.0), free.want == Want(law=Reads.NOTHING))


class Belief:
    """What a stated chance is worth, by what became of those like it."""
    __slots__ = ("rates",)

    def __init__(self) -> None:
        self.rates = Calibration(BINS, TRUST)

    def __call__(self, said: float) -> float:
        """Unlikely ones are less likely still, as what was seen of SmolLM2-135M-Instruct had it, which is the prior."""
        return self.rates.chance(bin_of(said, BINS), said * min(1.0, 0.4 + 1.3 * said))

    def see(self, said: float, true: bool) -> None:
        self.rates.observe(bin_of(said, BINS), true)


@dataclass
class Ledger:
    """What a text has taught: tokens, and what they took in passes of one row as these cost then (the company changes), both
    decaying; the ms that an accepted token saves now, and what a pass of one row costs; of each class of steps what asking
    gained in ms on average, and steps since it was last asked; what chances of whole paths and of the paid drafter's tokens
    are worth; of the last step all candidates with what was said of their paths, the chain that was asked for, as (token, own
    chance), the draft that would have been fed without it (its class of step and its cost beside it), the cost of what was
    fed; whether nobody was asked in the last step, and what the free drafter has not been told yet for that reason."""
    tokens: float
    passes: float
    worth: float = 0.0
    one: float = 1.0
    gain: list[float] = field(default_factory=lambda: [0.0] * len(LOOKS))
    waited: list[int] = field(default_factory=lambda: [0] * len(LOOKS))
    paths: Belief = field(default_factory=Belief)
    paid: Belief = field(default_factory=Belief)
    tree: Draft | None = None
    said: list[float] = field(default_factory=list[float])
    chain: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])
    alone: tuple[Draft, int, float] | None = None
    cost: float = 0.0
    idle: bool = False
    late: list[tuple[Draft, Verdict]] = field(default_factory=list[tuple[Draft, Verdict]])


@dataclass(frozen=True)
class ThriftGuess:
    """Both drafters at work, what was learned of them, and whether the free one reads no scores."""
    how: Thrift
    session: Session
    free: Guess
    paid: Guess | None
    ledger: Ledger
    blind: bool

    @property
    def want(self) -> Want:
        a = self.free.want
        if self.paid is None:
            return a
        b = self.paid.want
        return Want(max(a.law, b.law), max(a.base, b.base), a.hidden or b.hidden, a.prompt or b.prompt,
                    tuple(sorted({*a.exits, *b.exits})))

    async def propose(self, root: int, position: int, budget: Budget, rng: Rng) -> Draft:
        book, peers = self.ledger, self.session.peers
        book.chain.clear()
        book.alone = None
        one, two = (self.how.costs.share(k, peers, position) for k in (1, 2))
        book.one, book.worth = one, (worth := one * book.passes / book.tokens)
        if worth < MARGIN * (two - one):          # even what is certain would not pay (in a large batch, say)
            book.tree, book.cost, book.idle = None, one, True
            return Draft.chain(root)
        book.idle = False
        self._tell()
        least = DOUBT * MARGIN * (two - one) / worth          # of a path that may be worth a row, whatever it is believed
        draft = await self.free.propose(root, position, replace(budget, floor=min(least, 1.0)), rng)
        keep = self._best(draft, worth, peers, position, budget.nodes)
        if self.paid is not None and budget.depth > 0 and self._ask(draft):
            draft, keep = await self._with_paid(self.paid, draft, keep, root, position, budget, rng)
        draft = self._told(draft, keep)
        book.cost = self.how.costs.share(len(draft), peers, position) + len(book.chain) * self.how.costs.draft_ms
        return draft

    def _tell(self) -> None:
        """The free drafter learns what it missed."""
        for draft, verdict in self.ledger.late:
            self.free.learn(draft, cast(Scores, None), verdict)       # it said that it reads none
        self.ledger.late.clear()

    def _told(self, draft: Draft, keep: list[int]) -> Draft:
        """These nodes, with chances whose products are what the paths are believed to be worth."""
        if len(keep) == 1 or self.ledger.tree is not draft:
            return draft if len(keep) == len(draft) else draft.only(keep)
        worth = [1.0, *[self.ledger.paths(v) for v in self.ledger.said[1:]]]
        chance = (1.0, *[min(1.0, worth[i] / max(worth[p], 1e-9)) for i, p in enumerate(draft.parent[1:], 1)])
        return replace(draft, chance=chance).only(keep)

    def _best(self, draft: Draft, worth: float, peers: int, at: int, nodes: int) -> list[int]:
        """The nodes to feed. What was drawn or is a probe always stays."""
        value, chance, belief = [1.0], draft.chance or (1.0,) * len(draft), self.ledger.paths
        for p, c in zip(draft.parent[1:], chance[1:]):
            value.append(value[p] * c)
        self.ledger.tree, self.ledger.said = draft, value
        some = [i for i in range(1, len(value)) if draft.law[i] is None and not (draft.probe and draft.probe[i])]
        size = len(value) - len(some)
        some.sort(key=value.__getitem__, reverse=True)        # stable: parents stay before their children
        best, most, sum_, base = 0, 0.0, 0.0, self.how.costs.share(size, peers, at)
        for k, i in enumerate(some[:max(nodes + 1 - size, 0)], 1):
            sum_ += belief(value[i]) * worth
            gain = sum_ - MARGIN * (self.how.costs.share(size + k, peers, at) - base)
            if gain > most:
                best, most = k, gain
            elif value[i] * worth < 1e-3 * base:
                break
        left = set(some[best:])
        return [i for i in range(len(value)) if i not in left]

    def _class(self, draft: Draft) -> int:
        top = max((draft.chance[c] for c in draft.children[0]), default=0.0) if draft.chance else 0.0
        return sum(top > x for x in LOOKS[1:])

    def _ask(self, draft: Draft) -> bool:
        """Whether asking has paid in steps like this one, or it is time to see again."""
        book, k = self.ledger, self._class(draft)
        book.waited[k] += 1
        return book.gain[k] >= 0.0 or book.waited[k] >= EXPLORE

    async def _with_paid(self, paid: Guess, free: Draft, keep: list[int], root: int, position: int, budget: Budget,
                         rng: Rng) -> tuple[Draft, list[int]]:
        book, costs, peers = self.ledger, self.how.costs, self.session.peers
        worth, size = book.worth, len(keep)

        def token_ms(n: int) -> float:
            row = costs.share(size + n + 1, peers, position) - costs.share(size + n, peers, position)
            return row + costs.draft_ms

        go_on = while_it_pays(book.paid, 0.5, worth, token_ms)
        chain = await paid.propose(root, position, replace(budget, go_on=go_on, graded=True), rng.at("paid"))
        book.chain += [(x, q) for x, q in zip(chain.token[1:], (chain.chance or ())[1:])]
        if any(law is not None for law in chain.law):         # drawn: it goes in as it is, and alone
            book.tree = None
            return chain, list(range(len(chain)))
        k = self._class(free)
        book.alone, book.waited[k] = (free.only(keep), k, costs.share(len(keep), peers, position)), 0
        both = _joined(free, chain, [book.paid(q) for _, q in book.chain])
        return both, self._best(both, worth, peers, position, budget.nodes)

    def learn(self, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        book = self.ledger
        if book.idle and self.blind:
            book.late.append((draft, verdict))
        elif not verdict.prompt or self.free.want.prompt:
            self.free.learn(draft, scores, verdict)
        if self.paid is not None and (not verdict.prompt or self.paid.want.prompt):
            self.paid.learn(draft, scores, verdict)
        if verdict.prompt:
            return
        truth = verdict.tokens(draft)
        for (token, q), x in zip(book.chain, truth):
            book.paid.see(q, token == x)
            if token != x:
                break
        self._see_paths(truth)
        if book.alone is not None:                # what asking brought, beside what it cost
            tree, k, cost = book.alone
            more = len(verdict.path) - (len(tree.nodes_of((draft.token[0], *truth))) - 1)
            book.gain[k] += RATE * (more * book.worth + cost - book.cost - book.gain[k])
        book.tokens, book.passes = MEMORY * (book.tokens + len(truth)), MEMORY * (book.passes + book.cost / book.one)
        book.cost = 0.0

    def _see_paths(self, truth: Sequence[int]) -> None:
        """Of every candidate, fed or not, whether its path came true; nothing is known behind the last true token."""
        book, tree = self.ledger, self.ledger.tree
        if tree is None:
            return
        true = [True]
        for i in range(1, len(tree)):
            known = tree.depth[i] <= len(truth)
            true.append(true[tree.parent[i]] and (not known or tree.token[i] == truth[tree.depth[i] - 1]))
            if known or not true[i]:
                book.paths.see(book.said[i], true[i])
        book.tree = None

    def fork(self) -> ThriftGuess:
        return replace(self, free=self.free.fork(), paid=None if self.paid is None else self.paid.fork(),
                       ledger=deepcopy(self.ledger))

    def close(self) -> None:
        self._tell()
        self.free.close()
        if self.paid is not None:
            self.paid.close()


def _joined(tree: Draft, chain: Draft, chance: Sequence[float]) -> Draft:
    """The tree with the chain in it; a node that stands in both has the better of its chances."""
    out, node = TreeBuilder.of(tree), 0
    for token, p in zip(chain.token[1:], chance):
        node = out.put(node, token, p)
    return out.draft()

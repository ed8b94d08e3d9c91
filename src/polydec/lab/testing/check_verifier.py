"""The contract of verifiers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from polydec.core.decoder import answer_one
from polydec.core.protocols import DraftScores, Target
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, DrawKind, Exactness, RowDetail, ScoreRequest
from polydec.lab.testing.enumerate import (
    NoiseSize,
    enumerate_executions,
    law_of,
    target_law,
    text_law_distance,
)
from polydec.lab.testing.examples import SiblingDrafter
from polydec.lab.testing.exercised_counts import (
    DRAFT_KINDS,
    ExercisedCollector,
    ExercisedCounts,
    require_mechanism_exercised,
)
from polydec.lab.testing.strict import StrictRng
from polydec.lab.testing.toy import OrderTwoNetwork, toy_law
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.loop.protocols import Verifier
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy

C = DrawKind.CERTAIN
D = DrawKind.INDEPENDENT
W = DrawKind.WITHOUT

CANDIDATES: dict[str, tuple[tuple[DrawKind, int, int], ...]] = {
    "one certain": ((C, 0, 1),),
    "all certain": ((C, 1, 4),),
    "one draw": ((D, 201, 1),),
    "two independent": ((D, 202, 2),),
    "two without replacement": ((W, 203, 2),),
    "every token without replacement": ((W, 204, 4),),
    "certain, then drawn": ((C, 0, 1), (D, 205, 1)),
    "drawn, then certain": ((D, 206, 1), (C, 0, 2)),
    "without, certain, without": ((W, 207, 2), (C, 1, 1), (W, 208, 1)),
    "independent of two laws": ((D, 209, 1), (D, 210, 1)),
    "without beside independent": ((W, 211, 2), (D, 212, 1)),
}
"""Sources of siblings: (how, seed of the law, how many)."""


Outcomes = Sequence[tuple[int | None, int, float]]
"""Of a node: for each outcome the child that is accepted (None: none is), the token, and how likely
that is.
"""


def check_verifier(
    verifier: Verifier,
    *,
    laws: int = 2,
    tolerance: float = 1e-9,
    rule: Callable[[Draft, DraftScores, int], Outcomes] | None = None,
) -> ExercisedCounts:
    """Check everything that a verifier promises.

    Of LAW: the output law, enumerated, is the target's for every kind of candidate and mixture of
    kinds. Of LAW and ARGMAX: a row with one possible token is followed without being read. Of all:
    what the verifier accepts is a path without probes, nothing it was given is written to, and it
    was seen to accept and to reject. A class attribute `unexercised` of the verifier says, by the
    name of a count (ExercisedCounts), why that is 0.

    Args:
        verifier: The verifier.
        laws: Random laws for each of the eleven kinds of candidates; every second one has four
            tokens where they can be enumerated.
        tolerance: Total variation that rounding may leave.
        rule: From a draft, its scores (with states, and rows before shaping) and a node to what may
            follow the node by the published rule; the chances of all paths must be those that it
            gives. None: no rule is compared.

    Returns:
        The counts.

    Raises:
        AssertionError: A promise is broken, or nothing was accepted or rejected.
    """
    watch = ExercisedCollector()
    # The law comes first: every kind of siblings alone and mixed, then drafts of two levels, then a
    # probe.
    if verifier.exactness is Exactness.LAW:
        if _enumerable(verifier, 4):
            sizes = (3, 4)
        else:
            sizes = (3,)
        for n, (name, sources) in enumerate(CANDIDATES.items()):
            for j in range(laws):
                # Sizes alternate over kinds and laws, so that each kind has met both.
                size = sizes[(n + j) % len(sizes)]
                _law(
                    watch,
                    verifier,
                    n + len(CANDIDATES) * j,
                    size,
                    SiblingDrafter(size, sources),
                    name,
                    2,
                    tolerance,
                )
        for name in ("one draw", "drawn, then certain"):
            _law(
                watch,
                verifier,
                7,
                3,
                SiblingDrafter(3, CANDIDATES[name], depth=2),
                f"{name}, two levels",
                3,
                tolerance,
            )
        _law(
            watch,
            verifier,
            8,
            3,
            SiblingDrafter(3, CANDIDATES["one draw"], probe=True),
            "one draw beside a probe",
            2,
            tolerance,
        )
    _path(verifier, watch)
    if rule is not None:
        _chosen(verifier, rule, tolerance)
    require_mechanism_exercised(watch.counts, verifier, DRAFT_KINDS)
    if verifier.exactness is not Exactness.APPROXIMATE:
        _certain(verifier)
    return watch.counts


def _enumerable(verifier: Verifier, size: int) -> bool:
    try:
        decoder = SpeculativeDecoder(toy_law(1, size), NothingDrafter(), verifier, FixedPolicy(0))
        law_of(lambda rng: answer_one(decoder, Request((0,), max_tokens=1), rng))
    except NoiseSize:
        return False
    return True


def _law(
    watch: ExercisedCollector,
    verifier: Verifier,
    seed: int,
    size: int,
    drafter: SiblingDrafter,
    name: str,
    length: int,
    tolerance: float,
) -> None:
    watch.counts += ExercisedCounts(laws=1)
    target = toy_law(seed + 1, size)
    decoder, request = (
        SpeculativeDecoder(target, drafter, verifier, FixedPolicy(8)),
        Request((0, 1), max_tokens=length),
    )
    off = text_law_distance(
        law_of(lambda rng: answer_one(decoder, request, rng)), target_law(target, (0, 1), length)
    )
    assert off < tolerance, (
        f"candidates {name}, law {seed} over {size} tokens: the output law is off by {off:.2e}"
    )


def _drafted(seed: int, size: int, target: Target, rng: Any) -> tuple[Draft, DraftScores]:
    """A random draft of two levels beside a probe, and its scores: its sources are those of every
    kind in turn.
    """
    sources = list(CANDIDATES.values())[seed % len(CANDIDATES)]
    guess = SiblingDrafter(size, sources, depth=2, probe=True).open_guess(
        (0, 1), target.open_session((0, 1))
    )

    async def round_() -> tuple[Draft, DraftScores]:
        draft = await guess.propose_draft(1, 2, FixedPolicy(8, 64).start_state(), rng)
        want = ScoreRequest(base=RowDetail.ROW, hidden=True)
        return draft, await target.open_session((0, 1)).score_draft(draft, want)

    return run_coroutines([round_()])[0]


def _chosen(
    verifier: Verifier, rule: Callable[[Draft, DraftScores, int], Outcomes], tolerance: float
) -> None:
    """The chance of every verdict, enumerated, is that of the rule."""
    for seed in range(2 * len(CANDIDATES)):
        bare = toy_law(seed, 3, eos=-1)
        if seed < len(CANDIDATES):
            target = bare
        else:
            target = ShapedTarget(bare, GreedyRule())
        draft, scores = _drafted(seed, 3, target, Rng.of_choice(seed))
        got = defaultdict[Any, float](float)
        want = defaultdict[Any, float](float)
        for verdict, p in enumerate_executions(
            lambda rng, d=draft, s=scores: verifier.verify_draft(d, s, rng, 2)
        ):
            got[verdict.path, verdict.bonus] += p
        # The published rule, node by node from the root: an outcome without a child ends the path.
        reached: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
        for path, p in reached:
            for child, token, chance in rule(draft, scores, path[-1] if path else 0):
                if child is None:
                    want[path, token] += p * chance
                else:
                    reached.append(((*path, child), p * chance))
        off = max(abs(got[key] - want[key]) for key in {*got, *want})
        assert off < tolerance, (
            f"draft {seed}: the chance of a path is off the published rule's by {off:.2e}"
        )


def _path(verifier: Verifier, watch: ExercisedCollector) -> None:
    """Random drafts with real randomness: the verdict is a path, and its inputs are as they were."""
    for seed in range(40):
        size = 3 + seed % 2
        rng = StrictRng.of_choice(seed)
        # Copies of everything that the verifier may read, to see that it writes to none of it.
        draft, scores = _drafted(seed, size, toy_law(seed, size, eos=-1), rng)
        before = [law_V.clone() for law_V in draft.law if law_V is not None]
        rows = [scores.logprob_row(i).clone() for i in range(len(draft))]
        verdict = verifier.verify_draft(draft, scores, rng, 2)  # type: ignore[arg-type]
        watch.count_round(draft, verdict)
        above = 0
        for i in verdict.path:
            assert draft.parent[i] == above, f"path {verdict.path} leaves the tree at node {i}"
            assert i not in draft.probes, f"probe node {i} was accepted"
            above = i
        assert 0 <= verdict.bonus < size, f"bonus {verdict.bonus} is not a token"
        # A fresh stream of the same names: the verdict may depend on its arguments alone.
        again = verifier.verify_draft(draft, scores, StrictRng(rng._rng), 2)  # type: ignore[arg-type]
        assert again == verdict, "the same inputs gave another verdict"
        after = [law_V for law_V in draft.law if law_V is not None]
        assert all(a.equal(b) for a, b in zip(before, after, strict=True)), (
            "the verifier wrote to a law of the draft"
        )
        assert all(a.equal(scores.logprob_row(i)) for i, a in enumerate(rows)), (
            "the verifier wrote to a row of the target"
        )


@dataclass(frozen=True)
class UnreadableScores:
    """Scores of a greedy law whose rows may not be read."""

    only: tuple[int, ...]

    def certain_token(self, i: int) -> int:
        return self.only[i]

    likeliest_token = certain_token

    def logprob_row(self, i: int) -> Tensor:
        raise AssertionError(f"row {i} was read although its only token is known")

    log_weights = logprob_row

    def likeliest_tokens(self, i: int, k: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Give the only possible token.

        Args:
            i: Node of the draft.
            k: Not used: a greedy law has one token.

        Returns:
            The token, and its log-probability 0.
        """
        return (self.only[i],), (0.0,)

    def topk_rows(self, rows: Any, k: int) -> list[list[int]]:
        """Give the only possible token of several rows.

        Args:
            rows: Nodes of the draft.
            k: Not used: a greedy law has one token.

        Returns:
            For each node its token.
        """
        return [[self.only[i]] for i in rows]

    def token_logprobs(self, i: int, tokens: Any) -> tuple[float, ...]:
        """Give the log-probability of tokens without a row.

        Args:
            i: Node of the draft.
            tokens: Token ids.

        Returns:
            0 for the only possible token, -inf for any other.
        """
        return tuple(0.0 if x == self.only[i] else float("-inf") for x in tokens)

    def exit_laws(self, depth: int, nodes: Any) -> DraftScores:
        """Refuse to show the law of an earlier layer.

        Args:
            depth: Not used.
            nodes: Not used.

        Raises:
            AssertionError: Always.
        """
        raise AssertionError("the law of an earlier layer was read")

    hidden_NH = None

    @property
    def base(self) -> DraftScores:
        return self


def _certain(verifier: Verifier) -> None:
    # Nodes 1 and 2 are drawn below the root, 3 is certain below 2, and 4 is drawn below 3: a greedy
    # path meets both kinds.
    law_V = OrderTwoNetwork(1).weight[0, 0].log_softmax(-1)
    draft = Draft(
        (0, 1, 2, 0, 1), (-1, 0, 0, 2, 3), (C, D, D, C, W), (None, law_V, law_V, None, law_V)
    )
    # The greedy token of each node, and what must follow: all of a path, one node, none.
    for only, path, bonus in (
        ((2, 0, 0, 1, 2), (2, 3, 4), 2),
        ((2, 0, 1, 0, 0), (2,), 1),
        ((0, 0, 0, 0, 0), (), 0),
    ):
        verdict = verifier.verify_draft(draft, UnreadableScores(only), StrictRng.of_choice(0), 1)  # type: ignore[arg-type]
        assert (verdict.path, verdict.bonus) == (path, bonus), (
            f"greedy rows {only}: path {verdict.path} and {verdict.bonus}, not {path} and {bonus}"
        )

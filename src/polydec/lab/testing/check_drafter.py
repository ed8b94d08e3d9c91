"""The contract of drafters."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from math import inf, isclose
from typing import Any, ClassVar

from polydec.core.decoder import answer_one
from polydec.core.protocols import DraftScores, Session, Shaper, Target
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, DrawKind, Exactness, RowDetail
from polydec.lab.testing.enumerate import law_of, target_law, text_law_distance
from polydec.lab.testing.examples import bend_target
from polydec.lab.testing.exercised_counts import ContractCounts, require_mechanism_exercised
from polydec.lab.testing.strict import StrictRng
from polydec.lab.testing.toy import toy_law
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.loop.protocols import Drafter, DraftGuess, Verifier
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.methods.speculative.loop.walk import prefill_for_guess
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.exact import ExactVerifier
from polydec.methods.speculative.verifiers.match import MatchVerifier

TEXT = (0, 1, 0, 1, 2, 0, 1)
REPEATED = (0, 1, 0, 1, 0, 1)
OTHERS = (
    (0, 1, 0, 1, 0, 1, 0, 1),
    (1, 1, 0, 1, 1, 0, 1, 1),
    (0, 0, 1, 0, 0, 1, 0, 0),
    (1, 0, 1, 1, 0, 1, 1, 0),
)
"""Texts in which something comes back, each of them another one."""


@dataclass
class DrafterCounts(ContractCounts):
    """What a check saw a drafter do.

    Attributes:
        drafted: Nodes that could have been accepted. 0 or more, like all of these.
        accepted: Nodes that the verifier accepted.
        rejected: Nodes below the last accepted one of their draft.
        laws: Laws that were enumerated.
        proposing: Rounds with a proposal.
        distinct: Proposals that were others than the first, where there was one for each of several
            texts.
        learned: Rounds in which a guess that had learned nothing proposed something else.
    """

    drafted: int = 0
    accepted: int = 0
    rejected: int = 0
    laws: int = 0
    proposing: int = 0
    distinct: int = 0
    learned: int = 0

    def count_round(self, draft: Draft, verdict: Verdict) -> None:
        """Count one round.

        Args:
            draft: The draft that was verified.
            verdict: The nodes of it that were accepted.
        """
        if verdict.path:
            last = verdict.path[-1]
        else:
            last = 0
        nodes = sum(map(len, draft.children))
        self.drafted += nodes
        self.accepted += len(verdict.path)
        self.rejected += len(draft.children[last])
        self.proposing += nodes > 0


@dataclass(frozen=True)
class CountingVerifier:
    """A lossless verifier whose rounds are counted."""

    inner: Verifier
    counts: DrafterCounts
    exactness: ClassVar[Exactness] = Exactness.LAW

    def verify_draft(self, draft: Draft, scores: DraftScores, rng: Rng, position: int) -> Verdict:
        """Decide as the inner verifier does, and count the round.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            rng: Random stream of the text.
            position: Absolute position of the first drafted token.

        Returns:
            The inner verifier's verdict.
        """
        verdict = self.inner.verify_draft(draft, scores, rng, position)
        self.counts.count_round(draft, verdict)
        return verdict


def _now(coro: Coroutine[Any, Any, Any]) -> Any:
    return run_coroutines([coro])[0]


def check_drafter(
    drafter: Drafter,
    *,
    size: int = 3,
    tolerance: float = 1e-9,
    shapers: Sequence[Shaper[Any]] = (),
) -> DrafterCounts:
    """Check everything that a drafter promises.

    Its proposals are trees below the root that stay within the budget, depend on nothing but the
    text, what the drafter was given to learn and the randomness, are not changed by what a fork
    does, and change neither the text under `match` nor the law under `exact`. And it was seen at
    work: it proposed, some of that was accepted and some was not, it proposed otherwise for another
    text, and what it learned changed what it proposed. A class attribute `unexercised` of the
    drafter says, by the name of a count (DrafterCounts), why that is 0.

    Args:
        drafter: The drafter.
        size: Tokens of the toy targets; a drafter that holds a model must hold one of that size.
        tolerance: Total variation that rounding may leave.
        shapers: What bends the targets, such as a constraint. Default: nothing.

    Returns:
        The counts.

    Raises:
        AssertionError: A promise is broken, or something that is to be checked never happened.
    """
    counts = DrafterCounts()
    # Promises that hold round by round come first: budgets, forks, and what learning changes.
    _now(_rounds(drafter, bend_target(toy_law(9, size, sharp=2.0), shapers), counts))
    for seed in (5, 6):
        target = bend_target(toy_law(seed, size), shapers)
        # One proposal for each text; a drafter that never reads the text gives one and the same.
        counts.distinct += len({_now(_first(drafter, target, text)) for text in OTHERS}) - 1
    require_mechanism_exercised(counts, drafter, ("distinct", "learned"))
    # Then the law under `exact`, enumerated, and the text under `match`, for three targets each.
    in_laws = DrafterCounts()
    for seed in range(3):
        bare = toy_law(seed + 1, size)
        target = bend_target(bare, shapers)
        for prompt in ((0, 1), REPEATED):
            _law(drafter, bare, prompt, 3, shapers, tolerance, in_laws)
        # The same seed without drafts and with them: `match` accepts only what the target would
        # have drawn.
        request = Request(TEXT, max_tokens=24, ignore_eos=True, seed=seed)
        match = CountingVerifier(MatchVerifier(), counts)
        texts = [
            _now(
                answer_one(
                    SpeculativeDecoder(target, d, match, FixedPolicy(5, 12)),
                    request,
                    StrictRng.of_choice(seed),
                )
            )
            for d in (NothingDrafter(), drafter)
        ]
        assert texts[0].token_ids == texts[1].token_ids, "under `match` a draft changed the text"
    # drafters that look up what was written need more of it
    if not (in_laws.accepted and in_laws.rejected):
        _law(drafter, toy_law(1, size), REPEATED, 4, shapers, tolerance, in_laws)
    counts += in_laws
    require_mechanism_exercised(counts, drafter)
    return counts


def _law(
    drafter: Drafter,
    bare: Target,
    prompt: tuple[int, ...],
    length: int,
    shapers: Sequence[Shaper[Any]],
    tolerance: float,
    counts: DrafterCounts,
) -> None:
    """The law of answers of a length under exact verification is that of the target; rounds are
    counted.
    """
    request = Request(prompt, max_tokens=length)
    # Exact verification keeps the target's law only where the draft's own laws are true.
    decoder = SpeculativeDecoder(
        bend_target(bare, shapers),
        drafter,
        CountingVerifier(ExactVerifier(), counts),
        FixedPolicy(2, 4),
    )
    off = text_law_distance(
        law_of(lambda rng: answer_one(decoder, request, rng)),
        target_law(bare, prompt, length, shapers),
    )
    counts.laws += 1
    assert off < tolerance, (
        f"under exact verification the output law {counts.laws} is off by {off:.2e}"
    )


async def _first(drafter: Drafter, target: Target, text: Sequence[int]) -> tuple[Any, ...]:
    """What is proposed behind a text, most of which was written after the drafter had been opened."""
    # Token by token, each one as if the target had rejected all that was drafted.
    worker = await DrafterRun.open_run(drafter, target, text[:3])
    for i, token in enumerate(text[3:], 3):
        draft = Draft.chain_draft(worker.root)
        if i >= len(text) - 3:  # some drafters read what they laid into a pass
            draft = await worker.propose_draft(DraftBudget(4, 12))
        scores = await worker.score_draft_tree(draft)
        worker.finish_round(draft, scores, Verdict((), token))
    draft = await worker.propose_draft(DraftBudget(4, 12))
    worker.close()
    return _guess_of(draft)


@dataclass
class DrafterRun:
    """A drafter at work on one text.

    Attributes:
        guess: What the drafter opened for the text.
        session: The target's session of the text.
        root: Last token of the text, not yet fed.
        position: Absolute position of the token behind the root.
    """

    guess: DraftGuess
    session: Session
    root: int
    position: int

    @staticmethod
    async def open_run(drafter: Drafter, target: Target, text: Sequence[int]) -> DrafterRun:
        """Open a session and a guess, and run the prefill that the guess asks for.

        Args:
            drafter: The drafter.
            target: The model that it drafts for.
            text: Token ids of the prompt, at least one.

        Returns:
            The run, before its first round.
        """
        session = target.open_session(text)
        guess = drafter.open_guess(text, session)
        await prefill_for_guess(session, guess, text)
        return DrafterRun(guess, session, text[-1], len(text))

    async def propose_draft(self, budget: DraftBudget) -> Draft:
        return await self.guess.propose_draft(
            self.root, self.position, budget, Rng.of_choice(self.position)
        )

    async def score_draft_tree(self, draft: Draft) -> DraftScores:
        return await self.session.score_draft(draft, replace(self.guess.want, law=RowDetail.ROW))

    def finish_round(
        self, draft: Draft, scores: DraftScores, verdict: Verdict, learns: bool = True
    ) -> None:
        """Finish a round: commit what was accepted, and let the guess learn it.

        Args:
            draft: The draft that was scored.
            scores: The target's scores at its nodes.
            verdict: The accepted nodes and the token that follows.
            learns: Whether the guess is given the round to learn from. Default True.
        """
        self.session.commit_tokens(verdict.committed_tokens(draft))
        if learns:
            self.guess.learn_round(draft, scores, verdict)
        self.root = verdict.bonus
        self.position = self.position + len(verdict.path) + 1

    def fork(self) -> DrafterRun:
        session = self.session.fork()
        return DrafterRun(self.guess.fork_guess(session), session, self.root, self.position)

    def close(self) -> None:
        self.guess.close()
        self.session.close()


BUDGETS = (
    DraftBudget(3, 6),
    DraftBudget(0, 0),
    DraftBudget(1, 2),
    DraftBudget(4, 3),
    DraftBudget(2, 64),
    DraftBudget(6, 12),
)


async def _rounds(drafter: Drafter, target: Target, counts: DrafterCounts) -> None:
    """One guess is forked in every round and its twin goes another way, one is never forked, and
    one never learns.
    """
    # The three see the same rounds; all that differs is whether the guess is forked, and whether it
    # learns.
    forked, alone, untaught = [await DrafterRun.open_run(drafter, target, TEXT) for _ in range(3)]
    price = forked.guess.price
    assert 0.0 <= price < inf, f"price is {price}: it must be milliseconds, 0 or more"
    twin = forked.fork()
    size = target.vocab.size
    for i, budget in enumerate((*BUDGETS, *BUDGETS, *BUDGETS)):
        other = forked.fork()
        drafts = [await w.propose_draft(budget) for w in (forked, alone, other)]
        for draft in drafts:
            _legal(draft, forked.root, budget, size)
            assert _same(drafts[0], draft), "the same text and randomness gave another draft"
        # A guess that never learns proposes something else as soon as learning matters.
        counts.learned += _guess_of(drafts[0]) != _guess_of(await untaught.propose_draft(budget))
        # The fork writes other tokens for two rounds and is closed: none of that may reach its
        # original.
        for draft in drafts[2:]:
            scores = await other.score_draft_tree(draft)
            other.finish_round(draft, scores, Verdict((), _drawn(scores, 0, other.position, 1)))
            draft = await other.propose_draft(budget)
            scores = await other.score_draft_tree(draft)
            other.finish_round(draft, scores, Verdict((), _drawn(scores, 0, other.position, 1)))
            other.close()
        # All three go on with one draft and one verdict, so that they stay comparable.
        for worker in (forked, alone, untaught):
            draft = drafts[0]
            scores = await worker.score_draft_tree(draft)
            verdict = MatchVerifier().verify_draft(draft, scores, Rng.of_choice(1), worker.position)
            if i % 3 == 2:  # as if the target had taken all of a path
                path = draft.path_to(_last(draft))
                verdict = Verdict(path, _drawn(scores, _last(draft), worker.position, 0))
            if worker is forked:
                counts.count_round(draft, verdict)
            worker.finish_round(draft, scores, verdict, learns=worker is not untaught)
    # The fork of the beginning and a new guess know the same text: what was learned since may not
    # show.
    fresh = await DrafterRun.open_run(drafter, target, TEXT)
    late = [await w.propose_draft(DraftBudget(3, 6)) for w in (twin, fresh)]  # in one company
    assert _same(*late), "what one guess learned changed its fork"
    for worker in (forked, alone, untaught, twin, fresh):
        worker.close()


def _drawn(scores: DraftScores, node: int, position: int, choice: int) -> int:
    """What the target says behind a node."""
    only = scores.certain_token(node)
    rng = Rng.of_choice(2, choice).child_stream("token", position)
    if only is None:
        return rng.draw_categorical(scores.logprob_row(node).exp())
    return only


def _last(draft: Draft) -> int:
    """The last node that may be accepted."""
    return max((c for below in draft.children for c in below), default=0)


def _same(a: Draft, b: Draft) -> bool:
    """Whether two drafts hold the same nodes, drawn of the same laws."""
    return (
        (a.token, a.parent, a.draw, a.probe) == (b.token, b.parent, b.draw, b.probe)
        and _near(a.chance or (), b.chance or ())
        and all(
            x_V is y_V if x_V is None or y_V is None else _near(x_V.tolist(), y_V.tolist())
            for x_V, y_V in zip(a.law, b.law, strict=True)
        )
    )


def _near(a: Sequence[float], b: Sequence[float]) -> bool:
    return len(a) == len(b) and all(isclose(x, y, abs_tol=1e-6) for x, y in zip(a, b))


def _guess_of(draft: Draft) -> tuple[Any, ...]:
    """The paths that may be accepted, and the laws that their tokens were drawn of, roughly."""
    nodes = [c for below in draft.children for c in below]
    laws = [draft.law[node] for node in nodes]
    return (
        *(tuple(draft.token[i] for i in draft.path_to(node)) for node in nodes),
        *(None if law_V is None else tuple(round(x, 3) for x in law_V.tolist()) for law_V in laws),
    )


def _legal(draft: Draft, root: int, budget: DraftBudget, size: int) -> None:
    assert draft.token[0] == root and draft.parent[0] == -1, (
        f"node 0 is {draft.token[0]}, not the root {root}"
    )
    probe = (draft.probe or (False,))[0]
    state = (draft.state or (None,))[0]
    # The root is a token of the text already, so nothing about it is drawn.
    certain = draft.draw[0] is DrawKind.CERTAIN and draft.law[0] is None
    assert certain and not probe and state is None and (draft.chance or (1.0,))[0] == 1.0, (
        "node 0 is not the pending root: a certain token of the text, of chance 1"
    )
    # Parents first, as a pass computes nodes in order.
    assert all(0 <= p < i for i, p in enumerate(draft.parent[1:], 1)), (
        "a node stands before its parent"
    )
    assert all(0 <= x < size for x in draft.token), f"{draft.token} holds what is no token"
    assert max(draft.depth) <= budget.depth, (
        f"depth {max(draft.depth)} is over the budget's {budget.depth}"
    )
    assert len(draft) - 1 <= budget.nodes, (
        f"{len(draft) - 1} nodes are over the budget's {budget.nodes}"
    )
    # A token that was drawn without a law could not be verified.
    for i in range(1, len(draft)):
        assert (draft.law[i] is None) == (draft.draw[i] is DrawKind.CERTAIN), (
            f"node {i} is {draft.draw[i]}, its law says otherwise"
        )
    for children in draft.children:
        # Only independent draws may repeat a token among siblings.
        certain = [draft.token[c] for c in children if draft.draw[c] is not DrawKind.INDEPENDENT]
        assert len(certain) == len(set(certain)), f"siblings {certain} hold one token twice"

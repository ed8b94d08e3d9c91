"""The contracts of drafters and of policies."""

from __future__ import annotations

import random
from collections.abc import Coroutine
from dataclasses import replace
from math import inf
from typing import Any

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run
from polydec.core.types import Draft, Draw, Reads
from polydec.drafters.nothing import Nothing
from polydec.families.ar.protocols import Drafter, Policy
from polydec.families.ar.speculative import Speculative
from polydec.families.ar.types import Budget, Verdict
from polydec.families.ar.walk import prefill
from polydec.policies.fixed import Fixed
from polydec.testing.enumerate import distance, law_of, target_law
from polydec.testing.strict import StrictRng
from polydec.testing.toy import toy
from polydec.verifiers.exact import Exact
from polydec.verifiers.match import Match

TEXT = (0, 1, 0, 1, 2, 0, 1)


def _now(coro: Coroutine[Any, Any, Any]) -> Any:
    return run([coro])[0]


def check_drafter(drafter: Drafter, *, size: int = 3, tolerance: float = 1e-9) -> None:
    """Raise AssertionError unless the drafter's proposals are trees below the root that stay within the budget, depend on
    nothing but the text, what it was shown and the randomness, are left alone by a fork's doings, and change neither the
    text under `match` nor the law under `exact`.

    size: tokens of the toy targets; a drafter that holds a model must hold one of that size.
    """
    for seed in range(4):
        target = toy(seed + 1, size)
        for prompt, length in (((0, 1), 3), ((0, 1, 0), 3 if seed else 4)):
            request, decoder = (
                Request(prompt, max_tokens=length),
                Speculative(target, drafter, Exact(), Fixed(2, 4)),
            )
            off = distance(
                law_of(lambda rng, d=decoder, r=request: answer_one(d, r, rng)),
                target_law(target, prompt, length),
            )
            assert off < tolerance, (
                f"under exact verification the output law {seed} is off by {off:.2e}"
            )
        request = Request(TEXT, max_tokens=24, ignore_eos=True, seed=seed)
        texts = [
            _now(
                answer_one(
                    Speculative(target, d, Match(), Fixed(5, 12)), request, StrictRng.of(seed)
                )
            )
            for d in (Nothing(), drafter)
        ]
        assert texts[0].token_ids == texts[1].token_ids, "under `match` a draft changed the text"
    _now(_rounds(drafter, size))


async def _rounds(drafter: Drafter, size: int) -> None:
    target, dice = toy(9, size), random.Random(3)
    sessions = [target.open(TEXT) for _ in range(3)]
    guesses = [drafter.open(TEXT, s) for s in sessions]
    for g, s in zip(guesses, sessions, strict=True):
        await prefill(s, g, TEXT)
    assert 0.0 <= guesses[0].price < inf, (
        f"price is {guesses[0].price}: it must be milliseconds, 0 or more"
    )
    root, position, other = TEXT[-1], len(TEXT), sessions[0].fork()
    twin = guesses[0].fork(other)
    for budget in (
        Budget(3, 6),
        Budget(0, 0),
        Budget(1, 2),
        Budget(4, 3),
        Budget(2, 64),
        Budget(6, 12),
    ):
        rng = Rng.of(position)
        drafts = [await g.propose(root, position, budget, rng) for g in guesses]
        for draft in drafts:
            _legal(draft, root, budget, size)
        assert all(_same(drafts[0], d) for d in drafts), (
            "the same text and randomness gave another draft"
        )
        bonus = dice.randrange(size)
        for g, s, d in zip(guesses, sessions, drafts, strict=True):
            leaf = _last(d) if g is not guesses[2] else 0
            verdict = Verdict(d.path_to(leaf), bonus)
            scores = await s.score(d, replace(g.want, law=Reads.ROW))
            s.commit((root, *[d.token[i] for i in verdict.path]))
            g.learn(d, scores, verdict)
        position += len(drafts[0].path_to(_last(drafts[0]))) + 1
        root = bonus
        for old in (guesses[2], sessions[2]):  # the third went another way
            old.close()
        sessions[2] = sessions[0].fork()
        guesses[2] = guesses[0].fork(sessions[2])
    session = target.open(TEXT)
    fresh = drafter.open(TEXT, session)
    await prefill(session, fresh, TEXT)
    late = [
        await g.propose(TEXT[-1], len(TEXT), Budget(3, 6), Rng.of(len(TEXT))) for g in (twin, fresh)
    ]  # in one company
    assert _same(*late), "what one guess learned changed its fork"
    for thing in (*guesses, twin, fresh, *sessions, other):
        thing.close()


def _last(draft: Draft) -> int:
    """The last node that may be accepted."""
    return max((c for below in draft.children for c in below), default=0)


def _same(a: Draft, b: Draft) -> bool:
    return (a.token, a.parent, a.draw) == (b.token, b.parent, b.draw)


def _legal(draft: Draft, root: int, budget: Budget, size: int) -> None:
    assert draft.token[0] == root and draft.parent[0] == -1, (
        f"node 0 is {draft.token[0]}, not the root {root}"
    )
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
    for i in range(1, len(draft)):
        assert (draft.law[i] is None) == (draft.draw[i] is Draw.CERTAIN), (
            f"node {i} is {draft.draw[i]}, its law says otherwise"
        )
    for children in draft.children:
        certain = [draft.token[c] for c in children if draft.draw[c] is not Draw.INDEPENDENT]
        assert len(certain) == len(set(certain)), f"siblings {certain} hold one token twice"


def check_policy(policy: Policy[Any]) -> None:
    """Raise AssertionError unless budgets are legal and follow from what was observed alone."""
    dice = random.Random(7)
    history = [
        (Draft.chain(0, (1,) * n), Verdict(tuple(range(1, 1 + dice.randint(0, n))), 2))
        for n in [dice.randrange(5) for _ in range(30)]
    ]
    runs: list[list[tuple[int, int, int, bool]]] = []
    for _ in range(2):
        state, seen = policy.start(), list[tuple[int, int, int, bool]]()
        for draft, verdict in history:
            b = policy.budget(state)
            assert b.depth >= 0 and b.nodes >= 0 and b.width >= 1, f"budget {b} is not legal"
            again = policy.budget(state)
            seen.append((b.depth, b.nodes, b.width, b.go_on(1, 0.5)))
            assert seen[-1] == (again.depth, again.nodes, again.width, again.go_on(1, 0.5)), (
                "one state gave two budgets"
            )
            state = policy.observe(state, draft, verdict)
        runs.append(seen)
    assert runs[0] == runs[1], "the same history gave other budgets"

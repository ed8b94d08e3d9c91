"""A fork of a session that skips layers goes on as a session of its own, whatever was done before."""

import random

import pytest

from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.testing.toy import toy_law
from polydec.laws.shapers.frequency import FrequencyPenaltyRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.laws.targets.skipping import SkippingSession, SkippingTarget

SIZE = 4
PROMPT = (0, 1, 3, 2)


def law(keep, shaped):
    target = toy_law(3, SIZE, eos=-1)
    return SkippingTarget(
        ShapedTarget(target, FrequencyPenaltyRule(0.7)) if shaped else target, keep
    )


class Run:
    """A session, what was done with it in order, and the rows that it gave."""

    def __init__(self, session, draft=None, root=PROMPT[-1], count=3, done=()):
        self.session, self.draft, self.root, self.count = session, draft, root, count
        self.done, self.rows = list(done), []

    def fork(self):
        return Run(self.session.fork(), self.draft, self.root, self.count, self.done)

    def step(self, verb, *given):
        """Do one thing, and note the rows of a score."""
        self.done.append((verb, *given))
        if verb == "score_draft":
            self.draft = given[0]
            scores = run_coroutines([self.session.score_draft(self.draft, ScoreRequest())])[0]
            self.rows.append([scores.logprob_row(i).tolist() for i in range(len(self.draft))])
            return
        left = getattr(self.session, verb)(*given)
        if verb == "keep_nodes":
            self.draft = left
        elif verb != "evict_cache":
            self.draft = None

    def go_on(self, rng):
        """Something that a session may be asked for now."""
        verb = rng.choice(
            (
                "score_draft",
                "score_draft",
                "commit_tokens",
                "commit_tokens",
                "keep_nodes",
                "rewind_tokens",
                "evict_cache",
            )
        )
        draft = self.draft
        if verb == "commit_tokens":
            path = [0]
            while draft is not None and rng.random() < 0.7 and draft.children[path[-1]]:
                path.append(rng.choice(draft.children[path[-1]]))
            tokens = [self.root] if draft is None else [draft.token[i] for i in path]
            # A last token that was scored nowhere waits for the next score.
            tokens += [rng.randrange(SIZE)] * rng.randrange(2)
            self.count += len(tokens)
            self.root = rng.randrange(SIZE)
            self.step("commit_tokens", tokens)
        elif verb == "rewind_tokens" and self.count > 2:
            less = rng.randint(1, 2)
            self.count -= less
            self.root = rng.randrange(SIZE)
            self.step("rewind_tokens", less)
        elif verb == "keep_nodes" and draft is not None:
            root = rng.randrange(len(draft))
            self.count += draft.depth[root]
            self.step("keep_nodes", range(len(draft)), root)
        elif verb == "evict_cache":
            self.step("evict_cache")
        else:
            draft = draft or Draft.chain_draft(self.root)
            tokens, parents = list(draft.token), list(draft.parent)
            for parent in rng.choices(range(len(draft)), k=2):
                known = {x for x, p in zip(tokens, parents, strict=True) if p == parent}
                if free := [x for x in range(SIZE) if x not in known]:
                    tokens.append(rng.choice(free))
                    parents.append(parent)
            self.step("score_draft", Draft.certain_tree(tokens, parents))


def check_twins(seed):
    """Two twins write texts of their own; each has the rows of a session that was never forked."""
    rng = random.Random(seed)
    target = law(rng.choice([(0, 2), (0, 1, 2), (1,), (0, 1)]), seed % 2 == 0)
    first = Run(target.open_session(PROMPT))
    for _ in range(rng.randrange(8)):
        first.go_on(rng)
    twins = (first, first.fork())
    for _ in range(16):
        rng.choice(twins).go_on(rng)
    for twin in twins:
        alone = Run(target.open_session(PROMPT))
        for verb, *given in twin.done:
            alone.step(verb, *given)
        for got, want in zip(twin.rows[::-1], alone.rows[::-1], strict=False):
            assert len(got) == len(want)
            for one, other in zip(got, want, strict=True):
                assert one == pytest.approx(other, abs=1e-12)


@pytest.mark.parametrize("seed", range(60))
def test_a_fork_goes_on_as_a_session_of_its_own(seed):
    check_twins(seed)


def shares_its_part(self, choice=None):
    twin = SkippingSession(self._inner.fork(choice), self._layers, self._prompt)
    twin._length = self._length
    twin._unread = list(self._unread)
    twin._scored = self._scored
    twin._part = self._part
    return twin


def loses_what_waits(self, choice=None):
    twin = SkippingSession(self._inner.fork(choice), self._layers, self._prompt)
    twin._length = self._length
    twin._scored = self._scored
    return twin


@pytest.mark.parametrize("fault", [shares_its_part, loses_what_waits])
def test_a_fork_that_shares_or_loses_something_is_found(fault, monkeypatch):
    monkeypatch.setattr(SkippingSession, "fork", fault)
    with pytest.raises(Exception):  # noqa: B017  (a wrong row, or a session in disorder)
        for seed in range(60):
            check_twins(seed)

"""The autoregressive loop: propose, score, verify, commit. Plain decoding is the drafter that proposes nothing."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from polydec.core.protocols import Drafter, Guess, Policy, Scores, Target, Verifier
from polydec.core.request import Output, Request, Result, Stats, TokenLogprob
from polydec.core.rng import Rng
from polydec.core.trace import Edited, Finished, Observer, Opened, Proposed, Verified, ignore
from polydec.core.types import Draft, Edit, Exactness, Reads, Verdict


@dataclass(frozen=True)
class Speculative:
    """A decoder of the draft-and-verify family. `law`: what the target's law is to the one that was asked for: LAW, the
    same, or APPROXIMATE where the recipe puts another in its place."""
    target: Target
    drafter: Drafter
    verifier: Verifier
    policy: Policy[Any]
    law: Exactness = Exactness.LAW

    @property
    def exactness(self) -> Exactness:
        return self.verifier.exactness if self.law is Exactness.LAW else self.law

    async def run(self, request: Request, rng: Rng | None = None, on: Observer = ignore) -> Result:
        """Decode one choice. `rng` replaces the request's own stream (the enumerator of polydec.testing does that)."""
        return await decode(self.target, self.drafter, self.verifier, self.policy, request, rng, on)


async def decode(target: Target, drafter: Drafter, verifier: Verifier, policy: Policy[Any], request: Request,
                 rng: Rng | None = None, on: Observer = ignore) -> Result:
    """Draws are keyed by position: what is drafted moves no draw of the text."""
    rng = rng or Rng.of(request.seed, request.choice)
    out, stats, choice, prompt = Output(request, target.vocab.eos), Stats(), request.choice, request.prompt
    notes: list[TokenLogprob] | None = None if request.logprobs is None else []
    told, idle = Proposed in getattr(on, "kinds", (Proposed,)), 0     # idle: passes without a draft, not yet in `stats`
    session, guess = target.open(prompt), None
    try:
        guess = drafter.open(prompt, session)
        on(Opened(choice, prompt))
        await _prefill(session.prefill, guess, prompt)
        want = replace(guess.want, law=Reads.ROW, prompt=False, base=guess.want.base if notes is None else Reads.ROW)
        state, root = policy.start(), prompt[-1]
        while True:
            n, room, budget = len(prompt) + len(out.tokens), out.room - 1, policy.budget(state)
            if budget.depth > room:
                budget = replace(budget, depth=room)
            draft = (await guess.propose(root, n, budget, rng)).fit(room, out.ends)
            if told:
                on(Proposed(choice, n, draft.token, draft.parent))
            scores = await session.score(draft, want)
            verdict = verifier.verify(draft, scores, rng, n)
            if told:
                on(Verified(choice, n, verdict.path, verdict.bonus))
            path = [draft.token[i] for i in verdict.path]
            new = path if path and path[-1] in out.ends else [*path, verdict.bonus]
            pieces = out.append(new)
            new = new[:len(pieces)]
            if len(draft.token) > 1 or not stats.passes:
                stats = count(stats, draft, verdict, len(new))
            else:
                idle += 1
            if notes is not None:
                notes += logprobs(scores, (0, *verdict.path), new, request.logprobs or 0)
            on(Edited(choice, Edit(write=tuple(enumerate(new, n))), pieces, min(len(path), len(new))))
            if out.finish_reason is not None:
                on(Finished(choice, out.finish_reason))
                stats = replace(stats, passes=stats.passes + idle)
                return Result(tuple(out.tokens), out.text, out.finish_reason, None if notes is None else tuple(notes), stats)
            session.commit((root, *path))
            guess.learn(draft, scores, verdict)
            state, root = policy.observe(state, draft, verdict), verdict.bonus
    finally:
        if guess is not None:
            guess.close()
        session.close()


async def _prefill(prefill: Any, guess: Guess, prompt: tuple[int, ...]) -> None:
    """Feed the prompt; where the drafter wants its rows, it learns from it as from a chain that was accepted whole."""
    scores = await prefill(replace(guess.want, law=guess.want.base))
    if guess.want.prompt and len(prompt) > 1:
        whole = Verdict(tuple(range(1, len(prompt) - 1)), prompt[-1], prompt=True)
        guess.learn(Draft.chain(prompt[0], prompt[1:-1]), scores, whole)


def count(s: Stats, draft: Draft, verdict: Verdict, new: int) -> Stats:
    """The statistics after one more pass, which gave `new` tokens."""
    deepest, got = max((draft.depth[c] for below in draft.children for c in below), default=0), len(verdict.path)
    tried = tuple(a + b for a, b in zip_longest(s.tried_at, (1,) * deepest, fillvalue=0))
    accepted = tuple(a + b for a, b in zip_longest(s.accepted_at, (1,) * got + (0,) * (deepest - got), fillvalue=0))
    drafted = sum(map(len, draft.children))
    return Stats(s.passes + 1, s.drafts + (drafted > 0), s.drafted + drafted, s.accepted + got, accepted, tried,
                 s.first if s.passes else new,
                 None if s.expected is None or (drafted and draft.chance is None) else s.expected + draft.expected)


def logprobs(scores: Scores, nodes: Sequence[int], tokens: Sequence[int], k: int) -> list[TokenLogprob]:
    """Of tokens that follow these nodes, with the k likeliest of the model beside each."""
    out: list[TokenLogprob] = []
    for node, x in zip(nodes, tokens, strict=False):
        top = zip(*scores.base.topk(node, k), strict=True) if k else ()
        out.append(TokenLogprob(x, scores.logp(node, (x,))[0], scores.base.logp(node, (x,))[0], tuple(top)))
    return out

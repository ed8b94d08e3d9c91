"""What the claims about draft models share: a pair of models, runs with the passes and positions of both, and their ratios."""
from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seen import interval, lines, part, per_pass, shaped

from polydec.api import LM
from polydec.core.decode import Speculative
from polydec.core.protocols import Drafter, Policy, Target, Verifier
from polydec.core.request import Request
from polydec.core.scheduler import Scheduler, Usage

Setting = tuple[Callable[[Target], Drafter], Verifier, Policy[Any]]
"""(a drafter from the draft model's law, verifier, policy)."""


@dataclass(frozen=True)
class Run:
    """One answer: tokens written, passes of the target, nodes that it was shown, passes and positions of the draft."""
    tokens: int
    passes: int
    drafted: int
    draft_passes: int
    draft_positions: int

    def __add__(self, other: Run) -> Run:
        return Run(*(a + b for a, b in zip(self.counts, other.counts)))

    @property
    def counts(self) -> tuple[int, ...]:
        return self.tokens, self.passes, self.drafted, self.draft_passes, self.draft_positions


def questions(lm: LM, args: argparse.Namespace, *, tune: bool | None = None) -> list[tuple[int, ...]]:
    """Ids of Spec-Bench first turns that leave room for the answer: those for measuring, or for tuning."""
    texts = part((r["turns"][0] for r in lines("spec_bench/question.jsonl")), 10**6, args.tune if tune is None else tune)
    ids = [lm.ids(t) for t in texts]
    room = min(lm.network.context, lm.draft.lm.network.context if lm.draft else 10**6) - args.tokens
    fit = [x for x in ids if len(x) < min(room, 400)]
    return fit[::max(1, len(fit) // args.prompts)][:args.prompts]        # spread over the categories


def answer(lm: LM, setting: Setting, prompt: Sequence[int], args: argparse.Namespace, temperature: float) -> Run:
    """One request, both models at this temperature."""
    drafter, verifier, policy = setting
    target, draft = shaped(lm, temperature, args.seed), shaped(lm, temperature, args.seed, of_draft=True)
    scheduler = Scheduler()
    decoder = Speculative(target, drafter(draft), verifier, policy)
    task = scheduler.submit(decoder.run(Request(tuple(prompt), max_tokens=args.tokens, seed=args.seed)))
    while scheduler.step():
        pass
    if task.error is not None:
        raise task.error
    stats, small = task.result.stats, task.usage.get(lm.draft.lm.network, Usage())
    return Run(len(task.result.token_ids), stats.passes, stats.drafted, small.passes, small.positions - len(prompt) + 1)


def answers(lm: LM, settings: Mapping[str, Setting], prompts: Sequence[Sequence[int]], args: argparse.Namespace,
            temperature: float) -> dict[str, list[Run]]:
    """Of each setting a run for each prompt, settings side by side."""
    out: dict[str, list[Run]] = {name: [] for name in settings}
    for prompt in prompts:
        for name, setting in settings.items():
            out[name].append(answer(lm, setting, prompt, args, temperature))
    return out


def ratio(ours: Sequence[Run], theirs: Sequence[Run], *, of: Callable[[Run], float] = lambda r: r.passes) -> str:
    """Tokens per unit of `of` (a pass of the target, say), over theirs, with the paired interval."""
    pairs = [[(r.tokens, of(r)) for r in runs] for runs in (ours, theirs)]
    return "{:.3f} [{:.3f}, {:.3f}]".format(*interval(*pairs))


def row(name: str, runs: Sequence[Run]) -> dict[str, Any]:
    """Tokens a pass, and what they cost in nodes shown to the target and in positions of the draft, a pass each."""
    all_ = sum(runs[1:], runs[0])
    return {"method": name, "tokens per pass": per_pass([(r.tokens, r.passes) for r in runs]),
            "nodes per pass": all_.drafted / all_.passes, "draft passes per pass": all_.draft_passes / all_.passes}

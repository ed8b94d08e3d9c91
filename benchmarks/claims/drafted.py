"""What the claims about draft models share: a pair of models, single rounds at the same places of the same texts, whole runs
with the passes and positions of both models, and ratios with paired intervals.

Sampled texts of two methods differ from the first rejection on, and their chance hides differences of a few percent. So trees
are compared by rounds: the target writes a text alone, and at every --every-th place of it each method drafts and is verified.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seen import interval, lines, part, per_pass, shaped

from polydec.api import LoadedModel
from polydec.core.decoder import answer_one
from polydec.core.protocols import Target
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import ModelUsage, Scheduler, run_coroutines
from polydec.core.types import RowDetail, ScoreRequest
from polydec.lab.testing.kits import build
from polydec.methods.speculative.loop.protocols import Drafter, Policy, TreeGrower, Verifier
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.loop.types import DraftBudget

Setting = tuple[Callable[[Target], Drafter], Verifier, Policy[Any]]
"""(a drafter from the draft model's law, verifier, policy)."""


def questions(
    lm: LoadedModel, args: argparse.Namespace, *, tune: bool | None = None
) -> list[tuple[int, ...]]:
    """Ids of Spec-Bench first turns that leave room for the answer: those for measuring, or for tuning."""
    texts = part(
        (r["turns"][0] for r in lines("spec_bench/question.jsonl")),
        10**6,
        args.tune if tune is None else tune,
    )
    ids = [lm.encode_prompt(t) for t in texts]
    room = min(lm.network.context, lm.draft.lm.network.context if lm.draft else 10**6) - args.tokens
    fit = [x for x in ids if len(x) < min(room, 400)]
    return fit[:: max(1, len(fit) // args.prompts)][: args.prompts]  # spread over the categories


@dataclass(frozen=True)
class Run:
    """One answer, or the rounds of one text: tokens written, passes of the target, nodes that it was shown, passes and
    positions of the draft."""

    tokens: float
    passes: float
    drafted: float
    draft_passes: float = 0
    draft_positions: float = 0

    def __add__(self, other: Run) -> Run:
        return Run(
            self.tokens + other.tokens,
            self.passes + other.passes,
            self.drafted + other.drafted,
            self.draft_passes + other.draft_passes,
            self.draft_positions + other.draft_positions,
        )


def plain(
    lm: LoadedModel, prompt: Sequence[int], args: argparse.Namespace, temperature: float
) -> tuple[int, ...]:
    """What the target writes alone."""
    decoder, _ = build("plain", shaped(lm, temperature, args.seed))
    return run_coroutines(
        [answer_one(decoder, Request(tuple(prompt), max_tokens=args.tokens, seed=args.seed))]
    )[0].token_ids


def rounds(
    lm: LoadedModel,
    trees: Mapping[str, tuple[TreeGrower, Verifier, DraftBudget]],
    prompts: Sequence[Sequence[int]],
    args: argparse.Namespace,
    temperature: float,
    *,
    coins: int = 4,
) -> dict[str, list[Run]]:
    """Of each tree and text its rounds: `args.draws` trees at a place, each verified `coins` times."""
    out: dict[str, list[Run]] = {name: [] for name in trees}
    target, draft = (shaped(lm, temperature, args.seed, of_draft=small) for small in (False, True))

    async def walk(prompt: tuple[int, ...], text: tuple[int, ...]) -> dict[str, Run]:
        large, small, root, sums = (
            target.open_session(prompt),
            draft.open_session(prompt),
            prompt[-1],
            dict.fromkeys(trees, Run(0, 0, 0)),
        )
        for session in (large, small):
            await session.prefill_prompt(ScoreRequest(law=RowDetail.NOTHING))
        for i, x in enumerate(text):
            at = len(prompt) + i
            for name, (tree, verifier, budget) in trees.items() if i % args.every == 0 else ():
                for n in range(args.draws):
                    guess = await tree.grow_tree(
                        small, root, at, budget, Rng.of_choice(args.seed + 1, n)
                    )
                    guess = guess.cut_draft(64, target.vocab.eos)
                    scores = await large.score_draft(guess, ScoreRequest())
                    got = [
                        len(
                            verifier.verify_draft(
                                guess, scores, Rng.of_choice(args.seed + 2, coins * n + c), at
                            ).path
                        )
                        for c in range(coins)
                    ]
                    sums[name] += Run(1 + sum(got) / coins, 1, len(guess) - 1, max(guess.depth))
            for session in (large, small):
                session.commit_tokens((root,))
            root = x
        return sums

    for prompt in prompts:
        for name, sums in run_coroutines(
            [walk(tuple(prompt), plain(lm, prompt, args, temperature))]
        )[0].items():
            out[name].append(sums)
    return out


def answer(
    lm: LoadedModel,
    setting: Setting,
    prompt: Sequence[int],
    args: argparse.Namespace,
    temperature: float,
) -> Run:
    """One request, both models at this temperature."""
    drafter, verifier, policy = setting
    target, draft = (
        shaped(lm, temperature, args.seed),
        shaped(lm, temperature, args.seed, of_draft=True),
    )
    scheduler = Scheduler()
    decoder = SpeculativeDecoder(target, drafter(draft), verifier, policy)
    task = scheduler.submit_coroutine(
        answer_one(decoder, Request(tuple(prompt), max_tokens=args.tokens, seed=args.seed))
    )
    while scheduler.step():
        pass
    if task.error is not None:
        raise task.error
    stats, small = task.result.stats, task.usage.get(lm.draft.lm.network, ModelUsage())
    return Run(
        len(task.result.token_ids),
        stats.passes,
        stats.drafted,
        small.passes,
        small.positions - len(prompt) + 1,
    )


def ratio(
    ours: Sequence[Run], theirs: Sequence[Run], *, of: Callable[[Run], float] = lambda r: r.passes
) -> str:
    """Tokens per unit of `of` (a pass of the target, say), over theirs, with the paired interval."""
    pairs = [[(r.tokens, of(r)) for r in runs] for runs in (ours, theirs)]
    return "{:.3f} [{:.3f}, {:.3f}]".format(*interval(*pairs))


def row(name: str, runs: Sequence[Run]) -> dict[str, Any]:
    """Tokens a pass, and what they cost in nodes shown to the target and in passes of the draft."""
    all_ = sum(runs[1:], runs[0])
    return {
        "method": name,
        "tokens per pass": per_pass([(r.tokens, r.passes) for r in runs]),
        "nodes per pass": all_.drafted / all_.passes,
        "levels": all_.draft_passes / all_.passes,
    }

"""The contract of preemption: a request that is put on hold gives its cache back, and its text
stays what it is alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from polydec.core.decoder import Decoder, answer_one
from polydec.core.effects import Coro
from polydec.core.protocols import Target
from polydec.core.request import Request
from polydec.core.scheduler import Scheduler, run_coroutines
from polydec.lab.testing.exercised_counts import ContractCounts
from polydec.lab.testing.toy import toy_law
from polydec.models.sessions.lm import CausalLaw

PROMPT = (0, 1, 0, 2, 0, 1)


@dataclass(frozen=True)
class PreemptionCounts(ContractCounts):
    """What a check of requests on hold saw.

    Attributes:
        answers: Answers that were compared with what their requests say alone. 0 or more, like all
            of these.
        holds: How often a request was put on hold.
    """

    answers: int = 0
    holds: int = 0


def run_on_hold(coros: Sequence[Coro], laws: Sequence[CausalLaw]) -> tuple[list[Any], list[int]]:
    """Drive coroutines side by side as if there were next to no memory.

    At four of five passes, drawn once for all, each is asked to stop, and gives back all that it
    holds of these laws when it has.

    Args:
        coros: Coroutines of answers.
        laws: Every law whose sessions the coroutines open.

    Returns:
        Their results in order, and how often each was put on hold.

    Raises:
        Exception: The first error of a coroutine, once all have ended.
    """
    scheduler = Scheduler()
    # A fixed seed: a failure can be repeated.
    dice = random.Random(0)
    tasks = [scheduler.submit_coroutine(coro) for coro in coros]
    holds = [0] * len(tasks)
    try:
        while not all(task.done for task in tasks):
            for task in tasks:
                if dice.random() < 0.8:
                    # A request stops at its next pause only, so being asked and having stopped are
                    # two steps.
                    scheduler.hold_task(task)
            scheduler.step()
            for i, task in enumerate(tasks):
                if scheduler.has_stopped(task):
                    # As a server short of memory does: the cache goes, and is fed anew when the
                    # request goes on.
                    _evict(task, laws)
                    holds[i] += 1
                    scheduler.resume_task(task)
    finally:
        for task in tasks:
            task.close()
    for task in tasks:
        if task.error is not None:
            raise task.error
    return [task.result for task in tasks], holds


def _evict(task: Any, laws: Sequence[CausalLaw]) -> None:
    for law in laws:
        for session in list(law.live):
            # Sessions of other tasks stay as they are: they may be in the middle of a pass.
            if session.owner is task:
                session.evict_cache()


def check_preemption(
    make: Callable[[Target, Target], Decoder], *, length: int = 9
) -> PreemptionCounts:
    """Check that requests that are put on hold again and again, beside others, say what each says
    alone.

    Args:
        make: From (target, draft) to the decoder to check.
        length: Tokens of the first answer, at least 1. Default 9.

    Returns:
        How many answers were compared, and how often a request was put on hold.

    Raises:
        AssertionError: An answer is another one, or a request was never put on hold.
    """
    answers = 0
    held = 0
    for seed in range(2):
        target = toy_law(seed, 6)
        # A draft that resembles the target under one seed, and is another law under the other.
        draft = toy_law(seed + seed % 2, 6, sharp=0.9, cost=0.1)
        requests = [Request(PROMPT[i:], length + i, ignore_eos=True, seed=seed) for i in range(2)]
        # Alone first, for the comparison.
        alone = [
            run_coroutines([answer_one(make(target, draft), r)])[0].token_ids for r in requests
        ]
        coros = [answer_one(make(target, draft), r) for r in requests]
        results, holds = run_on_hold(coros, (target, draft))
        # A run that never stopped has shown nothing.
        assert min(holds), "a request was never put on hold: it does not pause behind its passes"
        held += sum(holds)
        answers += len(results)
        for want, result in zip(alone, results, strict=True):
            assert result.token_ids == want, (
                f"put on hold {sum(holds)} times, a request says {result.token_ids}, alone {want}"
            )
    return PreemptionCounts(answers, held)

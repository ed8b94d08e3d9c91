"""A model that writes what is marked: likelihood with the right marks, unlikelihood with wrong ones.

Source: Adams et al., Generating EDU extracts for plan-guided summary re-ranking, 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor
from torch.nn.functional import cross_entropy

from polydec.lab.train.oracle_plans import PlannedPair, corrupt_plan
from polydec.models.text.clauses import mark_clauses

Sides = tuple[Sequence[int], Sequence[int]]
"""Token ids of a source and of its target."""


def marked_pairs(
    chosen: Sequence[PlannedPair], marks: tuple[int, int], rng: np.random.Generator
) -> tuple[list[Sides], list[Sides], list[Sides]]:
    """The pairs without marks, with those of their plans, and with wrong ones.

    Args:
        chosen: Pairs.
        marks: Tokens before and behind a clause of a plan.
        rng: Draws wrong plans.

    Returns:
        Three lists; the last leaves out pairs for which there is no wrong plan.
    """
    plain = list[Sides]()
    right = list[Sides]()
    wrong = list[Sides]()
    for p in chosen:
        plain.append((p.source, p.target))
        right.append((mark_clauses(p.source, p.spans, p.plan, marks), p.target))
        # Drawn anew at each step: a model could learn a fixed wrong plan by heart.
        other = corrupt_plan(p.plan, len(p.spans), rng)
        if other is not None:
            wrong.append((mark_clauses(p.source, p.spans, other, marks), p.target))
    return plain, right, wrong


def plan_likelihood_loss(
    score: Callable[[Sequence[Sides]], tuple[Tensor, Tensor]],
    chosen: Sequence[PlannedPair],
    marks: tuple[int, int],
    smooth: float,
    rng: np.random.Generator,
) -> tuple[Tensor, int]:
    """What a model loses that is to write what is marked, and as well where nothing is.

    The sum of nats a token without marks, with the marks of the plan, and of -log(1 - p) with wrong
    marks.

    Args:
        score: Gives logits and right tokens of pairs, as `score_pairs` does.
        chosen: Pairs.
        marks: Tokens before and behind a clause of a plan.
        smooth: Share of a label that all tokens get alike.
        rng: Draws wrong plans.

    Returns:
        The loss, and the number of tokens.
    """
    plain, right, wrong = marked_pairs(chosen, marks, rng)
    loss, count = None, 0
    # Without marks it must stay a good model: that law judges the texts, and is beam search.
    for rows in (plain, right):
        logits_NV, token_N = score(rows)
        part = cross_entropy(logits_NV, token_N, label_smoothing=smooth)
        loss = part if loss is None else loss + part
        count += len(token_N)
    assert loss is not None
    # All pairs of a step may be so short that every clause is said.
    if wrong:
        logits_NV, token_N = score(wrong)
        # Labels are not smoothed here: no law is asked for, only that one token be less likely.
        chance_N = logits_NV.softmax(-1).gather(1, token_N[:, None])[:, 0]
        # Never the logarithm of 0: a token that is certain must be left, and has a gradient.
        loss = loss - (1 - chance_N).clamp(min=1e-5).log().mean()
        count += len(token_N)
    return loss, count

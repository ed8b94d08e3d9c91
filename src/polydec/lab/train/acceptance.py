"""How often a target accepts what a draft proposes, by teacher forcing on the target's own answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polydec.lab.train.divergence import acceptance_probability
from polydec.lab.train.network import TrainableLlama
from polydec.lab.train.selfplay import TrainingSample
from polydec.lab.train.teacher import TeacherModel


@dataclass(frozen=True)
class DraftAcceptance:
    """Over `tokens` positions: greedy: share where the draft's first choice is the target's; sampled: mean of 1 - TVD of
    the two laws at temperature 0.7; length: tokens a pass of greedy decoding with chains of `depth` (1 to depth + 1), from
    the greedy answers among the samples (0.0 where there are none)."""

    tokens: int
    greedy: float
    sampled: float
    length: float
    depth: int


@torch.no_grad()
def measure_draft_acceptance(
    student: TrainableLlama,
    teacher: TeacherModel,
    samples: Sequence[TrainingSample],
    outputs: Callable[[TrainableLlama, Sequence[TrainingSample]], Tensor],
    depth: int = 4,
) -> dict[str, DraftAcceptance]:
    """By kind of prompt, and "all"."""
    rows_by_kind: dict[str, list[tuple[Tensor, Tensor, list[int]]]] = {}
    for s in samples:
        law = (teacher.hidden(s).to(teacher.head_VH.dtype) @ teacher.head_VH.T).float()
        q = student.logits(outputs(student, [s])).float()
        assert student.tokens is not None, "a draft has a head of its own"
        tokens = student.tokens.long()
        hit = tokens[q.argmax(-1)] == law.argmax(-1)
        p = (law / 0.7).log_softmax(-1)
        near = acceptance_probability(
            p[:, tokens], (q / 0.7).log_softmax(-1), 1 - p[:, tokens].exp().sum(-1)
        )
        right = tokens[q.argmax(-1)] == torch.tensor(s.output_ids)
        plain = s.temperature == 0 and s.penalty == 1
        rows_by_kind.setdefault(s.kind or "text", []).append(
            (hit, near, chain_passes(right.tolist(), depth) if plain else [])
        )
    rows_by_kind["all"] = [r for rows in list(rows_by_kind.values()) for r in rows]
    out: dict[str, DraftAcceptance] = {}
    for kind, rows in rows_by_kind.items():
        hit = torch.cat([r[0] for r in rows]).float()
        near = torch.cat([r[1] for r in rows])
        passes = [n for r in rows for n in r[2]]
        out[kind] = DraftAcceptance(
            len(hit),
            float(hit.mean()),
            float(near.mean()),
            sum(passes) / len(passes) if passes else 0.0,
            depth,
        )
    return out


def chain_passes(right: Sequence[bool], depth: int) -> list[int]:
    """Tokens that each pass of chain drafting commits, where right[i] says that the draft guesses token i after the true
    text before it."""
    out = list[int]()
    at = 0
    while at < len(right):
        run = 0
        while run < depth and at + run < len(right) - 1 and right[at + run]:
            run += 1
        out.append(run + 1)
        at += run + 1
    return out

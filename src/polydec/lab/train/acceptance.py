"""How often a target accepts a draft's tokens, by teacher forcing on the target's own answers."""

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
    """How often a target accepts the tokens of a draft.

    Attributes:
        tokens: Number of positions that were measured.
        greedy: Share of positions where the draft's likeliest token is the target's.
        sampled: Mean of 1 - TVD of the two distributions at temperature 0.7, which is the
            probability that exact verification accepts a drawn draft token.
        length: Tokens a target pass of greedy decoding commits with chains of `depth` draft tokens,
            1 to depth + 1, from the greedy answers among the samples; 0.0 where there are none.
        depth: Draft tokens of a chain.
    """

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
    """Measure how often a target would accept a draft's tokens, on texts that the target wrote.

    Both models read the true text (teacher forcing), so all positions of a sample take one pass.

    Args:
        student: The draft, whose head has all tokens, or some that it can propose.
        teacher: The target.
        samples: Prompts with the target's answers.
        outputs: Gives the draft's states, ready for its head, that predict the output tokens of
            some samples, in order, shape ``[N, H]``.
        depth: Draft tokens of a chain, 1 or more, for the tokens a pass. Default 4.

    Returns:
        One record for each kind of prompt, and one named "all".
    """
    rows_by_kind: dict[str, list[tuple[Tensor, Tensor, list[int]]]] = {}
    for s in samples:
        law = (teacher.hidden_states(s).to(teacher.head_VH.dtype) @ teacher.head_VH.T).float()
        q = student.token_logits(outputs(student, [s])).float()
        # Where the draft's head has rows for some tokens only, this maps a row to its token id.
        tokens = torch.arange(q.shape[-1]) if student.tokens is None else student.tokens.long()
        hit = tokens[q.argmax(-1)] == law.argmax(-1)
        p = (law / 0.7).log_softmax(-1)
        # The target's mass outside of the draft's vocabulary counts as never accepted.
        near = acceptance_probability(
            p[:, tokens], (q / 0.7).log_softmax(-1), 1 - p[:, tokens].exp().sum(-1)
        )
        # Only plain greedy answers say what greedy decoding would accept.
        right = tokens[q.argmax(-1)] == torch.tensor(s.output_ids)
        # Passes can be counted only where the answer is the target's greedy one.
        plain = s.temperature == 0 and s.penalty == 1
        rows_by_kind.setdefault(s.kind or "text", []).append(
            (hit, near, chain_passes(right.tolist(), depth) if plain else [])
        )
    # All kinds together, besides each by itself.
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
    """Count the tokens that each target pass commits when a draft proposes chains.

    Args:
        right: Whether the draft guesses token i after the true text before it, for each i.
        depth: Draft tokens of a chain, 1 or more.

    Returns:
        Tokens of each pass: the accepted draft tokens and one of the target.
    """
    out = list[int]()
    at = 0
    while at < len(right):
        run = 0
        # The last token of the text is always left to the target: a pass must commit one token of
        # its own.
        while run < depth and at + run < len(right) - 1 and right[at + run]:
            run += 1
        out.append(run + 1)
        at += run + 1
    return out

"""Continuous chains of thought on questions of one's own: steps become vectors, one after another.

The model learns in stages (Coconut, 2024). At stage 0 it writes all steps of a thought and then the
answer; at stage s its own last state is fed back s times in the place of the first s steps, and it
writes what is left. A thought that has fewer steps is all vectors then. Now and then a step trains an
earlier stage, so that what was learned there stays. Vectors stand before the mark of the answer, as
they do when a question is asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from polydec.lab.train.contexts.continuous_cot import thought_curriculum_stage
from polydec.lab.train.envelope import TrainingRun, run_identity
from polydec.lab.train.network import TrainableLlama
from polydec.lab.train.own_model import OwnContextModel, own_model_schedule
from polydec.lab.train.prefix_network import feed_continuous_thoughts, forward_with_past
from polydec.lab.train.random_streams import generator_for
from polydec.lab.train.specs.context import ContextSpec
from polydec.lab.train.thought_rows import (
    UNREAD,
    ThoughtRow,
    ThoughtRowTokens,
    foretold_shares,
    foretold_targets,
    pad_token_rows,
    split_thought_rows,
    written_rows_course,
)

EARLIER = 0.1
"""Share of the steps that train a random stage up to the one that it is time for."""


def course(spec: ContextSpec) -> TrainingRun:
    """What `train_context` runs.

    Raises:
        RequestError: The model or the data cannot be taken.
    """
    model = OwnContextModel.load_own(spec)
    tokens = ThoughtRowTokens(model)
    # Questions are padded before and texts behind: each has half of the positions.
    half = model.network.s.context // 2

    def fits(row: ThoughtRow) -> bool:
        tail = remaining_tokens(tokens, row, 0)
        return len(tokens.question_tokens(row)) <= half and len(tail) + spec.hops < half

    split = split_thought_rows(spec, (), fits)
    if spec.reasoning != "latent":
        return written_rows_course(spec, tokens, split)
    # All weights are trained: the model must learn to read its own states.
    network = model.network.requires_grad_(True)

    def step_loss(step: int) -> tuple[Tensor, int]:
        rows = split.draw_rows(spec.seed, step, spec.rows)
        stage = drawn_stage(spec, step)
        # As many thoughts as steps are left out.
        logits_BUV, goal_BU = latent_row_logits(network, tokens, rows, stage, stage)
        loss = F.cross_entropy(logits_BUV.flatten(0, 1), goal_BU.flatten(), ignore_index=UNREAD)
        return loss, goal_BU.numel()

    def measure_result() -> Mapping[str, Any]:
        right = dict[int, float]()
        nats = dict[int, float]()
        # One thought more than it was trained for, and none: both ends show what thoughts are for.
        for count in range(spec.hops + 2):
            nats[count], right[count] = foretold_shares(
                *latent_row_logits(network, tokens, split.unseen, count, spec.hops)
            )
        parameters = sum(p.numel() for p in network.parameters())
        return {"parameters": parameters, "right": right, "nats": nats}

    return TrainingRun(
        network,
        step_loss,
        own_model_schedule(spec),
        run_identity(spec, rows_read=split.row_digest),
        lambda out, _: model.save_own(out, network),
        measure_result,
    )


def drawn_stage(spec: ContextSpec, step: int) -> int:
    """The stage that a step trains: that of the curriculum, or now and then an earlier one.

    Args:
        spec: Options; `seed`, `steps` and `hops` are read.
        step: Step of the training, from 0.

    Returns:
        0 to `hops`.
    """
    stage = thought_curriculum_stage(spec, step)
    chance = generator_for(spec.seed, step, "stage")
    # A random stage up to this one, so that what was learned early is not forgotten.
    if float(torch.rand((), generator=chance)) < EARLIER:
        return int(torch.randint(0, stage + 1, (), generator=chance))
    return stage


def remaining_tokens(tokens: ThoughtRowTokens, row: ThoughtRow, stage: int) -> tuple[int, ...]:
    """What is written at a stage: the mark of the answer, the steps from this one on, the answer.

    Args:
        tokens: Lays rows out.
        row: The row.
        stage: Steps that are left out, from the first on; more than there are: all.

    Returns:
        Token ids, END last.
    """
    return tokens.answer_tokens("\n".join((*row.steps[stage:], "".join(row.answers))))


def latent_row_logits(
    network: TrainableLlama,
    tokens: ThoughtRowTokens,
    rows: Sequence[ThoughtRow],
    thoughts: int,
    stage: int,
) -> tuple[Tensor, Tensor]:
    """Run some thoughts behind each question, then what is written behind them.

    Args:
        network: The model.
        tokens: Lays rows out.
        rows: Rows, B of them.
        thoughts: How often the last state is fed back, 0 or more.
        stage: Steps that are not written.

    Returns:
        Logits behind the mark of the answer and each token, shape ``[B, U, V]``, and the targets,
        shape ``[B, U]``.
    """
    trunk = network.model
    asked = [tokens.question_tokens(row) for row in rows]
    longest = max(map(len, asked))
    # All questions end at one place, where the first thought follows.
    token_BT = torch.tensor([[0] * (longest - len(ids)) + list(ids) for ids in asked])
    blank_B = torch.tensor([longest - len(ids) for ids in asked])
    # The states of thoughts foretell nothing by themselves: what follows them is learned.
    _, past = feed_continuous_thoughts(trunk, trunk.embed_tokens(token_BT), thoughts, blank_B)
    told = [remaining_tokens(tokens, row, stage) for row in rows]
    # What is written has no blanks before it: it follows the thoughts at once.
    x_BUH = trunk.embed_tokens(pad_token_rows(told))
    state_BUH, _ = forward_with_past(trunk, x_BUH, past, blank_B)
    return network.token_logits(trunk.norm(state_BUH)), foretold_targets(told, [1] * len(told))

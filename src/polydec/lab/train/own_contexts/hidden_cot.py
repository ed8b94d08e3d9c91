"""Hidden chains of thought on questions of one's own, also in the middle of an answer.

As in `lab/train/contexts/hidden_cot.py`, and both models begin as a model of one's own. Where an
answer has several parts, each with a thought before it, the model that answers learns to write the
mark of a thought where the next one is due, and reads the vector in the mark's place: the first
vector stands before the mark of the answer. The model that thinks reads the text as it is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polydec.lab.train.contexts.hidden_cot import MARK, TrainableThoughtProjection, info_nce_loss
from polydec.lab.train.data import BEGIN, END
from polydec.lab.train.envelope import TrainingRun, run_identity, run_training
from polydec.lab.train.lm_student import load_directory
from polydec.lab.train.network import TrainableLlama
from polydec.lab.train.own_model import OwnContextModel, own_model_schedule
from polydec.lab.train.prefix_network import forward_with_past
from polydec.lab.train.specs.context import ContextSpec
from polydec.lab.train.thought_rows import (
    UNREAD,
    ThoughtRow,
    ThoughtRowSplit,
    ThoughtRowTokens,
    foretold_shares,
    foretold_targets,
    pad_token_rows,
    split_thought_rows,
    written_answer_loss,
    written_rows_course,
)
from polydec.models.learned.kinds import thought


@dataclass(frozen=True, eq=False)
class HiddenThoughtTokens:
    """Rows in tokens, as both models read them.

    Attributes:
        rows: Lays questions and answers out.
    """

    rows: ThoughtRowTokens

    @property
    def thought_mark(self) -> int:
        """The token at which the model that thinks is read."""
        return self.rows.model.mark_token(MARK)

    def written_answer(self, row: ThoughtRow) -> tuple[int, ...]:
        """The mark of the answer and its parts, the mark of a thought between them, and END."""
        model = self.rows.model
        # The first part has its thought before the mark of the answer.
        first, *more = row.answers
        head = self.rows.answer_tokens(first)
        # The mark is written like any token, and so the model learns where to think.
        behind = [x for part in more for x in (self.thought_mark, *model.text_tokens(part))]
        return (*head[:-1], *behind, model.mark_token(END))

    def answering_row(self, row: ThoughtRow) -> tuple[tuple[int, ...], int]:
        """What the model that answers reads, a mark where it reads a vector.

        Returns:
            The text, and the index of the first token of the answer.
        """
        asked = self.rows.question_tokens(row)
        return (*asked, self.thought_mark, *self.written_answer(row)), len(asked) + 2

    def thinking_texts(self, row: ThoughtRow) -> list[tuple[int, ...]]:
        """What the model that thinks reads before each thought: the text so far, a mark last."""
        asked = self.rows.question_tokens(row)
        wrote = self.written_answer(row)
        # Each further thought sees the parts before it, and none of the thoughts.
        places = [i for i, x in enumerate(wrote) if x == self.thought_mark]
        return [(*asked, self.thought_mark), *((*asked, *wrote[: at + 1]) for at in places)]

    def thought_tokens(self, row: ThoughtRow) -> list[tuple[int, ...]]:
        """Each thought, with END behind it."""
        end = self.rows.model.mark_token(END)
        return [(*self.rows.model.text_tokens(text), end) for text in row.thoughts]


class OwnThoughtAnswerer(nn.Module):
    """The model that answers, and what makes its vectors."""

    def __init__(self, network: TrainableLlama, tokens: HiddenThoughtTokens) -> None:
        super().__init__()
        self.network = network
        self.tokens = tokens
        table = network.model.embed_tokens.weight
        self.bridge = TrainableThoughtProjection(network.s.width, float(table.detach().std()))

    def row_logits(self, rows: Sequence[ThoughtRow], state_NH: Tensor) -> tuple[Tensor, Tensor]:
        """Predict answers behind vectors.

        Args:
            rows: Rows, B of them.
            state_NH: States of the model that thinks, of all thoughts of all rows in order, shape
                ``[N, H]``.

        Returns:
            Logits at all places, shape ``[B, T, V]``, and the targets, shape ``[B, T]``.
        """
        # Marks stand in the rows in the order of the states: row by row, thought by thought.
        made = [self.tokens.answering_row(row) for row in rows]
        texts = [ids for ids, _ in made]
        token_BT = pad_token_rows(texts)
        trunk = self.network.model
        x_BTH = trunk.embed_tokens(token_BT)
        # Each mark's own embedding makes room for a vector.
        marked_BT1 = (token_BT == self.tokens.thought_mark)[..., None]
        x_BTH = x_BTH.masked_scatter(marked_BT1, self.bridge(state_NH))
        state_BTH = trunk.norm(forward_with_past(trunk, x_BTH)[0])
        return self.network.token_logits(state_BTH), foretold_targets(
            texts, [first for _, first in made]
        )


def course(spec: ContextSpec) -> TrainingRun:
    """What `train_context` runs. The model that thinks is trained first, into a directory of its own.

    Raises:
        RequestError: The model or the data cannot be taken.
    """
    tokens, split = read_thoughts(spec)
    if spec.reasoning != "latent":
        return written_rows_course(spec, tokens.rows, split)
    # Three fifths of the steps train the model that thinks, the rest the one that answers.
    first = replace(spec, out=str(Path(spec.out) / "thinker"), steps=max(1, spec.steps * 3 // 5))
    told = run_training("context hidden-cot, what thinks", first, thinking_course)
    # What answers begins with the weights of what thinks, which itself stays frozen.
    thinker = load_directory(first.out)
    answering = OwnThoughtAnswerer(load_directory(first.out).requires_grad_(True), tokens)
    second = max(1, spec.steps - first.steps)

    def step_loss(step: int) -> tuple[Tensor, int]:
        # Steps are numbered on, so that the draws of the first training are not repeated.
        rows = split.draw_rows(spec.seed, first.steps + step, spec.rows)
        logits_BTV, goal_BT = answering.row_logits(rows, mark_states(thinker, tokens, rows))
        loss = F.cross_entropy(logits_BTV.flatten(0, 1), goal_BT.flatten(), ignore_index=UNREAD)
        return loss, goal_BT.numel()

    def save_result(out: Path, result: Any) -> None:
        """Write the model, and the projection into a folder below it.

        Args:
            out: Directory to write.
            result: What was measured; it is not used.
        """
        tokens.rows.model.save_own(out, answering.network)
        # The mark is one of this tokenizer.
        made = replace(answering.bridge.thought_artefact(), mark=tokens.thought_mark)
        thought.save(out / "thought", made, {"target": out.name})

    def measure_result() -> Mapping[str, Any]:
        state_NH = mark_states(thinker, tokens, split.unseen)
        # Two controls: the vector of another thought, and a vector of zeros.
        ways = {
            "": state_NH,
            "_of_another": state_NH.roll(1, 0),
            "_of_zeros": torch.zeros_like(state_NH),
        }
        out: dict[str, Any] = {
            "parameters": sum(p.numel() for p in (*thinker.parameters(), *answering.parameters()))
        }
        with torch.no_grad():
            for name, states in ways.items():
                out[f"nats{name}"], out[f"right{name}"] = foretold_shares(
                    *answering.row_logits(split.unseen, states)
                )
        return {**out, "found_again": told["found_again"]}

    return TrainingRun(
        answering,
        step_loss,
        own_model_schedule(spec, second),
        run_identity(spec, rows_read=split.row_digest),
        save_result,
        measure_result,
    )


def read_thoughts(spec: ContextSpec) -> tuple[HiddenThoughtTokens, ThoughtRowSplit]:
    """The model of a spec and its rows; those that are longer than its context are left out."""
    # The mark may be written: it asks for a thought.
    model = OwnContextModel.load_own(spec, (MARK,))
    tokens = HiddenThoughtTokens(ThoughtRowTokens(model))

    def fits(row: ThoughtRow) -> bool:
        before = tokens.thinking_texts(row)
        # Both models must have room: one for its thought, the other for the answer.
        longest = max(len(a) + len(b) for a, b in zip(before, tokens.thought_tokens(row)))
        return max(longest, len(tokens.answering_row(row)[0])) <= model.network.s.context

    return tokens, split_thought_rows(spec, (MARK,), fits)


def thinking_course(spec: ContextSpec) -> TrainingRun:
    """What trains the model that thinks, on all thoughts of all rows."""
    tokens, split = read_thoughts(spec)
    network = tokens.rows.model.network.requires_grad_(True)

    def step_loss(step: int) -> tuple[Tensor, int]:
        rows = split.draw_rows(spec.seed, step, spec.rows)
        # All thoughts of the batch are told apart from one another.
        loss = own_thinking_loss(network, tokens, rows)
        return loss, sum(len(x) for row in rows for x in tokens.thought_tokens(row))

    def measure_result() -> Mapping[str, Any]:
        with torch.no_grad():
            # Of all held-out thoughts, how often the own one is the nearest.
            near = F.normalize(mark_states(network, tokens, split.unseen), dim=-1)
            own = F.normalize(mean_thought_states(network, tokens, split.unseen), dim=-1)
        found = ((near @ own.T).argmax(-1) == torch.arange(len(near))).float().mean()
        return {
            "parameters": sum(p.numel() for p in network.parameters()),
            "found_again": float(found),
        }

    return TrainingRun(
        network,
        step_loss,
        own_model_schedule(spec),
        run_identity(spec, rows_read=split.row_digest),
        lambda out, _: tokens.rows.model.save_own(out, network),
        measure_result,
    )


def own_thinking_loss(
    network: TrainableLlama, tokens: HiddenThoughtTokens, rows: Sequence[ThoughtRow]
) -> Tensor:
    """The loss of the model that thinks: nats a token of the thoughts, and the contrastive loss.

    Args:
        network: The model in training.
        tokens: Lays rows out.
        rows: Rows, whose thoughts are each other's negatives.

    Returns:
        The loss, in nats.
    """
    before = [ids for row in rows for ids in tokens.thinking_texts(row)]
    thoughts = [ids for row in rows for ids in tokens.thought_tokens(row)]
    texts = [(*a, *b) for a, b in zip(before, thoughts, strict=True)]
    wrote = written_answer_loss(network, texts, [len(ids) for ids in before])
    # The mark stands before the steps: its state has seen none of them.
    near_NH = states_at_ends(network, before)
    return wrote + info_nce_loss(near_NH, mean_thought_states(network, tokens, rows))


def states_at_ends(network: TrainableLlama, texts: Sequence[Sequence[int]]) -> Tensor:
    """The states of texts at their ends.

    Args:
        network: The model.
        texts: Token ids, N texts.

    Returns:
        States of the last tokens, after the final norm, shape ``[N, H]``.
    """
    # Texts are padded behind their ends, which no state before can see.
    state_NTH = network.model(pad_token_rows(texts))
    return state_NTH[torch.arange(len(texts)), torch.tensor([len(ids) - 1 for ids in texts])]


def mean_thought_states(
    network: TrainableLlama, tokens: HiddenThoughtTokens, rows: Sequence[ThoughtRow]
) -> Tensor:
    """The mean state over each thought, which is read alone.

    Args:
        network: The model.
        tokens: Lays rows out.
        rows: Rows, with N thoughts in all.

    Returns:
        States, in the order of the thoughts, shape ``[N, H]``.
    """
    begin = tokens.rows.model.mark_token(BEGIN)
    # END belongs to the written chain and not to what it says.
    texts = [(begin, *ids[:-1]) for row in rows for ids in tokens.thought_tokens(row)]
    state_NTH = network.model(pad_token_rows(texts))
    place_T = torch.arange(state_NTH.shape[1])
    length_N = torch.tensor([len(ids) for ids in texts])
    # BEGIN's own state has no part in the mean, and what is padded has none.
    said_NT1 = ((place_T >= 1) & (place_T < length_N[:, None]))[..., None].float()
    return (state_NTH * said_NT1).sum(1) / said_NT1.sum(1)


@torch.no_grad()
def mark_states(
    thinker: TrainableLlama, tokens: HiddenThoughtTokens, rows: Sequence[ThoughtRow]
) -> Tensor:
    """States of the frozen model that thinks at all marks of all rows.

    Args:
        thinker: The model that thinks.
        tokens: Lays rows out.
        rows: Rows, with N thoughts in all.

    Returns:
        States in the order of the thoughts, without gradients, shape ``[N, H]``.
    """
    return states_at_ends(thinker, [ids for row in rows for ids in tokens.thinking_texts(row)])

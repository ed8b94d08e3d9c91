"""Hidden chains of thought: one vector of a model that thinks stands in the place of the steps that
it would write.

Two models of one size. The one that thinks is trained first: behind a question and a mark it writes
the steps (cross-entropy), and its state at the mark is drawn to the mean of its states over the
steps alone, away from those of the other questions of the batch (a symmetric contrastive loss over
cosines). The mark stands before the steps, as when it is used, so the state has seen the question
and nothing else. Then it is frozen, and the second model, begun with its weights, learns to answer
behind the question and the vector. Beside it stand a model that answers at once (`reasoning` none),
and one that writes the steps (chain).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polydec.lab.train import sums
from polydec.lab.train.data import BEGIN, END
from polydec.lab.train.envelope import Course, carry_out, identity
from polydec.lab.train.extended import extend
from polydec.lab.train.lm import load_directory
from polydec.lab.train.network import Llama, save_directory
from polydec.lab.train.schedule import Schedule
from polydec.lab.train.shape import Shape
from polydec.lab.train.specs.context import ContextSpec
from polydec.lab.train.sums import ANSWER, Sum
from polydec.lab.train.tokens import mark_id, tokenizer_files, train_tokenizer
from polydec.models.learned.kinds import thought

MARK = "<|thought|>"
"""Stands where a model that thinks is read."""

VOCAB, CONTEXT, UNSEEN = 261, 64, 1000
"""Bytes and special tokens; positions; sums that the trained model is asked."""

SHARPNESS = 20.0
"""Of the contrastive loss: one over its temperature."""

TOKENIZER = train_tokenizer([], VOCAB, (MARK,))
IDS = {x: mark_id(TOKENIZER, x) for x in (BEGIN, END, MARK)} | {
    x: TOKENIZER.encode(x, add_special_tokens=False).ids[0] for x in "0123456789+-*="
}
FILES = tokenizer_files(TOKENIZER, CONTEXT, (MARK,))


class Bridge(nn.Module):
    """Makes a vector of a state, in training: see models/learned/kinds/thought.py."""

    def __init__(self, width: int, scale: float) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.eye(width)), nn.Parameter(torch.zeros(width))
        self.scale = nn.Parameter(torch.full((width,), scale))

    def forward(self, state_BH: Tensor) -> Tensor:
        x = F.linear(state_BH, self.weight, self.bias)
        return F.layer_norm(x, x.shape[-1:]) * self.scale

    def thought(self) -> thought.Thought:
        w, b, s = (t.detach().clone() for t in (self.weight, self.bias, self.scale))
        return thought.Thought(w, b, s, IDS[MARK])


class Answering(nn.Module):
    """The model that answers, and what makes its vectors."""

    def __init__(self, network: Llama, seed: int) -> None:
        super().__init__()
        self.network = network
        table = network.model.embed_tokens.weight
        self.bridge = Bridge(network.s.width, float(table.detach().std()))

    def logits(self, rows: Sequence[Sum], state_BH: Tensor) -> Tensor:
        """Behind each row's question, its vector, the mark of the answer and the answer [B, 2,
        V]."""
        trunk = self.network.model
        before = trunk.embed_tokens(read(rows))
        behind = trunk.embed_tokens(torch.tensor([[IDS[ANSWER], IDS[row.answer]] for row in rows]))
        x = torch.cat([before, self.bridge(state_BH)[:, None], behind], dim=1)
        return self.network.logits(trunk.norm(extend(trunk, x)[0]))[:, -2:]


def course(spec: ContextSpec) -> Course:
    """What `train_context` carries out. What thinks is trained before, into a directory of its
    own."""
    if spec.reasoning == "latent":
        return _answering(spec)
    network = fresh(spec)

    def loss(step: int) -> tuple[Tensor, int]:
        rows = batch(spec, step)
        chains = [row.chain if spec.reasoning == "chain" else "" for row in rows]
        return written(network, rows, chains), spec.rows * CONTEXT

    def save(out: Path, result: Any) -> None:
        save_network(out, network)

    def measure() -> dict[str, Any]:
        return {"parameters": count(network), "right": right_written(network, unseen(spec))}

    return Course(network, loss, schedule(spec), identity(spec), save, measure)


def _answering(spec: ContextSpec) -> Course:
    first = replace(spec, out=str(Path(spec.out) / "thinker"), steps=max(1, spec.steps * 3 // 5))
    told = carry_out("context hidden-cot, what thinks", first, _thinking)
    thinker = load_directory(first.out)
    answering = Answering(load_directory(first.out).requires_grad_(True), spec.seed)
    second = replace(spec, steps=max(1, spec.steps - first.steps))

    def loss(step: int) -> tuple[Tensor, int]:
        rows = batch(spec, first.steps + step)
        goal_B2 = torch.tensor([[IDS[row.answer], IDS[END]] for row in rows])
        logits_B2V = answering.logits(rows, thoughts(thinker, rows))
        return F.cross_entropy(logits_B2V.flatten(0, 1), goal_B2.flatten()), spec.rows * CONTEXT

    def save(out: Path, result: Any) -> None:
        save_network(out, answering.network)
        thought.save(out / "thought", answering.bridge.thought(), {"target": out.name})

    def measure() -> dict[str, Any]:
        rows = unseen(spec)
        state_BH = thoughts(thinker, rows)
        found = {
            "right": right(answering, rows, state_BH),
            "of_another": right(answering, rows, state_BH.roll(1, 0)),
            "of_zeros": right(answering, rows, torch.zeros_like(state_BH)),
        }
        return {
            "parameters": count(thinker) + count(answering),
            **found,
            "found_again": told["found_again"],
        }

    return Course(answering, loss, schedule(second), identity(spec), save, measure)


def _thinking(spec: ContextSpec) -> Course:
    network = fresh(spec)

    def loss(step: int) -> tuple[Tensor, int]:
        rows = batch(spec, step)
        return thinking_loss(network, rows), spec.rows * CONTEXT

    def save(out: Path, result: Any) -> None:
        save_network(out, network)

    def measure() -> dict[str, Any]:
        return {"parameters": count(network), "found_again": found_again(network, unseen(spec))}

    return Course(network, loss, schedule(spec), identity(spec), save, measure)


def fresh(spec: ContextSpec) -> Llama:
    heads = spec.width // 16
    shape = Shape(VOCAB, spec.width, spec.layers, heads, heads, 3 * spec.width, CONTEXT)
    return Llama(shape, seed=spec.seed)


def schedule(spec: ContextSpec) -> Schedule:
    return Schedule(spec.steps, spec.rate, muon=spec.muon, log_every=min(20, spec.steps))


def count(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def batch(spec: ContextSpec, step: int) -> list[Sum]:
    return [sums.drawn(f"{spec.seed} {step} {i}", spec.hops) for i in range(spec.rows)]


def unseen(spec: ContextSpec) -> list[Sum]:
    return [sums.drawn(f"unseen {i}", spec.hops, True) for i in range(UNSEEN)]


def save_network(out: Path, network: Llama) -> None:
    config = network.s.config(bos=IDS[BEGIN], eos=IDS[END])
    save_directory(out, network, config, files=FILES, dtype=torch.float32)


def ids(text: str) -> list[int]:
    return [IDS[x] for x in text]


def read(rows: Sequence[Sum], *more: int) -> Tensor:
    """Questions, and these tokens behind each [B, T]."""
    return torch.tensor([[IDS[BEGIN], *ids(row.question), *more] for row in rows])


def written(network: Llama, rows: Sequence[Sum], chains: Sequence[str]) -> Tensor:
    """Nats a token of a chain, the answer and the end, behind a question."""
    goal_BT = torch.tensor(
        [[*ids(c + ANSWER + row.answer), IDS[END]] for c, row in zip(chains, rows, strict=True)]
    )
    question_BT = read(rows)
    logits_BTV = network(torch.cat([question_BT, goal_BT[:, :-1]], dim=1))
    logits_BTV = logits_BTV[:, question_BT.shape[1] - 1 :]
    return F.cross_entropy(logits_BTV.flatten(0, 1), goal_BT.flatten())


def thinking_loss(network: Llama, rows: Sequence[Sum]) -> Tensor:
    """Nats a token of the steps behind question and mark, and the contrastive loss of the states at
    the mark."""
    chain_BT, asked_BT = torch.tensor([ids(row.chain) for row in rows]), read(rows, IDS[MARK])
    state_BTH = network.model(torch.cat([asked_BT, chain_BT], dim=1))
    at = asked_BT.shape[1] - 1
    logits_BTV = network.logits(state_BTH[:, at:-1])
    wrote = F.cross_entropy(logits_BTV.flatten(0, 1), chain_BT.flatten())
    return wrote + contrastive(state_BTH[:, at], of_chains(network, rows))


def of_chains(network: Llama, rows: Sequence[Sum]) -> Tensor:
    """The mean state over each row's steps, read alone [B, H]."""
    chain_BT = torch.tensor([[IDS[BEGIN], *ids(row.chain)] for row in rows])
    return network.model(chain_BT)[:, 1:].mean(1)


def contrastive(a_BH: Tensor, b_BH: Tensor) -> Tensor:
    """Nats of finding each row's partner among all of the batch, in both directions: a symmetric
    InfoNCE over cosines."""
    like_BB = SHARPNESS * F.normalize(a_BH, dim=-1) @ F.normalize(b_BH, dim=-1).T
    own_B = torch.arange(len(a_BH))
    return (F.cross_entropy(like_BB, own_B) + F.cross_entropy(like_BB.T, own_B)) / 2


@torch.no_grad()
def thoughts(thinker: Llama, rows: Sequence[Sum]) -> Tensor:
    """What thinks is frozen: its states at the mark, behind the final norm [B, H]."""
    return thinker.model(read(rows, IDS[MARK]))[:, -1]


@torch.no_grad()
def right(answering: Answering, rows: Sequence[Sum], state_BH: Tensor) -> float:
    """The share of sums that are answered right behind these states."""
    goal_B = torch.tensor([IDS[row.answer] for row in rows])
    return float((answering.logits(rows, state_BH)[:, 0].argmax(-1) == goal_B).float().mean())


@torch.no_grad()
def right_written(network: Llama, rows: Sequence[Sum]) -> float:
    """The share of sums whose greedily written answer is right."""
    text_BT = read(rows)
    for _ in range(len(rows[0].chain) + 3):
        text_BT = torch.cat([text_BT, network(text_BT)[:, -1:].argmax(-1)], dim=1)
    ends = [[*ids(ANSWER + row.answer), IDS[END]] for row in rows]
    return sum(
        any(text[i : i + 3] == end for i in range(len(text) - 2))
        for text, end in zip(text_BT.tolist(), ends, strict=True)
    ) / len(rows)


@torch.no_grad()
def found_again(network: Llama, rows: Sequence[Sum], of: int = 64) -> float:
    """How often a state at the mark is nearest to its own steps, among `of` sums."""
    found = list[float]()
    for at in range(0, len(rows) - of + 1, of):
        some = rows[at : at + of]
        like = (
            F.normalize(thoughts(network, some), dim=-1)
            @ F.normalize(of_chains(network, some), dim=-1).T
        )
        found.append(float((like.argmax(-1) == torch.arange(of)).float().mean()))
    return sum(found) / len(found)

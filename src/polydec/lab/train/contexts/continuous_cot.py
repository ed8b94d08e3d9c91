"""Continuous chains of thought: a small model that finds what is reached in a graph.

In place of words of reasoning the model is fed its own last state, some times (Coconut; "Reasoning
by superposition", 2025). It learns in stages. Stage 0 has no thoughts: behind each of some nodes of
a graph it foretells where edges lead. Stage s has s thoughts, and behind each it foretells the
nodes that are one step further from the root, all of them alike (the expected loss of a random
one); the last stage answers, too. What an earlier stage asked for stays in the loss, in place of
training a random earlier stage now and then.

Beside it stand the same model that answers at once (`reasoning` none), and one that writes the path
first (chain).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from polydec.lab.train import graphs
from polydec.lab.train.data import BEGIN, END
from polydec.lab.train.envelope import TrainingRun, run_identity
from polydec.lab.train.extended import feed_continuous_thoughts, forward_with_past
from polydec.lab.train.graphs import ANSWER, ReachabilityGraph
from polydec.lab.train.network import TrainableLlama, save_directory
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.shape import LlamaShape
from polydec.lab.train.specs.context import ContextSpec
from polydec.lab.train.tokens import mark_id, tokenizer_files, train_tokenizer

VOCAB = 260
"""Bytes and the special tokens."""

UNSEEN = 400
"""Graphs of each depth that the trained model is asked."""

TOKENIZER = train_tokenizer([], VOCAB)
IDS: Mapping[str, int] = {
    x: TOKENIZER.encode(x, add_special_tokens=False).ids[0] for x in (*graphs.NAMES, *"|?>=")
} | {x: mark_id(TOKENIZER, x) for x in (BEGIN, END)}


def course(spec: ContextSpec) -> TrainingRun:
    """What `train_context` carries out. Raises RequestError for graphs that cannot be."""
    graphs.require_graph_size(spec.nodes, spec.hops)
    edges = spec.nodes - 2
    context = 1 + 3 * edges + 5 + max(spec.nodes, 2 * spec.hops + 8)
    heads = spec.width // 16
    network = TrainableLlama(
        LlamaShape(VOCAB, spec.width, spec.layers, heads, heads, 3 * spec.width, context),
        seed=spec.seed,
    )

    def loss(step: int) -> tuple[Tensor, int]:
        rows = [
            graphs.draw_reachability_graph(f"{spec.seed} {step} {i}", spec.nodes, spec.hops)
            for i in range(spec.rows)
        ]
        at = thought_curriculum_stage(spec, step)
        if at:
            asked_for = LOSSES[spec.reasoning]
        else:
            asked_for = lookup_loss
        return asked_for(network, rows, at), spec.rows * context

    def save(out: Path, result: Mapping[str, Any]) -> None:
        config = network.s.config(bos=IDS[BEGIN], eos=IDS[END])
        save_directory(
            out, network, config, files=tokenizer_files(TOKENIZER, context), dtype=torch.float32
        )

    schedule = TrainingSchedule(
        spec.steps, spec.rate, muon=spec.muon, log_every=min(20, spec.steps)
    )
    return TrainingRun(
        network,
        loss,
        schedule,
        run_identity(spec),
        save,
        lambda: measure_graph_answers(network, spec),
    )


def thought_curriculum_stage(spec: ContextSpec, step: int) -> int:
    """The stage of a step: in the first 0.4 of the run 0, then one more with each of equal parts,
    the last of them half of what is left."""
    first = spec.steps * 2 // 5
    if step < first:
        return 0
    part = max(1, (spec.steps - first) // (2 * max(1, spec.hops - 1)))
    return min(spec.hops, 1 + (step - first) // part)


def encode_graph_questions(rows: Sequence[ReachabilityGraph]) -> Tensor:
    """The questions as the model reads them [B, T]: all are equally long."""
    return torch.tensor([[IDS[BEGIN], *(IDS[x] for x in row.question)] for row in rows])


def encode_node_letters(text: Sequence[str]) -> Tensor:
    return torch.tensor([IDS[x] for x in text])


def frontier_node_law(rows: Sequence[ReachabilityGraph], depth: int) -> Tensor:
    """The law of a random node of those so many steps from the root [B, V]."""
    law_BV = torch.zeros(len(rows), VOCAB)
    for law_V, row in zip(law_BV, rows, strict=True):
        law_V[encode_node_letters(row.frontier[depth - 1])] = 1.0 / len(row.frontier[depth - 1])
    return law_BV


def lookup_loss(network: TrainableLlama, rows: Sequence[ReachabilityGraph], stage: int) -> Tensor:
    """Nats of the nodes that edges lead to, behind half of a graph's nodes: those with edges, some
    of them again."""
    token_BT = list[list[int]]()
    law_BQV = torch.zeros(len(rows), query_node_count(rows), VOCAB)
    for law_QV, row in zip(law_BQV, rows, strict=True):
        below = row.below
        names = sorted(below)
        random.Random(row.question).shuffle(names)
        names = (names * len(law_QV))[: len(law_QV)]
        text = row.question[:-1] + ">".join(names)
        token_BT.append([IDS[BEGIN], *(IDS[x] for x in text)])
        for law_V, name in zip(law_QV, names, strict=True):
            law_V[encode_node_letters(below[name])] = 1.0 / len(below[name])
    logits_BQV = network(torch.tensor(token_BT))[:, 1 - 2 * query_node_count(rows) :: 2]
    return F.cross_entropy(logits_BQV.flatten(0, 1), law_BQV.flatten(0, 1))


def query_node_count(rows: Sequence[ReachabilityGraph]) -> int:
    """Nodes of a graph whose edges are asked for at once."""
    return (rows[0].question.count("|") + 3) // 2


def latent_thought_logits(
    network: TrainableLlama, rows: Sequence[ReachabilityGraph], thoughts: int
) -> tuple[Tensor, Tensor]:
    """Logits behind the root and each thought [B, thoughts + 1, V], and behind the mark of the
    answer and the right answer [B, 2, V]."""
    trunk = network.model
    state_BCH, past = feed_continuous_thoughts(
        trunk, trunk.embed_tokens(encode_graph_questions(rows)), thoughts
    )
    end_B2 = torch.tensor([[IDS[ANSWER], IDS[row.answer]] for row in rows])
    state_B2H, _ = forward_with_past(trunk, trunk.embed_tokens(end_B2), past)
    return network.logits(state_BCH), network.logits(trunk.norm(state_B2H))


def latent_loss(network: TrainableLlama, rows: Sequence[ReachabilityGraph], stage: int) -> Tensor:
    """Nats of what thoughts foretell, and at the last stage of the answer and its end."""
    hops = len(rows[0].frontier)
    logits_BCV, answer_B2V = latent_thought_logits(network, rows, stage)
    told = [
        F.cross_entropy(logits_BCV[:, at], frontier_node_law(rows, at + 1))
        for at in range(min(stage + 1, hops))
    ]
    loss = torch.stack(told).mean()
    if stage < hops:
        return loss
    goal_B2 = torch.tensor([[IDS[row.answer], IDS[END]] for row in rows])
    return loss + F.cross_entropy(answer_B2V.flatten(0, 1), goal_B2.flatten())


def written_loss(
    network: TrainableLlama, rows: Sequence[ReachabilityGraph], chains: Sequence[str]
) -> Tensor:
    """Nats a token of a chain, the answer and the end, behind the question."""
    ends = [[*(IDS[x] for x in c + ANSWER + row.answer), IDS[END]] for c, row in zip(chains, rows)]
    longest = max(map(len, ends))
    goal_BT = torch.tensor([[*end, *[-100] * (longest - len(end))] for end in ends])
    question_BT = encode_graph_questions(rows)
    read_BT = torch.cat([question_BT, goal_BT[:, :-1].clamp(min=0)], dim=1)
    logits_BTV = network(read_BT)[:, question_BT.shape[1] - 1 :]
    return F.cross_entropy(logits_BTV.flatten(0, 1), goal_BT.flatten(), ignore_index=-100)


LOSSES: Mapping[str, Any] = {
    "latent": latent_loss,
    "chain": lambda network, rows, stage: written_loss(network, rows, [r.path for r in rows]),
    "none": lambda network, rows, stage: written_loss(network, rows, [""] * len(rows)),
}
"""By what stands between question and answer."""


@torch.no_grad()
def measure_graph_answers(network: TrainableLlama, spec: ContextSpec) -> dict[str, Any]:
    """Of graphs that are held out, the share that is answered right, by the depth of the answer; of
    thoughts also by how many there are, and how well each tells nodes that are so many steps away
    from all others (area under the curve)."""
    unseen = {
        depth: [
            graphs.draw_reachability_graph(f"unseen {i}", spec.nodes, spec.hops, depth, True)
            for i in range(UNSEEN)
        ]
        for depth in range(1, spec.hops + 1)
    }
    out: dict[str, Any] = {"parameters": sum(p.numel() for p in network.parameters())}
    if spec.reasoning != "latent":
        return out | {"right": {d: _right_written(network, rows) for d, rows in unseen.items()}}
    counts = range(spec.hops + 2)
    out["right"] = {
        count: {
            d: _right(latent_thought_logits(network, rows, count)[1][:, 0], rows)
            for d, rows in unseen.items()
        }
        for count in counts
    }
    out["told"] = told_apart(network, unseen[spec.hops])
    return out


def _right(answer_BV: Tensor, rows: Sequence[ReachabilityGraph]) -> float:
    goal_B = encode_node_letters([row.answer for row in rows])
    return float((answer_BV.argmax(-1) == goal_B).float().mean())


def _right_written(network: TrainableLlama, rows: Sequence[ReachabilityGraph]) -> float:
    """Of answers that are written greedily, token by token."""
    text_BT = encode_graph_questions(rows)
    right = 0
    begun = text_BT.shape[1]
    for _ in range(2 * len(rows[0].frontier) + 2):
        text_BT = torch.cat([text_BT, network(text_BT)[:, -1:].argmax(-1)], dim=1)
        if text_BT.shape[1] == network.s.context:
            break
    for row, ids in zip(rows, text_BT[:, begun:].tolist(), strict=True):
        end = [IDS[ANSWER], IDS[row.answer], IDS[END]]
        right += any(ids[i : i + 3] == end for i in range(len(ids) - 2))
    return right / len(rows)


@torch.no_grad()
def told_apart(network: TrainableLlama, rows: Sequence[ReachabilityGraph]) -> list[float]:
    """Of each thought how often its product with the embedding of a node within so many steps (that
    it has foretold) is larger than with one of a node that is not: 0.5 is chance."""
    trunk = network.model
    hops = len(rows[0].frontier)
    state_BCH, _ = feed_continuous_thoughts(
        trunk, trunk.embed_tokens(encode_graph_questions(rows)), hops - 1
    )
    product_BCV = network.logits(state_BCH)
    out = list[float]()
    for at in range(hops):
        shares = list[float]()
        for row, product_CV in zip(rows, product_BCV, strict=True):
            near = row.frontier[at]
            used = sorted({x for x in row.question if x in graphs.NAMES})
            far = [x for x in used if x not in "".join(row.frontier) and x != row.question[-1]]
            a = product_CV[at][encode_node_letters(near)]
            b = product_CV[at][encode_node_letters(far)]
            shares.append(float((a[:, None] > b[None]).float().mean()))
        out.append(sum(shares) / len(shares))
    return out

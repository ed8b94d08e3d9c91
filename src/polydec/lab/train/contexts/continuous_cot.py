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
from polydec.lab.train.graphs import ANSWER, ReachabilityGraph
from polydec.lab.train.network import TrainableLlama, save_directory
from polydec.lab.train.prefix_network import feed_continuous_thoughts, forward_with_past
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
    """What `train_context` runs.

    Raises:
        RequestError: The trees of the graphs cannot have the given size and depth.
    """
    graphs.require_graph_size(spec.nodes, spec.hops)
    edges = spec.nodes - 2
    # BEGIN, the edges with separators, the question of five letters, and room for the longest
    # written answer.
    context = 1 + 3 * edges + 5 + max(spec.nodes, 2 * spec.hops + 8)
    heads = spec.width // 16
    network = TrainableLlama(
        LlamaShape(VOCAB, spec.width, spec.layers, heads, heads, 3 * spec.width, context),
        seed=spec.seed,
    )

    def step_loss(step: int) -> tuple[Tensor, int]:
        rows = [
            graphs.draw_reachability_graph(f"{spec.seed} {step} {i}", spec.nodes, spec.hops)
            for i in range(spec.rows)
        ]
        at = thought_curriculum_stage(spec, step)
        # At stage 0 all three kinds learn the same: where edges lead.
        if at:
            asked_for = LOSSES[spec.reasoning]
        else:
            asked_for = lookup_loss
        return asked_for(network, rows, at), spec.rows * context

    def save_result(out: Path, result: Mapping[str, Any]) -> None:
        """Write a directory that `polydec.load` reads.

        Args:
            out: Directory to write.
            result: What was measured; it is not used.
        """
        config = network.s.config_content(bos=IDS[BEGIN], eos=IDS[END])
        save_directory(
            out, network, config, files=tokenizer_files(TOKENIZER, context), dtype=torch.float32
        )

    schedule = TrainingSchedule(
        spec.steps, spec.rate, muon=spec.muon, log_every=min(20, spec.steps)
    )
    return TrainingRun(
        network,
        step_loss,
        schedule,
        run_identity(spec),
        save_result,
        lambda: measure_graph_answers(network, spec),
    )


def thought_curriculum_stage(spec: ContextSpec, step: int) -> int:
    """The stage of the curriculum at a step, which is the number of thoughts.

    Stage 0 takes the first 0.4 of the run. Each further stage takes an equal part, and the last
    stage half of what is left after stage 0.

    Args:
        spec: Options; `steps` and `hops` are read.
        step: Step of the training, from 0.

    Returns:
        0 to `hops`.
    """
    first = spec.steps * 2 // 5
    if step < first:
        return 0
    part = max(1, (spec.steps - first) // (2 * max(1, spec.hops - 1)))
    return min(spec.hops, 1 + (step - first) // part)


def encode_graph_questions(rows: Sequence[ReachabilityGraph]) -> Tensor:
    """Token ids of the questions, shape ``[B, T]``: all are equally long."""
    return torch.tensor([[IDS[BEGIN], *(IDS[x] for x in row.question)] for row in rows])


def encode_node_letters(text: Sequence[str]) -> Tensor:
    """Token ids of nodes' letters, shape ``[N]``."""
    return torch.tensor([IDS[x] for x in text])


def frontier_node_law(rows: Sequence[ReachabilityGraph], depth: int) -> Tensor:
    """The distribution of a random node that is `depth` steps from the root.

    Args:
        rows: Graphs, B of them.
        depth: Steps from the root, from 1 on.

    Returns:
        Probabilities, shape ``[B, V]``.
    """
    law_BV = torch.zeros(len(rows), VOCAB)
    for law_V, row in zip(law_BV, rows, strict=True):
        law_V[encode_node_letters(row.frontier[depth - 1])] = 1.0 / len(row.frontier[depth - 1])
    return law_BV


def lookup_loss(network: TrainableLlama, rows: Sequence[ReachabilityGraph], stage: int) -> Tensor:
    """The loss of stage 0: where edges lead, asked for half of a graph's nodes.

    Only nodes with edges are asked for; where there are too few of them, some are asked for twice.
    The target at a node is uniform over the nodes where its edges lead.

    Args:
        network: The model in training.
        rows: Graphs, B of them.
        stage: Not used; all losses share one signature.

    Returns:
        Mean cross-entropy, in nats.
    """
    token_BT = list[list[int]]()
    law_BQV = torch.zeros(len(rows), query_node_count(rows), VOCAB)
    for law_QV, row in zip(law_BQV, rows, strict=True):
        below = row.names_below
        names = sorted(below)
        random.Random(row.question).shuffle(names)
        names = (names * len(law_QV))[: len(law_QV)]
        # The question ends in ">" and the root; here several nodes stand in the root's place.
        text = row.question[:-1] + ">".join(names)
        token_BT.append([IDS[BEGIN], *(IDS[x] for x in text)])
        for law_V, name in zip(law_QV, names, strict=True):
            law_V[encode_node_letters(below[name])] = 1.0 / len(below[name])
    # Nodes stand at every second position from the end; each predicts its edges' ends.
    logits_BQV = network(torch.tensor(token_BT))[:, 1 - 2 * query_node_count(rows) :: 2]
    return F.cross_entropy(logits_BQV.flatten(0, 1), law_BQV.flatten(0, 1))


def query_node_count(rows: Sequence[ReachabilityGraph]) -> int:
    """Number of nodes of a graph whose edges are asked for at once: half of its nodes."""
    return (rows[0].question.count("|") + 3) // 2


def latent_thought_logits(
    network: TrainableLlama, rows: Sequence[ReachabilityGraph], thoughts: int
) -> tuple[Tensor, Tensor]:
    """Run some thoughts after each question, then the mark of the answer and the right answer.

    Args:
        network: The model.
        rows: Graphs, B of them.
        thoughts: Number of thoughts, 0 or more.

    Returns:
        Logits after the root and after each thought, shape ``[B, thoughts + 1, V]``, and after the
        mark and the answer, shape ``[B, 2, V]``.
    """
    trunk = network.model
    state_BCH, past = feed_continuous_thoughts(
        trunk, trunk.embed_tokens(encode_graph_questions(rows)), thoughts
    )
    end_B2 = torch.tensor([[IDS[ANSWER], IDS[row.answer]] for row in rows])
    # The states of thoughts left the final norm already; these two have not.
    state_B2H, _ = forward_with_past(trunk, trunk.embed_tokens(end_B2), past)
    return network.token_logits(state_BCH), network.token_logits(trunk.norm(state_B2H))


def latent_loss(network: TrainableLlama, rows: Sequence[ReachabilityGraph], stage: int) -> Tensor:
    """The loss of a stage with thoughts.

    Each thought so far predicts the nodes that are one step further from the root. At the last
    stage the answer and END are learned too.

    Args:
        network: The model in training.
        rows: Graphs, B of them.
        stage: Number of thoughts, 1 to the depth of the graphs.

    Returns:
        Cross-entropy in nats: mean over thoughts, plus mean over answer and END.
    """
    hops = len(rows[0].frontier)
    logits_BCV, answer_B2V = latent_thought_logits(network, rows, stage)
    # The root, at index 0, predicts depth 1; the last thought of the last stage predicts nothing
    # but the answer.
    told = [
        F.cross_entropy(logits_BCV[:, at], frontier_node_law(rows, at + 1))
        for at in range(min(stage + 1, hops))
    ]
    loss = torch.stack(told).mean()
    if stage < hops:
        return loss
    # The mark of the answer predicts the node, the node END.
    goal_B2 = torch.tensor([[IDS[row.answer], IDS[END]] for row in rows])
    return loss + F.cross_entropy(answer_B2V.flatten(0, 1), goal_B2.flatten())


def written_loss(
    network: TrainableLlama, rows: Sequence[ReachabilityGraph], chains: Sequence[str]
) -> Tensor:
    """The loss of a written chain of thought, the answer and END.

    Args:
        network: The model in training.
        rows: Graphs, B of them.
        chains: Text between each question and its answer, which may be empty.

    Returns:
        Nats a token.
    """
    ends = [[*(IDS[x] for x in c + ANSWER + row.answer), IDS[END]] for c, row in zip(chains, rows)]
    longest = max(map(len, ends))
    # -100 marks padding, which the loss leaves out.
    goal_BT = torch.tensor([[*end, *[-100] * (longest - len(end))] for end in ends])
    question_BT = encode_graph_questions(rows)
    # Padding is read as token 0, after all that counts.
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
    """Measure how many questions about held-out graphs are answered right.

    Args:
        network: The trained model.
        spec: Options; sizes of the graphs, and what stands before an answer.

    Returns:
        `right`: share by the depth of the answer (with thoughts: by their number, then by depth);
        `told`, with thoughts only: see `told_apart`; `parameters`.
    """
    # Graphs of every depth, since deeper ones need more thoughts.
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
    # One thought more than there are hops, and none: both ends show what thoughts are for.
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
    """The share of graphs whose greedily written answer is right."""
    text_BT = encode_graph_questions(rows)
    right = 0
    begun = text_BT.shape[1]
    for _ in range(2 * len(rows[0].frontier) + 2):
        text_BT = torch.cat([text_BT, network(text_BT)[:, -1:].argmax(-1)], dim=1)
        # A model that never ends its chain runs out of positions.
        if text_BT.shape[1] == network.s.context:
            break
    for row, ids in zip(rows, text_BT[:, begun:].tolist(), strict=True):
        end = [IDS[ANSWER], IDS[row.answer], IDS[END]]
        right += any(ids[i : i + 3] == end for i in range(len(ids) - 2))
    return right / len(rows)


@torch.no_grad()
def told_apart(network: TrainableLlama, rows: Sequence[ReachabilityGraph]) -> list[float]:
    """How well each thought tells the nodes that it predicts from nodes that are not reached.

    Args:
        network: The trained model.
        rows: Graphs, B of them.

    Returns:
        For each thought the probability that its product with the embedding of a node at its depth
        is larger than with that of an unreached node (the area under the curve): 0.5 is chance.
    """
    trunk = network.model
    hops = len(rows[0].frontier)
    state_BCH, _ = feed_continuous_thoughts(
        trunk, trunk.embed_tokens(encode_graph_questions(rows)), hops - 1
    )
    # The head is tied to the table, so logits are products with embeddings.
    product_BCV = network.token_logits(state_BCH)
    out = list[float]()
    for at in range(hops):
        shares = list[float]()
        for row, product_CV in zip(rows, product_BCV, strict=True):
            near = row.frontier[at]
            # Nodes of the other tree: neither on any frontier nor the root.
            used = sorted({x for x in row.question if x in graphs.NAMES})
            far = [x for x in used if x not in "".join(row.frontier) and x != row.question[-1]]
            a = product_CV[at][encode_node_letters(near)]
            b = product_CV[at][encode_node_letters(far)]
            shares.append(float((a[:, None] > b[None]).float().mean()))
        out.append(sum(shares) / len(shares))
    return out

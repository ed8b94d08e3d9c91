"""`polydec train plan-extractor`: a network that points at the clauses that a text is to say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polydec.core.types import TokenVocabulary
from polydec.lab.train import pairs
from polydec.lab.train.envelope import TrainingRun, run_identity, run_training
from polydec.lab.train.oracle_plans import (
    PlannedPair,
    clause_mark_ids,
    plan_of_pair,
    plan_overlap,
)
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.seq2seq import encode_pairs
from polydec.lab.train.specs.plan_extractor import PlanExtractorSpec
from polydec.lab.train.tokens import byte_level_pieces
from polydec.models.learned.kinds import plan_extractor
from polydec.models.learned.kinds.plan_extractor import PlanExtractor, clause_batch
from polydec.models.nets.plan_pointer import (
    FIRST,
    STOP,
    PointerSizes,
    clause_salience,
    pointer_logits,
    pointer_tensor_shapes,
    read_clause_items,
)
from polydec.models.sessions import sources

SHARP = 10.0
"""What salience is multiplied by before it is a law over clauses (published)."""
JUDGED = 64
"""Held-out pairs that are measured, at most."""


def train_plan_extractor(spec: PlanExtractorSpec) -> dict[str, Any]:
    """Train a plan extractor, and save it at spec.out.

    See `run_training` for what is returned and how an interrupted run goes on.

    Raises:
        RequestError: The target's tokenizer has no marks of clauses, or no pair can be learned.
        FileError: The data cannot be read.

    Source: Adams et al., "Generating EDU extracts for plan-guided summary re-ranking" (2023).
    """
    return run_training("plan-extractor", spec, _course)


class TrainablePointer(nn.Module):
    """The network of models/nets/plan_pointer.py with weights that are learned.

    Args:
        sizes: Of the network.
        seed: Of the first weights.
    """

    def __init__(self, sizes: PointerSizes, seed: int) -> None:
        super().__init__()
        self.sizes = sizes
        draw = torch.Generator().manual_seed(seed)
        self.names = tuple(pointer_tensor_shapes(sizes))
        first = list[nn.Parameter]()
        for name, shape in pointer_tensor_shapes(sizes).items():
            # A norm begins as the one that changes nothing.
            if "norm" in name:
                first.append(nn.Parameter(torch.ones(shape)))
            else:
                # Products are as large as what they read; embeddings are rows of size 1.
                scale = 1.0 if name == "embed" else shape[-1] ** -0.5
                first.append(nn.Parameter(torch.randn(shape, generator=draw) * scale))
        self.tensors = nn.ParameterList(first)

    @property
    def named_weights(self) -> Mapping[str, Tensor]:
        """The weights, by name."""
        return dict(zip(self.names, self.tensors, strict=True))


def plan_loss(
    network: TrainablePointer,
    chosen: Sequence[PlannedPair],
    marks: tuple[int, int],
    salience: float,
) -> tuple[Tensor, Tensor, int]:
    """What a network loses on oracle plans.

    Args:
        network: The network.
        chosen: Pairs with their plans.
        marks: Tokens before and behind a clause.
        salience: Weight of the second part.

    Returns:
        Nats of an index of the plans, its stop counted; these and, `salience` times, the divergence
        of the network's salience of clauses from the true one; and the number of indices.
    """
    w = network.named_weights
    id_BT, there_BT, share_BNT = clause_batch([(p.source, p.spans) for p in chosen], marks)
    item_BNW, there_BN = read_clause_items(network.sizes, w, id_BT, there_BT, share_BNT)
    # Plans differ in length: behind a shorter one nothing is right, so its rows cost nothing.
    longest = max(len(p.plan) for p in chosen)
    plan_BP = torch.zeros(len(chosen), longest, dtype=torch.long)
    right_BP = torch.full((len(chosen), longest + 1), -100)
    soft_BN = torch.zeros(share_BNT.shape[:2])
    for b, p in enumerate(chosen):
        items = torch.tensor(p.plan, dtype=torch.long) + FIRST
        plan_BP[b, : len(items)] = items
        right_BP[b, : len(items)] = items
        right_BP[b, len(items)] = STOP
        soft_BN[b, : len(p.salience)] = torch.tensor(p.salience)
    # All beginnings of a plan are read in one pass, as the right plan is known.
    logits_BPN = pointer_logits(network.sizes, w, item_BNW, there_BN, plan_BP)
    nats = F.cross_entropy(logits_BPN.flatten(0, 1), right_BP.flatten(), ignore_index=-100)
    away_BN = ~there_BN[:, FIRST:]
    # Not -inf: a text without a clause would have no law, and its divergence no number. Like this
    # both laws are uniform there, and the divergence is 0.
    meant_BN = (SHARP * soft_BN).masked_fill(away_BN, -1e9).log_softmax(-1)
    said_BN = clause_salience(w, item_BNW)[:, FIRST:].masked_fill(away_BN, -1e9).log_softmax(-1)
    apart = F.kl_div(said_BN, meant_BN, log_target=True, reduction="batchmean")
    return nats, nats + salience * apart, int((right_BP >= 0).sum())


def _course(spec: PlanExtractorSpec) -> TrainingRun:
    source = sources.open_source(spec.target)
    tokenizer = source.text.tokenizer
    marks = clause_mark_ids(tokenizer)
    texts = list(islice(pairs.read_text_pairs(Path(spec.data)), spec.most))
    examples = encode_pairs(texts, tokenizer, spec.longest)
    # Clauses are cut by what tokens spell, so the bytes of each are needed.
    pieces = byte_level_pieces(tokenizer)
    sizes = PointerSizes(
        source.config["vocab_size"], spec.width, spec.reading, spec.items, spec.pointing
    )
    network = TrainablePointer(sizes, spec.seed)

    # To find a plan takes longer than to learn from it, and pairs are drawn again and again.
    @cache
    def planned_pair(side: str, i: int) -> PlannedPair:
        """A pair with its plan, found once.

        Args:
            side: Of the data, learned or unseen.
            i: Number of the pair there.

        Returns:
            The pair.
        """
        return plan_of_pair(getattr(examples, side)[i], pieces, tokenizer.decode)

    def step_loss(step: int) -> tuple[Tensor, int]:
        # The draw depends on the step alone, so that a run that was interrupted goes on as it would
        # have.
        rng = np.random.default_rng([spec.seed, 7, step])
        drawn = rng.choice(len(examples.learned), spec.rows)
        chosen = [planned_pair("learned", int(i)) for i in drawn]
        _, loss, count = plan_loss(network, chosen, marks, spec.salience)
        return loss, count

    def made_extractor() -> PlanExtractor:
        """What is saved, of the weights as they are."""
        vocab = TokenVocabulary(sizes.vocab, frozenset(), source.fingerprint)
        weights = {name: t.detach() for name, t in network.named_weights.items()}
        return PlanExtractor(vocab, sizes, marks, weights)

    @torch.no_grad()
    def measure_result() -> Mapping[str, Any]:
        # Small data may leave nothing aside: then what was learned is measured, and says less.
        side = "unseen" if examples.unseen else "learned"
        count = min(JUDGED, len(getattr(examples, side)))
        judged = [planned_pair(side, i) for i in range(count)]
        made = made_extractor()
        found = list[float]()
        for p in judged:
            (items,) = made.clause_reader.forward([(p.source, p.spans)])
            # Greedily and with no bound of length: what the network has learned, not what a search
            # adds.
            (plan,) = made.likeliest_plans(items, 1, 1, len(p.spans), 1.0)
            found.append(plan_overlap(plan.clauses, p.plan))
        return {
            "parameters": sum(p.numel() for p in network.parameters()),
            "pairs": len(examples.learned),
            "held_out_nats": float(plan_loss(network, judged, marks, 0.0)[0]),
            "held_out_overlap": sum(found) / count,
            "out": spec.out,
        }

    return TrainingRun(
        network,
        step_loss,
        TrainingSchedule(spec.steps, spec.rate),
        run_identity(spec, pairs=examples.digest),
        lambda out, result: plan_extractor.save(out, made_extractor(), {}),
        measure_result,
    )

"""`polydec train lexical-units`: a model learns to say a span that it is sure of in one pass (lexical unit decoding)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polydec.core.types import TokenVocabulary
from polydec.lab.train import selfplay, tuned
from polydec.lab.train.draft import batch_of
from polydec.lab.train.envelope import TrainingRun, run_identity, run_training
from polydec.lab.train.kinds.probes import run_layer_by_levels
from polydec.lab.train.network import TrainableLlama
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.selfplay import TrainingSample
from polydec.lab.train.specs.lexical_units import LexicalSpec
from polydec.lab.train.state_layer import Past
from polydec.lab.train.tuned import PaddedTextRows
from polydec.models.learned.kinds import probes
from polydec.models.learned.kinds.probes import SoftProbes

MODEL = "model"
"""Folder of what is trained, in which the tuned model stands; the pads lie beside it."""
RANKS = 8
"""Of each pad, how many of its likeliest tokens are counted."""


def train_lexical(spec: LexicalSpec) -> dict[str, Any]:
    """Train the model and its pads on the target's own answers; out/model is a model's name (an adapter, or all weights), and
    out holds its pads. Says how surprising held-out answers are to it, token by token, before and after (nats), and how often
    each pad's token is right in spans. See `carry_out`. Raises RequestError on a wrong spec, missing data, or a target outside
    the Llama skeleton.

    Source: Sun et al., "Decoding at the speed of thought: harnessing parallel decoding of lexical units for LLMs" (2024). There
    a sample's pads stand where a span begins; here behind every token, as a pass of decoding may begin anywhere in a span."""
    return run_training("lexical units", spec, _course)


class LexicalUnitModel(nn.Module):
    """A network and the embeddings of its pads, trained together."""

    def __init__(self, network: TrainableLlama, pads_PH: Tensor) -> None:
        super().__init__()
        self.network = network
        self.pads_PH = nn.Parameter(pads_PH)

    def states(self, token_BT: Tensor) -> list[Tensor]:
        """Ready for the head [B, T, H]: of the texts, then of each pad behind each of their tokens."""
        trunk = self.network.model
        x = trunk.embed_tokens(token_BT)
        pads = [pad_H.expand_as(x) for pad_H in self.pads_PH]
        for layer in trunk.layers:
            past = Past()
            x, *pads = [run_layer_by_levels(self.network, layer, row, past) for row in (x, *pads)]  # pyright: ignore[reportArgumentType]
        return [trunk.norm(row) for row in (x, *pads)]


def _course(spec: LexicalSpec) -> TrainingRun:
    made = tuned.start_tuned_checkpoint(
        spec.target, spec.lora, spec.seed, spec.longest + spec.ahead
    )
    network = made.network
    samples, unseen = tuned.tuning_text_samples(spec, network.s.vocab)
    lengths = tuple(len(s.prompt_ids) + len(s.output_ids) for s in samples)
    units = LexicalUnitModel(network, _first_pads(network, samples, spec))
    sure, unseen_sure = (
        confident_token_masks(network, some, spec.alpha) for some in (samples, unseen)
    )

    def plainly() -> float:
        """How surprising held-out answers are, token by token."""
        return tuned.answer_nats(network, unseen, lambda rows: network.model(rows.token_BT))

    before = plainly()

    def loss(step: int) -> tuple[Tensor, int]:
        chosen = batch_of(lengths, spec.rows, spec.seed, step)
        rows = PaddedTextRows.of([samples[i] for i in chosen])
        sure_BT = side_by_side(sure, chosen)
        return units_loss(units, rows, sure_BT), rows.token_BT.numel()

    def measure() -> Mapping[str, Any]:
        return {
            "samples": len(samples),
            "spans": round(float(torch.cat(sure).float().mean()), 4),
            "nats": {"before": round(before, 4), "after": round(plainly(), 4)},
            "held_out": pad_hit_rates(units, unseen, unseen_sure),
        }

    def save(out: Path, result: Mapping[str, Any]) -> None:
        made.save(out / MODEL)
        vocab = TokenVocabulary(network.s.vocab, frozenset(made.source.text.eos))
        pads = SoftProbes(
            units.pads_PH.detach(), None, (0,) * len(units.pads_PH), vocab, result["held_out"]
        )
        probes.save(out, pads, {"target": spec.target})

    return TrainingRun(
        units,
        loss,
        TrainingSchedule(spec.steps, spec.rate, decay=1.0, weight_decay=0.0),
        run_identity(spec, samples=selfplay.samples_fingerprint(samples)),
        save,
        measure,
    )


def _first_pads(
    network: TrainableLlama, samples: Sequence[TrainingSample], spec: LexicalSpec
) -> Tensor:
    """Pads begin as embeddings of frequent tokens, drawn: nothing that the layers never met."""
    counts = selfplay.token_counts(samples)
    size = network.s.vocab
    frequent = sorted(range(size), key=lambda x: (-counts.get(x, 0), x))[:64]
    g = torch.Generator().manual_seed(spec.seed)
    drawn = torch.tensor(frequent)[torch.randint(len(frequent), (spec.ahead,), generator=g)]
    return network.model.embed_tokens(drawn).detach().clone()


@torch.no_grad()
def confident_token_masks(
    network: TrainableLlama, samples: Sequence[TrainingSample], alpha: float
) -> list[Tensor]:
    """Of each token of each text whether it belongs to the span of the token before it: the model itself gives it at least
    this probability."""
    out = list[Tensor]()
    for s in samples:
        token_T = torch.tensor((*s.prompt_ids, *s.output_ids))
        logp_TV = network(token_T[None])[0].log_softmax(-1)
        logp_T = logp_TV[:-1].gather(1, token_T[1:, None])[:, 0]
        out.append(torch.cat([torch.zeros(1, dtype=torch.bool), logp_T.exp() >= alpha]))
    return out


def side_by_side(sure: Sequence[Tensor], chosen: Sequence[int]) -> Tensor:
    """Of these texts, filled up with False."""
    return nn.utils.rnn.pad_sequence([sure[i] for i in chosen], batch_first=True)


def pad_target_masks(rows: PaddedTextRows, sure_BT: Tensor, pads: int) -> list[Tensor]:
    """Of each pad the places [B, T] behind whose token it is taught. The next token is a free choice; pad j, from 1, says the
    one j behind that, where all from the second on belong to its span."""
    in_span_BT = rows.writes_BT
    out = list[Tensor]()
    for j in range(1, pads + 1):
        in_span_BT = in_span_BT & F.pad(sure_BT, (0, j + 1))[:, j + 1 :]
        out.append(in_span_BT)
    return out


def units_loss(units: LexicalUnitModel, rows: PaddedTextRows, sure_BT: Tensor) -> Tensor:
    """Cross-entropy of the answer's next tokens, so that the model stays one that writes token by token, and of all pads'."""
    x_BTH, *pads = units.states(rows.token_BT)
    writes_BT = rows.writes_BT
    logits = units.network.logits(x_BTH[writes_BT])
    total = F.cross_entropy(logits, rows.token_BT.roll(-1, 1)[writes_BT])
    wheres = pad_target_masks(rows, sure_BT, len(pads))
    count = sum(int(where_BT.sum()) for where_BT in wheres)
    for j, (pad_BTH, where_BT) in enumerate(zip(pads, wheres, strict=True), 1):
        logits = units.network.logits(pad_BTH[where_BT])
        label = rows.token_BT.roll(-1 - j, 1)[where_BT]
        total = total + F.cross_entropy(logits, label, reduction="sum") / max(1, count)
    return total


@torch.no_grad()
def pad_hit_rates(
    units: LexicalUnitModel, samples: Sequence[TrainingSample], sure: Sequence[Tensor]
) -> list[list[float]]:
    """Of each pad how often its token of each rank is the text's, in spans."""
    pads = len(units.pads_PH)
    hits_PK = torch.zeros(pads, RANKS)
    count_P = torch.zeros(pads)
    for i, sample in enumerate(samples):
        rows = PaddedTextRows.of([sample])
        _, *states = units.states(rows.token_BT)
        for j, where_BT in enumerate(pad_target_masks(rows, sure[i][None], pads)):
            top_NK = units.network.logits(states[j][where_BT]).topk(RANKS).indices
            hits_PK[j] += (top_NK == rows.token_BT.roll(-2 - j, 1)[where_BT][:, None]).sum(0)
            count_P[j] += len(top_NK)
    return [
        [round(x, 4) for x in row] for row in (hits_PK / count_P.clamp(min=1)[:, None]).tolist()
    ]

"""`polydec train lexical-units`: a model learns to write a span that it is sure of in one pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polydec.core.types import TokenVocabulary
from polydec.lab.train import selfplay, tuned_checkpoint
from polydec.lab.train.draft import batch_of
from polydec.lab.train.envelope import TrainingRun, run_identity, run_training
from polydec.lab.train.kinds.ppd import run_layer_by_levels
from polydec.lab.train.network import TrainableLlama
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.selfplay import TrainingSample
from polydec.lab.train.specs.lexical_units import LexicalSpec
from polydec.lab.train.state_layer import Past
from polydec.lab.train.tuned_checkpoint import PaddedTextRows
from polydec.models.learned.kinds import probes
from polydec.models.learned.kinds.probes import SoftProbes

MODEL = "model"
"""Folder of what is trained, in which the tuned model stands; the pads lie beside it."""
RANKS = 8
"""Of each pad, how many of its likeliest tokens are counted."""


def train_lexical(spec: LexicalSpec) -> dict[str, Any]:
    """Train the model and its pads on the target's own answers.

    out/model is a model's name (an adapter, or all weights), and out holds its pads. Measured are
    the nats a token of held-out answers before and after, and how often each pad's token is right
    in spans. See `run_training`.

    Raises:
        RequestError: An option is wrong, data is missing, or the target is outside the Llama
            skeleton.

    Source: Sun et al., "Decoding at the speed of thought: harnessing parallel decoding of lexical
    units for LLMs" (2024). There a sample's pads stand where a span begins; here behind every
    token, as a pass of decoding may begin anywhere in a span.
    """
    return run_training("lexical units", spec, _course)


class LexicalUnitModel(nn.Module):
    """A network and the embeddings of its pads, which are trained together."""

    def __init__(self, network: TrainableLlama, pads_PH: Tensor) -> None:
        super().__init__()
        self.network = network
        self.pads_PH = nn.Parameter(pads_PH)

    def text_states(self, token_BT: Tensor) -> list[Tensor]:
        """The states of the texts, then of each pad after each of their tokens.

        All are ready for the head, shape ``[B, T, H]``.
        """
        trunk = self.network.model
        x = trunk.embed_tokens(token_BT)
        pads = [pad_H.expand_as(x) for pad_H in self.pads_PH]
        for layer in trunk.layers:
            past = Past()
            # Text and pads share the layer's keys: pad j sees the text up to its token, and pads 1
            # to j.
            x, *pads = [run_layer_by_levels(self.network, layer, row, past) for row in (x, *pads)]  # pyright: ignore[reportArgumentType]
        return [trunk.norm(row) for row in (x, *pads)]


def _course(spec: LexicalSpec) -> TrainingRun:
    made = tuned_checkpoint.start_tuned_checkpoint(
        spec.target, spec.lora, spec.seed, spec.longest + spec.ahead
    )
    network = made.network
    samples, unseen = tuned_checkpoint.tuning_text_samples(spec, network.s.vocab)
    lengths = tuple(len(s.prompt_ids) + len(s.output_ids) for s in samples)
    units = LexicalUnitModel(network, _first_pads(network, samples, spec))
    # Spans are fixed before training, by the model as it is now.
    sure, unseen_sure = (
        confident_token_masks(network, some, spec.alpha) for some in (samples, unseen)
    )

    def plain_nats() -> float:
        """Nats a token of held-out answers, written token by token."""
        return tuned_checkpoint.answer_nats(
            network, unseen, lambda rows: network.model(rows.token_BT)
        )

    # Measured before the first step, as the network is trained in place.
    before = plain_nats()

    def step_loss(step: int) -> tuple[Tensor, int]:
        # Texts of like length share a batch, so that little of it is padding.
        chosen = batch_of(lengths, spec.rows, spec.seed, step)
        rows = PaddedTextRows.of_samples([samples[i] for i in chosen])
        sure_BT = side_by_side(sure, chosen)
        return units_loss(units, rows, sure_BT), rows.token_BT.numel()

    def measure_result() -> Mapping[str, Any]:
        return {
            "samples": len(samples),
            "spans": round(float(torch.cat(sure).float().mean()), 4),
            "nats": {"before": round(before, 4), "after": round(plain_nats(), 4)},
            "held_out": pad_hit_rates(units, unseen, unseen_sure),
        }

    def save_result(out: Path, result: Mapping[str, Any]) -> None:
        """Write the tuned model, and the pads as an artefact.

        Args:
            out: Directory to write.
            result: What was measured; the hit rates go into the artefact.
        """
        made.save(out / MODEL)
        vocab = TokenVocabulary(network.s.vocab, frozenset(made.source.text.eos))
        # The pads are probes that enter the first layer, so whatever reads probes can use them.
        pads = SoftProbes(
            units.pads_PH.detach(), None, (0,) * len(units.pads_PH), vocab, result["held_out"]
        )
        probes.save(out, pads, {"target": spec.target})

    return TrainingRun(
        units,
        step_loss,
        TrainingSchedule(spec.steps, spec.rate, decay=1.0, weight_decay=0.0),
        run_identity(spec, samples=selfplay.samples_fingerprint(samples)),
        save_result,
        measure_result,
    )


def _first_pads(
    network: TrainableLlama, samples: Sequence[TrainingSample], spec: LexicalSpec
) -> Tensor:
    """Pads begin as embeddings of frequent tokens, drawn at random: inputs that the layers know."""
    counts = selfplay.token_counts(samples)
    size = network.s.vocab
    frequent = sorted(range(size), key=lambda x: (-counts.get(x, 0), x))[:64]
    g = torch.Generator().manual_seed(spec.seed)
    # One of the 64 most frequent tokens for each pad.
    drawn = torch.tensor(frequent)[torch.randint(len(frequent), (spec.ahead,), generator=g)]
    return network.model.embed_tokens(drawn).detach().clone()


@torch.no_grad()
def confident_token_masks(
    network: TrainableLlama, samples: Sequence[TrainingSample], alpha: float
) -> list[Tensor]:
    """Which tokens of each text belong to the span of the token before them.

    A token does where the model itself gives it at least the probability `alpha`.

    Args:
        network: The model.
        samples: Prompts with answers.
        alpha: Least probability, 0 to 1.

    Returns:
        One mask for each text, prompt and answer, shape ``[T]``; the first token never belongs.
    """
    out = list[Tensor]()
    for s in samples:
        token_T = torch.tensor((*s.prompt_ids, *s.output_ids))
        logp_TV = network(token_T[None])[0].log_softmax(-1)
        # Position t gives the probability of token t + 1.
        logp_T = logp_TV[:-1].gather(1, token_T[1:, None])[:, 0]
        out.append(torch.cat([torch.zeros(1, dtype=torch.bool), logp_T.exp() >= alpha]))
    return out


def side_by_side(sure: Sequence[Tensor], chosen: Sequence[int]) -> Tensor:
    """The masks of some texts in one tensor, filled up with False.

    Args:
        sure: A mask for each text.
        chosen: Indices of the wanted texts.

    Returns:
        Shape ``[B, T]``.
    """
    return nn.utils.rnn.pad_sequence([sure[i] for i in chosen], batch_first=True)


def pad_target_masks(rows: PaddedTextRows, sure_BT: Tensor, pads: int) -> list[Tensor]:
    """The places after whose token each pad is taught.

    The next token is a free choice. Pad j, from 1, predicts the token j places after that one,
    where all tokens from the second on belong to its span.

    Args:
        rows: Texts side by side.
        sure_BT: Which tokens belong to the span of the token before them, shape ``[B, T]``.
        pads: Number of pads, P.

    Returns:
        P masks of shape ``[B, T]``.
    """
    in_span_BT = rows.writes_BT
    out = list[Tensor]()
    for j in range(1, pads + 1):
        # A span that has ended before token t + 1 + j teaches no later pad.
        in_span_BT = in_span_BT & F.pad(sure_BT, (0, j + 1))[:, j + 1 :]
        out.append(in_span_BT)
    return out


def units_loss(units: LexicalUnitModel, rows: PaddedTextRows, sure_BT: Tensor) -> Tensor:
    """The cross-entropy of the answers' next tokens, and of all pads' tokens.

    The first term keeps the model one that writes token by token.

    Args:
        units: Network and pads in training.
        rows: Texts side by side.
        sure_BT: Which tokens belong to the span of the token before them, shape ``[B, T]``.

    Returns:
        Nats: mean over next tokens, plus mean over the places of all pads.
    """
    x_BTH, *pads = units.text_states(rows.token_BT)
    writes_BT = rows.writes_BT
    logits = units.network.token_logits(x_BTH[writes_BT])
    total = F.cross_entropy(logits, rows.token_BT.roll(-1, 1)[writes_BT])
    wheres = pad_target_masks(rows, sure_BT, len(pads))
    # One mean over the places of all pads.
    count = sum(int(where_BT.sum()) for where_BT in wheres)
    for j, (pad_BTH, where_BT) in enumerate(zip(pads, wheres, strict=True), 1):
        logits = units.network.token_logits(pad_BTH[where_BT])
        # Rolling wraps around at the end of a row, where no pad is taught.
        label = rows.token_BT.roll(-1 - j, 1)[where_BT]
        total = total + F.cross_entropy(logits, label, reduction="sum") / max(1, count)
    return total


@torch.no_grad()
def pad_hit_rates(
    units: LexicalUnitModel, samples: Sequence[TrainingSample], sure: Sequence[Tensor]
) -> list[list[float]]:
    """How often each pad's token of each rank is the text's, in spans.

    Args:
        units: Network and pads.
        samples: Held-out prompts with answers.
        sure: Spans of each text, see `confident_token_masks`.

    Returns:
        P lists of RANKS shares, 0 to 1.
    """
    pads = len(units.pads_PH)
    hits_PK = torch.zeros(pads, RANKS)
    count_P = torch.zeros(pads)
    for i, sample in enumerate(samples):
        rows = PaddedTextRows.of_samples([sample])
        _, *states = units.text_states(rows.token_BT)
        for j, where_BT in enumerate(pad_target_masks(rows, sure[i][None], pads)):
            top_NK = units.network.token_logits(states[j][where_BT]).topk(RANKS).indices
            # Pads are counted from 0 here: pad j predicts the token j + 2 places on.
            hits_PK[j] += (top_NK == rows.token_BT.roll(-2 - j, 1)[where_BT][:, None]).sum(0)
            count_P[j] += len(top_NK)
    return [
        [round(x, 4) for x in row] for row in (hits_PK / count_P.clamp(min=1)[:, None]).tolist()
    ]

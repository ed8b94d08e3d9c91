"""`polydec train skipping`: a model learns to write with few layers (Unified Layer Skipping)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from polydec.lab.train import selfplay, tuned_checkpoint
from polydec.lab.train.draft import batch_of
from polydec.lab.train.envelope import TrainingRun, run_identity, run_training
from polydec.lab.train.network import TrainableLlama
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.selfplay import TrainingSample
from polydec.lab.train.specs.skipping import SkippingSpec
from polydec.lab.train.tuned_checkpoint import PaddedTextRows
from polydec.methods.economics.depth import kept_layers


def train_skipping(spec: SkippingSpec) -> dict[str, Any]:
    """Train on the target's own answers under a layer skip, and save a model.

    `polydec.load` takes what is saved.

    That is an adapter, or all weights. Measured are held-out answers in nats a token, with and
    without the skip, before and after. See `run_training`.

    Raises:
        RequestError: An option is wrong, data is missing, or the target is outside the Llama
            skeleton.

    Source: Liu et al., "Accelerating inference in large language models with a unified layer
    skipping strategy" (2024). There all weights but the embeddings are trained, on a task's own
    answers (`text`).
    """
    return run_training("skipping", spec, _course)


def _course(spec: SkippingSpec) -> TrainingRun:
    made = tuned_checkpoint.start_tuned_checkpoint(spec.target, spec.lora, spec.seed, spec.longest)
    network, keep = made.network, kept_layers(made.network.s.layers, spec.speed, even=spec.even)
    samples, unseen = tuned_checkpoint.tuning_text_samples(spec, network.s.vocab)
    lengths = tuple(len(s.prompt_ids) + len(s.output_ids) for s in samples)

    def step_loss(step: int) -> tuple[Tensor, int]:
        rows = PaddedTextRows.of_samples(
            [samples[i] for i in batch_of(lengths, spec.rows, spec.seed, step)]
        )
        # All next tokens are learned, the prompt's too.
        known_BT = rows.known_BT
        logits = network.token_logits(layer_skipping_states(network, rows, keep)[known_BT])
        label = rows.token_BT.roll(-1, 1)[known_BT]
        return F.cross_entropy(logits, label), int(known_BT.sum())

    # Measured before the first step, as the network is trained in place.
    before = {
        "whole": layer_skipping_nats(network, unseen, range(network.s.layers)),
        "untuned": layer_skipping_nats(network, unseen, keep),
    }

    def measure_result() -> Mapping[str, Any]:
        after = {
            "tuned": layer_skipping_nats(network, unseen, keep),
            "tuned_whole": layer_skipping_nats(network, unseen, range(network.s.layers)),
        }
        nats = {name: round(x, 4) for name, x in {**before, **after}.items()}
        return {"samples": len(samples), "layers": list(keep), "nats": nats}

    return TrainingRun(
        network,
        step_loss,
        TrainingSchedule(spec.steps, spec.rate, decay=1.0, weight_decay=0.0),
        run_identity(spec, samples=selfplay.samples_fingerprint(samples)),
        lambda out, result: made.save(out),
        measure_result,
    )


def layer_skipping_states(
    network: TrainableLlama, rows: PaddedTextRows, keep: Collection[int]
) -> Tensor:
    """The states of texts whose answers skip layers.

    The tokens of a prompt pass every layer, those of the answer only some. As in decoding, each
    layer sees the prompt's keys and values of its own, and the row that ends the prompt is one of
    the prompt's.

    Args:
        network: The network in training.
        rows: Texts side by side.
        keep: Indices of the layers that answers pass.

    Returns:
        States ready for the head, shape ``[B, T, H]``.
    """
    trunk = network.model
    T = rows.token_BT.shape[1]
    # True at prompts' tokens, with an axis for the state's numbers.
    prompt_BT1 = (torch.arange(T) < rows.prompt_B[:, None])[..., None]
    x = trunk.embed_tokens(rows.token_BT)
    for i, layer in enumerate(trunk.layers):
        # A skipped layer runs for all rows here; answers' rows take no notice of it. No prompt row
        # sees an answer, so the prompt's states are right.
        through = layer(x, trunk.cos[:T], trunk.sin[:T])
        if i in keep:
            x = through
        else:
            x = torch.where(prompt_BT1, through, x)
    return trunk.norm(x)


def layer_skipping_nats(
    network: TrainableLlama, samples: Sequence[TrainingSample], keep: Collection[int]
) -> float:
    """The mean negative log-likelihood of answers under a layer skip.

    Args:
        network: The network.
        samples: Prompts with answers.
        keep: Indices of the layers that answers pass.

    Returns:
        Nats a token.
    """
    return tuned_checkpoint.answer_nats(
        network, samples, lambda rows: layer_skipping_states(network, rows, keep)
    )

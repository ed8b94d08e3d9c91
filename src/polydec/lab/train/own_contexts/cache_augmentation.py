"""Differentiable cache augmentation of a model of one's own, on running text.

As in `lab/train/contexts/cache_augmentation.py`: the model is frozen, a coprocessor that begins with
its weights makes vectors from its cache behind random places of a text, and the loss is that of the
tokens that follow there. The controls are the same, too: an untrained coprocessor (`reasoning` none)
and pause tokens (chain). The model itself is not written again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.lab.train.contexts.cache_augmentation import (
    CacheAugmentationModel,
    at_random,
    unaugmented_model,
)
from polydec.lab.train.data import BEGIN
from polydec.lab.train.envelope import TrainingRun, run_identity, tensor_digest
from polydec.lab.train.hyperfit import texts_of_length
from polydec.lab.train.own_model import OwnContextModel, own_model_schedule
from polydec.lab.train.random_streams import generator_for
from polydec.lab.train.specs.context import ContextSpec
from polydec.models.learned.kinds import coprocessor
from polydec.models.learned.kinds.coprocessor import CacheCoprocessor

FOLLOW = 8
"""Tokens that follow a place, at most; in short texts a fourth of the text."""

BEHIND = 8
"""Places of a text, at most; in short texts a fourth of the text."""


def course(spec: ContextSpec) -> TrainingRun:
    """What `train_context` runs.

    Raises:
        RequestError: The model or the data cannot be taken.
    """
    model = OwnContextModel.load_own(spec, stays=True)
    context = model.network.s.context
    if spec.length + spec.latents > context:
        raise RequestError(
            f"length is {spec.length}: with {spec.latents} vectors it is more than the context of {spec.target}, {context}"
        )
    # All texts have one length: tensors of [N, length + 1].
    begin = model.mark_token(BEGIN)
    learned_NT, unseen_NT = (
        torch.tensor([[begin, *ids] for ids in texts])
        for texts in texts_of_length(spec, spec.length, model.tokenizer)
    )
    follow = min(FOLLOW, spec.length // 4)
    behind = min(BEHIND, spec.length // 4)
    pausing = spec.reasoning == "chain"
    network = CacheAugmentationModel(model.network, spec.latents, spec.seed, pausing, follow)
    # The untrained coprocessor is measured as it is: one step whose loss is 0.
    trained = spec.reasoning != "none"

    def step_loss(step: int) -> tuple[Tensor, int]:
        # Texts and places are drawn by seed and step alone, so that a resumed run sees the same.
        chosen_B = torch.randperm(len(learned_NT), generator=generator_for(spec.seed, step, "rows"))
        token_BT = learned_NT[chosen_B[: spec.rows]]
        place_BG = at_random(token_BT, generator_for(spec.seed, step, "places"), behind, follow)
        nats, _ = network.predict_ahead(token_BT, place_BG)
        return nats.mean() * float(trained), token_BT.numel()

    def save_result(out: Path, result: Any) -> None:
        """Write the coprocessor into a folder of its own.

        Args:
            out: Directory to write.
            result: What was measured; it is not used.
        """
        # The coprocessor names no model: `check_fit` compares shapes.
        tensors = {n: p.detach() for n, p in network.tensors.items()}
        made = CacheCoprocessor(network.skeleton, network.soft.detach(), tensors)
        coprocessor.save(out / "coprocessor", made, {})

    schedule = replace(own_model_schedule(spec, spec.steps if trained else 1), weight_decay=0.0)
    return TrainingRun(
        network,
        step_loss,
        schedule,
        run_identity(spec, rows_read=tensor_digest(learned_NT)),
        save_result,
        lambda: measure_followed_tokens(network, unseen_NT, behind),
    )


@torch.no_grad()
def measure_followed_tokens(
    network: CacheAugmentationModel, unseen_NT: Tensor, places: int
) -> Mapping[str, Any]:
    """Measure what vectors change behind random places of held-out texts.

    Args:
        network: The model with its coprocessor.
        unseen_NT: Token ids of the texts, BEGIN first, shape ``[N, T]``.
        places: Places of each text.

    Returns:
        `nats_without` and `nats_with`: nats of each token behind a place; `parameters`: of the
        coprocessor.
    """
    # The same places with vectors and without.
    place_NG = at_random(unseen_NT, generator_for(0, 0, "measured"), places, network.ahead)
    out: dict[str, Any] = {"parameters": sum(p.numel() for p in network.reads.parameters())}
    for name, reads in (("without", unaugmented_model(network)), ("with", network)):
        out[f"nats_{name}"] = reads.predict_ahead(unseen_NT, place_NG)[0].mean((0, 1)).tolist()
    return out

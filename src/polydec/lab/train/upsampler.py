"""`polydec train upsampler`: what lifts pictures of few tokens to a model's own (MuLo-SD)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from polydec.core.types import TokenVocabulary
from polydec.lab.train.envelope import TrainingRun, run_identity, run_training
from polydec.lab.train.pictures import (
    JUDGED,
    learned_pictures,
    read_pictures_like,
    shrunk_pictures,
    view_of_target,
)
from polydec.lab.train.random_streams import generator_for
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.specs.upsampler import UpsamplerSpec
from polydec.models.learned.kinds import upsampler
from polydec.models.learned.kinds.upsampler import PictureUpsampler
from polydec.models.nets.upsampling import RowCausalUpsampler, UpsamplingShape
from polydec.models.sessions import sources
from polydec.models.text.tile_search import tokens_of_pixels


def train_upsampler(spec: UpsamplerSpec) -> dict[str, Any]:
    """Train on pictures and what they are averaged down to, and save an up-sampler at spec.out.

    See `run_training`.

    Raises:
        RequestError: An option of the spec is wrong, or the target draws no pictures.
        FileError: There are no pictures, or one cannot be read.

    Source: "Multi-scale local speculative decoding for image generation" (2026). There it learns from
    pixels and how they look; here it learns tokens, as drafts are tested by the law of each.
    """
    return run_training("upsampler", spec, _course)


def _course(spec: UpsamplerSpec) -> TrainingRun:
    view = view_of_target(spec.target, "target")
    source = sources.open_source(spec.target)
    # Classes count for nothing here: what lifts a picture sees its tokens alone.
    given = read_pictures_like(view, spec.images)
    shape = UpsamplingShape(
        view.height, view.width, spec.ratio, len(view.tiles), spec.units, spec.layers
    )
    high_NL = tokens_of_pixels(given.pixels, view.tiles)
    low_NL = tokens_of_pixels(shrunk_pictures(given, view, spec.ratio), view.tiles)
    learned_N = learned_pictures(given)
    # The global generator is left as it was.
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(spec.seed)
        network = RowCausalUpsampler(shape)
    vocab = TokenVocabulary(source.config["vocab_size"], frozenset(), source.fingerprint)

    def lifted_logits(low_BL: Tensor) -> Tensor:
        """Logits at the places of large pictures, ``[B, L, K]``."""
        logits_BHWK = network(low_BL.view(-1, shape.low_height, shape.low_width))
        # What lies over the edge is nothing to learn.
        return logits_BHWK[:, : shape.height, : shape.width].flatten(1, 2)

    def step_loss(step: int) -> tuple[Tensor, int]:
        rng = generator_for(spec.seed, step, "up-sampler")
        # Drawn from the step's number, so that a resumed run draws the same.
        chosen_B = learned_N.nonzero()[:, 0]
        chosen_B = chosen_B[torch.randint(len(chosen_B), (spec.rows,), generator=rng)]
        logits_BLK = lifted_logits(low_NL[chosen_B])
        label_BL = high_NL[chosen_B]
        return F.cross_entropy(logits_BLK.transpose(1, 2), label_BL), label_BL.numel()

    @torch.no_grad()
    def measure_result() -> Mapping[str, Any]:
        held_Q = (~learned_N).nonzero()[:JUDGED, 0]
        logits_QLK = lifted_logits(low_NL[held_Q])
        label_QL = high_NL[held_Q]
        right = (logits_QLK.argmax(-1) == label_QL).float().mean()
        return {
            "parameters": sum(p.numel() for p in network.parameters()),
            "held_out": len(held_Q),
            "held_out_nats": float(F.cross_entropy(logits_QLK.transpose(1, 2), label_QL)),
            "held_out_right": float(right),
            "out": spec.out,
        }

    def save_result(out: Path, result: Mapping[str, Any]) -> None:
        """Write the up-sampler as an artefact.

        Args:
            out: Directory to write.
            result: What was measured; the held-out figures go into the artefact.
        """
        # Beside the network what tokens draw: pixels are lifted and averaged by it.
        tensors = {name: t.detach() for name, t in network.state_dict().items()}
        made = PictureUpsampler(vocab, shape, torch.from_numpy(view.tiles), tensors)
        about = {name: result[name] for name in ("held_out_nats", "held_out_right")}
        upsampler.save(out, made, about)

    return TrainingRun(
        network,
        step_loss,
        TrainingSchedule(spec.steps, spec.rate),
        # The pictures' digest stands for their path, so that a moved file is the same run.
        run_identity(spec, "images", pictures=given.pictures_digest),
        save_result,
        measure_result,
    )

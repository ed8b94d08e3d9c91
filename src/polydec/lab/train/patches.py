"""`polydec train patches`: a small model whose tokens are patches of a picture, as vectors, and its diffusion head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor, nn
from torch.nn import functional as F

from polydec.base.errors import RequestError
from polydec.core.types import TokenVocabulary
from polydec.lab.train.envelope import TrainingRun, run_identity, run_training
from polydec.lab.train.network import (
    LlamaShape,
    TrainableLlama,
    make_bidirectional,
    save_directory,
)
from polydec.lab.train.picture_data import LabelledPictures, read_pictures
from polydec.lab.train.pictures import DROPPED, JUDGED, MASK, learned_pictures, tile_words
from polydec.lab.train.prefix_network import forward_with_past
from polydec.lab.train.random_streams import generator_for
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.specs.patches import PatchesSpec
from polydec.models.formats.picture_config import FIELD, TILES
from polydec.models.learned.kinds import patch_head
from polydec.models.learned.kinds.patch_head import PatchHead
from polydec.models.nets.denoising import DenoisingHead, DenoisingShape, normal_log_density
from polydec.models.sessions import sources
from polydec.models.text.tile_search import cut_patches

LEVELS = 256
"""Grey levels that a text names."""

FAR_BELOW = 1.2
"""Of how many deviations below 1 the least share of masked patches is."""

STEPS_OF_PATCH = 4
"""Steps of each patch that a step of training looks at."""


class PatchModel(nn.Module):
    """A model that reads patches as vectors, and the head that draws the next one.

    Args:
        shape: Sizes of the model.
        head: Sizes of the head.
        seed: Of the weights.
        masked: Whether it fills canvases. Default: it draws patches one behind the other.
    """

    def __init__(
        self, shape: LlamaShape, head: DenoisingShape, seed: int, masked: bool = False
    ) -> None:
        super().__init__()
        self.model = TrainableLlama(shape, seed=seed)
        if masked:
            # Patches see one another: sets are drawn in any order.
            make_bidirectional(self.model)
        # The global generator is left as it was.
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            self.head = DenoisingHead(head)

    def next_states(self, class_B: Tensor, value_BLD: Tensor) -> Tensor:
        """What the model says before each patch.

        Args:
            class_B: Token ids of the classes, shape ``[B]``.
            value_BLD: Patches in order, shape ``[B, L, D]``.

        Returns:
            States behind the final norm, shape ``[B, L, H]``.
        """
        trunk = self.model.model
        # The last patch is followed by nothing.
        read_BLH = torch.cat(
            [trunk.embed_tokens(class_B[:, None]), self.head.embed(value_BLD[:, :-1])], 1
        )
        return trunk.norm(forward_with_past(trunk, read_BLH)[0])

    def gap_states(self, class_B: Tensor, value_BLD: Tensor, gap_BL: Tensor) -> Tensor:
        """What a masked model says of each patch of a canvas.

        Args:
            class_B: Token ids of the classes; the last id, a gap, where it is left out. Shape ``[B]``.
            value_BLD: Patches in order, shape ``[B, L, D]``.
            gap_BL: Which of them are gaps.

        Returns:
            States whose root mean square is 1, shape ``[B, L, H]``.
        """
        trunk = self.model.model
        # The class stands before the canvas, and a gap in its place where it is left out.
        class_B1H = trunk.embed_tokens(class_B[:, None])
        gap_H = trunk.embed_tokens.weight[-1]
        known_BLH = torch.where(gap_BL[..., None], gap_H, self.head.embed(value_BLD))
        x_BTH = torch.cat([class_B1H, known_BLH], 1)
        T = x_BTH.shape[1]
        for layer in trunk.layers:
            x_BTH = layer(x_BTH, trunk.cos[:T], trunk.sin[:T])
        # Without weights, so that whoever reads the model's states needs none of its own norm.
        return F.rms_norm(x_BTH[:, 1:], x_BTH.shape[-1:], eps=1e-5)


@dataclass(frozen=True, eq=False)
class PatchRows:
    """Pictures as rows of patches.

    Attributes:
        value_NLD: Values of their pixels, from -1 to 1, shape ``[N, L, D]``.
        label_N: Their classes.
        learned_N: Which ones are learned from.
        classes: The words of the classes.
    """

    value_NLD: Tensor
    label_N: Tensor
    learned_N: Tensor
    classes: tuple[str, ...]


def train_patches(spec: PatchesSpec) -> dict[str, Any]:
    """Train, and save at spec.out a directory that `polydec.load` reads, with the head in a folder of it.

    See `run_training`.

    Raises:
        RequestError: An option of the spec is wrong.
        FileError: There are no pictures, or one cannot be read.

    Source: Li et al., "Autoregressive image generation without vector quantization" (MAR, 2024): model and
    head are trained together. There the head learns to guess noise; here the bound of the likelihood,
    as its steps are few.
    """
    return run_training("patches", spec, _course)


def _course(spec: PatchesSpec) -> TrainingRun:
    given = read_pictures(spec.images, spec.side * spec.patch, spec.classes)
    rows = make_patch_rows(given, spec.patch)
    classes = rows.classes
    taken = {*tile_words(LEVELS), DROPPED, MASK}
    if clash := next((word for word in classes if word in taken), None):
        raise RequestError(
            f"classes has {clash!r}: tokens of pictures have that name, so take another"
        )
    # Grey: a number for each pixel.
    values = spec.patch**2
    shape = LlamaShape(
        # Grey levels, classes, and the class that is left out.
        LEVELS + len(classes) + 1,
        spec.width,
        spec.layers,
        spec.width // 32,
        spec.width // 32,
        3 * spec.width,
        # Counted in what a text holds: a grey level for each pixel.
        spec.side**2 * values + 1,
    )
    head = DenoisingShape(values, spec.width, spec.head_units, spec.head_layers, spec.drawing_steps)
    network = PatchModel(shape, head, spec.seed, spec.masked)

    def batch_loss(chosen_B: Tensor, drop: float, count: int, rng: torch.Generator) -> Tensor:
        """Nats a pixel of some pictures.

        Args:
            chosen_B: Their numbers.
            drop: Share of classes that are left out.
            count: Steps of each patch that are looked at.
            rng: Source of what is drawn; it is advanced.

        Returns:
            The loss.
        """
        # A class that is left out has a word of its own.
        left_B = torch.rand(len(chosen_B), generator=rng) < drop
        class_B = (rows.label_N[chosen_B] + LEVELS).masked_fill(left_B, LEVELS + len(classes))
        value_BLD = rows.value_NLD[chosen_B]
        # Of a canvas the gaps alone are learned: what stands there is known.
        if spec.masked:
            gap_BL = draw_gaps(len(chosen_B), value_BLD.shape[1], spec.least_masked, rng)
            state_GH = network.gap_states(class_B, value_BLD, gap_BL)[gap_BL]
            return denoising_loss(network.head, state_GH, value_BLD[gap_BL], count, rng)
        state_BLH = network.next_states(class_B, value_BLD)
        return denoising_loss(
            network.head, state_BLH.flatten(0, 1), value_BLD.flatten(0, 1), count, rng
        )

    learned_R = rows.learned_N.nonzero()[:, 0]

    def step_loss(step: int) -> tuple[Tensor, int]:
        # All of it is drawn from the step's number, so that a resumed run draws the same.
        rng = generator_for(spec.seed, step, "patches")
        chosen_B = learned_R[torch.randint(len(learned_R), (spec.rows,), generator=rng)]
        loss = batch_loss(chosen_B, spec.drop, STEPS_OF_PATCH, rng)
        return loss, spec.rows * spec.side**2

    @torch.no_grad()
    def measure_result() -> dict[str, Any]:
        rng = generator_for(spec.seed, 0, "held-out patches")
        held_Q = (~rows.learned_N).nonzero()[:JUDGED, 0]
        parts = held_Q.split(64)
        nats = [float(batch_loss(p, 0.0, 2 * spec.drawing_steps, rng)) * len(p) for p in parts]
        return {
            "parameters": sum(p.numel() for p in network.parameters()),
            "head_parameters": sum(p.numel() for p in network.head.parameters()),
            "patches_of_picture": spec.side**2,
            "held_out": len(held_Q),
            "held_out_nats": sum(nats) / len(held_Q),
        }

    return TrainingRun(
        network,
        step_loss,
        TrainingSchedule(spec.steps, spec.rate),
        # The pictures' digest stands for their path, so that a moved file is the same run.
        run_identity(spec, "images", pictures=given.pictures_digest),
        lambda out, result: save_patch_model(out, network, classes, spec, result),
        measure_result,
    )


def make_patch_rows(given: LabelledPictures, patch: int) -> PatchRows:
    """Cut pictures into patches.

    Args:
        given: The pictures; what has colours becomes grey.
        patch: Pixels of a patch's side.

    Returns:
        Their rows.

    Raises:
        RequestError: All pictures are learned from or all held out.
    """
    learned_N = learned_pictures(given)
    # Around 0, as noise is.
    value_NLX = cut_patches(given.pixels, patch) / 127.5 - 1
    # Of a pixel with three values their mean.
    value_NLD = value_NLX.unflatten(-1, (-1, given.pixels.shape[-1])).mean(-1)
    return PatchRows(value_NLD, torch.from_numpy(given.labels), learned_N, given.classes)


def draw_gaps(rows: int, count: int, least: float, rng: torch.Generator) -> Tensor:
    """Which patches of some pictures are masked.

    Shares follow a normal law around 1, of which what lies between `least` and 1 is kept and which is so
    wide that `least` lies 1.2 deviations below 1: with 0.7 it is the published one.

    Args:
        rows: Pictures.
        count: Patches of each.
        least: The least share, 0 to 1.
        rng: Source of the draws; it is advanced.

    Returns:
        True at gaps, shape ``[rows, count]``, at least one in each row.

    Source: Li et al., "Autoregressive image generation without vector quantization" (MAR, 2024).
    """
    # Spread evenly over the batch, so that the mean over it has little noise.
    spread_B = (torch.rand((), generator=rng) + torch.arange(rows)) / rows % 1
    reach = torch.special.ndtr(torch.tensor(FAR_BELOW)) - 0.5
    below_B = torch.special.ndtri(0.5 + spread_B * reach) / FAR_BELOW
    share_B1 = (1 - (1 - least) * below_B)[:, None]
    gaps_B1 = (share_B1 * count).ceil().clamp(1, count)
    # The places of the smallest random numbers: exactly so many in each row.
    return torch.rand(rows, count, generator=rng).argsort(-1).argsort(-1) < gaps_B1


def denoising_loss(
    head: DenoisingHead, state_NH: Tensor, clean_ND: Tensor, count: int, rng: torch.Generator
) -> Tensor:
    """A bound of how unlikely patches are, in nats a pixel.

    Args:
        head: The head in training.
        state_NH: What the model says of each patch.
        clean_ND: The patches.
        count: Steps of each patch that are looked at, spread evenly over all steps, at least 1.
        rng: Source of steps and noise; it is advanced.

    Returns:
        The mean: of the last step the patch's own density, of others how far the head's law of a step
        lies from the law that knows the patch (Kullback-Leibler).

    Source: Ho et al., "Denoising diffusion probabilistic models" (2020), Eq. 5; variances are learned by it
    as well.
    """
    T = head.shape.steps
    N, D = clean_ND.shape
    s = head.schedule
    # Evenly spread over the steps, so that the mean over them has little noise.
    spread_NC = (torch.rand(N, 1, generator=rng) + torch.arange(count) / count) % 1
    step_M = (spread_NC * T).long().clamp_max(T - 1).flatten() + 1
    # The model runs once, the head for several steps of each patch.
    state_MH = state_NH.repeat_interleave(count, 0)
    clean_MD = clean_ND.repeat_interleave(count, 0)
    kept_M1 = s.kept_T[step_M - 1].float()[:, None]
    noise_MD = torch.randn(len(step_M), D, generator=rng)
    noisy_MD = kept_M1.sqrt() * clean_MD + (1 - kept_M1).sqrt() * noise_MD
    mean_MD, log_std_MD = head(state_MH, noisy_MD, step_M)
    clean_M1, noisy_M1 = s.mean_T2[step_M - 1].float().unsqueeze(1).unbind(-1)
    # The law of the step before by one who knows the patch, and how far the head's lies from it.
    wanted_MD = clean_M1 * clean_MD + noisy_M1 * noisy_MD
    known_M1 = s.low_T[step_M - 1].float()[:, None] / 2
    apart_MD = (
        log_std_MD
        - known_M1
        + ((2 * known_M1).exp() + (wanted_MD - mean_MD).square()) / (2 * (2 * log_std_MD).exp())
        - 0.5
    )
    said_MD = -normal_log_density(clean_MD, mean_MD, log_std_MD)
    steps_MD = torch.where((step_M == 1)[:, None], said_MD, apart_MD)
    # Where all noise was added the patch is hardly seen: a constant that belongs to the bound.
    rest = 1 - float(s.kept_T[-1])
    begun = (float(s.kept_T[-1]) * clean_ND.square().mean() + rest - 1) / 2 - torch.tensor(
        rest
    ).log() / 2
    return T * steps_MD.mean() + begun


def save_patch_model(
    out: Path,
    network: PatchModel,
    classes: tuple[str, ...],
    spec: PatchesSpec,
    result: Mapping[str, Any],
) -> None:
    """Save a directory that `polydec.load` reads, and the head in its folder `head`.

    Args:
        out: Directory to write.
        network: Gives the weights.
        classes: What classes are called.
        spec: Options; side, patch and masked are read.
        result: What was measured; the held-out figure goes into the head's files.
    """
    # A class that is left out has a word of its own, or is a gap.
    words = [*tile_words(LEVELS), *classes, MASK if spec.masked else DROPPED]
    tokenizer = Tokenizer(WordLevel({word: at for at, word in enumerate(words)}))
    tokenizer.pre_tokenizer = WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    config = network.model.s.config_content(tied=True)
    pixels = spec.side * spec.patch
    config[FIELD] = {
        "height": pixels,
        "width": pixels,
        "classes": list(classes),
        "dropped": None if spec.masked else DROPPED,
        "patch": spec.patch,
    }
    if spec.masked:
        config |= {"polydec_causal": False, "polydec_mask": len(words) - 1}
    files: Mapping[str, Any] = {
        "tokenizer.json": tokenizer.to_str(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": network.model.s.context,
            "clean_up_tokenization_spaces": False,
        },
        "generation_config.json": {"do_sample": True, "temperature": 1.0},
    }
    levels_KPPC = torch.arange(LEVELS, dtype=torch.uint8)[:, None, None, None]
    save_directory(
        out, network.model, config, files=files, dtype=torch.float16, beside={TILES: levels_KPPC}
    )
    # A head knows its model by the last row of its table, as it was saved.
    mark_H = network.model.model.embed_tokens.weight[-1].detach().half().float()
    vocab = TokenVocabulary(len(words), frozenset(), sources.open_source(str(out)).fingerprint)
    tensors = {name: t.detach() for name, t in network.head.state_dict().items()}
    made = PatchHead(vocab, network.head.shape, LEVELS, spec.side**2, mark_H, tensors)
    patch_head.save(out / "head", made, {"held_out_nats": result["held_out_nats"]})

"""`polydec train pictures`: a small model whose tokens are a picture of a class."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor
from torch.nn import functional as F

from polydec.base.errors import RequestError
from polydec.lab.train.envelope import STATE, TrainingRun, run_identity, run_training
from polydec.lab.train.loop import bf16_autocast, is_bf16_run
from polydec.lab.train.network import (
    LlamaShape,
    TrainableLlama,
    make_bidirectional,
    save_directory,
)
from polydec.lab.train.picture_data import (
    LabelledPictures,
    cut_patches,
    learn_tiles,
    nearest_tiles,
    read_pictures,
)
from polydec.lab.train.random_streams import generator_for
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.specs.pictures import PicturesSpec
from polydec.models.formats.picture_config import FIELD, TILES

DROPPED = "any"
"""The prompt of a picture of no class in particular."""

MASK = "<mask>"
"""What a gap is called in the tokenizer; nobody writes it."""

SMOOTHED = 0.1
"""Label smoothing of a masked-diffusion model, as MaskGIT has it."""

JUDGED = 512
"""Held-out pictures that are measured at most."""


@dataclass(frozen=True, eq=False)
class PictureRows:
    """Pictures as rows of tokens: the class, then the tiles from the top left.

    Attributes:
        learned: Rows to learn from, shape ``[R, L + 1]``.
        held: Held-out rows, shape ``[Q, L + 1]``.
        tiles: What each token draws, uint8, shape ``[K, P, P, C]``.
        error: How far tiles lie from the pixels of held-out pictures, root of the mean square.
        classes: The words of the classes; class c has the token K + c.
    """

    learned: Tensor
    held: Tensor
    tiles: Tensor
    error: float
    classes: tuple[str, ...]

    @property
    def first_class(self) -> int:
        """Id of the first class: tiles stand before it."""
        return len(self.tiles)

    @property
    def after_classes(self) -> int:
        """Id behind the classes: of the class that is left out, or of a gap."""
        return self.first_class + len(self.classes)


def train_pictures(spec: PicturesSpec) -> dict[str, Any]:
    """Train, and save at spec.out a directory that `polydec.load` reads.

    See `run_training`.

    Raises:
        RequestError: An option of the spec is wrong.
        FileError: There are no pictures, or one cannot be read.
    """
    return run_training("pictures", spec, _course)


def _course(spec: PicturesSpec) -> TrainingRun:
    given = read_pictures(spec.images, spec.side * spec.patch, spec.classes)
    rows = make_picture_rows(given, spec)
    taken = {*tile_words(rows.first_class), DROPPED, MASK}
    if clash := next((word for word in given.classes if word in taken), None):
        raise RequestError(
            f"classes has {clash!r}: tokens of pictures have that name, so take another"
        )
    length = spec.side**2 + 1
    shape = LlamaShape(
        # Tiles, classes, and one more: the class that is left out, or a gap.
        rows.after_classes + 1,
        spec.width,
        spec.layers,
        spec.width // 32,
        spec.width // 32,
        3 * spec.width,
        length,
    )
    # The head knows tiles alone, so that nothing else can be drawn.
    network = TrainableLlama(
        shape, tokens=torch.arange(rows.first_class, dtype=torch.int32), seed=spec.seed
    )
    if spec.masked:
        make_bidirectional(network)
    bf16 = is_bf16_run(Path(spec.out) / STATE)

    def batch_loss(row_BT: Tensor, rng: torch.Generator) -> Tensor:
        """The loss of some pictures.

        Args:
            row_BT: Token ids, the class first, shape ``[B, L + 1]``.
            rng: Source of the masks, where the model is a masked one; it is advanced.

        Returns:
            Nats a token.
        """
        with bf16_autocast(bf16):
            if spec.masked:
                return masked_picture_loss(network, row_BT, rows.after_classes, rng)
            return F.cross_entropy(network(row_BT[:, :-1]).float().transpose(1, 2), row_BT[:, 1:])

    def step_loss(step: int) -> tuple[Tensor, int]:
        # All of it is drawn from the step's number, so that a resumed run draws the same.
        rng = generator_for(spec.seed, step, "pictures")
        chosen_B = torch.randint(len(rows.learned), (spec.rows,), generator=rng)
        row_BT = rows.learned[chosen_B]
        out_B = torch.rand(spec.rows, generator=rng) < spec.drop
        row_BT = torch.cat(
            [row_BT[:, :1].masked_fill(out_B[:, None], rows.after_classes), row_BT[:, 1:]], 1
        )
        return batch_loss(row_BT, rng), row_BT.numel()

    @torch.no_grad()
    def measure_result() -> dict[str, Any]:
        rng = generator_for(spec.seed, 0, "held-out pictures")
        losses = [float(batch_loss(part, rng)) for part in rows.held[:JUDGED].split(64)]
        return {
            "parameters": sum(p.numel() for p in network.parameters()),
            "tokens_of_picture": length - 1,
            "tiles": rows.first_class,
            "tile_error": round(rows.error, 2),
            "held_out": len(rows.held),
            "held_out_nats": sum(losses) / len(losses),
        }

    schedule = TrainingSchedule(
        spec.steps, spec.rate, muon=spec.muon, log_every=min(20, spec.steps)
    )
    return TrainingRun(
        network,
        step_loss,
        schedule,
        # The pictures' digest stands for their path, so that a moved file is the same run.
        run_identity(spec, "images", pictures=given.pictures_digest, bf16=bf16),
        lambda out, result: save_picture_model(out, network, rows, spec),
        measure_result,
    )


def make_picture_rows(given: LabelledPictures, spec: PicturesSpec) -> PictureRows:
    """Quantise pictures.

    Args:
        given: The pictures, of spec.side * spec.patch pixels a side.
        spec: Options; side, patch and colours are read.

    Returns:
        Their rows, and what tokens draw.

    Raises:
        RequestError: All pictures are learned from or all held out, or they have one colour.
    """
    learned_N = torch.from_numpy(given.is_learned())
    if not 0 < int(learned_N.sum()) < len(learned_N):
        raise RequestError(
            f"images has {len(learned_N)} pictures: of ten seven are learned from and three held out, by their SHA-1, so "
            "give more"
        )
    patch_NLD = cut_patches(given.pixels, spec.patch)
    tile_KD = learn_tiles(patch_NLD[learned_N].flatten(0, 1), spec.colours)
    if len(tile_KD) < 2:
        raise RequestError("images has one colour: there is nothing to learn")
    token_NL = nearest_tiles(patch_NLD.flatten(0, 1), tile_KD).view(patch_NLD.shape[:2])
    label_N1 = torch.from_numpy(given.labels)[:, None] + len(tile_KD)
    row_NT = torch.cat([label_N1, token_NL], 1)
    held_QLD = patch_NLD[~learned_N]
    error = (tile_KD[token_NL[~learned_N]] - held_QLD).square().mean().sqrt()
    values = given.pixels.shape[-1]
    tiles = tile_KD.to(torch.uint8).view(-1, spec.patch, spec.patch, values)
    return PictureRows(row_NT[learned_N], row_NT[~learned_N], tiles, float(error), given.classes)


def masked_picture_loss(
    network: TrainableLlama, row_BT: Tensor, mask: int, rng: torch.Generator
) -> Tensor:
    """The loss of a masked-diffusion model on pictures, the class before them never masked.

    Of each picture a share is masked that is drawn as cos(pi r / 2), r uniform and spread evenly over
    the batch: MaskGIT's canvases are fuller at first than at last.

    Args:
        network: The network in training.
        row_BT: Token ids, the class first, shape ``[B, L + 1]``.
        mask: Id of a gap.
        rng: Source of the masks; it is advanced.

    Returns:
        Nats a masked token, with label smoothing.

    Source: Chang et al., "MaskGIT: masked generative image transformer" (2022).
    """
    B, T = row_BT.shape
    spread_B = (torch.rand((), generator=rng) / B + torch.arange(B) / B) % 1
    count_B1 = (torch.cos(spread_B * math.pi / 2) * (T - 1)).ceil().clamp_min(1)[:, None]
    # The places of the smallest random numbers: exactly so many in each row.
    rank_BL = torch.rand(B, T - 1, generator=rng).argsort(-1).argsort(-1)
    hidden_BL = rank_BL < count_B1
    seen_BT = torch.cat([row_BT[:, :1], row_BT[:, 1:].masked_fill(hidden_BL, mask)], 1)
    logits_BLV = network(seen_BT)[:, 1:].float()
    return F.cross_entropy(
        logits_BLV[hidden_BL], row_BT[:, 1:][hidden_BL], label_smoothing=SMOOTHED
    )


def tile_words(count: int) -> list[str]:
    """What tiles are called in texts of a model's answers, the first of them p0."""
    return [f"p{k}" for k in range(count)]


def save_picture_model(
    out: Path, network: TrainableLlama, rows: PictureRows, spec: PicturesSpec
) -> None:
    """Save a directory that `polydec.load` reads.

    Args:
        out: Directory to write.
        network: Gives the weights.
        rows: Say what tokens draw and what classes are called.
        spec: Options; side and masked are read.
    """
    last = MASK if spec.masked else DROPPED
    words = [*tile_words(rows.first_class), *rows.classes, last]
    tokenizer = Tokenizer(WordLevel({word: at for at, word in enumerate(words)}))
    tokenizer.pre_tokenizer = WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    config = network.s.config_content(tied=False)
    config[FIELD] = {
        "height": spec.side,
        "width": spec.side,
        "classes": list(rows.classes),
        "dropped": None if spec.masked else DROPPED,
    }
    if spec.masked:
        config |= {"polydec_causal": False, "polydec_mask": rows.after_classes}
    files: Mapping[str, Any] = {
        "tokenizer.json": tokenizer.to_str(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": network.s.context,
            "clean_up_tokenization_spaces": False,
        },
        # Pictures are drawn, not the likeliest one again and again.
        "generation_config.json": {"do_sample": True, "temperature": 1.0},
    }
    save_directory(
        out, network, config, files=files, dtype=torch.float16, beside={TILES: rows.tiles}
    )

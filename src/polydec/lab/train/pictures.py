"""`polydec train pictures`: a small model whose tokens are a picture of a class."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor, nn
from torch.nn import functional as F

from polydec.base.errors import RequestError
from polydec.lab.train.enat import AveragedEnat, enat_picture_loss
from polydec.lab.train.envelope import STATE, TrainingRun, run_identity, run_training
from polydec.lab.train.loop import bf16_autocast, is_bf16_run
from polydec.lab.train.network import (
    LlamaShape,
    TrainableLlama,
    make_bidirectional,
    save_directory,
)
from polydec.lab.train.picture_data import LabelledPictures, learn_tiles, read_pictures
from polydec.lab.train.random_streams import generator_for
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.specs.pictures import PicturesSpec
from polydec.models.formats.enat_config import EnatShape, enat_config_content
from polydec.models.formats.picture_config import FIELD, TILES
from polydec.models.nets.enat import EnatModules
from polydec.models.sessions import sources
from polydec.models.text.picture_view import PictureView, read_picture_view
from polydec.models.text.tile_search import (
    cut_patches,
    draw_tiles,
    shrink_pixels,
    tokens_of_pixels,
)

DROPPED = "any"
"""The prompt of a picture of no class in particular."""

MASK = "<mask>"
"""What a gap is called in the tokenizer; nobody writes it."""

ROW_END = "<row>"
"""What stands behind a row is called in the tokenizer; the layout writes it."""

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
        classes: The words of the classes; class c has the token `first_class` + c.
        height: Tokens of a column of a picture.
        width: Tokens of a row of it.
        row_ends: Whether the token K stands behind every row; classes have the tokens behind it. Default
            False.
    """

    learned: Tensor
    held: Tensor
    tiles: Tensor
    error: float
    classes: tuple[str, ...]
    height: int
    width: int
    row_ends: bool = False

    @property
    def first_class(self) -> int:
        """Id of the first class: all that is written stands before it."""
        return len(self.tiles) + self.row_ends

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
    if spec.low_of is None:
        given = read_pictures(spec.images, spec.side * spec.patch, spec.classes)
        rows = make_picture_rows(given, spec)
    else:
        view = view_of_target(spec.low_of, "low_of")
        given = read_pictures_like(view, spec.images, view.classes)
        rows = make_low_rows(given, view, spec.ratio)
    taken = {*tile_words(len(rows.tiles)), ROW_END, DROPPED, MASK}
    if clash := next((word for word in given.classes if word in taken), None):
        raise RequestError(
            f"classes has {clash!r}: tokens of pictures have that name, so take another"
        )
    bf16 = is_bf16_run(Path(spec.out) / STATE)
    course = picture_course(spec, rows)

    def step_loss(step: int) -> tuple[Tensor, int]:
        # All of it is drawn from the step's number, so that a resumed run draws the same.
        rng = generator_for(spec.seed, step, "pictures")
        chosen_B = torch.randint(len(rows.learned), (spec.rows,), generator=rng)
        row_BT = rows.learned[chosen_B]
        out_B = torch.rand(spec.rows, generator=rng) < spec.drop
        row_BT = torch.cat(
            [row_BT[:, :1].masked_fill(out_B[:, None], rows.after_classes), row_BT[:, 1:]], 1
        )
        with bf16_autocast(bf16):
            return course.loss(row_BT, rng), row_BT.numel()

    @torch.no_grad()
    def measure_result() -> dict[str, Any]:
        rng = generator_for(spec.seed, 0, "held-out pictures")
        with bf16_autocast(bf16):
            nats = mean_picture_loss(
                rows.held[:JUDGED], lambda row_BT: course.saved_loss(row_BT, rng)
            )
        return {
            "parameters": sum(p.numel() for p in course.saved.parameters()),
            "tokens_of_picture": rows.learned.shape[1] - 1,
            "tiles": len(rows.tiles),
            "tile_error": round(rows.error, 2),
            "held_out": len(rows.held),
            "held_out_nats": nats,
        }

    schedule = TrainingSchedule(
        spec.steps, spec.rate, muon=spec.muon, log_every=min(20, spec.steps)
    )
    return TrainingRun(
        course.trained,
        step_loss,
        schedule,
        # The pictures' digest stands for their path, so that a moved file is the same run.
        run_identity(spec, "images", pictures=given.pictures_digest, bf16=bf16),
        lambda out, result: save_picture_model(out, course.saved, rows, spec),
        measure_result,
        deep=course.deep,
        after_step=course.after_step,
    )


def mean_picture_loss(rows_NT: Tensor, loss_of: Callable[[Tensor], Tensor]) -> float:
    """The mean loss of pictures, each of which weighs alike.

    Args:
        rows_NT: The pictures' tokens, shape ``[N, T]``, N at least 1.
        loss_of: The mean loss of some of them.

    Returns:
        The mean.
    """
    # The last part may be a small one.
    return sum(float(loss_of(part)) * len(part) for part in rows_NT.split(64)) / len(rows_NT)


PictureLoss = Callable[[Tensor, torch.Generator], Tensor]
"""(rows of tokens, the class first, ``[B, L + 1]``; source of masks, which is advanced) -> nats a token."""


@dataclass(frozen=True, eq=False)
class PictureCourse:
    """What is trained on pictures, and what becomes of it.

    Attributes:
        trained: Takes the steps, and is what a checkpoint holds.
        saved: What is measured and saved, a part of it.
        loss: Loss of a step.
        saved_loss: That of what is saved.
        deep: See `fit_network`.
        after_step: See `fit_network`.
    """

    trained: nn.Module
    saved: nn.Module
    loss: PictureLoss
    saved_loss: PictureLoss
    deep: Sequence[nn.Parameter] = ()
    after_step: Callable[[], None] = lambda: None


def picture_course(spec: PicturesSpec, rows: PictureRows) -> PictureCourse:
    """What is trained on pictures.

    Args:
        spec: Options; sizes, seed, masked, and those with encoder are read.
        rows: The pictures.

    Returns:
        The network with random weights, and its losses.
    """
    if spec.encoder:
        return _enat_course(spec, rows)
    return _uniform_course(spec, rows)


def _uniform_course(spec: PicturesSpec, rows: PictureRows) -> PictureCourse:
    """A network whose layers see everything."""
    shape = LlamaShape(
        # Tiles, classes, and one more: the class that is left out, or a gap.
        rows.after_classes + 1,
        spec.width,
        spec.layers,
        spec.width // 32,
        spec.width // 32,
        3 * spec.width,
        rows.learned.shape[1],
    )
    # The head knows tiles, and the ends of rows, so that nothing else can be drawn.
    network = TrainableLlama(
        shape, tokens=torch.arange(rows.first_class, dtype=torch.int32), seed=spec.seed
    )
    loss: PictureLoss = partial(next_token_loss, network)
    if spec.masked:
        # All positions see one another: gaps are filled in any order.
        make_bidirectional(network)
        loss = partial(masked_picture_loss, network, rows.after_classes)
    return PictureCourse(network, network, loss, loss)


def _enat_course(spec: PicturesSpec, rows: PictureRows) -> PictureCourse:
    """A network that encodes tokens apart from gaps, of which the average is saved."""
    shape = EnatShape(
        rows.after_classes + 1,
        rows.first_class,
        spec.width,
        spec.width // 32,
        3 * spec.width,
        spec.encoder,
        spec.layers,
        rows.learned.shape[1],
    )
    both = AveragedEnat(shape, spec.seed)
    # In both losses the average is what encodes older tokens; it learns nothing by that.
    given = (both.average, rows.after_classes, spec.reused, SMOOTHED)
    return PictureCourse(
        both,
        both.average,
        partial(enat_picture_loss, both.learned, *given),
        partial(enat_picture_loss, both.average, *given),
        both.layer_matrices,
        partial(both.follow_weights, spec.average),
    )


def make_picture_rows(given: LabelledPictures, spec: PicturesSpec) -> PictureRows:
    """Quantise pictures.

    Args:
        given: The pictures, of spec.side * spec.patch pixels a side.
        spec: Options; side, patch, colours and row_ends are read.

    Returns:
        Their rows, and what tokens draw.

    Raises:
        RequestError: All pictures are learned from or all held out, or they have one colour.
    """
    learned_N = learned_pictures(given)
    patch_NLD = cut_patches(given.pixels, spec.patch)
    tile_KD = learn_tiles(patch_NLD[learned_N].flatten(0, 1), spec.colours)
    if len(tile_KD) < 2:
        raise RequestError("images has one colour: there is nothing to learn")
    values = given.pixels.shape[-1]
    tiles_KPPC = tile_KD.to(torch.uint8).view(-1, spec.patch, spec.patch, values)
    return _quantised_rows(given, given.pixels, tiles_KPPC, spec.side, spec.row_ends)


def make_low_rows(given: LabelledPictures, view: PictureView, ratio: int) -> PictureRows:
    """Quantise pictures, and make pictures of fewer tokens of what these draw.

    Args:
        given: The pictures, of the large ones' size.
        view: Says what the tokens of large pictures draw, and how many there are.
        ratio: Rows, and columns, of a large picture for one of a small one.

    Returns:
        Rows of the small ones, of the same tiles and classes.

    Raises:
        RequestError: All pictures are learned from or all held out.
    """
    small = shrunk_pictures(given, view, ratio)
    return _quantised_rows(
        given, small, torch.from_numpy(view.tiles), small.shape[2] // view.tiles.shape[1]
    )


def shrunk_pictures(given: LabelledPictures, view: PictureView, ratio: int) -> NDArray[np.uint8]:
    """What pictures are averaged down to, once their tokens have drawn them.

    Args:
        given: The pictures, of the large ones' size.
        view: Says what the tokens of large pictures draw, and how many there are.
        ratio: Pixels of a side that become one.

    Returns:
        Pixels, shape ``[N, H, W, C]``, of as many whole tiles as cover a large picture.
    """
    side = view.tiles.shape[1]
    # Whole tiles, which may reach over the edge of a large picture.
    height = -(-view.height // ratio) * side
    width = -(-view.width // ratio) * side
    # In parts, since all pictures as floats take four times their room.
    parts = list[NDArray[np.uint8]]()
    for begin in range(0, len(given.pixels), 1024):
        token_NL = tokens_of_pixels(given.pixels[begin : begin + 1024], view.tiles)
        # Drawn again from its tokens: so a draft learns of what it will be given.
        drawn = draw_tiles(token_NL, view.height, view.width, view.tiles)
        parts.append(shrink_pixels(drawn, ratio, height, width))
    return np.concatenate(parts)


def _quantised_rows(
    given: LabelledPictures,
    pixels_NHWC: NDArray[np.uint8],
    tiles_KPPC: Tensor,
    side: int,
    row_ends: bool = False,
) -> PictureRows:
    """Rows of some pixels, which are those of `given` or made of them. side: tokens of a row;
    row_ends: whether a token stands behind each."""
    learned_N = learned_pictures(given)
    token_NL = tokens_of_pixels(pixels_NHWC, tiles_KPPC.numpy())
    label_N1 = torch.from_numpy(given.labels)[:, None] + len(tiles_KPPC) + row_ends
    written_NL = token_NL
    # Only what is written has marks; the tiles' error below is of what is drawn.
    if row_ends:
        line_NHW = token_NL.unflatten(1, (-1, side))
        written_NL = torch.nn.functional.pad(line_NHW, (0, 1), value=len(tiles_KPPC)).flatten(1)
    row_NT = torch.cat([label_N1, written_NL], 1)
    held_QLD = cut_patches(pixels_NHWC[~learned_N.numpy()], tiles_KPPC.shape[1])
    drawn_QLD = tiles_KPPC.flatten(1).float()[token_NL[~learned_N]]
    error = float((drawn_QLD - held_QLD).square().mean().sqrt())
    height = token_NL.shape[1] // side
    return PictureRows(
        *(row_NT[learned_N], row_NT[~learned_N], tiles_KPPC, error, given.classes, height, side),
        row_ends,
    )


def learned_pictures(given: LabelledPictures) -> Tensor:
    """Which pictures are learned from. Raises RequestError where that is all of them, or none."""
    learned_N = torch.from_numpy(given.is_learned())
    if not 0 < int(learned_N.sum()) < len(learned_N):
        raise RequestError(
            f"images has {len(learned_N)} pictures: of ten seven are learned from and three held out, by their SHA-1, so "
            "give more"
        )
    return learned_N


def read_pictures_like(
    view: PictureView, images: str, classes: Sequence[str] = ()
) -> LabelledPictures:
    """Read pictures of the size that a model draws.

    Args:
        view: What its tokens draw.
        images: Where they lie.
        classes: Words of their classes in the order of the labels. Empty: the labels are the words.

    Returns:
        The pictures.

    Raises:
        RequestError: The model draws in grey, and they have colours, or the other way round.
        FileError: There are none, or a file cannot be read.
    """
    given = read_pictures(images, view.pixel_shape[0], classes)
    have = given.pixels.shape[-1]
    wanted = view.pixel_shape[2]
    # Grey pictures have one value a pixel; those of image files have three.
    if have != wanted:
        raise RequestError(
            f"images has {have} values a pixel, and the model draws {wanted}: give pictures as it was trained on"
        )
    return given


def view_of_target(name: str, field: str) -> PictureView:
    """What the tokens of a model draw.

    Args:
        name: The model, as --model names it.
        field: The option that names it, for the sentence.

    Returns:
        What its answers look like.

    Raises:
        RequestError: It draws no pictures, or none that this kind of training makes smaller.
    """
    # The config and one tensor are read; no network is built.
    source = sources.open_source(name)
    view = read_picture_view(source.config, source.weights)
    drawn = view is not None and view.dropped == DROPPED and view.patch is None
    if view is None or not drawn or view.height != view.width or view.row_end is not None:
        raise RequestError(
            f"{field} is {name!r}: it must be a model that draws square pictures token by token, as `polydec train pictures` "
            "makes them"
        )
    return view


def next_token_loss(network: TrainableLlama, row_BT: Tensor, rng: torch.Generator) -> Tensor:
    """The loss of a model that draws token by token.

    Args:
        network: The network in training.
        row_BT: Token ids, the class first, shape ``[B, L + 1]``.
        rng: Nothing is drawn of it.

    Returns:
        Nats a token.
    """
    # The class says the first token; the last one says nothing.
    return F.cross_entropy(network(row_BT[:, :-1]).float().transpose(1, 2), row_BT[:, 1:])


def masked_picture_loss(
    network: TrainableLlama, mask: int, row_BT: Tensor, rng: torch.Generator
) -> Tensor:
    """The loss of a masked-diffusion model on pictures, the class before them never masked.

    Of each picture a share is masked that is drawn as cos(pi r / 2), r uniform and spread evenly over
    the batch: MaskGIT's canvases are fuller at first than at last.

    Args:
        network: The network in training.
        mask: Id of a gap.
        row_BT: Token ids, the class first, shape ``[B, L + 1]``.
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
    out: Path, network: nn.Module, rows: PictureRows, spec: PicturesSpec
) -> None:
    """Save a directory that `polydec.load` reads.

    Args:
        out: Directory to write.
        network: Gives the weights.
        rows: Say what tokens draw, how many there are, and what classes are called.
        spec: Options; masked is read.
    """
    last = MASK if spec.masked else DROPPED
    ends = [ROW_END] if rows.row_ends else []
    words = [*tile_words(len(rows.tiles)), *ends, *rows.classes, last]
    tokenizer = Tokenizer(WordLevel({word: at for at, word in enumerate(words)}))
    tokenizer.pre_tokenizer = WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    config = _network_config(network)
    config[FIELD] = {
        "height": rows.height,
        "width": rows.width,
        "classes": list(rows.classes),
        "dropped": None if spec.masked else DROPPED,
        **({"row_end": len(rows.tiles)} if rows.row_ends else {}),
    }
    if spec.masked:
        config |= {"polydec_causal": False, "polydec_mask": rows.after_classes}
    files: Mapping[str, Any] = {
        "tokenizer.json": tokenizer.to_str(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": rows.learned.shape[1],
            "clean_up_tokenization_spaces": False,
        },
        # Pictures are drawn, not the likeliest one again and again.
        "generation_config.json": {"do_sample": True, "temperature": 1.0},
    }
    save_directory(
        out, network, config, files=files, dtype=torch.float16, beside={TILES: rows.tiles}
    )


def _network_config(network: nn.Module) -> dict[str, Any]:
    """What config.json says of a network itself."""
    if isinstance(network, TrainableLlama):
        return network.s.config_content(tied=False)
    assert isinstance(network, EnatModules), "a model of pictures has one of two networks"
    return enat_config_content(network.shape)

"""Pictures to learn from: read, made of one size, and quantised to tokens."""

from __future__ import annotations

import hashlib
import math
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from polydec.base.errors import FileError, PolydecError
from polydec.models.formats import edge
from polydec.models.formats.image_decoding import read_square_pixels
from polydec.models.formats.images import Image
from polydec.models.text.tile_search import nearest_tiles

MOST_VALUES = 1 << 30
"""Values of all pixels of a data set at most."""

MOST_FILES = 100_000
"""Image files of a folder at most."""

LEARNED = 7
"""Of ten pictures so many are learned from, by the SHA-1 of their pixels; the others are held out."""

SAMPLED = 20_000
"""Patches that k-means looks at, at most."""

ROUNDS = 20
"""Rounds of k-means."""

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".webp")


@dataclass(frozen=True, eq=False)
class LabelledPictures:
    """Pictures of one size.

    Attributes:
        pixels: 8 bits a value, shape ``[N, H, W, C]``; C is 1 (grey) or 3 (red, green, blue).
        labels: The class of each, ``[N]``, as its place in `classes`.
        classes: The words of the classes.
    """

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]

    @property
    def pictures_digest(self) -> str:
        """SHA-1 of all of it, which tells this data from other."""
        made = hashlib.sha1(self.pixels.tobytes())
        made.update(self.labels.tobytes())
        made.update(repr(self.classes).encode())
        return made.hexdigest()

    def is_learned(self) -> NDArray[np.bool_]:
        """Which of them are learned from, shape ``[N]``; the others are held out."""
        parts = [int(hashlib.sha1(p.tobytes()).hexdigest(), 16) % 10 for p in self.pixels]
        return np.array([part < LEARNED for part in parts], bool)


def read_pictures(path: str, side: int, classes: Sequence[str] = ()) -> LabelledPictures:
    """Read pictures with their classes, and make all of them of one size.

    Args:
        path: A .npz with `images`, uint8 ``[N, H, W]`` or ``[N, H, W, 3]``, and `labels` or `names`;
            a folder with one; or a folder with a folder of image files for each class.
        side: Pixels of a row and of a column; pictures are averaged down to it, or stretched.
        classes: Words of the classes in the order of their labels. Empty: the labels are the words.

    Returns:
        The pictures.

    Raises:
        FileError: There are none, or a file cannot be read.
    """
    at = edge.at_home(path)
    packed = [at] if at.is_file() else sorted(at.glob("*.npz"))
    if packed:
        pixels, names = _read_packed(packed[0])
        _require_room(len(pixels), side, pixels.shape[3])
    elif at.is_dir():
        pixels, names = _read_folders(at, side)
    else:
        raise FileError(f"images is {path!r}: there is no such file or folder")
    known = sorted(set(names), key=lambda name: (len(name), name))
    labels = np.array([known.index(name) for name in names], np.int64)
    words = tuple(classes) or tuple(known)
    if len(words) != len(known) or len(set(words)) < len(words):
        raise FileError(
            f"classes has {len(words)} words: {path} has {len(known)} classes, and each needs its own"
        )
    if bad := next((word for word in words if not word or len(word.split()) != 1), None):
        raise FileError(f"classes has {bad!r}: a class is one word without spaces")
    return LabelledPictures(resize_pictures(pixels, side), labels, words)


def _read_packed(path: Path) -> tuple[NDArray[np.uint8], list[str]]:
    """The pictures of a .npz, ``[N, H, W, C]``, and the name of each one's class."""
    if not zipfile.is_zipfile(path):
        raise FileError(f"{path} is no .npz archive")
    with _archive_errors(path), zipfile.ZipFile(path) as archive:
        held = frozenset(archive.namelist())
        if "images.npy" not in held:
            raise FileError(f"{path} has no `images`: uint8 [N, H, W] or [N, H, W, 3]")
        field = next((name for name in ("labels", "names") if f"{name}.npy" in held), None)
        if field is None:
            raise FileError(f"{path} has neither `labels` nor `names`: the class of each picture")
        pixels: Any = _read_array(archive, "images")
        names = [str(name) for name in _read_array(archive, field).tolist()]
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    if pixels.ndim != 4 or pixels.shape[3] not in (1, 3) or pixels.dtype != np.uint8:
        raise FileError(
            f"{path}: images is {pixels.dtype} {pixels.shape}: it must be uint8 [N, H, W] or [N, H, W, 3]"
        )
    if not pixels.size or pixels.size > MOST_VALUES or len(pixels) != len(names):
        raise FileError(
            f"{path} has {len(pixels)} pictures and {len(names)} classes of them: there must be as many, at least one, and "
            f"{MOST_VALUES} values at most"
        )
    return pixels, names


@contextmanager
def _archive_errors(path: Path) -> Iterator[None]:
    """Turn whatever reading an archive meets into a FileError of one sentence."""
    with edge.report_read_errors(str(path)):
        try:
            yield
        except (zipfile.BadZipFile, zlib.error) as why:
            raise FileError(f"it is damaged ({edge.first_line(why)})") from None


def _read_array(archive: zipfile.ZipFile, name: str) -> Any:
    """An array of a .npz. Raises FileError where it is none, or is larger than a data set may be."""
    with archive.open(f"{name}.npy") as member:
        # Later forms have headers of any length, which only arrays of records need.
        if np.lib.format.read_magic(member) != (1, 0):
            raise FileError(f"{name} is no plain array")
        shape, _, dtype = np.lib.format.read_array_header_1_0(member)
    # A small archive can unpack to anything, and its header says to what, before it does.
    if math.prod(shape) * dtype.itemsize > MOST_VALUES:
        raise FileError(f"{name} is {dtype} {list(shape)}: at most {MOST_VALUES} bytes are read")
    with archive.open(f"{name}.npy") as member:
        return np.lib.format.read_array(member, allow_pickle=False)


def _require_room(count: int, side: int, values: int) -> None:
    """Raise FileError where pictures of some size have more values together than a data set may."""
    if count * side * side * values > MOST_VALUES:
        raise FileError(
            f"images has {count} pictures: of {side} x {side} pixels there may be at most "
            f"{MOST_VALUES // (side * side * values)}"
        )


def _read_folders(path: Path, side: int) -> tuple[NDArray[np.uint8], list[str]]:
    """The image files of a folder's folders, made of one size, and the name of each one's folder."""
    files = sorted(
        f for f in path.glob("*/*") if f.suffix.lower() in ENDINGS and not f.name.startswith(".")
    )
    if not files:
        raise FileError(
            f"{path} has neither a .npz nor folders of image files ({', '.join(ENDINGS)})"
        )
    if len(files) > MOST_FILES:
        raise FileError(f"{path} has {len(files)} image files: at most {MOST_FILES} are read")
    _require_room(len(files), side, 3)
    pixels = np.stack([_read_image(f, side) for f in files])
    return pixels, [f.parent.name for f in files]


def _read_image(path: Path, side: int) -> NDArray[np.uint8]:
    """One image file as a square, shape ``[side, side, 3]``; what is transparent stands on white."""
    try:
        rgb = read_square_pixels(Image(path), side)
    except PolydecError as why:
        raise FileError(edge.error_sentence(f"{path}: {why}")) from None
    return np.frombuffer(rgb, np.uint8).reshape(side, side, 3)


def resize_pictures(pixels_NHWC: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Average pictures over areas, so that they have `side` pixels a side.

    Args:
        pixels_NHWC: Pictures, shape ``[N, H, W, C]``.
        side: Pixels of a row and of a column.

    Returns:
        Pictures, shape ``[N, side, side, C]``.
    """
    if pixels_NHWC.shape[1:3] == (side, side):
        return pixels_NHWC
    values = torch.from_numpy(np.ascontiguousarray(pixels_NHWC)).permute(0, 3, 1, 2)
    out = [F.interpolate(part.float(), (side, side), mode="area") for part in values.split(512)]
    return torch.cat(out).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()


def learn_tiles(patches_ND: Tensor, count: int) -> Tensor:
    """Find the tiles that patches are drawn with, by k-means from far-apart patches.

    Nothing is drawn at random: equal patches give equal tiles.

    Args:
        patches_ND: Patches, shape ``[N, D]``, float32.
        count: Tiles at most; fewer where there are fewer different patches.

    Returns:
        The tiles, the darkest first, shape ``[K, D]``, rounded to whole numbers.

    Source: Lloyd, "Least squares quantization in PCM" (1982); Linde et al., "An algorithm for vector
    quantizer design" (1980); the start: Gonzalez, "Clustering to minimize the maximum intercluster
    distance" (1985).
    """
    every = max(1, len(patches_ND) // SAMPLED)
    seen_ND = patches_ND[::every][:SAMPLED]
    # The patch that lies farthest from all tiles so far is the next one.
    chosen = [0]
    far_N = (seen_ND - seen_ND[0]).square().sum(-1)
    while len(chosen) < count and float(far_N.max()) > 0:
        chosen.append(int(far_N.argmax()))
        far_N = torch.minimum(far_N, (seen_ND - seen_ND[chosen[-1]]).square().sum(-1))
    tile_KD = seen_ND[chosen]
    for _ in range(ROUNDS):
        nearest_N = nearest_tiles(seen_ND, tile_KD)
        sum_KD = torch.zeros_like(tile_KD).index_add_(0, nearest_N, seen_ND)
        size_K = torch.bincount(nearest_N, minlength=len(tile_KD))
        # A tile that no patch is nearest to stays where it is.
        tile_KD = torch.where(size_K[:, None] > 0, sum_KD / size_K[:, None].clamp_min(1), tile_KD)
    rounded = torch.unique(tile_KD.round().clamp(0, 255), dim=0)
    return rounded[rounded.sum(-1).argsort(stable=True)]

"""An image as a vision tower reads it: tiles of coloured pixels, made as the processor of its
checkpoint makes them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import blake2b

from polydec.models.formats.images import Image


@dataclass(frozen=True)
class ImageTiles:
    """A decoded image. Equal tiles are one image, whatever files they came from.

    Attributes:
        height: Rows of pixels of a tile.
        width: Columns of pixels of a tile.
        rows: Rows of tiles that the image was cut into; 0: it was not cut.
        columns: The same of columns.
        pixels: Red, green and blue of each pixel, 0 to 255, row by row, tile by tile. Behind the
            tiles that the image was cut into stands one that shows all of it.
    """

    height: int
    width: int
    rows: int
    columns: int
    pixels: bytes

    @property
    def tile_count(self) -> int:
        """How many tiles there are."""
        return len(self.pixels) // (3 * self.height * self.width)

    @cached_property
    def content_hash(self) -> bytes:
        """A hash of it."""
        sizes = f"{self.height} {self.width} {self.rows} {self.columns}".encode()
        return blake2b(sizes + b"\0" + self.pixels, digest_size=16).digest()


@dataclass(frozen=True)
class CropPlan:
    """One tile of a fixed size: the image is made larger or smaller, and its middle cut out.

    Attributes:
        short: Pixels of the shorter side, the proportions kept. None: `size` says both.
        size: Height and width. None: `short` says it, or the size stays.
        crop: Height and width of what is cut out. None: all of it.
        resample: Pillow's filter, 0 to 5.
    """

    short: int | None
    size: tuple[int, int] | None
    crop: tuple[int, int] | None
    resample: int

    reading = "crop"


@dataclass(frozen=True)
class SplitPlan:
    """Square tiles that an image is cut into, and one that shows all of it.

    Attributes:
        longest: Pixels of the longer side before the image is cut, the proportions kept. None: as
            it is.
        split: Whether it is cut; else there is the one tile that shows all of it.
        tile: Pixels of a side of a tile.
        resample: Pillow's filter, 0 to 5.
    """

    longest: int | None
    split: bool
    tile: int
    resample: int

    reading = "split"


@dataclass(frozen=True)
class GridPlan:
    """One tile of any size: whole squares, and as many pixels as are allowed.

    Attributes:
        factor: Pixels of a side of a square.
        least: Pixels that it becomes at least.
        most: Pixels that it becomes at most.
        resample: Pillow's filter, 0 to 5.
    """

    factor: int
    least: int
    most: int
    resample: int

    reading = "grid"


ImagePlan = CropPlan | SplitPlan | GridPlan
"""How an image becomes tiles; `reading` is its name in image_worker.py."""


def read_image_tiles(image: Image, plan: ImagePlan) -> ImageTiles:
    """Decode an image as a vision tower reads it.

    Args:
        image: The image. What is transparent is white.
        plan: What the tower reads.

    Returns:
        The tiles.

    Raises:
        RequestError: It cannot be read, is animated, truncated or too large; one sentence.
    """
    # Imported here: most models read no image.
    from polydec.models.formats.image_decoding import decode_image

    return ImageTiles(**decode_image(image, plan.reading, asdict(plan)))

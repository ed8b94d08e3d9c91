"""An image decoded in a process of its own: the script of a
`polydec.base.subprocess_worker.SubprocessWorker`.

It imports nothing but Pillow, so that it starts quickly and stays small. It must not be imported by
anything else.
"""

from __future__ import annotations

import io
from base64 import b64decode, b64encode
from math import ceil, floor, sqrt
from typing import Any

from PIL import Image, ImageOps, UnidentifiedImageError

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
"""Others have rarer decoders, some of which start programs."""
MOST_SIDE = 4096
"""Pixels of a side of an image that is cut into tiles."""
MOST_RATIO = 200
"""How much longer a side may be than the other where an image keeps its proportions."""


class RefusedImageError(Exception):
    """An image that is not read; its text is how a sentence about the image goes on."""


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The pixels of an image, or what is wrong with it.

    Args:
        request: ``data``: bytes of the file in base64; ``most_pixels``: pixels of the file at most;
            ``reading``: one of `_READINGS`; and what that asks for.

    Returns:
        What the reading gives, with the pixels in base64 under "pixels"; or how a sentence about
        the image goes on under "error".
    """
    # Sizes are checked below, before any pixel is decoded.
    Image.MAX_IMAGE_PIXELS = None
    try:
        return _READINGS[request["reading"]](_opened(request), request)
    except RefusedImageError as why:
        return {"error": str(why)}
    except UnidentifiedImageError:
        return {"error": f"is none of {', '.join(FORMATS)}, or its first bytes are damaged"}
    except MemoryError:
        return {"error": "takes more memory than an image may"}
    except Exception as e:  # decoders raise whatever they meet
        return {"error": f"cannot be decoded: {str(e)[:200] or type(e).__name__}"}


def _opened(request: dict[str, Any]) -> Image.Image:
    """The image of a request, upright. Raises RefusedImageError where it has too many pixels, or
    frames."""
    image = Image.open(io.BytesIO(b64decode(request["data"])), formats=FORMATS)
    width, height = image.size
    if width * height > request["most_pixels"]:
        raise RefusedImageError(
            f"has {width} x {height} pixels: at most {request['most_pixels']} are legal"
        )
    if getattr(image, "is_animated", False):
        raise RefusedImageError("is animated: give one that has one frame")
    # A camera's file may lie on its side, and says so.
    return ImageOps.exif_transpose(image)


def _strip(image: Image.Image, request: dict[str, Any]) -> dict[str, Any]:
    """Greys of a strip of `height` rows and at most `most_columns` columns."""
    width, height = image.size
    # A very narrow image still has a column.
    rows = request["height"]
    columns = max(1, round(width * rows / height))
    if columns > request["most_columns"]:
        raise RefusedImageError(
            f"has {width} x {height} pixels, which are {columns} x {rows} as the model reads them: it reads at "
            f"most {request['most_columns']} columns"
        )
    grey = _on_white(image).convert("L")
    if grey.size != (columns, rows):
        grey = grey.resize((columns, rows), Image.Resampling.BILINEAR)
    return {"pixels": b64encode(grey.tobytes()).decode()}


def _crop(image: Image.Image, request: dict[str, Any]) -> dict[str, Any]:
    """One tile: the image made so large that its shorter side has `short` pixels, or made of
    `size`, and its middle of `crop` pixels; sizes are height and width, none of them must be there."""
    image = _coloured(image)
    width, height = image.size
    short = request["short"]
    size = request["size"]
    # Longer than any picture may be a line of pixels made thicker: its size is checked before it is made.
    if short is not None:
        longer = int(short * max(width, height) / min(width, height))
        size = (longer, short) if width <= height else (short, longer)
    if size is not None:
        image = _resized(image, size, request)
    if request["crop"] is not None:
        rows, columns = request["crop"]
        left = (image.width - columns) // 2
        top = (image.height - rows) // 2
        # What lies beyond a smaller image is black.
        image = image.crop((left, top, left + columns, top + rows))
    return _tiles([image], 1, 1)


def _split(image: Image.Image, request: dict[str, Any]) -> dict[str, Any]:
    """Square tiles of `tile` pixels a side, row by row, and one of the whole image behind them,
    which stands alone where the image has the size of one tile or is not to be `split`. Its longer
    side has `longest` pixels before it is made a whole number of tiles; None: as many as it has."""
    image = _coloured(image)
    tile = request["tile"]
    if request["longest"] is not None:
        size = _at_most(*_longer_side(image.height, image.width, request["longest"]), MOST_SIDE)
        image = _resized(image, size, request)
    if not request["split"]:
        return _tiles([_resized(image, (tile, tile), request)], 0, 0)
    image = _resized(image, _whole_tiles(image.height, image.width, tile), request)
    # Both are whole numbers of tiles by now.
    rows = image.height // tile
    columns = image.width // tile
    if rows == columns == 1:
        return _tiles([image], 0, 0)
    tiles = [
        image.crop((x * tile, y * tile, (x + 1) * tile, (y + 1) * tile))
        for y in range(rows)
        for x in range(columns)
    ]
    # The whole is made of the image that was cut, not of the first one.
    return _tiles([*tiles, _resized(image, (tile, tile), request)], rows, columns)


def _grid(image: Image.Image, request: dict[str, Any]) -> dict[str, Any]:
    """One tile of whole squares of `factor` pixels a side, which has from `least` to `most` pixels;
    its proportions are kept as nearly as that goes."""
    image = _coloured(image)
    height, width = image.height, image.width
    if max(height, width) > MOST_RATIO * min(height, width):
        raise RefusedImageError(
            f"has {width} x {height} pixels: a side must not be more than {MOST_RATIO} times as long as the other"
        )
    # Rounded to whole squares first: most images have a legal number of pixels then.
    factor = request["factor"]
    rows = round(height / factor)
    columns = round(width / factor)
    pixels = rows * columns * factor**2
    # Both sides by one ratio, and then down or up to whole squares.
    if pixels > request["most"]:
        ratio = sqrt(height * width / request["most"])
        rows = max(1, floor(height / ratio / factor))
        columns = max(1, floor(width / ratio / factor))
    elif pixels < request["least"]:
        ratio = sqrt(request["least"] / (height * width))
        rows = ceil(height * ratio / factor)
        columns = ceil(width * ratio / factor)
    return _tiles([_resized(image, (rows * factor, columns * factor), request)], 0, 0)


def _longer_side(height: int, width: int, longest: int) -> tuple[int, int]:
    """Height and width with so many pixels of the longer side; the shorter one is made even."""
    ratio = width / height
    if width >= height:
        shorter = int(longest / ratio)
        # An odd number is made even by one more; nothing stays one pixel.
        return max(shorter + shorter % 2, 1), longest
    shorter = int(longest * ratio)
    return longest, max(shorter + shorter % 2, 1)


def _at_most(height: int, width: int, most: int) -> tuple[int, int]:
    """Height and width of which none is larger than that, the proportions kept."""
    ratio = width / height
    if width >= height and width > most:
        return max(int(most / ratio), 1), most
    if height > most:
        return most, max(int(most * ratio), 1)
    return height, width


def _whole_tiles(height: int, width: int, tile: int) -> tuple[int, int]:
    """Height and width, made larger to whole numbers of tiles: the longer side first, then what
    the other one is in its proportion."""
    ratio = width / height
    if width >= height:
        width = ceil(width / tile) * tile
        height = ceil(int(width / ratio) / tile) * tile
    else:
        height = ceil(height / tile) * tile
        width = ceil(int(height * ratio) / tile) * tile
    # A very narrow image still has a tile.
    return max(height, tile), max(width, tile)


def _resized(image: Image.Image, size: tuple[int, int], request: dict[str, Any]) -> Image.Image:
    """An image of another height and width. Raises RefusedImageError where it would have too many
    pixels."""
    height, width = size
    if height * width > request["most_pixels"]:
        raise RefusedImageError(
            f"has {image.width} x {image.height} pixels, which are {width} x {height} as the model reads them: "
            f"at most {request['most_pixels']} are legal"
        )
    return image.resize((width, height), Image.Resampling(request["resample"]))


def _coloured(image: Image.Image) -> Image.Image:
    """Red, green and blue of an image; what shows through is white."""
    # An alpha channel, or one colour of a palette that is none.
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        return _on_white(image).convert("RGB")
    return image.convert("RGB")


def _on_white(image: Image.Image) -> Image.Image:
    """An image on white: what shows through is paper."""
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)


def _tiles(tiles: list[Image.Image], rows: int, columns: int) -> dict[str, Any]:
    """Tiles of one size, as `ImageTiles` has them."""
    return {
        "pixels": b64encode(b"".join(tile.tobytes() for tile in tiles)).decode(),
        "height": tiles[0].height,
        "width": tiles[0].width,
        "rows": rows,
        "columns": columns,
    }


_READINGS = {"strip": _strip, "crop": _crop, "split": _split, "grid": _grid}
"""What may be made of an image."""

"""An image decoded in a process of its own: the script of a
`polydec.base.subprocess_worker.SubprocessWorker`.

It imports nothing but Pillow, so that it starts quickly and stays small. It must not be imported by
anything else.
"""

from __future__ import annotations

import io
from base64 import b64decode, b64encode
from typing import Any

from PIL import Image, ImageOps, UnidentifiedImageError

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
"""Others have rarer decoders, some of which start programs."""


def answer(request: dict[str, Any]) -> dict[str, str]:
    """The greys of an image, or what is wrong with it.

    Args:
        request: ``data``: bytes of the file in base64; ``height``: rows to make of it;
            ``most_columns``: columns of the result at most; ``most_pixels``: pixels of the file at
            most.

    Returns:
        The greys row by row in base64 under "pixels", or how a sentence about the image goes on
        under "error".
    """
    # Sizes are checked below, before any pixel is decoded.
    Image.MAX_IMAGE_PIXELS = None
    try:
        image = Image.open(io.BytesIO(b64decode(request["data"])), formats=FORMATS)
        width, height = image.size
        if width * height > request["most_pixels"]:
            return {
                "error": f"has {width} x {height} pixels: at most {request['most_pixels']} are legal"
            }
        if getattr(image, "is_animated", False):
            return {"error": "is animated: give one that has one frame"}
        # A camera's file may lie on its side, and says so.
        image = ImageOps.exif_transpose(image)
        width, height = image.size
        # A very narrow image still has a column.
        rows = request["height"]
        columns = max(1, round(width * rows / height))
        if columns > request["most_columns"]:
            return {
                "error": f"has {width} x {height} pixels, which are {columns} x {rows} as the model reads them: it reads at "
                f"most {request['most_columns']} columns"
            }
        return {"pixels": b64encode(_greys(image, columns, rows)).decode()}
    except UnidentifiedImageError:
        return {"error": f"is none of {', '.join(FORMATS)}, or its first bytes are damaged"}
    except MemoryError:
        return {"error": "takes more memory than an image may"}
    except Exception as e:  # decoders raise whatever they meet
        return {"error": f"cannot be decoded: {str(e)[:200] or type(e).__name__}"}


def _greys(image: Image.Image, columns: int, rows: int) -> bytes:
    """The greys of an image of another size."""
    image = image.convert("RGBA")
    # Models read ink on light paper: what shows through is paper.
    paper = Image.new("RGBA", image.size, "white")
    grey = Image.alpha_composite(paper, image).convert("L")
    if grey.size != (columns, rows):
        grey = grey.resize((columns, rows), Image.Resampling.BILINEAR)
    return grey.tobytes()

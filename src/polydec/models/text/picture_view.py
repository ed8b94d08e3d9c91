"""What the token ids of a picture look like."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.base.files import replace_file_atomically
from polydec.base.options import near_names_question, short_repr
from polydec.models.formats.picture_config import read_picture_config

BLANK = 127
"""What a place without a token looks like, of 0 to 255."""

RAMP = " .:-=+*#%@"
"""How bright a pixel is, in characters of a terminal."""


@dataclass(frozen=True, eq=False)
class DrawnPicture:
    """A picture that a model has written.

    Attributes:
        pixels: 8 bits a value, shape ``[H, W, C]``; C is 1 (grey) or 3 (red, green, blue).
    """

    pixels: NDArray[np.uint8]

    @property
    def png_file(self) -> bytes:
        """The content of a PNG file."""
        # Needed only where a picture is given out.
        from PIL import Image

        file = BytesIO()
        Image.fromarray(
            self.pixels.squeeze(-1) if self.pixels.shape[-1] == 1 else self.pixels
        ).save(file, "png")
        return file.getvalue()

    @property
    def base64_text(self) -> str:
        """The same in base64, as it stands in JSON."""
        return b64encode(self.png_file).decode()

    @property
    def terminal_text(self) -> str:
        """Its brightness in characters, a line each; two of them make a square."""
        bright_HW = self.pixels.mean(-1)
        step_HW = (bright_HW * len(RAMP) / 256).astype(int)
        return "\n".join("".join(RAMP[x] * 2 for x in line) for line in step_HW)

    def save_png(self, path: str | PathLike[str]) -> None:
        """Write the picture to a PNG file, whole or not at all.

        Raises:
            UnwritableError: The disk is full, or the folder cannot be written to.
        """
        content = self.png_file
        replace_file_atomically(Path(path), lambda at: at.write_bytes(content))

    def __repr__(self) -> str:
        height, width, values = self.pixels.shape
        return f"DrawnPicture({width} x {height}, {'grey' if values == 1 else 'colour'})"

    def _repr_png_(self) -> bytes:
        return self.png_file


@dataclass(frozen=True, eq=False)
class PictureView:
    """Pictures as a grid of tokens, each of which draws one tile: a colour, or a patch of pixels.

    Attributes:
        height: Tokens of a column.
        width: Tokens of a row; rows follow one another from the top, each from the left.
        tiles: What token k draws, shape ``[K, P, P, C]``.
        classes: The words that a prompt may be.
        dropped: The word of a prompt that names no class, as guidance reads it. None: there is none.
        patch: The model draws vectors: each is a square of so many tokens a side, and squares follow
            one another as tokens of other models do. None: it draws tokens.
        row_end: The token that stands behind every row, and draws nothing. None: there is none.
    """

    height: int
    width: int
    tiles: NDArray[np.uint8]
    classes: tuple[str, ...]
    dropped: str | None = None
    patch: int | None = None
    row_end: int | None = None

    @property
    def token_count(self) -> int:
        """Tokens of a picture, ends of rows included."""
        return self.height * (self.width + (self.row_end is not None))

    @property
    def pixel_shape(self) -> tuple[int, int, int]:
        """Height, width and values a pixel of a picture."""
        _, side, _, values = self.tiles.shape
        return self.height * side, self.width * side, values

    @cached_property
    def token_places(self) -> NDArray[np.int64]:
        """Where each token that draws stands in the picture, counted in rows from the top left."""
        side = self.patch or self.width
        rows = self.patch or self.height
        places_HW = np.arange(self.height * self.width).reshape(self.height, self.width)
        # Squares in rows, and the tokens of a square in rows; without patches one square is all.
        cut = places_HW.reshape(self.height // rows, rows, self.width // side, side)
        return cut.transpose(0, 2, 1, 3).reshape(-1)

    def draw_tokens(self, tokens: Sequence[int]) -> DrawnPicture:
        """Draw a picture.

        Args:
            tokens: Its token ids from the top left; places behind them, and ids that draw nothing,
                stay grey.

        Returns:
            The picture, of full size.
        """
        count, side, _, values = self.tiles.shape
        grid = np.full((self.height * self.width, side, side, values), BLANK, np.uint8)
        drawing = list(tokens)
        if self.row_end is not None:
            # What stands behind a row is no place.
            del drawing[self.width :: self.width + 1]
        for at, token in enumerate(drawing[: len(grid)]):
            if 0 <= token < count:
                grid[self.token_places[at]] = self.tiles[token]
        lines = grid.reshape(self.height, self.width, side, side, values).transpose(0, 2, 1, 3, 4)
        return DrawnPicture(lines.reshape(self.pixel_shape))

    def check_class(self, prompt: object, who: str = "prompt") -> None:
        """Check that a prompt says what is to be drawn.

        Args:
            prompt: The prompt; token ids are not looked at.
            who: What messages call it.

        Raises:
            RequestError: It is a text that names no class of these pictures.
        """
        words = self.classes if self.dropped is None else (*self.classes, self.dropped)
        if isinstance(prompt, str) and prompt.strip() not in words:
            shown = ", ".join(words[:12]) + (", …" if len(words) > 12 else "")
            hint = near_names_question(prompt.strip(), words, f"this model draws {shown}")
            raise RequestError(f"{who} is {short_repr(prompt)}: {hint}")


def read_picture_view(
    config: Mapping[str, Any], weights: Mapping[str, Tensor]
) -> PictureView | None:
    """What the answers of a checkpoint look like.

    Args:
        config: Content of the config.json.
        weights: The tensors by name.

    Returns:
        How its tokens are drawn; None: they are text.

    Raises:
        FileError: The checkpoint says it in a wrong way.
    """
    read = read_picture_config(config, weights)
    if read is None:
        return None
    stated, tiles_KPPC = read
    return PictureView(
        stated.height,
        stated.width,
        tiles_KPPC.numpy(),
        tuple(stated.classes),
        stated.dropped,
        stated.patch,
        stated.row_end,
    )

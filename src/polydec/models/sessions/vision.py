"""Vision-language checkpoints: the language model apart from what reads images, and the vectors that
an image becomes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from polydec.base.errors import FileError
from polydec.models.formats.image_tiles import ImagePlan, ImageTiles, read_image_tiles
from polydec.models.formats.images import DecodedImage, Image
from polydec.models.nets.gated import GatedAdapter, gate_weight_pairs
from polydec.models.nets.tile_evidence import TileEvidence
from polydec.models.sessions.image_press import VectorChoice
from polydec.models.sessions.soft import Soft
from polydec.models.sessions.sources import CheckpointFiles
from polydec.models.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from polydec.models.formats.vision import PartedCheckpoint

_ADAPTED = ("llama", "mistral")
"""Model types of language models whose rows of images may have an adapter of their own."""
SeenImage = tuple[Tensor, Sequence[TileEvidence]]
"""Vectors of an image, and of each tile what the tower's layers look at; none where nobody asked."""
KEPT = 16
"""Images whose vectors are kept, the ones that were read last."""


class VisionTower(Protocol):
    """A vision tower with its projector, of any layout."""

    @property
    def tile_plan(self) -> ImagePlan:
        """How an image becomes the tiles that it reads."""
        ...

    @property
    def appended_count(self) -> int:
        """How many vectors stand behind those of a tile's patches, and are never left out."""
        ...

    def place_of(self, tiles: ImageTiles) -> tuple[str | int, ...]:
        """What stands in a prompt in the place of an image: texts, and numbers of its vectors."""
        ...

    def grid_of(self, tiles: ImageTiles) -> tuple[int, int] | None:
        """Rows and columns of an image's vectors, where the language model tells them; else None."""
        ...

    def image_vectors(self, tiles: ImageTiles) -> Tensor:
        """The vectors of an image, ``[k, width]``, in the order in which they stand in a prompt."""
        ...

    def watched_vectors(self, tiles: ImageTiles) -> tuple[Tensor, Sequence[TileEvidence]]:
        """The same, and of each tile, in the order in which they stand in a prompt, what the tower's
        layers look at."""
        ...


@dataclass(frozen=True, eq=False)
class PlacedImage:
    """An image, and what stands in its place in a prompt.

    Attributes:
        tiles: The image as a tower reads it.
        ids: Token ids of its place: its token for each vector, and what else the layout writes there.
        seen: Its vectors, and of each tile what the tower's layers look at (none: nobody asked).
            None: the tower has not read it for this request yet.
    """

    tiles: ImageTiles
    ids: tuple[int, ...]
    seen: SeenImage | None = None


class VisionReader:
    """Reads images for a language model. It may be used by several threads.

    Args:
        tower: Makes vectors of images.
        token: The id that stands for an image in a prompt.
        text: The tokenizer.
        adapter: Under which images run through the language model. Default None: as words do.

    Attributes:
        passes: How many images the tower has read.
    """

    def __init__(
        self,
        tower: VisionTower,
        token: int,
        text: Tokenizer,
        adapter: GatedAdapter | None = None,
    ) -> None:
        self.tower = tower
        self.token = token
        self.adapter = adapter
        self.passes = 0
        self._text = text
        self._lock = Lock()
        self._made = OrderedDict[tuple[str, bytes], SeenImage]()

    @property
    def token_text(self) -> str:
        """The text that stands for an image in a prompt; "" where the tokenizer has none."""
        return self._text.tokenizer.id_to_token(self.token) or ""

    def decode_image(self, image: Image | DecodedImage) -> ImageTiles:
        """The tiles of an image. Raises RequestError where it cannot be read."""
        plan = self.tower.tile_plan
        if isinstance(image, DecodedImage):
            if image.form == plan:
                return image.content.tiles
            # A draft's tower reads it in a form of its own.
            image = image.image
        return read_image_tiles(image, plan)

    def place_image(self, image: Image | DecodedImage) -> PlacedImage:
        """Decode an image, and find what stands in its place in a prompt. The tower does not run.

        Args:
            image: The image. One that was decoded for this tower is placed already.

        Returns:
            The image in its place.

        Raises:
            RequestError: It cannot be read.
        """
        if isinstance(image, DecodedImage) and image.form == self.tower.tile_plan:
            return image.content
        tiles = self.decode_image(image)
        # Once: a place of many tiles is a long text.
        return PlacedImage(tiles, self._place_ids(tiles))

    def see_image(
        self, placed: PlacedImage, cache_salt: str = "", *, watches: bool = False
    ) -> PlacedImage:
        """Let the tower read an image, unless it has done so.

        Args:
            placed: The image.
            cache_salt: Only requests of the same salt share what the tower made. Default "".
            watches: Whether what the tower's layers look at is asked for. Default False.

        Returns:
            The image with its vectors.
        """
        if placed.seen is not None and (placed.seen[1] or not watches):
            return placed
        return replace(placed, seen=self._read_image(placed.tiles, cache_salt, watches))

    def _place_ids(self, tiles: ImageTiles) -> tuple[int, ...]:
        """Token ids of the place of an image."""
        parts = self.tower.place_of(tiles)
        # Vectors alone need no tokenizer, and a tokenizer that is made up has no text for them.
        if not any(isinstance(part, str) for part in parts):
            return (self.token,) * sum(part for part in parts if isinstance(part, int))
        # Encoded as a whole, as processors do it.
        shown = "".join(part if isinstance(part, str) else self.token_text * part for part in parts)
        return self._text.encode(shown, special=False)

    def place_parts(
        self, placed: PlacedImage, cache_salt: str = "", choice: VectorChoice | None = None
    ) -> list[int | Soft]:
        """The place of an image as a prompt has it.

        Args:
            placed: The image.
            cache_salt: Only requests of the same salt share what the tower made. Default "".
            choice: Which vectors of each tile stay. Default None: all of them.

        Returns:
            Token ids, and vectors in the place of each run of the image's token.

        Raises:
            FileError: The tokenizer cuts the place otherwise than the layout has it.
        """
        ids = placed.ids
        watches = choice is not None and choice.watches_tower
        seen = self.see_image(placed, cache_salt, watches=watches).seen
        assert seen is not None, "it was read just now"
        vectors_KD, evidence = seen
        grid = self.tower.grid_of(placed.tiles)
        if ids.count(self.token) != len(vectors_KD):
            raise FileError(
                f"the tokenizer makes {ids.count(self.token)} tokens of an image's place, and the vision tower "
                f"{len(vectors_KD)} vectors: they belong to different checkpoints"
            )
        # A layout may write more than one run, each for a part of the image.
        out = list[int | Soft]()
        given = 0
        # Tiles stand in the order in which the tower reads them.
        following = iter(evidence)
        at = 0
        while at < len(ids):
            stop = at
            while stop < len(ids) and ids[stop] == self.token:
                stop += 1
            # Another token of the place stays as it is.
            if stop == at:
                out.append(ids[at])
                at += 1
                continue
            tile_KD = vectors_KD[given : given + stop - at]
            part = Soft(tile_KD, ids[at:stop], grid, adapter=self.adapter)
            if choice is not None:
                part = _chosen_part(part, next(following, None), choice, self.tower.appended_count)
            out.append(part)
            given += stop - at
            at = stop
        return out

    def _read_image(self, tiles: ImageTiles, cache_salt: str, watches: bool) -> SeenImage:
        """The vectors of an image, which are made once while it is among the last ones, and (watches)
        what the tower's layers look at in each tile."""
        key = (cache_salt, tiles.content_hash)
        # Under the lock: who asks for the same image at the same time waits for the one pass.
        with self._lock:
            found = self._made.get(key)
            # An image that was read before may be read again to see what layers look at.
            if found is None or (watches and not found[1]):
                if watches:
                    found = self.tower.watched_vectors(tiles)
                else:
                    found = (self.tower.image_vectors(tiles), ())
                self.passes += 1
                self._made[key] = found
            self._made.move_to_end(key)
            # The one that was asked for the longest ago goes.
            while len(self._made) > KEPT:
                self._made.popitem(last=False)
        return found


def _chosen_part(
    part: Soft, evidence: TileEvidence | None, choice: VectorChoice, appended: int
) -> Soft:
    """What stays of a tile.

    Args:
        part: All of its vectors.
        evidence: What the tower's layers look at in it. None: nobody asked.
        choice: Which of the patches' vectors stay.
        appended: How many vectors stand behind these; all of them stay.

    Returns:
        The vectors that stay, at the positions that they had.
    """
    count = len(part.vectors_KD)
    kept = choice.keep_vectors(part.vectors_KD[: count - appended], evidence)
    # What stands behind the patches shows no place of the image, so nothing compares it with them.
    cells = (*kept.cells, *range(count - appended, count))
    vectors_MD = torch.cat([kept.vectors_MD, part.vectors_KD[count - appended :]])
    # Where none is left out, nothing tells that there was a choice.
    if len(cells) == count:
        return replace(part, vectors_KD=vectors_MD)
    # A model that tells no rows and columns counts along one line.
    line = (1, count) if part.grid is None else part.grid
    ids = None if part.stands_for is None else part.stands_for[: len(cells)]
    return replace(part, vectors_KD=vectors_MD, stands_for=ids, grid=line, kept=cells)


def is_vision(config: Mapping[str, Any]) -> bool:
    """Whether a config is of one of the layouts that are read here."""
    return config.get("model_type") in _LAYOUTS


def open_vision(source: CheckpointFiles, device: str) -> tuple[CheckpointFiles, VisionReader]:
    """Part a vision-language checkpoint.

    Args:
        source: Its files.
        device: Where the tower computes.

    Returns:
        The files as those of its language model alone, and what reads images.

    Raises:
        FileError: A field is missing or out of its range, or the weights do not fit.
    """
    parted, tower = _LAYOUTS[source.config["model_type"]](source, device)
    text = replace(source, config=parted.config, weights=parted.weights)
    adapter = _image_rows_adapter(source, parted)
    return text, VisionReader(tower, parted.image_token, source.text, adapter)


def _image_rows_adapter(source: CheckpointFiles, parted: PartedCheckpoint) -> GatedAdapter | None:
    """Under which images run through the language model. Raises FileError where the adapter does not
    fit that."""
    if source.images is None or not source.images.pairs:
        return None
    from polydec.models.formats.vision import rename_beginnings

    kind = parted.config["model_type"]
    # Others norm rows otherwise.
    if kind not in _ADAPTED:
        raise FileError(
            f"{source.path} has an adapter for images, which language models {' and '.join(_ADAPTED)} take: this one is a "
            f"{kind!r:.40}"
        )
    pairs: Any = rename_beginnings(source.images.pairs, parted.names)  # pyright: ignore[reportArgumentType]
    left = {name for name in source.images.pairs if not name.startswith(tuple(parted.names))}
    if left:
        raise FileError(
            f"{source.path} changes {min(left)!r:.120} at rows of images: these go through the language model alone"
        )
    return gate_weight_pairs(pairs, parted.weights, parted.config["num_hidden_layers"])


# One for each layout; what checks its fields is imported when such a checkpoint is loaded.


def _llava(source: CheckpointFiles, device: str) -> tuple[Any, VisionTower]:
    from polydec.models.formats.fields import require_shapes
    from polydec.models.formats.llava import read_llava
    from polydec.models.nets.llava import LlavaTower, fit_query_ladder

    parted = read_llava(source.config, source.weights, source.processor)
    if source.images is None:
        return parted, LlavaTower(parted.shape, parted.tower, device)
    own = source.images.projector
    shapes: Mapping[str, tuple[int, ...]] = parted.shape.tensor_shapes
    if unknown := next((name for name in own if name not in shapes), None):
        raise FileError(f"{source.path} has {unknown!r:.120}: the projector has no such tensor")
    require_shapes(own, {name: shapes[name] for name in own})
    weights = {name: own[name] if name in own else parted.tower[name] for name in shapes}
    ladder = None
    if source.images.ladder:
        ladder = fit_query_ladder(parted.shape, source.images.ladder, device)
    return parted, LlavaTower(parted.shape, weights, device, ladder)


def _idefics3(source: CheckpointFiles, device: str) -> tuple[Any, VisionTower]:
    from polydec.models.formats.idefics3 import read_idefics3
    from polydec.models.nets.idefics3 import Idefics3Tower

    parted = read_idefics3(source.config, source.weights, source.processor)
    return parted, Idefics3Tower(parted.shape, parted.tower, device)


def _qwen2_vl(source: CheckpointFiles, device: str) -> tuple[Any, VisionTower]:
    from polydec.models.formats.qwen2_vl import read_qwen2_vl
    from polydec.models.nets.qwen2_vl import Qwen2VLTower

    parted = read_qwen2_vl(source.config, source.weights, source.processor)
    return parted, Qwen2VLTower(parted.shape, parted.tower, device)


_LAYOUTS: Mapping[str, Callable[[CheckpointFiles, str], tuple[Any, VisionTower]]] = {
    "llava": _llava,
    "idefics3": _idefics3,
    "smolvlm": _idefics3,
    "qwen2_vl": _qwen2_vl,
}
"""By the config's model type, what reads a layout."""

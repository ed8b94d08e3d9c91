"""What lifts a small picture to a large one of the same tiles, and back: an up-sampler (MuLo-SD)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from polydec.base.errors import FileError
from polydec.core.protocols import Target
from polydec.core.types import TokenVocabulary
from polydec.models.formats import edge
from polydec.models.learned import artefact
from polydec.models.learned.artefact_fields import UpsamplerFields
from polydec.models.nets.upsampling import RowCausalUpsampler, UpsamplingShape
from polydec.models.text.picture_view import PictureView
from polydec.models.text.tile_search import shrink_pixels, tokens_of_pixels

KIND = artefact.ArtefactKind("upsampler", "up-sampler", "upsampler.safetensors", "upsampler")
TILES = "tiles"
"""The tensor that says what each token draws; the others are the network's."""

LowRows = tuple[tuple[int, ...], ...]
"""Rows of a small picture from its top, each of as many token ids as it is wide."""


@dataclass(frozen=True, eq=False)
class PictureUpsampler:
    """A trained up-sampler. Its queries are rows of small pictures; its answers are logits of the tokens
    under the last one, shape ``[L, K]``: L tokens of the large picture from the left, row by row.

    Attributes:
        vocab: Of the model that draws large pictures.
        shape: Its sizes.
        tiles: What each token draws, uint8, shape ``[K, P, P, C]``.
        tensors: Of the network, by name.
    """

    called: ClassVar[str] = "an up-sampler"
    kind: ClassVar[str] = KIND.name
    made_by: ClassVar[str] = KIND.training_command
    reads_draft: ClassVar[bool] = False

    vocab: TokenVocabulary
    shape: UpsamplingShape
    tiles: Tensor
    tensors: Mapping[str, Tensor]

    def check_fit(self, target: Target, draft: Target | None) -> None:
        """Check that it was trained for the target's vocabulary.

        Args:
            target: The model that it is to serve.
            draft: Draft model of the request, or None; not read.

        Raises:
            RequestError: The vocabularies differ in size, or their tokenizers are known and differ.
        """
        target.vocab.require_same(self.vocab, "the target of the up-sampler")

    @cached_property
    def network(self) -> RowCausalUpsampler:
        """What lifts small pictures."""
        # Made once, when somebody first drafts: weights stay as they were saved.
        network = RowCausalUpsampler(self.shape)
        network.load_state_dict(dict(self.tensors))
        return network.eval()

    @property
    def cost(self) -> float:
        """Numbers that a pass reads."""
        return float(sum(t.numel() for t in self.tensors.values()))

    @torch.inference_mode()
    def forward(self, queries: Sequence[LowRows]) -> list[Tensor]:
        """Lift the last rows of small pictures.

        Args:
            queries: Of each picture the rows so far, at least one.

        Returns:
            The logits under each one's last row, in order.
        """
        # Rows never see what stands below them, so shorter pictures are filled up from below.
        most = max(map(len, queries))
        # An id that is no tile draws nothing.
        token_BHW = torch.full((len(queries), most, self.shape.low_width), -1)
        for at, rows in enumerate(queries):
            token_BHW[at, : len(rows)] = torch.tensor(rows)
        logits_BHWK = self.network(token_BHW)
        return [self._block_rows(logits_BHWK[at], len(rows) - 1) for at, rows in enumerate(queries)]

    def _block_rows(self, logits_HWK: Tensor, row: int) -> Tensor:
        """What a picture's logits are under a row of the small one, without what lies over the edge."""
        s = self.shape
        # The last row of the small picture may cover fewer rows than the ratio.
        count = len(s.block_places(row)) // s.width
        begin = s.ratio * row
        return logits_HWK[begin : begin + count, : s.width].flatten(0, 1)

    def lift_pixels(self, rows: LowRows) -> tuple[int, ...]:
        """Lift the last row of a small picture without the network.

        It is drawn, made larger (bicubic, with the row above it) and quantised.

        Args:
            rows: The rows so far, at least one.

        Returns:
            The tokens of the large picture that this row covers.
        """
        s = self.shape
        side = self.tiles.shape[1]
        # The row above is all that a bicubic step can reach from this one.
        drawn = self._drawn_pixels(rows[-2:], s.low_width)
        pixels = torch.from_numpy(drawn).permute(2, 0, 1)[None].float()
        large = F.interpolate(pixels, scale_factor=s.ratio, mode="bicubic", align_corners=False)
        height = len(s.block_places(len(rows) - 1)) // s.width * side
        # Of the two enlarged rows the lower one, without what lies over an edge.
        top = large.shape[2] - s.ratio * side
        cut = large[0, :, top : top + height, : s.width * side].clamp(0, 255).round()
        pixels_HWC = cut.to(torch.uint8).permute(1, 2, 0).numpy()
        return tuple(tokens_of_pixels(pixels_HWC[None], self.tiles.numpy())[0].tolist())

    def shrink_block(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """The row of the small picture that covers a block of rows of the large one.

        Args:
            tokens: The block, row by row: `ratio` rows, or fewer at the bottom.

        Returns:
            Token ids, as many as a row of the small picture has.
        """
        s = self.shape
        side = self.tiles.shape[1]
        # Row by row, as a view draws them.
        rows = tuple(tuple(tokens[at : at + s.width]) for at in range(0, len(tokens), s.width))
        drawn = self._drawn_pixels(rows, s.width)
        small = shrink_pixels(drawn[None], s.ratio, side, s.low_width * side)
        return tuple(tokens_of_pixels(small, self.tiles.numpy())[0].tolist())

    def _drawn_pixels(self, rows: LowRows, width: int) -> NDArray[np.uint8]:
        """Rows of tokens as pixels, ``[H, W, C]``. width: tokens of a row."""
        view = PictureView(len(rows), width, self.tiles.numpy(), ())
        return view.draw_tokens([x for row in rows for x in row]).pixels

    def near_tiles(self, count: int) -> Tensor:
        """The tiles that look most alike.

        Args:
            count: How many, the tile itself among them; all where there are fewer.

        Returns:
            Of each tile the nearest ones by the pixels' distance, itself first, shape ``[K, N]``.
        """
        # Asked for at every token: the table is made once for each number of neighbours.
        if count not in self._near:
            tile_KD = self.tiles.flatten(1).float()
            most = min(count, len(tile_KD))
            parts = list[Tensor]()
            # In parts, as distances of all tiles from all are many.
            for begin in range(0, len(tile_KD), 1024):
                far = torch.cdist(tile_KD[begin : begin + 1024], tile_KD)
                # Two tiles may look the same: the one that is asked for stands first all the same.
                far[torch.arange(len(far)), begin + torch.arange(len(far))] = -1.0
                parts.append(far.topk(most, largest=False).indices)
            self._near[count] = torch.cat(parts)
        return self._near[count]

    @cached_property
    def _near(self) -> dict[int, Tensor]:
        return {}


def examples(vocab: TokenVocabulary, width: int, draft_width: int) -> tuple[PictureUpsampler, ...]:
    """Make a small one for the contracts.

    Args:
        vocab: The target's vocabulary.
        width: Not read: it has a network of its own.
        draft_width: Not read.

    Returns:
        One with random weights, of pictures of four rows of two tokens.
    """
    shape = UpsamplingShape(4, 2, 2, vocab.size, 6, 1)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(3)
        network = RowCausalUpsampler(shape)
        # Tokens differ clearly from place to place, as a trained network's would.
        tensors = {name: 3 * t.detach() for name, t in network.state_dict().items()}
    # Tiles of one pixel, from black to white: which look alike is known.
    level_K = torch.arange(vocab.size) * 255 // max(1, vocab.size - 1)
    tiles_KPPC = level_K[:, None, None, None].expand(-1, 1, 1, 1).to(torch.uint8).contiguous()
    return (PictureUpsampler(vocab, shape, tiles_KPPC, tensors),)


def save(path: str | Path, upsampler: PictureUpsampler, about: Mapping[str, Any]) -> None:
    """Write upsampler.safetensors and config.json into a directory.

    Args:
        path: Directory to write into; it is made where there is none.
        upsampler: The up-sampler.
        about: Further fields of config.json, by name. Fields that the artefact writes itself win.

    Raises:
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    s = upsampler.shape
    _, side, _, values = upsampler.tiles.shape
    artefact.save_artefact(
        path,
        KIND,
        {TILES: upsampler.tiles, **{name: t.float() for name, t in upsampler.tensors.items()}},
        {
            **about,
            "vocab_size": upsampler.vocab.size,
            "tokenizer": upsampler.vocab.tokenizer,
            "height": s.height,
            "width": s.width,
            "ratio": s.ratio,
            "tiles": s.tiles,
            "units": s.units,
            "layers": s.layers,
            "patch": side,
            "values": values,
        },
    )


def load(path: str | Path) -> PictureUpsampler:
    """The one in a directory that `save` wrote. Raises FileError where there is none, or it is damaged."""
    config, tensors = artefact.read_artefact_files(edge.at_home(path), KIND)
    with artefact.report_artefact_damage(path, KIND):
        c = edge.validate_record(UpsamplerFields, config, artefact.CONFIG)
        shape = UpsamplingShape(c.height, c.width, c.ratio, c.tiles, c.units, c.layers)
        # Bytes, not numbers of the network: read as they are.
        tiles_KPPC = artefact.read_artefact_tensor(
            tensors, KIND, TILES, (c.tiles, c.patch, c.patch, c.values)
        )
        if tiles_KPPC.dtype != torch.uint8:
            raise FileError(f"{TILES} is {tiles_KPPC.dtype}: 8-bit whole numbers are expected")
        # On the meta device a module has shapes and takes no memory.
        with torch.device("meta"):
            wanted = {n: tuple(t.shape) for n, t in RowCausalUpsampler(shape).state_dict().items()}
        whole = artefact.read_float_tensors(tensors, KIND, wanted)
        vocab = TokenVocabulary(c.vocab_size, frozenset(), c.tokenizer)
        return PictureUpsampler(vocab, shape, tiles_KPPC, whole)

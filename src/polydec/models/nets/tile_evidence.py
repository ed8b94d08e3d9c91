"""What a vision tower's layers look at, in a tile that it reads by itself."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class TileEvidence:
    """Of a tile what its vectors are alike in, and how much is looked at each of them.

    Attributes:
        keys_KD: Attention keys of the last layer that ran, all heads side by side; of a vector that
            stands for several patches theirs, side by side.
        looked_LK: Attention that the class token gives to each, in every layer that ran, the mean over
            heads; without a class token that of the mean query.
        is_overview: Whether the tile shows the whole of an image whose parts are tiles as well.
    """

    keys_KD: Tensor
    looked_LK: Tensor
    is_overview: bool = False


class TowerWatch:
    """Notes what the layers of a tower look at.

    Args:
        has_class: Whether a class token stands before the patches of each tile.
    """

    def __init__(self, has_class: bool) -> None:
        self._has_class = has_class
        self._looked_TP = list[Tensor]()
        self._keys_TPW = torch.empty(0)

    def note_layer(self, query_THPD: Tensor, key_THPD: Tensor) -> None:
        """Note a layer, in the order in which they run.

        Args:
            query_THPD: Queries of each tile, ``[tiles, heads, patches, head]``.
            key_THPD: Its keys.
        """
        # Who is asked: the class token, which stands first, or all patches together.
        asked = query_THPD[:, :, :1] if self._has_class else query_THPD.mean(-2, keepdim=True)
        scores = asked @ key_THPD.transpose(-1, -2) / key_THPD.shape[-1] ** 0.5
        # The mean over heads.
        self._looked_TP.append(torch.softmax(scores, -1)[:, :, 0].mean(1))
        # Those of an earlier layer are not asked for.
        self._keys_TPW = key_THPD.transpose(1, 2).flatten(2)

    @property
    def looked_LTP(self) -> Tensor:
        """Attention on each patch of each tile, by layer; the class token counts as one."""
        return torch.stack(self._looked_TP)

    @property
    def keys_TPW(self) -> Tensor:
        """Keys of the last layer, all heads side by side."""
        return self._keys_TPW

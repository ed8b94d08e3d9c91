"""Vectors as a few bytes: each of its pieces is named by the nearest of some learned centres (product
quantisation)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

CENTRES = 256
"""Centres of a piece, at most: a code is one byte."""


@dataclass(frozen=True, eq=False)
class ProductCodebook:
    """The centres of all pieces of a vector.

    Source: Jégou, Douze and Schmid, "Product quantization for nearest neighbor search" (2011).

    Attributes:
        centre_PKD: Of each of P pieces K centres of D numbers, shape ``[P, K, D]``, K at most 256.
    """

    centre_PKD: Tensor

    def encode_vectors(self, vector_NC: Tensor) -> Tensor:
        """Name the nearest centre of each piece.

        Args:
            vector_NC: Vectors of P times D numbers, shape ``[N, C]``.

        Returns:
            Codes, a byte a piece, shape ``[N, P]``.
        """
        piece_PND = split_pieces(vector_NC, len(self.centre_PKD))
        # Distances are told without the piece's own size, which all of its centres share.
        near_PNK = self.centre_PKD.square().sum(-1)[:, None] - 2 * (
            piece_PND @ self.centre_PKD.transpose(1, 2)
        )
        return near_PNK.argmin(-1).T.to(torch.uint8)

    def decode_codes(self, code_NP: Tensor) -> Tensor:
        """Put the centres of codes side by side.

        Args:
            code_NP: Codes, shape ``[N, P]``.

        Returns:
            The vectors that they stand for, shape ``[N, C]``.
        """
        pieces = torch.arange(len(self.centre_PKD))
        # Each code is looked up among the centres of its own piece.
        return self.centre_PKD[pieces, code_NP.long()].flatten(1)


def split_pieces(vector_NC: Tensor, pieces: int) -> Tensor:
    """Cut vectors into pieces of equal size.

    Args:
        vector_NC: Vectors, shape ``[N, C]``.
        pieces: How many, P, which divides C.

    Returns:
        The pieces, shape ``[P, N, C / P]``.
    """
    return vector_NC.unflatten(1, (pieces, -1)).transpose(0, 1)

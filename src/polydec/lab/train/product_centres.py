"""Centres of product quantisation, learned from vectors by k-means."""

from __future__ import annotations

import torch
from torch import Tensor

from polydec.models.learned.product_codes import CENTRES, ProductCodebook, split_pieces

ROUNDS = 25
"""How often vectors are dealt to their nearest centres, which then move to the means of theirs."""


@torch.no_grad()
def learn_product_codebook(vector_NC: Tensor, pieces: int, seed: int) -> ProductCodebook:
    """Learn centres of each piece by itself (Lloyd's algorithm).

    Args:
        vector_NC: Vectors to learn from, at least one, shape ``[N, C]``.
        pieces: Pieces of a vector, which divide C.
        seed: Of the vectors that centres begin as.

    Returns:
        The codebook, of 256 centres a piece, or as many as there are vectors.
    """
    dice = torch.Generator().manual_seed(seed)
    # Pieces are learned side by side, as each has centres of its own.
    piece_PND = split_pieces(vector_NC, pieces)
    # Centres begin as some of the vectors, which are all there are where they are few.
    first_K = torch.randperm(len(vector_NC), generator=dice)[:CENTRES]
    book = ProductCodebook(piece_PND[:, first_K].clone())
    for _ in range(ROUNDS):
        code_NP = book.encode_vectors(vector_NC)
        moved = book.centre_PKD.clone()
        for piece_ND, code_N, centre_KD in zip(piece_PND, code_NP.T.long(), moved, strict=True):
            count_K = torch.bincount(code_N, minlength=len(centre_KD))
            sum_KD = torch.zeros_like(centre_KD).index_add_(0, code_N, piece_ND)
            # A centre that nothing is nearest to stays where it is.
            some_K = count_K > 0
            centre_KD[some_K] = sum_KD[some_K] / count_K[some_K, None]
        book = ProductCodebook(moved)
    return book

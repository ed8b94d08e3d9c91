"""Which query sees which, in a decoder that has latent queries and a caption."""

from __future__ import annotations

import torch
from torch import Tensor


def latent_query_mask(objects: int, captions: int) -> Tensor:
    """Make the self-attention mask of object queries, one image query, and caption queries, in this order.

    Object queries see one another; the image query sees itself alone; caption query i sees all of these
    and the caption up to itself. So no latent query depends on the caption: its keys and values are the
    same at every step, and a decoder may hold them.

    Args:
        objects: Object queries, 0 or more.
        captions: Caption queries, 0 or more.

    Returns:
        Whether the query of a row sees that of a column, ``[objects + 1 + captions] * 2``, bool.

    Source: Zou et al., "Generalized decoding for pixel, image, and language" (2022), X-Decoder.
    """
    count = objects + 1 + captions
    # Captions: everything before them, and themselves.
    sees_NN = torch.ones(count, count, dtype=torch.bool).tril()
    sees_NN[:objects, :objects] = True
    sees_NN[objects, :objects] = False
    return sees_NN

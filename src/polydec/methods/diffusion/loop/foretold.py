"""Answers whose lengths are foretold: what stands behind them is their end."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import torch
from torch import Tensor

from polydec.core.canvas_law import Denoiser
from polydec.core.law import NEG_INF


class LengthForetelling(Protocol):
    """Says how long an answer will be."""

    def likeliest_lengths(self, state_H: Tensor, count: int, most: int) -> list[int]:
        """The likeliest lengths of an answer.

        Args:
            state_H: First state of its prompt.
            count: How many lengths.
            most: Tokens that there is room for.

        Returns:
            Lengths of 0 to `most`, without an end, the likeliest first.
        """
        ...


async def first_prompt_state(model: Denoiser, prompt: Sequence[int]) -> Tensor:
    """The state of a prompt's first position, with one gap behind the prompt.

    Args:
        model: A masked-diffusion model.
        prompt: Token ids, fewer than its context.

    Returns:
        Shape ``[H]``.
    """
    # One gap, however long the answer may be: the room for it must not tell its length.
    board = model.open_canvas(len(prompt) + 1, len(prompt))
    try:
        state_TH = await board.read_canvas((*prompt, None), range(len(prompt) + 1))
    finally:
        board.close()
    return state_TH[0]


def with_foretold_length(logw_RV: Tensor, length: int, ends: Collection[int]) -> Tensor:
    """Laws of an answer's positions where its length is known.

    Args:
        logw_RV: Log-weights of the positions, in order.
        length: Tokens before the end.
        ends: Ids that end a text, at least one.

    Returns:
        The laws: no end before that length, and nothing else behind it.
    """
    # An end is allowed from the length on, and there nothing but ends.
    end_V = torch.zeros(logw_RV.shape[1], dtype=torch.bool)
    end_V[list(ends)] = True
    behind_R = torch.arange(len(logw_RV)) >= length
    # Where the model finds no end possible, the first one stands all the same.
    out_RV = logw_RV.masked_fill(end_V[None] != behind_R[:, None], NEG_INF)
    lost_R = behind_R & (out_RV == NEG_INF).all(1)
    out_RV[lost_R, min(ends)] = 0.0
    return out_RV

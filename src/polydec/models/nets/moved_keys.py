"""Keys at other positions: what rotary embedding did to an entry is undone there and done anew
here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from polydec.models.formats.architectures import TransformerConfig


class RotatableNetwork(Protocol):
    """A network whose cached keys can be turned to other positions."""

    @property
    def still(self) -> str:
        """Why they cannot, as the end of a sentence; "": they can."""
        ...

    def turn_entries(self, kv: Tensor, first: int, by: int) -> Tensor:
        """Give cached entries as they would be at other positions; values stay as they are.

        Args:
            kv: Entries of consecutive positions, ``[layers, 2, kv heads, n, head]``. They are not
                written to.
            first: Position of the first entry.
            by: How many positions further on the entries shall stand; it may be negative.

        Returns:
            A copy of the same shape, with the keys turned.
        """
        ...


def why_not_rotatable(config: TransformerConfig) -> str:
    """Why the keys of such a network cannot be turned to other positions; "": they can."""
    if not config.causal:
        return "this model's tokens see what follows them"
    if config.superlinear is not None:
        return "this model's tokens search by their positions"
    if config.sections:
        return "this model's images stand at rows and columns"
    if not config.ropes:
        return "this model has no rotary position embedding"
    kinds = sorted({rope.kind for rope in config.ropes if not rope.adds})
    if kinds:
        return f"rope_type {kinds[0]!r} turns by other steps at other positions"
    return ""


def why_still(network: Any) -> str:
    """Why a network's keys cannot be turned to other positions; "": they can."""
    return getattr(
        network, "still", "what runs this model (transformers) does not show its cached keys"
    )


def rotate_cached_keys(
    kv: Tensor,
    by: int,
    config: TransformerConfig,
    apart: bool,
    tables: Callable[[int], tuple[Tensor, Tensor]],
) -> Tensor:
    """Turn cached keys to other positions, layer by layer as its rotary embedding asks.

    Args:
        kv: Entries, ``[layers, 2, kv heads, n, head]``. They are not written to.
        by: How many positions further on they shall stand; 0 copies them only.
        config: The network's config: which layer has which rotary embedding, and how many
            dimensions it turns.
        apart: Whether the halves of a pair stand ``turned / 2`` dimensions from each other; else
            side by side.
        tables: Gives for the k-th rotary embedding the factors at the old and at the new positions,
            each ``[n, turned / 2]``, complex.

    Returns:
        A copy of the same shape. Values, and layers without rotary embedding, are as they were.
    """
    out = kv.clone()
    for k in {k for k in config.turns if k is not None} if by else ():
        layers = [i for i, other in enumerate(config.turns) if other == k]
        before, behind = tables(k)
        # Dividing by the old factor undoes its turn. Factors of scaled embeddings do not have
        # length 1, so the square of the length stays in the quotient.
        step = behind * before.conj() / before.abs().square()
        # Index 0 of the second axis has the keys. Dimensions beyond `turned` carry no position.
        keys = out[layers, 0, ..., : config.turned].to(step.real.dtype)
        x, y = _halves(keys, apart)
        # A complex product written out: (x + iy) * step.
        pair = (x * step.real - y * step.imag, x * step.imag + y * step.real)
        if apart:
            both = torch.cat(pair, -1)
        else:
            both = torch.stack(pair, -1).flatten(-2)
        out[layers, 0, ..., : config.turned] = both.to(out.dtype)
    return out


def _halves(keys: Tensor, apart: bool) -> Sequence[Tensor]:
    if apart:
        return keys.chunk(2, -1)
    return keys.unflatten(-1, (-1, 2)).unbind(-1)

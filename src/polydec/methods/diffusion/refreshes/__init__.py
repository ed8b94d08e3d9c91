"""Which positions of a canvas are fed: the keys and values of the others stay as an earlier pass left them."""

from __future__ import annotations

from polydec.methods.diffusion.refreshes.blockwise import BlockwiseRefresh
from polydec.methods.diffusion.refreshes.dual import DualRefresh
from polydec.methods.diffusion.refreshes.full import FullRefresh
from polydec.methods.diffusion.refreshes.prefix import PrefixRefresh


def exact_refresh(size: int) -> FullRefresh | BlockwiseRefresh:
    """The cheapest rule that leaves the laws of a model with blocks of `size` positions (0: none) as they are."""
    if size:
        return BlockwiseRefresh(size)
    return FullRefresh()


def refresh_for_cache(
    size: int, cache: int
) -> FullRefresh | BlockwiseRefresh | PrefixRefresh | DualRefresh:
    """By how much is kept while a block is filled, as recipes' `cache` counts it: 0 nothing that changes a law, 1 what stands
    before the block, 2 all but the block."""
    return (exact_refresh(size), PrefixRefresh(), DualRefresh())[cache]

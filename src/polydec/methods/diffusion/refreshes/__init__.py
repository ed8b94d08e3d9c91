"""Refresh rules: which positions of a canvas a pass feeds.

The keys and values of the other positions stay as an earlier pass left them.
"""

from __future__ import annotations

from polydec.methods.diffusion.refreshes.blockwise import BlockwiseRefresh
from polydec.methods.diffusion.refreshes.dual import DualRefresh
from polydec.methods.diffusion.refreshes.full import FullRefresh
from polydec.methods.diffusion.refreshes.prefix import PrefixRefresh


def exact_refresh(size: int) -> FullRefresh | BlockwiseRefresh:
    """Return the cheapest rule that does not change the model's laws.

    Args:
        size: Positions of the model's own blocks. 0: the model has none.
    """
    # Under a block-causal model finished blocks see nothing that comes later: they may stay as they
    # are.
    if size:
        return BlockwiseRefresh(size)
    return FullRefresh()


def refresh_for_cache(
    size: int, cache: int
) -> FullRefresh | BlockwiseRefresh | PrefixRefresh | DualRefresh:
    """Return the refresh rule of a cache level, as the recipes' option `cache` counts it.

    Args:
        size: Positions of the model's own blocks. 0: the model has none.
        cache: What stays cached while a block is filled: 0 nothing that changes a law, 1 all before
            the block, 2 all but the block.
    """
    return (exact_refresh(size), PrefixRefresh(), DualRefresh())[cache]

"""Which positions of a canvas are fed: the keys and values of the others stay as an earlier pass left them."""

from __future__ import annotations

from polydec.methods.diffusion.refreshes.blockwise import Blockwise
from polydec.methods.diffusion.refreshes.dual import Dual
from polydec.methods.diffusion.refreshes.full import Full
from polydec.methods.diffusion.refreshes.prefix import Prefix


def exact(size: int) -> Full | Blockwise:
    """The cheapest rule that leaves the laws of a model with blocks of `size` positions (0: none) as they are."""
    return Blockwise(size) if size else Full()


def kept(size: int, cache: int) -> Full | Blockwise | Prefix | Dual:
    """By how much is kept while a block is filled, as recipes' `cache` counts it: 0 nothing that changes a law, 1 what stands
    before the block, 2 all but the block."""
    return (exact(size), Prefix(), Dual())[cache]

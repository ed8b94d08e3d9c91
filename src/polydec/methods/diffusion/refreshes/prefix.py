"""What stands before the block keeps its keys and values while the block is filled (Fast-dLLM's prefix cache)."""

from __future__ import annotations

from dataclasses import dataclass

from polydec.core.canvas_law import Canvas


@dataclass(frozen=True)
class PrefixRefresh:
    """The first pass of a block feeds all positions, the others the block and all behind it.

    Exact: no; what stands before the block does not see what is written in it. Under a block-causal model it would be.
    Reduces to: full where every pass fills its block.
    Source: Wu et al., Fast-dLLM (2025), the prefix cache.
    """

    def feed(self, canvas: Canvas, before: Canvas | None, block: range, step: int) -> range:
        return range(block.start if step else 0, len(canvas))

"""A layer on the target's states drafts behind images from few rows of each, several tokens a pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from polydec.core.protocols import Session
from polydec.methods.speculative.drafters.falcon import BlockDraftWeights, FalconDrafter
from polydec.methods.speculative.drafters.msd import ImageRowWeights, MsdGuess
from polydec.methods.speculative.loop.protocols import TreeGrower


class FlashDraftWeights(BlockDraftWeights, ImageRowWeights, Protocol):
    """Guesses blocks of states, and compresses images: see models/learned/kinds/flash.py."""


@dataclass(frozen=True)
class FlashDrafter:
    """Grow a tree from blocks of states, guessed behind compressed images.

    Of an image in the prompt the layer reads a few mixtures of its vectors; what follows stands at
    places of the draft's own, one behind another. A pass of the layer gives the laws of a block of
    levels, whose tokens do not know one another.

    Attributes:
        weights: The trained layer, and what compresses.
        tree: Which nodes are drawn of its laws.

    Exact: law, under any exact verifier: only the draft sees less of an image.
    Reduces to: `msd` with blocks of one state and nothing compressed.
    Source: FLASH (2025).
    """

    weights: FlashDraftWeights
    tree: TreeGrower

    def open_guess(self, prompt: Sequence[int], session: Session) -> MsdGuess:
        """Begin a sequence.

        Args:
            prompt: Token ids of the prompt. The last one is the first root.
            session: The target's session on this prompt.

        Returns:
            The guess.
        """
        guess = FalconDrafter(self.weights, self.tree).open_guess(prompt, session)
        return MsdGuess(guess, self.weights)

"""A layer on the target's states drafts behind images, of which it reads the target's own vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from polydec.core.protocols import DraftScores, Session
from polydec.core.types import Draft
from polydec.methods.speculative.drafters._delegated_guess import DelegatedGuess
from polydec.methods.speculative.drafters._states import StateGuess
from polydec.methods.speculative.drafters.eagle import EagleDrafter, EagleDraftWeights
from polydec.methods.speculative.loop.protocols import TreeGrower
from polydec.methods.speculative.loop.types import Verdict


class ImageRowWeights(Protocol):
    """What a layer reads of a prompt with images."""

    def prompt_inputs(self, entry_MH: Tensor, visual_M: Tensor, state_NH: Tensor) -> Tensor:
        """What enters the layer for a prompt.

        Args:
            entry_MH: What entered the target's first layer at each place, shape ``[M, H]``.
            visual_M: Whether a vector of an image stands there, shape ``[M]``.
            state_NH: The target's state at each place but the last, shape ``[N, H]``.

        Returns:
            Rows for the layer, in the order of the text.
        """
        ...


class MsdDraftWeights(EagleDraftWeights, ImageRowWeights, Protocol):
    """EAGLE's weights, and what they read of a prompt with images: see models/learned/kinds/msd.py."""


@dataclass(frozen=True)
class MsdDrafter:
    """Grow a tree from what a trained layer makes of words and states, and of images as they are.

    The images of a prompt enter the layer once, when it has been fed; from there on it is EAGLE.

    Attributes:
        weights: The trained layer.
        tree: Which nodes are drawn of its laws.

    Exact: law, under any exact verifier.
    Reduces to: `eagle` without vectors in the prompt.
    Source: MSD (Lin et al., 2025).
    """

    weights: MsdDraftWeights
    tree: TreeGrower

    def open_guess(self, prompt: Sequence[int], session: Session) -> MsdGuess:
        """Begin a sequence.

        Args:
            prompt: Token ids of the prompt. The last one is the first root.
            session: The target's session on this prompt.

        Returns:
            The guess.
        """
        guess = EagleDrafter(self.weights, self.tree).open_guess(prompt, session)
        return MsdGuess(guess, self.weights)


@dataclass(frozen=True)
class MsdGuess(DelegatedGuess):
    """A guess on states, which reads the images of a prompt otherwise.

    Attributes:
        weights: The trained layer.
    """

    guess: StateGuess
    weights: ImageRowWeights

    def learn_round(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        """Take the true states of the accepted path; of a prompt with images make the layer's rows.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            verdict: The accepted nodes and the token that follows them.
        """
        guess = self.guess
        guess.learn_round(draft, scores, verdict)
        # Images stand in prompts alone.
        vectors = guess.session.text_vectors() if verdict.prompt else {}
        if not vectors:
            return
        # Nothing is joined yet: the guess only keeps states and words until they are read.
        state_NH = torch.stack([state_H for _, state_H in guess.pending])
        embed_MH = guess.session.embed_tokens((draft.token[0], *verdict.written_tokens(draft)))
        entry_MH, visual_M = entries_with_images(embed_MH.float(), vectors)
        # A layer that tells rows and columns keeps those of the target.
        if getattr(guess.drafter.weights.network, "tells_grids", False):
            guess.cache.grids = tuple(guess.session.text_grids())
        # What is ready is read in place of what it would have read.
        guess.pending = []
        guess.ready_NS = self.weights.prompt_inputs(entry_MH, visual_M, state_NH)


def entries_with_images(embed_MH: Tensor, vectors: Mapping[int, Tensor]) -> tuple[Tensor, Tensor]:
    """What enters the target's first layer for a text in which images stand.

    Args:
        embed_MH: Embeddings of the tokens at all places, shape ``[M, H]``; they are left as they are.
        vectors: Those that enter in the place of tokens, ``[H]`` each, by the place.

    Returns:
        What enters, shape ``[M, H]``, and whether a vector stands at each place, shape ``[M]``.
    """
    entry_MH = embed_MH.clone()
    visual_M = torch.zeros(len(embed_MH), dtype=torch.bool)
    for place, vector_H in vectors.items():
        entry_MH[place] = vector_H
        visual_M[place] = True
    return entry_MH, visual_M

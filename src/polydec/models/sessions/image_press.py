"""What a request takes of the vectors of an image: which of them enter the language model, and when it
drops these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from polydec.models.nets.tile_evidence import TileEvidence
from polydec.models.sessions.image_fall import FallRule


@dataclass(frozen=True, eq=False)
class KeptVectors:
    """What stays of the vectors of a tile.

    Attributes:
        cells: Which of them stay, ascending, at least one.
        vectors_MD: What enters the language model in their places, ``[M, width]``.
    """

    cells: tuple[int, ...]
    vectors_MD: Tensor


class VectorChoice(Protocol):
    """Chooses among the vectors of a tile: of an image, or of a part of it that a tower reads by
    itself.

    Attributes:
        watches_tower: Whether it asks what the tower's layers look at.
    """

    @property
    def watches_tower(self) -> bool: ...
    def keep_vectors(self, vectors_KD: Tensor, evidence: TileEvidence | None) -> KeptVectors:
        """What stays of a tile.

        Args:
            vectors_KD: Its vectors, ``[K, width]``, K at least 1.
            evidence: What the tower's layers look at in it; None where that is not asked for.

        Returns:
            What enters the language model.
        """
        ...


@dataclass(frozen=True)
class ImagePress:
    """A press that makes images smaller, and leaves the entries of words as they are.

    Exact: approximate: a prompt with fewer vectors has another law, which every lossless method keeps.
    Reduces to: the prompt as it is, where its choice keeps all vectors and no layer drops them.

    Attributes:
        called: What messages call it.
        choice: Which vectors enter the language model.
        fall: When it drops them within its layers. None: it does not.
    """

    called: str
    choice: VectorChoice
    fall: FallRule | None = None

"""Networks that read a word from the states of an image all at once: by counts and order of letters
(CPPD), from each letter to its neighbour (LISTER), and by filling masks (MDiff4STR).

The same modules are trained and served. A head is given states ``[B, S, W]`` and which of them are
of the image, ``[B, S]``; it makes logits of letters, of which `END` ends a word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import torch
from torch import Tensor, nn

from polydec.models.nets.masked_head import MaskedHead
from polydec.models.nets.neighbour_head import NeighbourHead
from polydec.models.nets.reading_layers import PostNormLayer, ReadingShape


@dataclass(frozen=True, eq=False)
class CountedWord:
    """What a counting head makes of images.

    Attributes:
        letters_BTV: Logits of the letter at each place, the end's place included.
        counts_BCN: Logits of how often each counted token occurs, 0 to N - 1 times. None: nothing was
            counted, as when a word is read.
        occupied_BT: Logit of whether a place is taken, by a letter or by the end.
    """

    letters_BTV: Tensor
    counts_BCN: Tensor | None
    occupied_BT: Tensor


class CountingHead(nn.Module):
    """Counts and orders letters, and joins both in one attention (CPPD).

    Classes of letters read the image and say how often each occurs: so the image's own rows, which
    the same layers refine, come to hold what letter stands where. Places read the image as well and
    say whether they are taken, without a letter. One attention of the places to the refined rows then
    names all letters at once; with more `ReadingShape.joins` layers in which each place looks at those
    before it stand between such attentions. Rows of the image are refined by the image alone, so that
    classes can be left out when a word is read.

    Source: Du et al., "Context perception parallel decoder for scene text recognition" (2023).
    """

    LAYERS: ClassVar[int] = 2

    def __init__(self, shape: ReadingShape) -> None:
        super().__init__()
        W = shape.width
        # Places begin small, as the states know roughly where they stand.
        self.places = nn.Parameter(torch.randn(shape.places, W) * 0.02)
        self.classes = nn.Parameter(torch.randn(shape.vocab, W) * 0.5)
        self.slots = nn.Parameter(torch.randn(shape.longest + 1, W) * 0.5)
        self.counting = nn.ModuleList(PostNormLayer(W, shape.heads) for _ in range(self.LAYERS))
        self.ordering = nn.ModuleList(PostNormLayer(W, shape.heads) for _ in range(self.LAYERS))
        # Published so: the scores of what reads the image are not divided, those of places are.
        self.joining = nn.ModuleList(
            PostNormLayer(W, shape.heads, scaled=bool(i % 2)) for i in range(shape.joins)
        )
        self.count = nn.Linear(W, shape.longest)
        self.occupied = nn.Linear(W, 1)
        self.letters = nn.Linear(W, shape.vocab)

    def forward(
        self, states_BSW: Tensor, there_BS: Tensor, class_BC: Tensor | None = None
    ) -> CountedWord:
        """Read images.

        Args:
            states_BSW: States of the images.
            there_BS: Which of them are of an image.
            class_BC: Tokens that are counted, of each image its own, which changes nothing else.
                None: none is.

        Returns:
            What is read.
        """
        # Both branches read the same rows, and refine them apart.
        B, S, _ = states_BSW.shape
        placed_BSW = states_BSW + self.places[:S]
        asked_BCW = (
            self.classes[:0].expand(B, -1, -1) if class_BC is None else self.classes[class_BC]
        )
        counted, seen_BSW = _refined(self.counting, asked_BCW, placed_BSW, there_BS)
        slots_BTW, _ = _refined(self.ordering, self.slots.expand(B, -1, -1), placed_BSW, there_BS)
        letters_BTV = self.letters(self._joined(slots_BTW, seen_BSW, there_BS))
        counts = None if class_BC is None else self.count(counted)
        return CountedWord(letters_BTV, counts, self.occupied(slots_BTW)[..., 0])

    def _joined(self, slots_BTW: Tensor, seen_BSW: Tensor, there_BS: Tensor) -> Tensor:
        """What places know of their letters behind all joining layers, ``[B, T, W]``."""
        T = slots_BTW.shape[1]
        before_1TT = torch.ones(1, T, T, dtype=torch.bool).tril()
        joined_BTW = slots_BTW
        for i, layer in enumerate(self.joining):
            # First the image, then the places before, and so on in turn.
            if i % 2:
                joined_BTW = layer(joined_BTW, joined_BTW, before_1TT)
            else:
                joined_BTW = layer(joined_BTW, seen_BSW, there_BS[:, None])
        return joined_BTW

    def word_logits(self, states_NW: Tensor) -> Tensor:
        """Logits of all letters of one image, ``[longest + 1, V]``; see `ReadingHead`."""
        there_1N = torch.ones(1, len(states_NW), dtype=torch.bool)
        return self(states_NW[None], there_1N).letters_BTV[0]


def _refined(
    layers: nn.ModuleList, asked_BCW: Tensor, read_BSW: Tensor, there_BS: Tensor
) -> tuple[Tensor, Tensor]:
    """What asks, and the image's rows, behind layers in which both read the image's rows alone."""
    for layer in layers:
        asked_BCW = (
            layer(asked_BCW, read_BSW, there_BS[:, None]) if asked_BCW.shape[1] else asked_BCW
        )
        read_BSW = layer(read_BSW, read_BSW, there_BS[:, None])
    return asked_BCW, read_BSW


HEADS: Mapping[str, Callable[[ReadingShape], nn.Module]] = MappingProxyType(
    {"cppd": CountingHead, "lister": NeighbourHead, "mdiff4str": MaskedHead}
)
"""Every kind of head by the name of its method."""

"""A network that reads a word by a walk from each letter to its neighbour (LISTER)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, pad

from polydec.core.rng import Rng
from polydec.models.nets.reading_layers import END, NEVER, PostNormLayer, ReadingShape


class FocalLayer(nn.Module):
    """Positions of a strip mixed with their surroundings, near and far, each as it asks for.

    Sums over windows of growing size stand beside one another, and one over the whole image; gates of
    each position say how much of each it takes.

    Source: Yang et al., "Focal modulation networks" (2022), in one dimension.
    """

    WINDOWS: ClassVar[tuple[int, ...]] = (3, 5)

    def __init__(self, width: int) -> None:
        super().__init__()
        self.into = nn.Linear(width, 2 * width + len(self.WINDOWS) + 1)
        self.near = nn.ModuleList(
            nn.Conv1d(width, width, size, padding=size // 2, groups=width, bias=False)
            for size in self.WINDOWS
        )
        self.mix = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.wide = nn.Linear(width, 2 * width)
        self.narrow = nn.Linear(2 * width, width)
        self.first = nn.LayerNorm(width)
        self.second = nn.LayerNorm(width)

    def forward(self, x_BSW: Tensor, there_BS: Tensor) -> Tensor:
        """Mix the positions of images.

        Args:
            x_BSW: States.
            there_BS: Which of them are of an image.

        Returns:
            Shape ``[B, S, W]``.
        """
        W = x_BSW.shape[2]
        there_BS1 = there_BS[..., None].float()
        # One map gives what a position asks for, what it shows, and how much of each level it takes.
        asked_BSW, seen_BSW, gate_BSL = self.into(x_BSW).split([W, W, len(self.near) + 1], -1)
        mixed_BSW = torch.zeros_like(x_BSW)
        for level, near in enumerate(self.near):
            # What fills a short image up is no surroundings.
            seen_BSW = gelu(near((seen_BSW * there_BS1).transpose(1, 2)).transpose(1, 2))
            mixed_BSW = mixed_BSW + seen_BSW * gate_BSL[..., level : level + 1]
        whole_B1W = (seen_BSW * there_BS1).sum(1, keepdim=True) / there_BS1.sum(1, keepdim=True)
        mixed_BSW = mixed_BSW + gelu(whole_B1W) * gate_BSL[..., -1:]
        # The surroundings are taken times what the position asks for: that is the modulation.
        x_BSW = self.first(x_BSW + self.out(asked_BSW * self.mix(mixed_BSW)))
        return self.second(x_BSW + self.narrow(gelu(self.wide(x_BSW))))


class WalkRefiner(nn.Module):
    """States of an image refined by the letters that a walk over it has found.

    Each letter looks at those near it in the word, goes back to where the walk has found it, and the
    image's positions are mixed with what then surrounds them. A second walk over the refined image
    knows what the first one read.

    Attributes:
        reach: Letters on either side that a letter looks at: a window of eleven, as published.
    """

    reach: ClassVar[int] = 5

    def __init__(self, shape: ReadingShape) -> None:
        super().__init__()
        self.letters = PostNormLayer(shape.width, shape.heads)
        self.image = FocalLayer(shape.width)

    def forward(
        self, walk_BTM: Tensor, rows_BMW: Tensor, there_BS: Tensor, found_BT: Tensor
    ) -> Tensor:
        """Refine the states of images.

        Args:
            walk_BTM: Where walks stand at each step, M = S + 1 positions.
            rows_BMW: The images' rows, and the end's behind them.
            there_BS: Which rows are of an image.
            found_BT: Which steps have found a letter; those behind a word have none.

        Returns:
            States, ``[B, S, W]``.
        """
        at_T = torch.arange(walk_BTM.shape[1])
        # Letters look at near ones that were found, whatever stands behind the word.
        near_TT = (at_T[:, None] - at_T[None]).abs() <= self.reach
        letters_BTW = walk_BTM @ rows_BMW
        letters_BTW = self.letters(letters_BTW, letters_BTW, near_TT & found_BT[:, None])
        # Each letter goes to where it was found; the end takes none.
        back_BTS = walk_BTM[..., :-1] * found_BT[..., None]
        states_BSW = rows_BMW[:, :-1] + back_BTS.transpose(1, 2) @ letters_BTW
        return self.image(states_BSW, there_BS)


@dataclass(frozen=True, eq=False)
class NeighbourMaps:
    """Where a word begins and where each position's next letter stands.

    Attributes:
        rows_BMW: The image's rows, and the end's behind them: M = S + 1.
        start_BM: Probability of each position to be the first letter's.
        next_BMM: Of each position the probabilities of the next letter's, the rows of which sum to 1;
            the end's next is the end.
        there_BS: Which rows are of an image.
    """

    rows_BMW: Tensor
    start_BM: Tensor
    next_BMM: Tensor
    there_BS: Tensor


class NeighbourHead(nn.Module):
    """Walks from each letter to its neighbour, as far as a word goes (LISTER).

    One matrix says for every position of the image where the letter behind it stands. A walk begins
    at a distribution over positions and goes on by this matrix until its mass has reached the end. No
    place in a word has a number, so a word may be longer than any that was learned. In `rounds` more
    walks the image is refined by the letters that were found (`WalkRefiner`), which all rounds share.
    With `ReadingShape.distances` scores also have a bias of each distance, which the published network
    has not.

    Attributes:
        rounds: Rounds that refine, as it was trained.
        ended: Mass on the end from which on a word is over.
        most: Letters of a word at most.

    Source: Cheng et al., "LISTER: neighbor decoding for length-insensitive scene text recognition"
    (2023).
    """

    ended: ClassVar[float] = 0.6
    most: ClassVar[int] = 1000
    FAR: ClassVar[int] = 12

    def __init__(self, shape: ReadingShape) -> None:
        super().__init__()
        W = shape.width
        self.key, self.start, self.step = (nn.Linear(W, W) for _ in range(3))
        self.turn = nn.Linear(W, W, bias=False)
        self.end = nn.Parameter(torch.randn(W) * 0.5)
        self.near = nn.Parameter(torch.zeros(2 * self.FAR + 1)) if shape.distances else None
        self.letters = nn.Linear(W, shape.vocab)
        self.scale = W**-0.5
        self.rounds = shape.rounds
        self.refiner = WalkRefiner(shape) if shape.rounds else None

    def forward(self, states_BSW: Tensor, there_BS: Tensor) -> NeighbourMaps:
        """The maps of images.

        Args:
            states_BSW: States of the images.
            there_BS: Which of them are of an image.

        Returns:
            The maps.
        """
        B, S, W = states_BSW.shape
        rows_BMW = torch.cat([states_BSW, self.end.expand(B, 1, W)], 1)
        hidden_BM = torch.where(pad(there_BS, (0, 1), value=True), 0.0, NEVER)
        # The whole image says where a word begins.
        count_B1 = there_BS.sum(1, keepdim=True)
        mean_BW = (states_BSW * there_BS[..., None]).sum(1) / count_B1
        key_BMW = self.key(rows_BMW)
        first_BM = torch.einsum("bw,bmw->bm", self.start(mean_BW), key_BMW) * self.scale
        # Of each position, which one its letter's neighbour is like.
        asked_BSW = self.turn(self.step(states_BSW))
        scores_BSM = asked_BSW @ key_BMW.transpose(1, 2) * self.scale
        if self.near is not None:
            scores_BSM = scores_BSM + self._distances(self.near, S)
        next_BSM = torch.softmax(scores_BSM + hidden_BM[:, None], -1)
        # Nothing stands behind the end but the end.
        stays_B1M = pad(torch.zeros(B, 1, S), (0, 1), value=1.0)
        start_BM = torch.softmax(first_BM + hidden_BM, -1)
        return NeighbourMaps(rows_BMW, start_BM, torch.cat([next_BSM, stays_B1M], 1), there_BS)

    def _distances(self, near: Tensor, count: int) -> Tensor:
        """The bias of each pair of positions, ``[count, count + 1]``; none of the end."""
        at = torch.arange(count)
        far_SS = (at[None, :] - at[:, None]).clamp(-self.FAR, self.FAR) + self.FAR
        return pad(near[far_SS], (0, 1))

    def walk_steps(self, maps: NeighbourMaps, count: int) -> Tensor:
        """Where a walk stands at each step, as it is trained: without sharpening.

        Args:
            maps: Of B images.
            count: Steps.

        Returns:
            Probabilities of positions, ``[B, count, M]``.
        """
        # One matrix for all steps: the image is read once.
        at_BM = maps.start_BM
        out = [at_BM]
        for _ in range(count - 1):
            at_BM = torch.einsum("bm,bmn->bn", at_BM, maps.next_BMM)
            out.append(at_BM)
        return torch.stack(out, 1)

    def refined_states(self, maps: NeighbourMaps, walk_BTM: Tensor, found_BT: Tensor) -> Tensor:
        """States of images refined by the letters that walks have found.

        Args:
            maps: Of B images.
            walk_BTM: Where their walks stand at each step.
            found_BT: Which steps have found a letter.

        Returns:
            Shape ``[B, S, W]``.
        """
        assert self.refiner is not None, "recipes refuse rounds of a head that was trained without"
        return self.refiner(walk_BTM, maps.rows_BMW, maps.there_BS, found_BT)

    def word_logits(self, states_NW: Tensor) -> Tensor:
        """Logits of the letters of one image, the end's behind them; see `ReadingHead`."""
        return walk_word(self, states_NW)


@torch.inference_mode()
def walk_word(
    head: NeighbourHead, states_NW: Tensor, rng: Rng | None = None, *, rounds: int | None = None
) -> Tensor:
    """Read one image by walks over it.

    Args:
        head: The network.
        states_NW: States of the image.
        rng: Not used.
        rounds: Walks behind the first, each over an image that is refined by the letters of the one
            before. None: as it was trained.

    Returns:
        Logits of the letters of the last walk, the end's behind them, ``[T, V]``.
    """
    there_1N = torch.ones(1, len(states_NW), dtype=torch.bool)
    states_1NW = states_NW[None]
    for _ in range(head.rounds if rounds is None else rounds):
        maps = head(states_1NW, there_1N)
        walk_1TM = _walk_to_end(head, maps)[None]
        # An image without a letter has nothing to be refined by.
        if walk_1TM.shape[1]:
            states_1NW = head.refined_states(maps, walk_1TM, torch.ones(walk_1TM.shape[:2]).bool())
    maps = head(states_1NW, there_1N)
    # The letters of the last walk alone count; those before refined the image.
    letters_TV = head.letters(_walk_to_end(head, maps) @ maps.rows_BMW[0])
    # What the walk ends with is no letter: its row is made.
    over_1V = torch.full((1, letters_TV.shape[1]), NEVER)
    over_1V[0, END] = 0.0
    return torch.cat([letters_TV, over_1V])


def _walk_to_end(head: NeighbourHead, maps: NeighbourMaps) -> Tensor:
    """Where a walk over one image stands at each letter, ``[T, M]``, until it reaches the end."""
    next_MM = maps.next_BMM[0]
    at_M = maps.start_BM[0]
    stood = list[Tensor]()
    while float(at_M[-1]) <= head.ended and len(stood) < head.most:
        stood.append(at_M)
        # Only in reading: training follows all that a walk spreads to.
        at_M = sharpen_walk(at_M, len(stood)) @ next_MM
    return torch.stack(stood) if stood else at_M[None, :][:0]


def sharpen_walk(at_M: Tensor, step: int) -> Tensor:
    """Where a walk stands, with its likely positions made likelier: what a walk spreads adds up.

    Args:
        at_M: Probabilities of positions.
        step: Number of the letter that was read there, from 1.

    Returns:
        Probabilities of positions.
    """
    raised_M = torch.expm1(min(1.0 + 2.0 * (step - 1), 16.0) * at_M)
    return raised_M / raised_M.sum()

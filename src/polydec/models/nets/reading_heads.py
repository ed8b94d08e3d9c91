"""Networks that read a word from the states of an image all at once: by counts and order of letters
(CPPD), from each letter to its neighbour (LISTER), and by filling masks (MDiff4STR).

The same modules are trained and served. A head is given states ``[B, S, W]`` and which of them are
of the image, ``[B, S]``; it makes logits of letters, of which `END` ends a word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, relu, scaled_dot_product_attention

END = 1
"""The token that ends a word, in the tokenizers of readers."""
NEVER = -1e9
"""Added to a score that must not count."""


@dataclass(frozen=True)
class ReadingShape:
    """Sizes of a reading head.

    Attributes:
        vocab: Tokens, marks included.
        width: Size of the states.
        heads: Heads of attention, a divisor of the width.
        longest: Letters of a word that the head was made for. One that walks from letter to letter
            has no such bound.
        places: Positions of an image at most.
    """

    vocab: int
    width: int
    heads: int
    longest: int
    places: int


class ReadingHead(Protocol):
    """A head that reads a word at once."""

    def word_logits(self, states_NW: Tensor) -> Tensor:
        """Read one image.

        Args:
            states_NW: States of the image, ``[N, W]``.

        Returns:
            Logits of the letters of its word in order, ``[T, V]``; what stands behind the first
            `END` says nothing.
        """
        ...


class PostNormLayer(nn.Module):
    """A transformer layer whose norms stand behind its sums: attention to what is read, and an MLP.

    `scaled` says whether scores are divided by the root of a head's size.
    """

    def __init__(self, width: int, heads: int, scaled: bool = True) -> None:
        super().__init__()
        self.heads = heads
        self.scale = (width // heads) ** -0.5 if scaled else 1.0
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.into = nn.Linear(width, 4 * width)
        self.out = nn.Linear(4 * width, width)
        self.first = nn.LayerNorm(width)
        self.second = nn.LayerNorm(width)

    def forward(self, x_BTW: Tensor, read_BSW: Tensor, seen_BS: Tensor | None = None) -> Tensor:
        """Run the layer.

        Args:
            x_BTW: What asks.
            read_BSW: What is read.
            seen_BS: Which rows may be read. None: all.

        Returns:
            Shape ``[B, T, W]``.
        """
        q, k, v = (
            m(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for m, x in ((self.q, x_BTW), (self.k, read_BSW), (self.v, read_BSW))
        )
        mask = None if seen_BS is None else torch.where(seen_BS, 0.0, NEVER)[:, None, None]
        mixed = scaled_dot_product_attention(q, k, v, mask, scale=self.scale)
        x = self.first(x_BTW + self.o(mixed.transpose(1, 2).flatten(2)))
        return self.second(x + self.out(relu(self.into(x))))


@dataclass(frozen=True, eq=False)
class CountedWord:
    """What a counting head makes of images.

    Attributes:
        letters_BTV: Logits of the letter at each place, the end's place included.
        counts_BVC: Logits of how often each token occurs, 0 to C - 1 times. None: classes were left
            out, as they are when a word is read.
        occupied_BT: Logit of whether a place is taken, by a letter or by the end.
    """

    letters_BTV: Tensor
    counts_BVC: Tensor | None
    occupied_BT: Tensor


class CountingHead(nn.Module):
    """Counts and orders letters, and joins both in one attention (CPPD).

    Classes of letters read the image and say how often each occurs: so the image's own rows, which
    the same layers refine, come to hold what letter stands where. Places read the image as well and
    say whether they are taken, without a letter. One attention of the places to the refined rows then
    names all letters at once. Rows of the image are refined by the image alone, so that classes can be
    left out when a word is read.

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
        # Published so: the scores of this attention are not divided.
        self.joining = PostNormLayer(W, shape.heads, scaled=False)
        self.count = nn.Linear(W, shape.longest)
        self.occupied = nn.Linear(W, 1)
        self.letters = nn.Linear(W, shape.vocab)

    def forward(self, states_BSW: Tensor, there_BS: Tensor, classes: bool = True) -> CountedWord:
        """Read images.

        Args:
            states_BSW: States of the images.
            there_BS: Which of them are of an image.
            classes: Whether letters are counted, which changes nothing else. Default True.

        Returns:
            What is read.
        """
        # Both branches read the same rows, and refine them apart.
        B, S, _ = states_BSW.shape
        placed_BSW = states_BSW + self.places[:S]
        asked_CW = self.classes if classes else self.classes[:0]
        counted, seen_BSW = _refined(
            self.counting, asked_CW.expand(B, -1, -1), placed_BSW, there_BS
        )
        slots_BTW, _ = _refined(self.ordering, self.slots.expand(B, -1, -1), placed_BSW, there_BS)
        letters_BTV = self.letters(self.joining(slots_BTW, seen_BSW, there_BS))
        counts = self.count(counted) if classes else None
        return CountedWord(letters_BTV, counts, self.occupied(slots_BTW)[..., 0])

    def word_logits(self, states_NW: Tensor) -> Tensor:
        """Logits of all letters of one image, ``[longest + 1, V]``; see `ReadingHead`."""
        there_1N = torch.ones(1, len(states_NW), dtype=torch.bool)
        return self(states_NW[None], there_1N, classes=False).letters_BTV[0]


def _refined(
    layers: nn.ModuleList, asked_BCW: Tensor, read_BSW: Tensor, there_BS: Tensor
) -> tuple[Tensor, Tensor]:
    """What asks, and the image's rows, behind layers in which both read the image's rows alone."""
    for layer in layers:
        asked_BCW = layer(asked_BCW, read_BSW, there_BS) if asked_BCW.shape[1] else asked_BCW
        read_BSW = layer(read_BSW, read_BSW, there_BS)
    return asked_BCW, read_BSW


@dataclass(frozen=True, eq=False)
class NeighbourMaps:
    """Where a word begins and where each position's next letter stands.

    Attributes:
        rows_BMW: The image's rows, and the end's behind them: M = S + 1.
        start_BM: Probability of each position to be the first letter's.
        next_BMM: Of each position the probabilities of the next letter's, the rows of which sum to 1;
            the end's next is the end.
    """

    rows_BMW: Tensor
    start_BM: Tensor
    next_BMM: Tensor


class NeighbourHead(nn.Module):
    """Walks from each letter to its neighbour, as far as a word goes (LISTER).

    One matrix says for every position of the image where the letter behind it stands. A walk begins
    at a distribution over positions and goes on by this matrix until its mass has reached the end. No
    place in a word has a number, so a word may be longer than any that was learned. Here scores also
    have a bias of each distance, which tells equal letters apart by where they stand; the published
    network has none, and refines its features in rounds, which is left out.

    Attributes:
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
        self.near = nn.Parameter(torch.zeros(2 * self.FAR + 1))
        self.letters = nn.Linear(W, shape.vocab)
        self.scale = W**-0.5

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
        scores_BSM = asked_BSW @ key_BMW.transpose(1, 2) * self.scale + self._distances(S)
        next_BSM = torch.softmax(scores_BSM + hidden_BM[:, None], -1)
        # Nothing stands behind the end but the end.
        stays_B1M = pad(torch.zeros(B, 1, S), (0, 1), value=1.0)
        start_BM = torch.softmax(first_BM + hidden_BM, -1)
        return NeighbourMaps(rows_BMW, start_BM, torch.cat([next_BSM, stays_B1M], 1))

    def _distances(self, count: int) -> Tensor:
        """The bias of each pair of positions, ``[count, count + 1]``; none of the end."""
        at = torch.arange(count)
        far_SS = (at[None, :] - at[:, None]).clamp(-self.FAR, self.FAR) + self.FAR
        return pad(self.near[far_SS], (0, 1))

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

    def word_logits(self, states_NW: Tensor) -> Tensor:
        """Logits of the letters of one image, the end's behind them; see `ReadingHead`."""
        maps = self(states_NW[None], torch.ones(1, len(states_NW), dtype=torch.bool))
        rows_MW = maps.rows_BMW[0]
        next_MM = maps.next_BMM[0]
        at_M = maps.start_BM[0]
        found = list[Tensor]()
        while float(at_M[-1]) <= self.ended and len(found) < self.most:
            found.append(self.letters(at_M @ rows_MW))
            # Only in reading: training follows all that a walk spreads to.
            at_M = sharpen_walk(at_M, len(found)) @ next_MM
        # What the walk ends with is no letter: its row is made.
        over_V = torch.full((self.letters.out_features,), NEVER)
        over_V[END] = 0.0
        return torch.stack([*found, over_V])


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


class MaskedHead(nn.Module):
    """Fills a canvas of masks, all positions of which see one another and the image (MDiff4STR).

    Source: "MDiff4STR: mask diffusion model for scene text recognition" (2025).
    """

    LAYERS: ClassVar[int] = 2

    def __init__(self, shape: ReadingShape) -> None:
        super().__init__()
        W = shape.width
        self.mask = shape.vocab
        self.longest = shape.longest
        self.tokens = nn.Embedding(shape.vocab + 1, W)
        self.slots = nn.Parameter(torch.randn(shape.longest + 1, W) * 0.5)
        self.places = nn.Parameter(torch.randn(shape.places, W) * 0.02)
        self.own = nn.ModuleList(PostNormLayer(W, shape.heads) for _ in range(self.LAYERS))
        self.cross = nn.ModuleList(PostNormLayer(W, shape.heads) for _ in range(self.LAYERS))
        self.letters = nn.Linear(W, shape.vocab)
        nn.init.normal_(self.tokens.weight, std=0.5)

    def forward(self, canvas_BN: Tensor, states_BSW: Tensor, there_BS: Tensor) -> Tensor:
        """Logits at all positions of canvases.

        Args:
            canvas_BN: Tokens, `mask` where nothing is known; ``longest + 1`` positions.
            states_BSW: States of the images.
            there_BS: Which of them are of an image.

        Returns:
            Shape ``[B, N, V]``, the mask left out.
        """
        read_BSW = states_BSW + self.places[: states_BSW.shape[1]]
        # Text first, then the image: a letter is doubted by both.
        x = self.tokens(canvas_BN) + self.slots
        for own, cross in zip(self.own, self.cross, strict=True):
            x = cross(own(x, x), read_BSW, there_BS)
        return self.letters(x)

    def word_logits(self, states_NW: Tensor) -> Tensor:
        """Logits of all positions of one image in three passes; see `ReadingHead`."""
        return fill_canvas(self, states_NW)


def commits_above_mean(chance_N: Tensor, open_N: Tensor) -> Tensor:
    """Which masks are filled: those whose likeliest token is surer than the mean of all open ones; of
    equally sure ones the first.

    Args:
        chance_N: Probability of each position's likeliest token.
        open_N: Which positions are masks that may be filled.

    Returns:
        Which are filled: some, where any is open.
    """
    if not bool(open_N.any()):
        return open_N
    mean = chance_N[open_N].mean()
    chosen_N = open_N & (chance_N > mean)
    if not bool(chosen_N.any()):
        best = torch.where(open_N, chance_N, torch.tensor(-1.0)).argmax()
        chosen_N[best] = True
    return chosen_N


def _whole_canvas(step: int, steps: int, size: int) -> slice:
    """All positions may be filled at once."""
    return slice(0, size)


def _blocks_in_turn(step: int, steps: int, size: int) -> slice:
    """The positions that a pass may fill of a canvas in blocks: those up to its own block, and later
    the block before that and its own; the last two passes reach to the end."""
    block = size // steps
    if steps <= 2:
        return slice(0, size)
    first = 0 if step <= 2 else block * (step - 1)
    last = size if step >= steps - 2 else block * (step + 1)
    return slice(first, last)


WINDOWS: Mapping[str, Callable[[int, int, int], slice]] = MappingProxyType(
    {"low-confidence": _whole_canvas, "block-low-confidence": _blocks_in_turn}
)
"""By the policy's name: which positions a pass may fill, by its number, the number of passes and the
size of the canvas."""


@torch.inference_mode()
def fill_canvas(
    head: MaskedHead,
    states_NW: Tensor,
    *,
    steps: int = 3,
    policy: str = "low-confidence",
    reflect: bool = False,
) -> Tensor:
    """Read one image by filling a canvas of masks.

    Each pass sees all positions. What is read of a position is what the last pass saw at which it was
    a mask; a token that is filled in changes what later passes see, and nothing else. Behind the first
    end that a pass sees all is mask, as in training.

    Args:
        head: The network.
        states_NW: States of the image.
        steps: Passes, of which no more run than there are positions. 1: all positions are read by
            themselves.
        policy: A name of `WINDOWS`.
        reflect: Whether one more pass sees the whole word, whose token stands where it is likelier
            than what was read.

    Returns:
        Log-probabilities of every position, ``[longest + 1, V]``.
    """
    size = head.longest + 1
    # Each pass fills at least one position; blocks of more passes would hold none.
    steps = min(steps, size)
    there = torch.ones(1, len(states_NW), dtype=torch.bool)
    canvas_N = torch.full((size,), head.mask)

    def seen_rows() -> Tensor:
        return head(canvas_N[None], states_NW[None], there)[0].log_softmax(-1)

    answer_NV = torch.zeros(size, head.mask)
    for step in range(steps):
        rows_NV = seen_rows()
        # The answer keeps what was seen of a position while it was a mask.
        masked_N = canvas_N == head.mask
        answer_NV = torch.where(masked_N[:, None], rows_NV, answer_NV)
        logp_N, token_N = rows_NV.max(-1)
        upto_N = torch.arange(size) <= first_end(token_N)
        open_N = masked_N & upto_N
        # One that is left needs no further pass: its row has been seen.
        if int(open_N.sum()) <= 1:
            break
        window = torch.zeros(size, dtype=torch.bool)
        window[WINDOWS[policy](step, steps, size)] = True
        # Of few sure letters and of many alike, about half are filled.
        chosen_N = commits_above_mean(logp_N.exp(), open_N & window)
        canvas_N = torch.where(chosen_N, token_N, canvas_N)
        canvas_N = torch.where(upto_N, canvas_N, head.mask)
    if not reflect:
        return answer_NV
    read_N = answer_NV.argmax(-1)
    canvas_N = torch.where(torch.arange(size) <= first_end(read_N), read_N, head.mask)
    again_NV = seen_rows()
    # A letter is mended only where the second look is surer than the first.
    surer_N = again_NV.max(-1).values > answer_NV.max(-1).values
    return torch.where(surer_N[:, None], again_NV, answer_NV)


def first_end(token_N: Tensor) -> int:
    """The first position of an end; the last position where there is none."""
    at = (token_N == END).nonzero()
    return int(at[0, 0]) if len(at) else len(token_N) - 1


HEADS: Mapping[str, Callable[[ReadingShape], nn.Module]] = MappingProxyType(
    {"cppd": CountingHead, "lister": NeighbourHead, "mdiff4str": MaskedHead}
)
"""Every kind of head by the name of its method."""

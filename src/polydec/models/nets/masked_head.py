"""A network that reads a word by filling a canvas of masks, and the orders in which it fills them
(MDiff4STR)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import ClassVar

import torch
from torch import Tensor, nn

from polydec.core.rng import Rng
from polydec.models.nets.reading_layers import END, PostNormLayer, ReadingShape


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

    def forward(self, canvas_CN: Tensor, states_BSW: Tensor, there_BS: Tensor) -> Tensor:
        """Logits at all positions of canvases.

        Args:
            canvas_CN: Tokens, `mask` where nothing is known; ``longest + 1`` positions. As many
                canvases of each image as of any other, those of an image side by side: C = B K.
            states_BSW: States of the images.
            there_BS: Which of them are of an image.

        Returns:
            Shape ``[C, N, V]``, the mask left out.
        """
        read_BSW = states_BSW + self.places[: states_BSW.shape[1]]
        seen_B1S = there_BS[:, None]
        images = len(states_BSW)
        # Text first, then the image: a letter is doubted by both.
        x_CNW = self.tokens(canvas_CN) + self.slots
        for own, cross in zip(self.own, self.cross, strict=True):
            # A canvas sees itself alone; all of an image ask it as one row of questions, so that
            # its keys and values are made once.
            asked_BQW = own(x_CNW, x_CNW).view(images, -1, x_CNW.shape[2])
            x_CNW = cross(asked_BQW, read_BSW, seen_B1S).view(x_CNW.shape)
        return self.letters(x_CNW)

    def word_logits(self, states_NW: Tensor) -> Tensor:
        """Logits of all positions of one image in three passes; see `ReadingHead`."""
        return fill_canvas(self, states_NW, Rng.of_choice(0))


CommitRule = Callable[[Tensor, Tensor, Rng], Tensor]
"""Of the probability of each position's likeliest token, ``[N]``, which positions are masks that may
be filled, ``[N]``, and a stream: which of these are filled, ``[N]``."""


def commits_above_mean(chance_N: Tensor, open_N: Tensor, rng: Rng) -> Tensor:
    """Which masks are filled: those whose likeliest token is surer than the mean of all open ones; of
    equally sure ones the first.

    Args:
        chance_N: Probability of each position's likeliest token.
        open_N: Which positions are masks that may be filled.
        rng: Not used.

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


def commits_by_coin(chance_N: Tensor, open_N: Tensor, rng: Rng) -> Tensor:
    """Which masks are filled: each with a chance of a half, however sure it is.

    Args:
        chance_N: Not used but for its length.
        open_N: Which positions are masks that may be filled.
        rng: Decides; it is used up.

    Returns:
        Which are filled.
    """
    # A stream for each position: what one of them draws hangs on no other.
    coins = [rng.child_stream(at).draw_bernoulli(0.5) for at in range(len(chance_N))]
    return open_N & torch.tensor(coins)


class CanvasView:
    """A canvas of one image, and what the network sees on it.

    Attributes:
        head: The network.
        size: Positions.
        token_N: What stands on it, the head's mask where nothing is known.
    """

    def __init__(self, head: MaskedHead, states_NW: Tensor) -> None:
        self.head = head
        self.size = head.longest + 1
        self.token_N = torch.full((self.size,), head.mask)
        self._states_1NW = states_NW[None]
        self._there_1N = torch.ones(1, len(states_NW), dtype=torch.bool)

    def seen_rows(self) -> Tensor:
        """Log-probabilities of all positions, ``[N, V]``: one pass."""
        return self.head(self.token_N[None], self._states_1NW, self._there_1N)[0].log_softmax(-1)

    def show_word(self, token_N: Tensor) -> None:
        """Put a word on the canvas; behind its first end all is mask, as in training.

        Args:
            token_N: Tokens.
        """
        upto_N = torch.arange(self.size) <= first_end(token_N)
        self.token_N = torch.where(upto_N, token_N, self.head.mask)


def _fill_by_passes(
    canvas: CanvasView,
    steps: int,
    rng: Rng,
    window: Callable[[int, int, int], slice],
    commit: CommitRule,
) -> Tensor:
    """Fill some masks in each pass; `window` says of a pass, the number of passes and the size which
    positions it may fill. Log-probabilities of every position."""
    # Each pass fills at least one position; blocks of more passes would hold none.
    steps = min(steps, canvas.size)
    mask = canvas.head.mask
    answer_NV = torch.zeros(canvas.size, mask)
    for step in range(steps):
        rows_NV = canvas.seen_rows()
        # The answer keeps what was seen of a position while it was a mask.
        masked_N = canvas.token_N == mask
        answer_NV = torch.where(masked_N[:, None], rows_NV, answer_NV)
        logp_N, token_N = rows_NV.max(-1)
        upto_N = torch.arange(canvas.size) <= first_end(token_N)
        open_N = masked_N & upto_N
        # One that is left needs no further pass: its row has been seen.
        if int(open_N.sum()) <= 1:
            break
        within_N = torch.zeros(canvas.size, dtype=torch.bool)
        within_N[window(step, steps, canvas.size)] = True
        chosen_N = commit(logp_N.exp(), open_N & within_N, rng.child_stream("pass", step))
        filled_N = torch.where(chosen_N, token_N, canvas.token_N)
        canvas.token_N = torch.where(upto_N, filled_N, mask)
    return answer_NV


def _fill_left_to_right(canvas: CanvasView, steps: int, rng: Rng) -> Tensor:
    """Fill the first mask in each pass until an end is read, as a model that writes letter by letter
    does; `steps` and `rng` are not read. Log-probabilities of every position."""
    answer_NV = torch.zeros(canvas.size, canvas.head.mask)
    for at in range(canvas.size):
        rows_NV = canvas.seen_rows()
        # What is not reached keeps what the last pass saw of it.
        answer_NV[at:] = rows_NV[at:]
        # It stays on the canvas, so that the next pass sees it.
        canvas.token_N[at] = rows_NV[at].argmax()
        if int(canvas.token_N[at]) == END:
            break
    return answer_NV


def _fill_by_cloze(canvas: CanvasView, steps: int, rng: Rng) -> Tensor:
    """Read all letters at once, then each anew beside all others, from the left; `steps` and `rng`
    are not read. Log-probabilities of every position."""
    answer_NV = canvas.seen_rows()
    for at in range(canvas.size):
        read_N = answer_NV.argmax(-1)
        # An end that is read anew may come sooner, or later.
        if at > first_end(read_N):
            break
        canvas.show_word(read_N)
        # Only this letter is hidden, so it is read beside all others.
        canvas.token_N[at] = canvas.head.mask
        answer_NV[at] = canvas.seen_rows()[at]
    return answer_NV


POLICIES: Mapping[str, Callable[[CanvasView, int, Rng], Tensor]] = MappingProxyType(
    {
        "low-confidence": partial(_fill_by_passes, window=_whole_canvas, commit=commits_above_mean),
        "block-low-confidence": partial(
            _fill_by_passes, window=_blocks_in_turn, commit=commits_above_mean
        ),
        "random": partial(_fill_by_passes, window=_whole_canvas, commit=commits_by_coin),
        "left-to-right": _fill_left_to_right,
        "cloze": _fill_by_cloze,
    }
)
"""By its name what fills a canvas: of a canvas, the number of passes and a stream each makes
log-probabilities of every position."""


@torch.inference_mode()
def fill_canvas(
    head: MaskedHead,
    states_NW: Tensor,
    rng: Rng,
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
        rng: Decides where a policy draws; it is not used up.
        steps: Passes, of which no more run than there are positions. 1: all positions are read by
            themselves. "left-to-right" takes as many as the word has letters, "cloze" one more.
        policy: A name of `POLICIES`.
        reflect: Whether one more pass sees the whole word, whose token stands where it is likelier
            than what was read.

    Returns:
        Log-probabilities of every position, ``[longest + 1, V]``.
    """
    # Whatever fills it, all of it is a mask at first.
    canvas = CanvasView(head, states_NW)
    answer_NV = POLICIES[policy](canvas, steps, rng)
    if not reflect:
        return answer_NV
    canvas.show_word(answer_NV.argmax(-1))
    again_NV = canvas.seen_rows()
    # A letter is mended only where the second look is surer than the first.
    surer_N = again_NV.max(-1).values > answer_NV.max(-1).values
    return torch.where(surer_N[:, None], again_NV, answer_NV)


def first_end(token_N: Tensor) -> int:
    """The first position of an end; the last position where there is none."""
    at = (token_N == END).nonzero()
    return int(at[0, 0]) if len(at) else len(token_N) - 1

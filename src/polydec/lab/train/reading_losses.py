"""What readers that read a word at once learn: counts and order (CPPD), a walk from letter to letter
(LISTER), masks and wrong letters (MDiff4STR)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from polydec.models.nets.masked_head import MaskedHead
from polydec.models.nets.neighbour_head import NeighbourHead, NeighbourMaps
from polydec.models.nets.reading_heads import CountingHead

SMOOTH = 0.1
"""Share of a label that all letters get alike (CPPD, as published)."""
STOPPED = 0.01
"""What the walk's end weighs beside its letters (LISTER, as published)."""
SPREAD = 0.001
"""What the walk's spread weighs beside its letters (LISTER, as published)."""
READS = 2.1
"""Nats a letter of the first walk, below which those over refined images are learned (LISTER, as
published)."""
IGNORED = -100

Words = Sequence[tuple[int, ...]]
"""The tokens of words, their ends included."""

MaskPattern = Callable[[int, np.random.Generator], np.ndarray]
"""Of the length of a word with its end and a generator: which places are masked."""

WordLoss = Callable[[Any, Tensor, Tensor, Words, np.random.Generator], Tensor]
"""Of a head, the states of images, which of them are of an image, their words and a generator: the
loss."""


def counting_loss(
    head: CountingHead,
    states_BSW: Tensor,
    there_BS: Tensor,
    words: Words,
    rng: np.random.Generator,
    *,
    auxiliary: float = 1.0,
) -> Tensor:
    """The loss of a counting head: letters, how often each occurs, and which places are taken.

    Args:
        head: The head.
        states_BSW: States of B images.
        there_BS: Which of them are of an image.
        words: Their words.
        rng: Not used.
        auxiliary: What counts and places weigh beside letters; 0 leaves both out. Default 1, as
            published.

    Returns:
        The loss.
    """
    read = head(states_BSW, there_BS)
    assert read.counts_BVC is not None, "letters are counted in training"
    right_BT = torch.full((len(words), read.letters_BTV.shape[1]), IGNORED)
    counts_BV = torch.zeros(read.counts_BVC.shape[:2], dtype=torch.long)
    for i, word in enumerate(words):
        right_BT[i, : len(word)] = torch.tensor(word)
        counts_BV[i] = torch.tensor(word).bincount(minlength=counts_BV.shape[1])
    # More than can be told count as the most that can.
    counts_BV = counts_BV.clamp(max=read.counts_BVC.shape[2] - 1)
    taken_BT = (right_BT != IGNORED).float()
    letters = cross_entropy(
        read.letters_BTV.flatten(0, 1), right_BT.flatten(), label_smoothing=SMOOTH
    )
    counts = cross_entropy(read.counts_BVC.flatten(0, 1), counts_BV.flatten())
    places = binary_cross_entropy_with_logits(read.occupied_BT, taken_BT)
    return letters + auxiliary * (counts + places)


def neighbour_loss(
    head: NeighbourHead,
    states_BSW: Tensor,
    there_BS: Tensor,
    words: Words,
    rng: np.random.Generator,
) -> Tensor:
    """The loss of walks: their letters, that they end behind the last one, and how far they spread.

    Where a head refines images, walks over refined ones weigh as much as the first, once that reads
    some letters.

    Args:
        head: The head.
        states_BSW: States of B images.
        there_BS: Which of them are of an image.
        words: Their words.
        rng: Not used.

    Returns:
        The loss.
    """
    # All words walk as long as the longest one; each is judged up to its own end.
    steps = max(map(len, words))
    letters_B1 = torch.tensor([len(word) - 1 for word in words])[:, None]
    # The step at which a word ends has found no letter.
    found_BT = torch.arange(steps) < letters_B1
    maps = head(states_BSW, there_BS)
    walk_BTM = head.walk_steps(maps, steps)
    whole, said = _walk_loss(head, maps, walk_BTM, words)
    losses = [whole]
    for _ in range(head.rounds if float(said.detach()) < READS else 0):
        maps = head(head.refined_states(maps, walk_BTM, found_BT), there_BS)
        walk_BTM = head.walk_steps(maps, steps)
        losses.append(_walk_loss(head, maps, walk_BTM, words)[0])
    return torch.stack(losses).mean()


def _walk_loss(
    head: NeighbourHead, maps: NeighbourMaps, walk_BTM: Tensor, words: Words
) -> tuple[Tensor, Tensor]:
    """The loss of one walk over each image, and the nats of a letter in it."""
    logp_BTV = head.letters(walk_BTM @ maps.rows_BMW).log_softmax(-1)
    total = torch.zeros(())
    nats = torch.zeros(())
    for i, word in enumerate(words):
        *letters, _ = word
        walk_TM = walk_BTM[i, : len(word)]
        right_T = torch.tensor(letters)
        said = -logp_BTV[i, : len(letters)].gather(1, right_T[:, None]).mean()
        ended = -walk_TM[-1, -1].clamp(min=1e-6).log()
        # Over the positions that there are, so that a wide image may spread as much as a narrow one.
        size = float(maps.there_BS[i].sum() + 1)
        entropy = -(walk_TM * walk_TM.clamp(min=1e-9).log()).sum(-1).mean() / np.log(size)
        nats = nats + said
        total = total + said + STOPPED * ended + SPREAD * entropy
    return total / len(words), nats / len(words)


def masked_loss(
    head: MaskedHead,
    states_BSW: Tensor,
    there_BS: Tensor,
    words: Words,
    rng: np.random.Generator,
    *,
    patterns: Sequence[MaskPattern] = (),
    replaced: float = 1.0,
) -> Tensor:
    """The loss of a masked head: letters behind masks of six patterns, and all letters of words in
    which some stand wrongly.

    Args:
        head: The head.
        states_BSW: States of B images.
        there_BS: Which of them are of an image.
        words: Their words.
        rng: Decides what is masked and what stands wrongly; it is advanced.
        patterns: Which are drawn from. Default (): all six.
        replaced: What wrong letters weigh beside masks; 0 leaves them out. Default 1, as published.

    Returns:
        The loss.
    """
    size = head.longest + 1
    right_BN = torch.full((len(words), size), head.mask)
    for i, word in enumerate(words):
        right_BN[i, : len(word)] = torch.tensor(word)
    masked_BN = torch.zeros(len(words), size, dtype=torch.bool)
    for i, word in enumerate(words):
        masked_BN[i, : len(word)] = torch.from_numpy(
            draw_masked_places(len(word), rng, patterns or PATTERNS)
        )
    canvas_BN = right_BN.masked_fill(masked_BN, head.mask)
    masks = denoising_loss(
        head(canvas_BN, states_BSW, there_BS), right_BN, masked_BN, [len(w) for w in words]
    )
    # A second run of the head is saved where it would weigh nothing.
    if not replaced:
        return masks
    return masks + replaced * replacement_loss(head, states_BSW, there_BS, right_BN, rng)


def denoising_loss(
    logits_BNV: Tensor, right_BN: Tensor, masked_BN: Tensor, lengths: Sequence[int]
) -> Tensor:
    """Cross-entropy of masked places, of each word over the share that is masked and its length and one.

    Args:
        logits_BNV: Of all places.
        right_BN: Tokens that belong there.
        masked_BN: Which were masked.
        lengths: Tokens of each word, its end included.

    Returns:
        The mean over words.
    """
    # Few masks weigh as much as many: each word counts alike.
    long_B = torch.tensor(lengths, dtype=torch.float32)
    logp_BNV = logits_BNV.log_softmax(-1)
    # Places that are not masked hold tokens that the head may have no logit of.
    right_BN = right_BN.masked_fill(~masked_BN, 0)
    nats_BN = -logp_BNV.gather(2, right_BN[..., None])[..., 0] * masked_BN
    share_B = masked_BN.sum(1) / long_B
    return (nats_BN.sum(1) / (share_B * (long_B + 1))).mean()


def replacement_loss(
    head: MaskedHead,
    states_BSW: Tensor,
    there_BS: Tensor,
    right_BN: Tensor,
    rng: np.random.Generator,
) -> Tensor:
    """Cross-entropy of all letters of words of which a share stands wrongly, so that a head learns to
    doubt what it reads on its canvas.

    Args:
        head: The head.
        states_BSW: States of B images.
        there_BS: Which of them are of an image.
        right_BN: Tokens of the words, masks behind them.
        rng: Decides which letters are replaced, and by what; it is advanced.

    Returns:
        The mean over all letters.
    """
    # Nothing is replaced behind a word, where all is mask in reading, too.
    word_BN = right_BN != head.mask
    share_B1 = torch.from_numpy(rng.uniform(0.001, 1, (len(right_BN), 1))).float()
    dice_BN = torch.from_numpy(rng.random(right_BN.shape)).float()
    other_BN = torch.from_numpy(rng.integers(0, head.mask + 1, right_BN.shape))
    noisy_BN = torch.where(word_BN & (dice_BN < share_B1), other_BN, right_BN)
    logits_BNV = head(noisy_BN, states_BSW, there_BS)
    return cross_entropy(logits_BNV[word_BN], right_BN[word_BN])


def draw_masked_places(
    length: int, rng: np.random.Generator, patterns: Sequence[MaskPattern]
) -> np.ndarray:
    """Which places of a word are masked, by one of the patterns that reading will show: all, behind a
    beginning, before an end, behind some blocks, one, or any.

    Args:
        length: Tokens of the word, its end included.
        rng: Decides; it is advanced.
        patterns: Of `PATTERNS`, by which each is drawn alike.

    Returns:
        Whether each is masked, at least one.
    """
    pattern = patterns[int(rng.integers(len(patterns)))]
    # A short word has no inner place to cut at.
    if length <= 2 and pattern in INNER:
        pattern = _any_masked
    return pattern(length, rng)


def _all_masked(length: int, rng: np.random.Generator) -> np.ndarray:
    return np.ones(length, dtype=bool)


def _behind_beginning(length: int, rng: np.random.Generator) -> np.ndarray:
    return np.arange(length) >= rng.integers(1, length)


def _before_end(length: int, rng: np.random.Generator) -> np.ndarray:
    return np.arange(length) < rng.integers(1, length)


def _behind_blocks(length: int, rng: np.random.Generator) -> np.ndarray:
    block = -(-length // int(rng.integers(2, 7)))
    # At least one whole block is known, and something is masked.
    known = block * int(rng.integers(1, max(2, -(-length // block))))
    return np.arange(length) >= min(known, length - 1)


def _one_masked(length: int, rng: np.random.Generator) -> np.ndarray:
    return np.arange(length) == rng.integers(length)


def _any_masked(length: int, rng: np.random.Generator) -> np.ndarray:
    masked = rng.random(length) < rng.random()
    masked[int(rng.integers(length))] = True
    return masked


INNER = (_behind_beginning, _before_end, _behind_blocks, _one_masked)
"""Patterns that need a word of at least three tokens."""
PATTERNS: tuple[MaskPattern, ...] = (_all_masked, *INNER, _any_masked)
"""The six patterns, as published."""

LOSSES: Mapping[str, WordLoss] = MappingProxyType(
    {"cppd": counting_loss, "lister": neighbour_loss, "mdiff4str": masked_loss}
)
"""What each kind of head learns by."""
